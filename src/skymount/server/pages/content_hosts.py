"""Hosts of content: where a skylink has an origin of its own, apart from the portal's pages."""

from dataclasses import dataclass
from urllib.parse import quote, unquote

from starlette.requests import Request

from skymount.errors import MalformedError
from skymount.server.http.host_header import RequestHost
from skymount.server.http.requester import HOST, IS_ISOLATED, IS_PROXIED
from skymount.wire.dialect import PRESETS
from skymount.wire.hns import parse_domain
from skymount.wire.skylink import Skylink

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_BY_SKYLINK = ("/file/", *(f"{dialect.path('skylink')}/" for dialect in PRESETS.values()), "/")


@dataclass(frozen=True, slots=True)
class ContentHosts:
    """Finds the host of content. URLs have no scheme, as a proxy may speak TLS for the portal."""

    name: str
    """Below it are the hosts of content, where the portal is not used by loopback; or empty."""

    def url(self, request: Request) -> str:
        """Return where the content of a request is under a host of its own, or empty."""
        host: RequestHost = request.scope[HOST]
        if host.content or not request.scope[IS_ISOLATED]:
            return ""
        path = request.scope["path"]
        if path.startswith("/hns/"):
            domain, _, below = path.removeprefix("/hns/").partition("/")
            try:
                domain = parse_domain(unquote(domain, errors="strict"))
            except (MalformedError, UnicodeDecodeError):
                return ""
            label, content = f"{domain}.hns", f"/hns/{domain}"
        else:
            prefix = next(each for each in _BY_SKYLINK if path.startswith(each))
            link, _, below = path.removeprefix(prefix).partition("/")
            label = Skylink(link).base32
            content = f"/{label}"
        query = request.scope["query_string"].decode("latin-1")
        target = f"/{below}" + (f"?{query}" if query else "")
        return self._join(request, label, content, target)

    def url_of(self, request: Request, skylink: Skylink, path: str) -> str:
        """Return where a file of a skylink is under a host of its own, or empty."""
        if not request.scope[IS_ISOLATED]:
            return ""
        label = skylink.base32
        return self._join(request, label, f"/{label}", f"/{quote(path)}")

    def _join(self, request: Request, label: str, content: str, target: str) -> str:
        host: RequestHost = request.scope[HOST]
        if host.name in _LOOPBACK or host.name.endswith(".localhost"):
            # Behind a proxy that would be the visitor's own machine.
            parent = "" if request.scope.get(IS_PROXIED) else "localhost"
        else:
            parent = self.name
        if not parent:
            return ""
        authority = f"{label}.{parent}" + (f":{host.port}" if host.port else "")
        try:
            selected = RequestHost.parse(authority).content
        except MalformedError:  # a domain with longer labels than a host name may have
            return ""
        if selected != content:  # a domain with labels that select something else
            return ""
        return f"//{authority}{target}"


def portal_url(request: Request) -> str:
    """Return the URL of the portal itself for a page at a host of content; else empty."""
    host: RequestHost | None = request.scope.get(HOST)
    return f"//{host.authority}" if host is not None and host.content else ""

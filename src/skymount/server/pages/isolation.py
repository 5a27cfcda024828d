"""Which content a browser may show under the portal's own host, how it is previewed, and the hosts
where a skylink has an origin of its own.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from skymount.errors import MalformedError
from skymount.server.http.messages import Request, fields
from skymount.server.http.origins import RequestHost
from skymount.wire.dialect import PRESETS
from skymount.wire.hns import parse_domain
from skymount.wire.skylink import Skylink

SANDBOX = fields(
    (
        "Content-Security-Policy",
        "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
    ),
    ("X-Content-Type-Options", "nosniff"),
)
"""For content under the portal's own host: its origin is then that of nothing else."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_BY_SKYLINK = ("/file/", *(f"{dialect.path('skylink')}/" for dialect in PRESETS.values()), "/")


@dataclass(frozen=True, slots=True)
class ContentHosts:
    """Finds the host of content. URLs have no scheme, as a proxy may speak TLS for the portal."""

    name: str
    """Below it are the hosts of content, where the portal is not used by loopback; or empty."""

    def url(self, request: Request) -> str:
        """Return where the content of a request is under a host of its own, or empty."""
        if not is_isolated(request):
            return ""
        path = request.path
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
        target = f"/{below}" + (f"?{request.query}" if request.query else "")
        return self._join(request, label, content, target)

    def url_of(self, request: Request, skylink: Skylink, path: str) -> str:
        """Return where a file of a skylink is under a host of its own, or empty."""
        if not request.asker.is_isolated:
            return ""
        label = skylink.base32
        return self._join(request, label, f"/{label}", f"/{quote(path)}")

    def _join(self, request: Request, label: str, content: str, target: str) -> str:
        host = request.asker.host
        if host is None:
            return ""
        if host.name in _LOOPBACK or host.name.endswith(".localhost"):
            # Behind a proxy that would be the visitor's own machine.
            parent = "" if request.asker.is_proxied else "localhost"
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


def is_isolated(request: Request) -> bool:
    """Whether content is under the portal's own host, and must not have its origin."""
    return request.asker.content_host is None and request.asker.is_isolated


_INERT_KINDS = ("audio/", "video/")
_INERT = frozenset(
    {
        *(f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp", "avif", "bmp", "x-icon")),
        *(f"text/{kind}" for kind in ("plain", "css", "csv", "markdown", "javascript")),
        *(f"application/{kind}" for kind in ("octet-stream", "json", "javascript", "wasm")),
        *(f"application/{kind}" for kind in ("zip", "gzip", "x-gzip", "x-tar", "x-bzip2")),
        "image/vnd.microsoft.icon",
        "application/ogg",
    }
)
_TEXT = frozenset(
    {
        *(f"application/{kind}" for kind in ("json", "javascript", "xml", "x-sh", "sql", "toml")),
        *(f"application/{kind}" for kind in ("x-yaml", "yaml", "x-python", "x-ndjson")),
        "image/svg+xml",
    }
)
_ESSENCE = re.compile(r"([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)[\t ]*(?:;[^,]*)?", re.IGNORECASE)


def essence(content_type: str) -> str:
    """Return a type without its parameters; empty for what browsers could read otherwise."""
    match = _ESSENCE.fullmatch(content_type.strip())
    return match[1].lower() if match else ""


def is_inert(content_type: str) -> bool:
    """Whether nothing of such content can run in a browser that is sent to it."""
    found = essence(content_type)
    return found in _INERT or found.startswith(_INERT_KINDS)


def preview_kind(content_type: str) -> str:
    """Return how content is previewed: image, audio, video, pdf, text, or empty for not at all."""
    found = essence(content_type)
    if found == "application/ogg":
        return "audio"
    for kind in ("image", "audio", "video"):
        if found.startswith(f"{kind}/") and (kind != "image" or found in _INERT):
            return kind
    if found == "image/svg+xml":
        return "image"
    if found == "application/pdf":
        return "pdf"
    is_text = found.startswith("text/") or found in _TEXT or found.endswith(("+json", "+xml"))
    return "text" if is_text else ""

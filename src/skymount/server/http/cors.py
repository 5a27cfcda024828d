"""CORS: which web pages, known by their origin, may use the portal."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

from skymount.errors import MalformedError
from skymount.server.http.host_header import RequestHost
from skymount.server.http.responses import HeaderList
from skymount.wire.dialect import PRESETS

ANY = "*"  # as an allowed origin: every page

_ALL_METHODS = "GET, POST, HEAD, OPTIONS, PUT, PATCH, DELETE"  # docs/wire.md 9
_READ_METHODS = "GET, HEAD"
_EXPOSED_HEADERS = ", ".join(
    [
        *(name for dialect in PRESETS.values() for name in dialect.answer_headers),
        *("Accept-Ranges", "Content-Disposition", "Content-Length", "Content-Range", "ETag"),
    ]
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]{0,31})://([^/?#@:\[\]\s]{1,300}|\[[0-9a-f:.]{2,80}\])(:[0-9]{1,5})?/?"
)
_REQUEST_HEADERS = re.compile(r"[A-Za-z0-9_-]{1,64}( ?, ?[A-Za-z0-9_-]{1,64}){0,63}")


def parse_origin(text: str) -> str:
    """Return an origin as browsers spell it; ``*`` and ``null`` too. MalformedError otherwise."""
    if text in (ANY, "null"):
        return text
    match = _ORIGIN.fullmatch(text.lower())
    if match is None:
        raise MalformedError(f"not an origin like https://example.org: {text[:80]!r}")
    scheme, host, port = match[1], match[2], match[3] or ""
    return f"{scheme}://{host}{'' if port == _DEFAULT_PORTS.get(scheme) else port}"


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """The origin of the web page that sends a request."""

    origin: str  # empty when the browser does not tell it
    is_allowed: bool
    is_content: bool  # of this portal, under a host name of its own

    def cors(self, *, reading: bool) -> HeaderList:
        """Return the headers that let the page see a response; none if it may not."""
        if not self.origin or not (self.is_allowed or (self.is_content and reading)):
            return []
        return [
            ("Access-Control-Allow-Origin", self.origin),
            ("Access-Control-Allow-Credentials", "true"),
            ("Access-Control-Expose-Headers", _EXPOSED_HEADERS),
        ]

    def preflight(self, headers: Mapping[str, str]) -> HeaderList:
        methods = _ALL_METHODS if self.is_allowed else _READ_METHODS
        added: HeaderList = [("Access-Control-Allow-Methods", methods)]
        requested = headers.get("access-control-request-headers", "")
        if _REQUEST_HEADERS.fullmatch(requested):
            added.append(("Access-Control-Allow-Headers", requested))
        if headers.get("access-control-request-private-network") == "true":
            added.append(("Access-Control-Allow-Private-Network", "true"))
        return added


def page_origin(
    headers: Mapping[str, str], own_origin: str, allowed: Set[str]
) -> PageOrigin | None:
    """Return the origin of the page that sends a request; None when no page does."""
    # Reads within one origin have no Origin header; Sec-Fetch-Site is "none" when the user reads.
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    if origin is None:
        if site == "none":
            return None
        origin = own_origin if site == "same-origin" else ""
    is_allowed = ANY in allowed or origin in allowed
    return PageOrigin(origin, is_allowed, _is_content(origin, own_origin))


def _is_content(origin: str, own_origin: str) -> bool:
    scheme, _, authority = origin.partition("://")
    try:
        host = RequestHost.parse(authority)
    except MalformedError:
        return False
    return bool(host.content) and f"{scheme}://{host.authority}" == own_origin

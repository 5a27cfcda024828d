"""Host and Origin of a request: which name of the portal it gives, which content that selects, and
which web pages may use the portal (CORS).
"""

import ipaddress
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Self

from skymount.errors import MalformedError
from skymount.wire.dialect import PRESETS

_LENGTH_LIMIT = 262  # characters: a DNS name, its last dot, a colon and a port
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?)(?::([0-9]{0,5}))?")
_SKYLINK_HOST = re.compile(r"([0-9a-v]{55})\.(.+)")
_HNS_HOST = re.compile(r"(.+?)\.hns\.(.+)")


@dataclass(frozen=True, slots=True)
class RequestHost:
    """A parsed Host header. Its first labels may select content (docs/wire.md 4.1)."""

    name: str
    """The portal's own name: lower case, without what selects content; IPv6 in brackets."""
    port: str
    content: str = ""
    """Path of the selected content, ``/<skylink>`` or ``/hns/<domain>``; empty for none."""

    @classmethod
    def parse(cls, text: str, own_names: Set[str] = frozenset()) -> Self:
        """Parse ``name[:port]``, or raise MalformedError. `own_names` never select content."""
        name, port = _split(text)
        if name in own_names:
            return cls(name, port)
        if match := _SKYLINK_HOST.fullmatch(name):
            return cls(match[2], port, f"/{match[1]}")
        if match := _HNS_HOST.fullmatch(name):
            return cls(match[2], port, f"/hns/{match[1]}")
        return cls(name, port)

    @property
    def authority(self) -> str:
        return f"{self.name}:{self.port}" if self.port else self.name


def parse_name(text: str) -> str:
    """Return a host name or address in the form of `RequestHost.name`; else MalformedError."""
    name, port = _split(f"[{text}]" if text.count(":") > 1 and text[0] != "[" else text)
    if port:
        raise MalformedError(f"not a host name or address: {text[:80]!r}")
    return name


def _split(text: str) -> tuple[str, str]:
    match = _HOST.fullmatch(text.lower()) if len(text) <= _LENGTH_LIMIT else None
    if match is None or (match[1][0] == "[" and not is_address(match[1])):
        raise MalformedError(f"not a host name or address: {text[:80]!r}")
    return match[1].removesuffix("."), match[2] or ""


def is_address(name: str) -> bool:
    """Whether a host name is an IP address; IPv6 may be in brackets."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


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

    def cors(self, *, reading: bool) -> list[tuple[str, str]]:
        """Return the headers that let the page see a response; none if it may not."""
        if not self.origin or not (self.is_allowed or (self.is_content and reading)):
            return []
        return [
            ("Access-Control-Allow-Origin", self.origin),
            ("Access-Control-Allow-Credentials", "true"),
            ("Access-Control-Expose-Headers", _EXPOSED_HEADERS),
        ]

    def preflight(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        methods = _ALL_METHODS if self.is_allowed else _READ_METHODS
        added = [("Access-Control-Allow-Methods", methods)]
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

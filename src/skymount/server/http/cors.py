"""Owns which web pages may use the portal, and what an answer tells a browser about it (CORS).

A page is known by its origin, ``scheme://host[:port]``, which browsers send and pages cannot forge.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

from skymount.errors import MalformedError
from skymount.server.http.host_header import RequestHost
from skymount.wire.dialect import PRESETS

ANY = "*"
"""In place of an allowed origin: every page."""

_METHODS = "GET, POST, HEAD, OPTIONS, PUT, PATCH, DELETE"  # wire notes 9
_READING = "GET, HEAD"
_EXPOSED = ", ".join(
    [
        *(name for dialect in PRESETS.values() for name in dialect.answer_headers),
        *("Accept-Ranges", "Content-Disposition", "Content-Length", "Content-Range", "ETag"),
    ]
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]{0,31})://([^/?#@:\[\]\s]{1,300}|\[[0-9a-f:.]{2,80}\])(:[0-9]{1,5})?/?"
)
_ASKED_HEADERS = re.compile(r"[A-Za-z0-9_-]{1,64}( ?, ?[A-Za-z0-9_-]{1,64}){0,63}")

Headers = list[tuple[str, str]]


def parse_origin(text: str) -> str:
    """Return an origin as browsers spell it; ``*`` and ``null`` too. MalformedError otherwise."""
    if text in (ANY, "null"):
        return text
    found = _ORIGIN.fullmatch(text.lower())
    if found is None:
        raise MalformedError(f"not an origin like https://example.org: {text[:80]!r}")
    scheme, host, port = found[1], found[2], found[3] or ""
    return f"{scheme}://{host}{'' if port == _DEFAULT_PORTS.get(scheme) else port}"


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """The web page that a request comes from."""

    origin: str
    """Empty when the browser does not say."""
    is_allowed: bool
    """It may do what any program on this machine may do."""
    is_content: bool
    """It is content of this portal under a host name of its own."""

    def cors(self, *, reading: bool) -> Headers:
        """Return the headers that let the page see an answer; none if it may not.

        Content of the portal sees what it reads from the portal, not more.
        """
        if not self.origin or not (self.is_allowed or (self.is_content and reading)):
            return []
        return [
            ("Access-Control-Allow-Origin", self.origin),
            ("Access-Control-Allow-Credentials", "true"),
            ("Access-Control-Expose-Headers", _EXPOSED),
        ]

    def preflight(self, headers: Mapping[str, str]) -> Headers:
        """Return what else a permitted page is told before it sends what it has announced."""
        told = [("Access-Control-Allow-Methods", _METHODS if self.is_allowed else _READING)]
        asked = headers.get("access-control-request-headers", "")
        if _ASKED_HEADERS.fullmatch(asked):
            told.append(("Access-Control-Allow-Headers", asked))
        if headers.get("access-control-request-private-network") == "true":
            told.append(("Access-Control-Allow-Private-Network", "true"))
        return told


def page_origin(headers: Mapping[str, str], own: str, allowed: Set[str]) -> PageOrigin | None:
    """Return the page that a request comes from; None when no page has sent it.

    `own` is the origin of the portal as this request addressed it. Browsers leave Origin out of
    reads within one origin, but say by Sec-Fetch-Site that a page made them; ``none`` is a person.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    if origin is None:
        if site == "none":
            return None
        origin = own if site == "same-origin" else ""
    is_allowed = ANY in allowed or origin in allowed
    return PageOrigin(origin, is_allowed, _is_content(origin, own))


def _is_content(origin: str, own: str) -> bool:
    """Whether the origin is one of content below the host of the portal itself."""
    scheme, _, authority = origin.partition("://")
    try:
        host = RequestHost.parse(authority)
    except MalformedError:
        return False
    return bool(host.content) and f"{scheme}://{host.authority}" == own

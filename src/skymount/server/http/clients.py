"""Who asks, from which web page, by which name of the portal, and by way of which proxy.

A host name may select content. Which web pages may use the portal is a matter of CORS.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Self

from skymount.errors import MalformedError
from skymount.server.config import UNIX
from skymount.server.http.parsing import Headers
from skymount.wire.dialect import PRESETS, Dialect
from skymount.wire.http.host import is_loopback

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


PAGES = "/-/"
"""Below it are the portal's own pages, besides ``/``. No skylink begins so."""
ASSETS = f"{PAGES}assets/"
"""Below it are the pages' styles and scripts, the same for everybody."""
HEALTH = f"{PAGES}health"
"""Where balancers and monitors ask whether the portal works."""
METRICS = f"{PAGES}metrics"
"""Figures of the portal, which are no page."""
_QUALITY = re.compile(r"q=(0?\.\d{1,3}|0\.?|1(?:\.0{0,3})?)", re.IGNORECASE)
_ACCEPTS = 256  # values of `Accept` that are remembered
_ACCEPT_LIMIT = 4096  # characters of an `Accept` that are read

_JAVA = "Java/"  # programs that prefer HTML unless they are told otherwise
BROWSER = "Mozilla/"
"""The User-Agent of every browser begins with it."""


class Kind(Enum):
    """What a requester does with an answer."""

    PAGE = auto()  # a browser goes there, and shows it to its user
    PART = auto()  # an element of a page, such as an image, a style or a script
    SCRIPT = auto()  # a script in a page fetches it
    AGENT = auto()  # a program that names its dialect
    PROGRAM = auto()  # another program


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks."""

    kind: Kind
    dialect: Dialect | None
    """The one that an agent names."""
    shown_by: tuple[str, ...]
    """The request headers that tell pages and their parts from all else."""

    @property
    def is_browser(self) -> bool:
        """Whether the answer becomes a page, or a part of one."""
        return self.kind in (Kind.PAGE, Kind.PART)

    @property
    def told_by(self) -> tuple[str, ...]:
        """The request headers that tell all kinds from each other, besides `Origin`."""
        return self.shown_by if self.is_browser else tuple({*self.shown_by, "User-Agent"})

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """Find out who sends these request headers."""
        agent = headers.get("user-agent", "")
        mode = headers.get("sec-fetch-mode", "")
        shown_by: tuple[str, ...] = ("Sec-Fetch-Mode",)
        if mode in ("navigate", "no-cors"):
            return cls(Kind.PAGE if mode == "navigate" else Kind.PART, None, shown_by)
        dialect = next((each for each in PRESETS.values() if each.agent in agent), None)
        is_script = "origin" in headers
        if mode:  # some programs send it too, without saying what for
            shown_by += ("Sec-Fetch-Dest",)
            used_as = headers.get("sec-fetch-dest", "")
            if used_as not in ("", "empty"):
                return cls(Kind.PART, None, shown_by)
            is_script = is_script or bool(used_as)
        else:  # an older browser, or one that does not take the connection for secure
            shown_by += ("Accept",)
            if prefers_html(headers.get("accept", "")):
                shown_by += ("User-Agent",)
                if dialect is None and not agent.startswith(_JAVA):
                    return cls(Kind.PAGE, None, shown_by)
        if dialect is not None:
            return cls(Kind.AGENT, dialect, shown_by)
        return cls(Kind.SCRIPT if is_script else Kind.PROGRAM, None, shown_by)


def prefers_html(accept: str) -> bool:
    """Whether nothing is wanted more than ``text/html``, which is named; wildcards do not count."""
    return _prefers_html(accept[:_ACCEPT_LIMIT])


@lru_cache(_ACCEPTS)
def _prefers_html(accept: str) -> bool:
    html = best = 0.0
    for accepted in accept.split(","):
        name, *parameters = (part.strip().lower() for part in accepted.split(";"))
        quality = 1.0
        for parameter in parameters:
            if match := _QUALITY.fullmatch(parameter):
                quality = float(match[1])
        best = max(best, quality)
        if name == "text/html":
            html = max(html, quality)
    return 0 < html == best


def is_page_path(path: str) -> bool:
    """Whether a path is one of the portal's own pages, which no other page may use."""
    return path == "/" or path.startswith(PAGES)


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PEERS = 1024  # whose addresses are remembered
_HOPS = 20  # addresses of `X-Forwarded-For` that are looked at, from its end


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request to the outermost trusted proxy, or to the portal."""

    address: str
    scheme: str  # of the URL that it used


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The proxies whose forwarded headers count."""

    networks: tuple[_Network, ...] = ()
    at_unix_socket: bool = False

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read addresses and networks such as ``10.0.0.0/8``, and ``unix``; MalformedError."""
        found, at_unix_socket = [], False
        for text in texts:
            if text == UNIX.removesuffix(":"):
                at_unix_socket = True
                continue
            try:
                found.append(ipaddress.ip_network(text.strip().strip("[]")))
            except ValueError:
                raise MalformedError(
                    f"not the address or network of a proxy, like 10.0.0.2 or 10.0.0.0/8, "
                    f"nor unix: {text[:80]!r}"
                ) from None
        return cls(tuple(found), at_unix_socket)

    def client(self, peer: str, scheme: str, headers: Headers) -> Client:
        """Return the client of a request that came from the address `peer` by `scheme`.

        Of several values the last one counts, which the proxy itself added; of addresses the last
        one that is no trusted proxy.
        """
        found = _parse_peer(peer)
        peer = str(found or peer)
        if not (self.at_unix_socket if peer == UNIX else self._trusts(found)):
            return Client(peer, scheme)
        said = headers.getlist("x-forwarded-proto")
        last = said[-1].rpartition(",")[2].strip().lower() if said else ""
        scheme = last if last in ("http", "https") else scheme
        hops = ",".join(headers.getlist("x-forwarded-for")).rsplit(",", _HOPS)[-_HOPS:]
        for hop in reversed(hops):
            address = _parse(hop)
            if address is None:
                break
            peer = str(address)
            if not self._trusts(address):
                break
        return Client(peer, scheme)

    def _trusts(self, address: _Address | None) -> bool:
        return address is not None and any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class WrongHost:
    """A Host header that is not the one that the browser has sent."""

    arrived: str
    expected: str  # empty if nobody says so

    def __str__(self) -> str:
        expected = self.expected or "the one that the browser shows"
        return (
            f"the host that arrived here is {self.arrived}, and not {expected}: "
            f"a proxy has replaced the Host header. {PASS_HOST}"
        )


PASS_HOST = "Add to nginx: proxy_set_header Host $http_host; (to Apache: ProxyPreserveHost On)"
"""What to do about a Host header that a proxy has replaced."""


def came_through_proxy(http_version: str, headers: Headers, *, is_browser: bool) -> bool:
    """Whether a proxy has passed a request on; some leave no trace. No browser speaks HTTP/1.0."""
    if is_browser and http_version == "1.0":
        return True
    traces = ("via", "forwarded", "x-real-ip")
    return any(name in traces or name.startswith("x-forwarded-") for name in headers)


def find_wrong_host(
    host: RequestHost, reached: str, headers: Headers, *, is_proxied: bool, public: str
) -> WrongHost | None:
    """Return what is wrong with the Host header of a request, if that can be told.

    `reached` is the address that the request came to, `public` the one that the portal is told.
    """
    arrived = host.authority
    if host.content:
        return None
    if headers.get("sec-fetch-site") == "same-origin":  # a browser says where the page is
        page = headers.get("origin") or headers.get("referer") or ""
        if named := _authority(page.partition("://")[2].partition("/")[0]):
            return None if named == arrived else WrongHost(arrived, named)
    forwarded = [_authority(text) for text in _forwarded_hosts(headers)]
    if any(forwarded):
        if any(named.rpartition(":")[0] == host.name or named == host.name for named in forwarded):
            return None
        return WrongHost(arrived, forwarded[-1])
    own = RequestHost.parse(reached)
    is_own = host.port == own.port and is_loopback(host.name) and is_loopback(own.name)
    if is_proxied and (is_own or (public and arrived == own.authority)):
        return WrongHost(arrived, public)
    return None


def _forwarded_hosts(headers: Headers) -> list[str]:
    values = ",".join(headers.getlist("x-forwarded-host"))
    return values.rsplit(",", _HOPS)[-_HOPS:] if values else []


def _authority(text: str) -> str:
    """Return a host and its port as `RequestHost` does; empty for what is none."""
    try:
        return RequestHost.parse(text.strip()).authority
    except MalformedError:
        return ""


def _parse(text: str) -> _Address | None:
    """Read an address, which may have a port behind it; None for anything else. What stands in its
    zone, any text, is left out.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


_parse_peer = lru_cache(_PEERS)(_parse)


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for what by which name of the portal, as far as access rules have found out."""

    address: str
    """The IP address of the client, or `UNIX`."""
    requester: Requester
    portal_url: str
    """The URL at which clients reach the portal; empty if that is not known."""
    has_pages: bool
    """Whether the portal has pages."""
    host: RequestHost | None = None
    """None if the portal is not called so."""
    is_isolated: bool = True
    """Whether content is kept off the portal's own origin."""
    is_proxied: bool = False
    """Whether a proxy stands before the portal, so that loopback may be another machine."""
    wrong_host: WrongHost | None = None

    @property
    def takes_page(self) -> bool:
        """Whether the answer is a page, where there is one."""
        return self.has_pages and self.requester.kind is Kind.PAGE

    @property
    def content_host(self) -> RequestHost | None:
        """The host, if it is one of content alone."""
        return self.host if self.host is not None and self.host.content else None

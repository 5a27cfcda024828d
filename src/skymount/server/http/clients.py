"""Who asks, and by way of which proxy."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Self

from skymount.errors import MalformedError
from skymount.server.config import UNIX
from skymount.server.http.origins import RequestHost
from skymount.server.http.parsing import Headers
from skymount.wire.dialect import PRESETS, Dialect
from skymount.wire.http.host import is_loopback

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

"""What a trusted proxy says about a client: its address, and whether it speaks TLS. And whether a
proxy has replaced the Host header. No IO.

Anybody can send the headers of proxies, so what they say about clients counts only from the
addresses that the portal is told.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers

from skymount.errors import MalformedError
from skymount.server.config import UNIX
from skymount.server.http.host_header import RequestHost
from skymount.wire.http.host import is_loopback

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

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
        found = _parse(peer)
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

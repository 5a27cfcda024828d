"""What a trusted proxy says about a client: its address, and whether it speaks TLS. No IO.

Anybody can send these headers, so they count only from the addresses that the portal is told.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers

from skymount.errors import MalformedError
from skymount.server.config import UNIX

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


def _parse(text: str) -> _Address | None:
    """Read an address, which may have a port behind it; None for anything else."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found

"""Proxies of the environment: which one a request goes through, and tunnels through it."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.request import getproxies

import h11
import httpx

from skymount.errors import UnavailableError

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy."""

    scheme: str
    host: str
    port: int
    authorization: bytes = field(default=b"", repr=False)
    """The value of a Proxy-Authorization header; empty without credentials."""

    def __str__(self) -> str:
        return f"the proxy {self.scheme}://{self.host}:{self.port}"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"Proxy-Authorization", self.authorization)] if self.authorization else []


class TunnelRefusedError(httpx.ProxyError):
    """A proxy does not connect to the origin."""

    def __init__(self, proxy: Proxy, status: int, reason: str) -> None:
        super().__init__(f"{proxy} refuses a tunnel: {status} {reason}")
        self.proxy, self.status = proxy, status


@dataclass(frozen=True, slots=True)
class Route:
    """The origin that a connection leads to, and the proxy on the way."""

    scheme: str
    host: str
    port: int
    proxy: Proxy | None = None

    @classmethod
    def of(cls, url: httpx.URL, proxy: Proxy | None = None) -> "Route":
        """Return the route to a URL's origin; httpx.UnsupportedProtocol if there can be none."""
        host = url.raw_host.decode("ascii")
        if url.scheme not in _PORTS or not host:
            raise httpx.UnsupportedProtocol(f"no connection can be made to {url.scheme[:20]}://")
        return cls(url.scheme, host, url.port or _PORTS[url.scheme], proxy)

    @property
    def is_tunnel(self) -> bool:
        """Whether the proxy passes bytes on as they are."""
        return self.proxy is not None and self.scheme == "https"

    def target(self, url: httpx.URL) -> bytes:
        """Return how a request for a URL names it: in absolute form to a proxy (RFC 9112, 3.2)."""
        if self.proxy is None or self.is_tunnel:
            return url.raw_path
        return b"%b://%b%b" % (url.raw_scheme, url.netloc, url.raw_path)

    def connect_request(self) -> h11.Request:
        """Return the request for a tunnel (RFC 9110, 9.3.6)."""
        assert self.proxy is not None
        host = f"[{self.host}]" if ":" in self.host else self.host
        target = f"{host}:{self.port}".encode("ascii")
        headers = [(b"Host", target), *self.proxy.headers]
        return h11.Request(method=b"CONNECT", target=target, headers=headers)


@dataclass(frozen=True, slots=True)
class _Exception:
    """An entry of NO_PROXY, by the rules of httpx."""

    scheme: str
    host: str
    """Empty: any."""
    port: int | None
    has_host: bool
    """Whether it names the host itself."""
    has_subdomains: bool

    @classmethod
    def parse(cls, entry: str) -> "_Exception | None":
        """Return what an entry names; None if that is nothing.

        ``example.com`` names its subdomains as well, ``.example.com`` only them, and an entry with
        a scheme names them if its host begins with an asterisk. Any may have a port.
        """
        scheme, separator, address = entry.rpartition("://")
        if not separator and address not in ("*", "localhost"):
            bare = address.partition("/")[0]
            if not _is_ip(bare):
                address = f"*{address}"
            elif ":" in bare:
                address = f"[{bare}]"
        domain = address.removeprefix("*")
        has_subdomains = domain != address
        name = domain.removeprefix(".") if has_subdomains else domain
        try:
            url = httpx.URL(f"{scheme or 'all'}://{name}")
        except httpx.InvalidURL:
            return None
        if domain and not name:
            return None
        return cls(url.scheme, url.host, url.port, name == domain, has_subdomains)

    def matches(self, url: httpx.URL) -> bool:
        if self.scheme not in ("all", url.scheme) or self.port not in (None, url.port):
            return False
        if not self.host:
            return True
        if url.host == self.host:
            return self.has_host
        return self.has_subdomains and url.host.endswith(f".{self.host}") and not _is_ip(url.host)


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class EnvironmentProxies:
    """The proxies that the environment names: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

    def __init__(self, named: Mapping[str, str] | None = None) -> None:
        """`named` is what `urllib.request.getproxies` returns."""
        self._named = getproxies() if named is None else dict(named)
        entries = [entry.strip().lower() for entry in self._named.get("no", "").split(",")]
        self._exceptions = [
            found for found in map(_Exception.parse, filter(None, entries)) if found
        ]
        self._parsed: dict[str, Proxy] = {}

    def proxy_for(self, url: httpx.URL) -> Proxy | None:
        """Return the proxy for a URL, if any; UnavailableError if it cannot be used."""
        address = self._named.get(url.scheme) or self._named.get("all")
        if not address or any(exception.matches(url) for exception in self._exceptions):
            return None
        if address not in self._parsed:
            self._parsed[address] = _parsed(address)
        return self._parsed[address]


def proxy_of(url: str) -> Proxy | None:
    """Return the proxy that the environment names for a URL; UnavailableError if it is unusable."""
    return EnvironmentProxies().proxy_for(httpx.URL(url))


def _parsed(address: str) -> Proxy:
    try:
        url = httpx.URL(address if "://" in address else f"http://{address}")
    except httpx.InvalidURL:  # what is wrong may be part of a password
        raise UnavailableError("the address of a proxy in the environment is not valid") from None
    if url.scheme not in _PORTS or not url.host:
        raise UnavailableError(
            f"the proxy {url.scheme[:20]}://{url.host} of the environment is not an HTTP proxy: "
            "name one that is, or except the portal's host in no_proxy"
        )
    authorization = b""
    if url.username or url.password:
        credentials = base64.b64encode(f"{url.username}:{url.password}".encode())
        authorization = b"Basic " + credentials
    host = url.raw_host.decode("ascii")
    return Proxy(url.scheme, host, url.port or _PORTS[url.scheme], authorization)

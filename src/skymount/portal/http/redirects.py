"""Which redirects are followed, with which headers, and where to (docs/library.md, C6, C7)."""

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import httpx

from skymount.errors import BadContentError, PortalError, RequestRefusedError
from skymount.portal.http.advice import MOVED
from skymount.portal.http.request import Call, Content
from skymount.portal.http.stream import NotFollowedError

_PORTS = {"http": 80, "https": 443}
_SHARED = ip_network("100.64.0.0/10")  # RFC 6598: behind a provider's address translation
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052
_COMPATIBLE = IPv6Network("::/96")  # RFC 4291, 2.5.5.1


class Reach(Enum):
    """Who can be at an address."""

    PUBLIC = "public"
    PRIVATE = "private"
    SHARED = "shared"
    LINK_LOCAL = "link-local"
    LOOPBACK = "loopback"
    MULTICAST = "multicast"


def reach_of(address: str) -> Reach:
    """Return the kind of a numeric address, or of the IPv4 address in it; ValueError for a name."""
    found = ip_address(address.partition("%")[0])
    inner = _embedded(found) if isinstance(found, IPv6Address) else None
    found = inner or found
    if found.is_loopback or found.is_unspecified:  # both lead to this machine
        return Reach.LOOPBACK
    if found.is_link_local:
        return Reach.LINK_LOCAL
    if found.is_multicast:
        return Reach.MULTICAST
    if found in _SHARED:
        return Reach.SHARED
    is_site_local = isinstance(found, IPv6Address) and found.is_site_local
    is_public = found.is_global and not (found.is_reserved or is_site_local)
    return Reach.PUBLIC if is_public else Reach.PRIVATE


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped or address.sixtofour:
        return address.ipv4_mapped or address.sixtofour
    if address.teredo:
        return address.teredo[1]
    is_compatible = address in _COMPATIBLE and int(address) > 1
    if address in _NAT64 or is_compatible:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def reach_of_host(host: str) -> Reach | None:
    """Return the kind of a host that is no name to look up, else None.

    An IPv4 address has many spellings: ``127.1``, ``0x7f000001``, ``017700000001``.
    """
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return Reach.LOOPBACK
    try:
        return reach_of(name)
    except ValueError:
        pass
    try:
        return reach_of(socket.inet_ntoa(socket.inet_aton(name)))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class RedirectTarget:
    """The addresses that a redirect may lead to."""

    reach: Reach
    """Of the address that it came from."""
    keeps_host: bool
    """Whether it leads to the same host name, or to one that the user has named."""

    def check(self, address: str) -> None:
        """NotFollowedError unless it may lead to this numeric address."""
        self.check_reach(reach_of(address))

    def check_reach(self, target: Reach) -> None:
        """NotFollowedError unless it may lead to an address of this kind."""
        if target is Reach.PUBLIC:
            return
        if target is not self.reach:
            raise NotFollowedError(f"leads from a {self.reach.value} to a {target.value} address")
        if target is Reach.LOOPBACK and not self.keeps_host:
            raise NotFollowedError("leads to another name of this machine")


def next_request(
    call: Call,
    before: httpx.Request,
    response: httpx.Response,
    content: Content | None,
    private: frozenset[bytes],
) -> httpx.Request:
    """Return the request that follows a redirect; an error if it must not be followed.

    httpx decides on method and body: 307 and 308 keep both, any other makes a POST a GET. `private`
    are the names of headers that do not go to another origin.
    """
    then = response.next_request
    assert then is not None
    allowed = _redirect_target(call, before, then, response.extensions["peer"])
    try:
        _check(call, before, then, allowed)
    except NotFollowedError as error:
        raise refusal(call, before, then, response.status_code, error) from None
    if _has_body(then) and isinstance(content, AsyncIterator):
        raise call.error(
            RequestRefusedError,
            "the portal redirects the upload, whose content can be read only once",
            response.status_code,
        )
    dropped = set(private)
    if then.method != before.method:
        dropped.add(b"content-type")
    kept = [item for item in then.headers.raw if item[0].lower() not in dropped]
    if _is_same(before.url, then.url):
        kept += [item for item in before.headers.raw if item[0].lower() in private]
    then.headers = httpx.Headers(kept)
    then.extensions = {**then.extensions, "check_address": allowed.check}
    return then


def refusal(
    call: Call, before: httpx.Request, then: httpx.Request, status: int, why: NotFollowedError
) -> PortalError:
    """Make the error of a redirect that is not followed."""
    where = f"redirected ({status}) from {_shown(before.url)} to {_shown(then.url)}"
    text = f"a redirect that {why} is not followed: {where}"
    error = call.error(BadContentError, text, status)
    error.advice = MOVED
    return error


def _redirect_target(
    call: Call, before: httpx.Request, then: httpx.Request, peer: str | None
) -> RedirectTarget:
    named = reach_of_host(_host(before.url)) or Reach.PUBLIC
    reach = named if peer is None else reach_of(peer)
    return RedirectTarget(reach, _host(before.url) == _host(then.url) or _is_named(call, then.url))


def _check(call: Call, before: httpx.Request, then: httpx.Request, allowed: RedirectTarget) -> None:
    """NotFollowedError if the redirect is refused before a name is looked up."""
    if before.url.scheme == "https" and then.url.scheme != "https":
        raise NotFollowedError("leads from https to http")
    if then.method != before.method and not call.request.is_answered:
        raise NotFollowedError(f"makes a {then.method} of a {before.method}")
    stays = _is_same(httpx.URL(call.portal), then.url)
    if _has_body(then) and not (stays or _is_named(call, then.url)):
        raise NotFollowedError("takes what is sent to another origin")
    reach = reach_of_host(_host(then.url))
    if reach is not None:
        allowed.check_reach(reach)


def _has_body(request: httpx.Request) -> bool:
    return request.method not in ("GET", "HEAD")


def _is_same(one: httpx.URL, other: httpx.URL) -> bool:
    """Whether two URLs have one origin, or the other is the same host by https: on the default port
    of each, or on one port.
    """
    if _host(one) != _host(other):
        return False
    if one.scheme == other.scheme:
        return _port(one) == _port(other)
    is_upgrade = (one.scheme, other.scheme) == ("http", "https")
    has_defaults = one.port is None and other.port is None
    return is_upgrade and (has_defaults or _port(one) == _port(other))


def _is_named(call: Call, url: httpx.URL) -> bool:
    named = call.options.redirect_hosts
    return (_host(url), _port(url)) in named or (url.port is None and (_host(url), None) in named)


def _host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").lower()


def _port(url: httpx.URL) -> int | None:
    return url.port or _PORTS.get(url.scheme)


def _shown(url: httpx.URL) -> str:
    """Return an origin as text, without user information."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"

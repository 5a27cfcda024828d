"""Owns which redirects are followed, with what, and to which addresses (docs/library.md, C6, C7).
It only decides: how requests travel is not known here.
"""

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import httpx

from skymount.errors import BadContentError, PortalError, RequestRefusedError
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
    """Return the kind of a numeric address; ValueError for anything else.

    An IPv6 address that stands for an IPv4 one is of that one's kind. What is reserved is private.
    """
    found = ip_address(address.partition("%")[0])
    inner = _embedded(found) if isinstance(found, IPv6Address) else None
    found = inner or found
    if found.is_loopback or found.is_unspecified:  # systems connect to themselves for either
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
    """Return the IPv4 address that an IPv6 address stands for, if any."""
    if address.ipv4_mapped or address.sixtofour:
        return address.ipv4_mapped or address.sixtofour
    if address.teredo:
        return address.teredo[1]
    is_compatible = address in _COMPATIBLE and int(address) > 1
    if address in _NAT64 or is_compatible:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def reach_told_by(host: str) -> Reach | None:
    """Return the kind of address that a URL's host names by itself; None for a name to look up.

    Systems know an IPv4 address by many spellings: ``127.1``, ``0x7f000001``, ``017700000001``.
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
class Leap:
    """A redirect that is being followed, and the kind of address that it came from."""

    reach: Reach
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


def following(
    call: Call,
    before: httpx.Request,
    response: httpx.Response,
    content: Content | None,
    private: frozenset[bytes],
) -> httpx.Request:
    """Return the request that follows a redirect, the response to the one before; an
    error when it must not be followed.

    Method and body are what httpx makes of them: 307 and 308 keep both, any other makes a POST a
    GET. It takes only the Authorization header off a request to another origin; here nothing of the
    user's but the user agent goes there: `private` are the names of the headers that do not.
    """
    then = response.next_request
    assert then is not None
    leap = _leap(call, before, then, response.extensions["peer"])
    try:
        _check(call, before, then, leap)
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
    then.extensions = {**then.extensions, "check_address": leap.check}
    return then


def refusal(
    call: Call, before: httpx.Request, then: httpx.Request, status: int, why: NotFollowedError
) -> PortalError:
    """Make the error of a redirect that is not followed."""
    where = f"redirected ({status}) from {_shown(before.url)} to {_shown(then.url)}"
    return call.error(BadContentError, f"a redirect that {why} is not followed: {where}", status)


def _leap(call: Call, before: httpx.Request, then: httpx.Request, peer: str | None) -> Leap:
    told = reach_told_by(_host(before.url)) or Reach.PUBLIC
    reach = told if peer is None else reach_of(peer)
    return Leap(reach, _host(before.url) == _host(then.url) or _is_named(call, then.url))


def _check(call: Call, before: httpx.Request, then: httpx.Request, leap: Leap) -> None:
    """NotFollowedError if it can be told without looking up a name."""
    if before.url.scheme == "https" and then.url.scheme != "https":
        raise NotFollowedError("leads from https to http")
    if then.method != before.method and not call.request.is_answered:
        raise NotFollowedError(f"makes a {then.method} of a {before.method}")
    stays = _is_same(httpx.URL(call.portal), then.url)
    if _has_body(then) and not (stays or _is_named(call, then.url)):
        raise NotFollowedError("takes what is sent to another origin")
    reach = reach_told_by(_host(then.url))
    if reach is not None:
        leap.check_reach(reach)


def _has_body(request: httpx.Request) -> bool:
    return request.method not in ("GET", "HEAD")


def _is_same(one: httpx.URL, other: httpx.URL) -> bool:
    """Whether two addresses are of one origin, or the other is that of the same host by TLS: from
    one default port to the other, or on the very same port.
    """
    if _host(one) != _host(other):
        return False
    if one.scheme == other.scheme:
        return _port(one) == _port(other)
    is_upgrade = (one.scheme, other.scheme) == ("http", "https")
    has_defaults = one.port is None and other.port is None
    return is_upgrade and (has_defaults or _port(one) == _port(other))


def _is_named(call: Call, url: httpx.URL) -> bool:
    """Whether the user has named the host, with this port or, if it is the default one, without."""
    named = call.options.redirect_hosts
    return (_host(url), _port(url)) in named or (url.port is None and (_host(url), None) in named)


def _host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").lower()


def _port(url: httpx.URL) -> int | None:
    return url.port or _PORTS.get(url.scheme)


def _shown(url: httpx.URL) -> str:
    """Return an origin as text; who is named in it, if anybody, is left out."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"

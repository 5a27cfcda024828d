"""Slows down whoever guesses the portal's password.

Addresses and passwords go in, whether it is the password comes out. Each process counts by itself.
"""

import hmac
import ipaddress
import logging
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from cachetools import TTLCache

from skymount.server.http_error import HttpError

_log = logging.getLogger(__name__)

_REMEMBERED = 3600.0  # seconds: how long a failure counts, and how long right credentials do
_ADDRESSES = 10_000  # that have failed; the one that has failed longest ago is forgotten
_RIGHT_LIMIT = 1000  # credentials that were right
_WAITING = 10  # attempts of one address that wait; more are refused
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds; it doubles with each failure
_IPV6_SITE = 48  # bits of an IPv6 address: the most that a client is commonly given


@dataclass(slots=True)
class _Failures:
    """What one address has failed at."""

    count: int = 0
    waiting: int = 0
    turn: trio.Lock = field(default_factory=trio.Lock)

    @property
    def pause(self) -> float:
        return float(min(_FIRST_PAUSE * 2 ** min(self.count, 20), _LONGEST_PAUSE))


class Passwords:
    """Compares with the password of one portal, which is empty if it has none."""

    def __init__(self, password: bytes) -> None:
        self.is_set = bool(password)
        self.on_wrong: Callable[[], None] = lambda: None
        self._key = secrets.token_bytes(32)
        self._password = self._digest(password)
        timer = trio.current_time
        self._failures: TTLCache[str, _Failures] = TTLCache(_ADDRESSES, _REMEMBERED, timer)
        self._right: TTLCache[bytes, None] = TTLCache(_RIGHT_LIMIT, _REMEMBERED, timer)

    async def check(self, address: str, password: bytes, user: bytes = b"") -> bool:
        """Return whether this is the password; HttpError 429 if that is not looked at.

        What an address tries after a failure waits for its turn and for a pause. Credentials that
        were right there lately do not.
        """
        if not (self.is_set and password):
            return False
        site = site_of(address)
        credentials = self._digest(b"\0".join((site.encode(), user, password)))
        if credentials in self._right:
            self._right[credentials] = None  # for longer
            return True
        failures = self._failures.get(site)
        if failures is None:
            return self._compare(address, password, credentials)
        if failures.waiting >= _WAITING:
            wait = math.ceil(failures.pause * failures.waiting)
            raise HttpError(
                429,
                "too many wrong passwords came from this address, try again later",
                (("Retry-After", str(wait)),),
            )
        failures.waiting += 1
        try:
            async with failures.turn:
                await trio.sleep(failures.pause)
                return self._compare(address, password, credentials)
        finally:
            failures.waiting -= 1

    def _compare(self, address: str, password: bytes, credentials: bytes) -> bool:
        if hmac.compare_digest(self._digest(password), self._password):
            self._right[credentials] = None
            return True
        site = site_of(address)
        failures = self._failures.get(site) or _Failures()
        failures.count += 1
        self._failures[site] = failures  # for longer
        self.on_wrong()
        _log.warning("a wrong password from %s", address or "an address unknown")
        return False

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")


def site_of(address: str) -> str:
    """Return what one client has of an address: of IPv6 the network, all else as it is."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found.packed, _IPV6_SITE), strict=False))

"""The portal's password: where it comes from, what a request carries, and who guesses it."""

import base64
import binascii
import hmac
import ipaddress
import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trio
from cachetools import TTLCache

from skymount import file_permissions
from skymount.errors import ConfigError
from skymount.server.http_error import HttpError
from skymount.wording import readable_size

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


ENVIRONMENT = b"SKYMOUNT_PORTAL_PASSWORD"

_PASSWORD_LIMIT = 4 << 10  # bytes
_CREDENTIALS_LIMIT = 16 << 10  # characters: user and password in base64, with room to spare


def read_password(file: Path | None, environment: Mapping[bytes, bytes]) -> bytes:
    """Return the password, empty for none; ConfigError for a file that cannot be used."""
    if file is None:
        password = environment.get(ENVIRONMENT, b"")
        source = ENVIRONMENT.decode()
    else:
        password = _read_private(file).removesuffix(b"\n")
        source = f"password file {file}"
        if not password:
            raise ConfigError(f"{source} is empty")
    if len(password) > _PASSWORD_LIMIT:
        raise ConfigError(f"{source} holds more than {readable_size(_PASSWORD_LIMIT)}")
    return password


def _read_private(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            if problem := file_permissions.permission_problem(file, os.fstat(opened.fileno())):
                raise ConfigError(f"password file {file} cannot be used: {problem}")
            return opened.read(_PASSWORD_LIMIT + 2)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"password file {file} cannot be read: {reason}") from None


def parse_credentials(header: str) -> tuple[bytes, bytes]:
    """Return user and password of an Authorization header; empty ones if it has none of Basic."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > _CREDENTIALS_LIMIT:
        return b"", b""
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b"", b""
    user, _, password = decoded.partition(b":")
    return user, password

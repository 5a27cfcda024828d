"""The portal's password: where it comes from, what a request carries, who guesses it, and the
sessions of those who gave it to a page.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import trio
from cachetools import TTLCache

from skymount import file_permissions
from skymount.errors import ConfigError
from skymount.server.http.access_log import OWNER
from skymount.server.http.clients import WrongHost
from skymount.server.http.messages import Request
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


TOKEN_HEADER = "skymount-token"
TOKEN_FIELD = "token"

_VALID = 12 * 3600  # seconds after signing in
_SHOWN = 80  # characters of an origin
_SIGNED_OUT_LIMIT = 10_000  # sessions
_STALE = (
    "this page is not current, or the request did not come from it. "
    "Go back, load the page again and repeat what you did"
)


@dataclass(slots=True)
class SignedOut:
    """Sessions that ended before their time, until that time has come.

    If there are too many, the sessions that would end first are forgotten. All that end no later
    than they count as signed out then.
    """

    limit: int = _SIGNED_OUT_LIMIT
    _ends: dict[str, int] = field(default_factory=dict)
    _all_until: int = 0

    def add(self, session: str, ends: int) -> None:
        now = time.time()
        self._ends = {each: end for each, end in self._ends.items() if end > now}
        self._ends[session] = ends
        if len(self._ends) > self.limit:
            first = min(self._ends, key=self._ends.__getitem__)
            self._all_until = max(self._all_until, self._ends.pop(first))

    def has(self, session: str, ends: int) -> bool:
        return session in self._ends or ends <= self._all_until


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of one portal. They end with it, as its key is nowhere else, unless it is made
    by `of` with a secret.
    """

    passwords: Passwords
    _key: bytes = field(repr=False, default_factory=lambda: secrets.token_bytes(32))
    _signed_out: SignedOut = field(default_factory=SignedOut)

    @classmethod
    def of(cls, passwords: Passwords, password: bytes, secret: bytes) -> Self:
        """Return sessions that are the same for all processes that share a password and a secret;
        without a secret those of this process.
        """
        if not secret:
            return cls(passwords)
        return cls(passwords, hmac.digest(secret, b"sessions " + password, "sha256"))

    async def find(self, request: Request) -> str | None:
        """Return the session of a request, empty where none is needed; None if one has to sign
        in. HttpError 429 for one of too many passwords.
        """
        if not self.passwords.is_set:
            return ""
        for session in self._current(request):
            request.visit.user = OWNER
            return session
        user, password = parse_credentials(request.headers.get("authorization", ""))
        if not await self.passwords.check(request.asker.address, password, user):
            return None
        request.visit.user = user.decode("latin-1") or OWNER
        return ""

    def _current(self, request: Request) -> Iterator[str]:
        """Yield the current sessions in the cookies; other programs may add any cookies."""
        for value in _cookies(request.headers.get("cookie", ""), _cookie_name(request)):
            session, _, signature = value.rpartition(".")
            if not self._is_signed("session", session, signature):
                continue
            ends = _end_of(session)
            if ends > time.time() and not self._signed_out.has(session, ends):
                yield session

    async def sign_in(self, request: Request, password: bytes) -> str:
        """Return the Set-Cookie header of a new session, empty for a wrong password; HttpError 429
        for one of too many.
        """
        if not await self.passwords.check(request.asker.address, password):
            return ""
        request.visit.user = OWNER
        session = f"{int(time.time()) + _VALID}.{secrets.token_urlsafe(16)}"
        value = f"{session}.{self._sign('session', session)}"
        return _cookie(request, value, _VALID)

    def sign_out(self, request: Request) -> str:
        """End the sessions of a request; return the Set-Cookie header that removes the cookie."""
        for session in [*self._current(request)]:
            self._signed_out.add(session, _end_of(session))
        return _cookie(request, "", 0)

    def token(self, session: str) -> str:
        return self._sign("token", session)

    def check(self, request: Request, session: str, token: str) -> None:
        """HttpError 403 unless a request comes from one of the session's pages."""
        site = request.headers.get("sec-fetch-site", "same-origin")
        origin = request.headers.get("origin")
        if site not in ("same-origin", "none"):
            raise HttpError(403, _STALE)
        own = request.asker.host.authority if request.asker.host else ""
        if origin is not None and origin.partition("://")[2] != own:
            wrong = WrongHost(own, origin.partition("://")[2][:_SHOWN])
            raise HttpError(403, f"this is not from a page of this portal, or {wrong}")
        if not self._is_signed("token", session, token):
            raise HttpError(403, _STALE)

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()

    def _is_signed(self, purpose: str, text: str, signature: str) -> bool:
        return hmac.compare_digest(self._sign(purpose, text).encode(), signature.encode())


def _cookie_name(request: Request) -> str:
    """Return a name of the port's own: browsers send cookies to every port of a host."""
    host = request.asker.host
    return f"skymount-{(host and host.port) or 'session'}"


def _cookies(header: str, name: str) -> Iterator[str]:
    """Yield the values of a cookie; there may be several, of other paths."""
    for pair in header.split(";"):
        if name in pair:
            key, _, value = pair.partition("=")
            if key.strip() == name:
                yield value.strip()


def _end_of(session: str) -> int:
    """Return the time until which a signed session is valid."""
    return int(session.partition(".")[0])


def _cookie(request: Request, value: str, age: int) -> str:
    cookie = f"{_cookie_name(request)}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict"
    is_tls = request.headers.get("origin", "").startswith("https://")  # at a proxy
    return f"{cookie}; Secure" if is_tls else cookie

"""Who may use the pages: tokens of forms, and the cookie of somebody who gave the password."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from skymount.server.http.access_log import OWNER
from skymount.server.http.clients import WrongHost
from skymount.server.http.messages import Request
from skymount.server.http.passwords import Passwords, parse_credentials
from skymount.server.http_error import HttpError

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

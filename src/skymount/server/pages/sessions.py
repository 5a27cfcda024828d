"""Who may use the pages: tokens of forms, and the cookie of somebody who gave the password."""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from starlette.requests import Request

from skymount.server.http.basic_auth import has_password
from skymount.server.http.host_header import RequestHost
from skymount.server.http.page_requests import HOST
from skymount.server.http_error import HttpError

TOKEN_HEADER = "skymount-token"
TOKEN_FIELD = "token"

_VALID = 12 * 3600  # seconds after signing in
_COOKIES_LIMIT = 16 << 10  # bytes of the header
_STALE = (
    "this page is not current, or the request did not come from it. "
    "Go back, load the page again and repeat what you did"
)


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of one portal. They end with it: its key is nowhere else."""

    password: bytes = field(repr=False)
    _key: bytes = field(repr=False, default_factory=lambda: secrets.token_bytes(32))

    def find(self, request: Request) -> str | None:
        """Return the session of a request, empty where none is needed; None if one has to sign
        in.
        """
        if not self.password or has_password(
            request.headers.get("authorization", ""), self.password
        ):
            return ""
        return self._signed_in(request)

    def _signed_in(self, request: Request) -> str | None:
        header = request.headers.get("cookie", "")
        try:
            cookie = SimpleCookie(header[:_COOKIES_LIMIT]).get(_cookie_name(request))
        except CookieError:
            return None
        session, _, signature = (cookie.value if cookie else "").rpartition(".")
        ends = session.partition(".")[0]
        if not self._is_signed("session", session, signature) or not ends.isdecimal():
            return None
        return session if int(ends) > time.time() else None

    def sign_in(self, request: Request, password: bytes) -> str:
        """Return the Set-Cookie header of a new session; HttpError 403 for a wrong password."""
        if not hmac.compare_digest(password, self.password):
            raise HttpError(403, "this is not the password")
        session = f"{int(time.time()) + _VALID}.{secrets.token_urlsafe(16)}"
        value = f"{session}.{self._sign('session', session)}"
        return _cookie(request, value, _VALID)

    def sign_out(self, request: Request) -> str:
        return _cookie(request, "", 0)

    def token(self, session: str) -> str:
        """Return what the forms of a session carry."""
        return self._sign("token", session)

    def check(self, request: Request, session: str, token: str) -> None:
        """HttpError 403 unless a request comes from one of the session's pages."""
        site = request.headers.get("sec-fetch-site", "same-origin")
        origin = request.headers.get("origin")
        if (
            site not in ("same-origin", "none")
            or (origin is not None and origin.partition("://")[2] != _authority(request))
            or not self._is_signed("token", session, token)
        ):
            raise HttpError(403, _STALE)

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()

    def _is_signed(self, purpose: str, text: str, signature: str) -> bool:
        return hmac.compare_digest(self._sign(purpose, text).encode(), signature.encode())


def _authority(request: Request) -> str:
    host: RequestHost = request.scope[HOST]
    return host.authority


def _cookie_name(request: Request) -> str:
    """Return a name of the port's own: browsers send cookies to every port of a host."""
    host: RequestHost = request.scope[HOST]
    return f"skymount-{host.port or 'session'}"


def _cookie(request: Request, value: str, age: int) -> str:
    name = _cookie_name(request)
    return f"{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict"

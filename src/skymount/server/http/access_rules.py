"""Owns the rules that hold for every endpoint: who may use the portal, by which name, from which
page (contract «Authentication», wire notes 9).

The rules are decided here from the head of a request; bodies pass through untouched. What is not
HTTP (a WebSocket) has no endpoint and is passed on to be refused.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skymount.errors import ConfigError, MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http import responses
from skymount.server.http.basic_auth import has_password
from skymount.server.http.cors import Headers, PageOrigin, page_origin, parse_origin
from skymount.server.http.host_header import RequestHost, is_address, parse_name
from skymount.server.http_error import HttpError
from skymount.wire.dialect import PRESETS, REALM
from skymount.wire.host import is_loopback
from skymount.wire.skylink import BASE32_LENGTH, BASE64_LENGTH

_PREFIXES = frozenset(dialect.prefix for dialect in PRESETS.values())
_AGENTS = tuple(dialect.agent for dialect in PRESETS.values())
_SKYKEYS = frozenset({"createskykey", "addskykey", "skykey", "skykeys", "deleteskykey"})
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_CONTENT = frozenset({"file", "hns", "hnsres"})  # first segments of what browsers open
_WORKER = "service-worker"  # the header of every request for the script of one
_BROWSER = "Mozilla/"  # begins the User-Agent of every browser
_WRONG_AGENT = (
    "Browser access disabled due to security vulnerability. "
    "This portal answers only programs that name the agent token in their User-Agent header."
)


def needs_password(method: str, path: str) -> bool:
    """Whether an endpoint needs the API password, if there is one (wire notes 9).

    Everything below a service prefix that is more than a read does, and all of the skykeys.
    `path` is as sent, percent-encoded.
    """
    first, below = _first_segment(path)
    if first not in _PREFIXES:
        return False
    return method not in _READS or _first_segment(below)[0] in _SKYKEYS


def needs_agent(path: str) -> bool:
    """Whether the agent rule holds for a path: not for downloads (wire notes 9)."""
    first, below = _first_segment(path)
    if first in _PREFIXES:
        return not below.startswith("/skylink")
    return first not in _CONTENT and len(first) not in (BASE32_LENGTH, BASE64_LENGTH)


def _first_segment(path: str) -> tuple[str, str]:
    """Return the first segment of a path, and the path below it."""
    first, slash, below = path.removeprefix("/").partition("/")
    return first, slash + below


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What one portal demands of requests."""

    password: bytes = field(repr=False)
    """Empty: there is none."""
    require_agent: bool
    any_address: bool
    """Every IP address names the portal; no page can make one its own name."""
    any_name: bool
    names: frozenset[str]
    """Host names of the portal beside the loopback ones."""
    origins: frozenset[str]
    """Of pages that may do everything."""

    @classmethod
    def of(cls, config: PortalConfig, *, on_loopback: bool) -> Self:
        """Build from the configuration and from what it listens on; ConfigError when unusable."""
        try:
            names = frozenset(parse_name(name) for name in config.allow_hosts)
            origins = frozenset(parse_origin(origin) for origin in config.allow_origins)
        except MalformedError as error:
            raise ConfigError(str(error)) from None
        any_name = not on_loopback and bool(config.password) and not names
        with suppress(MalformedError):  # an address of a form that no Host header has
            names |= {parse_name(config.host)}
        return cls(
            password=config.password,
            require_agent=config.require_agent,
            any_address=not on_loopback,
            any_name=any_name,
            names=names,
            origins=origins,
        )

    def host(self, headers: Mapping[str, str]) -> RequestHost:
        """Return the host that a request is addressed to; HttpError when it is not this portal.

        Another name that leads here is how a page gets around the same-origin rule of browsers.
        """
        text = headers.get("host", "")
        try:
            host = RequestHost.parse(text, self.names)
        except MalformedError as error:
            raise HttpError(400, str(error)) from None
        if self.any_name or host.name in self.names or is_loopback(host.name):
            return host
        if self.any_address and is_address(host.name):
            return host
        raise HttpError(421, f"this portal is not {host.name[:80]!r} (start it with --allow-host)")

    def check(
        self, method: str, path: str, headers: Mapping[str, str], page: PageOrigin | None
    ) -> None:
        """Refuse a request that may not be made."""
        if self.require_agent and needs_agent(path):
            agent = headers.get("user-agent", "")
            if not any(token in agent for token in _AGENTS):
                raise HttpError(400, _WRONG_AGENT)
        if not _is_sensitive(method, path):
            return
        if self.password and has_password(headers.get("authorization", ""), self.password):
            return
        if page is not None and not page.is_allowed:
            raise HttpError(
                403,
                f"web pages of {page.origin[:80] or 'unknown origin'!r} may not do this "
                "(start the portal with --allow-origin)",
            )
        if self.password and needs_password(method, path):
            raise HttpError(401, "API authentication failed.", _challenge(headers))


def _check_worker(host: RequestHost, headers: Mapping[str, str]) -> None:
    """Refuse the script of a Service Worker that would rule over the portal's own origin.

    Browsers mark the request for it. It is somebody's upload, and would see every other one.
    """
    if _WORKER in headers and not host.content:
        raise HttpError(
            403, "a Service Worker is only served under a host that selects its content"
        )


def _is_sensitive(method: str, path: str) -> bool:
    """Whether a page that is not trusted must not even make the request."""
    return method not in _READS or needs_password(method, path)


def _challenge(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Ask for the password, but not a browser: it would then send it for every page."""
    if headers.get("user-agent", "").startswith(_BROWSER):
        return ()
    return (("WWW-Authenticate", f'Basic realm="{REALM}"'),)


class AccessMiddleware:
    """An ASGI wrapper that lets through what the rules allow.

    A host that selects content is turned into the path of that content.
    """

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or let the application do it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _first_values(scope)
        added: Headers = [("Vary", "Origin")]

        async def marking_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                marks = [(name.lower().encode(), text.encode("latin-1")) for name, text in added]
                message = {**message, "headers": [*message["headers"], *marks]}
            await send(message)

        try:
            host = self._rules.host(headers)
            own = f"{scope['scheme']}://{host.authority}"
            added += _own_headers(own)
            _check_worker(host, headers)
            page = page_origin(headers, own, self._rules.origins)
            scope = _rewritten(scope, host)
            method, path = _asked(scope, headers)
            if page is not None:
                added += page.cors(reading=not _is_sensitive(method, path))
            if scope["method"] == "OPTIONS":
                added += _preflight(method, path, headers, page)
                await Response(status_code=204)(scope, receive, marking_send)
                return
            self._rules.check(method, path, headers, page)
        except HttpError as refusal:
            response = responses.error(refusal.status, refusal.message, list(refusal.headers))
            await response(scope, receive, marking_send)
            return
        await self._app(scope, receive, marking_send)


def _first_values(scope: Scope) -> dict[str, str]:
    """Return the headers of a request; of a repeated one the first."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found


def _own_headers(own: str) -> Headers:
    """Name the address of the portal (wire notes 4.4)."""
    return [
        (name, own)
        for dialect in PRESETS.values()
        for name in (dialect.portal_api_header, dialect.server_api_header)
    ]


def _rewritten(scope: Scope, host: RequestHost) -> Scope:
    if not host.content:
        return scope
    path = host.content + scope["path"]
    return {**scope, "path": path, "raw_path": path.encode("latin-1")}


def _asked(scope: Scope, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return method and path; those of the request to come if a browser asks in advance."""
    method = scope["method"]
    if method == "OPTIONS":
        method = headers.get("access-control-request-method", method)
    return method, scope["path"]


def _preflight(
    method: str, path: str, headers: Mapping[str, str], page: PageOrigin | None
) -> Headers:
    """Answer what a browser asks in advance; HttpError when the page may not do it."""
    if page is None:
        return []
    if not page.cors(reading=not _is_sensitive(method, path)):
        raise HttpError(403, "web pages of this origin may not do this")
    return page.preflight(headers)

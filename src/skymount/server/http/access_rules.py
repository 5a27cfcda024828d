"""Who may use the portal (docs/wire.md 9)."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skymount.errors import ConfigError, MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http import caching, responses
from skymount.server.http.access_log import OWNER, note
from skymount.server.http.basic_auth import parse_credentials
from skymount.server.http.cors import PageOrigin, page_origin, parse_origin
from skymount.server.http.host_header import RequestHost, is_address, parse_name
from skymount.server.http.passwords import Passwords
from skymount.server.http.proxies import (
    PASS_HOST,
    TrustedProxies,
    WrongHost,
    came_through_proxy,
    find_wrong_host,
)
from skymount.server.http.requester import (
    ASSETS,
    BROWSER,
    HAS_PAGES,
    HEALTH,
    HOST,
    IS_ISOLATED,
    IS_PROXIED,
    METRICS,
    PORTAL_URL,
    REQUESTER,
    WRONG_HOST,
    Kind,
    Requester,
    is_page_path,
)
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.wire.dialect import PRESETS, REALM
from skymount.wire.http.host import is_loopback
from skymount.wire.skylink import BASE32_LENGTH, BASE64_LENGTH

_log = logging.getLogger(__name__)

_PREFIXES = frozenset(dialect.prefix for dialect in PRESETS.values())
_AGENT_TOKENS = tuple(dialect.agent for dialect in PRESETS.values())
_SKYKEY_ENDPOINTS = frozenset({"createskykey", "addskykey", "skykey", "skykeys", "deleteskykey"})
_READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_DOWNLOADS = frozenset({"file", "hns", "hnsres"})  # first path segments, besides skylinks
_TOLD_LIMIT = 100  # Host headers of which the log says that they are wrong
_SERVICE_WORKER = "service-worker"  # browsers send this header with a request for its script
_WRONG_AGENT = (
    "Browser access disabled due to security vulnerability. "
    "This portal answers only programs that name the agent token in their User-Agent header."
)


ErrorHandler = Callable[[Request, HttpError], Awaitable[Response]]
"""Makes the answer of an error."""


def needs_password(method: str, path: str) -> bool:
    """Whether a request needs the API password: writes, skykeys (docs/wire.md 9), and metrics."""
    first, below = _first_segment(path)
    if first not in _PREFIXES:
        return path == METRICS
    return method not in _READ_METHODS or _first_segment(below)[0] in _SKYKEY_ENDPOINTS


def needs_agent(path: str) -> bool:
    """Whether `require_agent` holds for a path. Downloads are exempt (docs/wire.md 9)."""
    first, below = _first_segment(path)
    if first in _PREFIXES:
        return not below.startswith("/skylink")
    if path in ("/", HEALTH, METRICS, "/robots.txt") or path.startswith(ASSETS):
        return False
    return first not in _DOWNLOADS and len(first) not in (BASE32_LENGTH, BASE64_LENGTH)


def _needs_trust(method: str, path: str) -> bool:
    return method not in _READ_METHODS or needs_password(method, path)


def _first_segment(path: str) -> tuple[str, str]:
    first, slash, below = path.removeprefix("/").partition("/")
    return first, slash + below


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What one portal demands of requests."""

    passwords: Passwords = field(repr=False)
    require_agent: bool
    any_address: bool
    """Accept every IP address as Host header. No web page can make one its own host name."""
    any_name: bool
    names: frozenset[str]
    origins: frozenset[str]
    public_url: str
    """Where clients reach the portal, without a slash at its end; empty if only they know."""
    proxies: TrustedProxies

    @classmethod
    def of(cls, config: PortalConfig, *, on_loopback: bool) -> Self:
        """Build the rules; ConfigError for a bad host name or origin in the configuration."""
        try:
            names = frozenset(
                parse_name(name) for name in (*config.allow_hosts, config.content_host) if name
            )
            origins = frozenset(parse_origin(origin) for origin in config.allow_origins)
            public_url = parse_public_url(config.public_url)
            proxies = TrustedProxies.parse(config.trusted_proxies)
        except MalformedError as error:
            raise ConfigError(str(error)) from None
        any_name = not on_loopback and bool(config.password) and not config.allow_hosts
        with suppress(MalformedError):  # an address of a form that no Host header has
            names |= {parse_name(config.host)}
        if public_url:
            names |= {_host_of(public_url).name}
        return cls(
            passwords=Passwords(config.password),
            require_agent=config.require_agent,
            any_address=not on_loopback,
            any_name=any_name,
            names=names,
            origins=origins,
            public_url=public_url,
            proxies=proxies,
        )

    def own_origin(self, scheme: str, host: RequestHost) -> str:
        """Return the origin of the portal, as the client of a request sees it."""
        if self.public_url and host.name == _host_of(self.public_url).name:
            scheme = self.public_url.partition("://")[0]
        return f"{scheme}://{host.authority}"

    def host(self, text: str, path: str) -> RequestHost:
        """Parse a Host header; HttpError 400, or 421 against DNS rebinding."""
        with refuse_malformed(400):
            host = RequestHost.parse(text, self.names)
        if self.any_name or host.name in self.names or is_loopback(host.name):
            return host
        if path == HEALTH and not host.content:  # balancers ask by any name
            return host
        if self.any_address and is_address(host.name):
            return host
        name = host.name[:80]
        told = f", its address is {self.public_url}" if self.public_url else ""
        raise HttpError(
            421,
            f"this portal is not {name!r}{told} (start it with --allow-host {name} if it is, or "
            f"with --public-url). If a proxy has put that name there: {PASS_HOST}",
        )

    async def check(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        page: PageOrigin | None,
        address: str,
        *,
        is_direct: bool,
    ) -> str:
        """Return who has given the password, empty if nobody has or it does not matter; HttpError
        400, 401, 403 or 429 for a request of a client that is not allowed. `is_direct` says that
        nothing shows a proxy.
        """
        if self.require_agent and needs_agent(path):
            agent = headers.get("user-agent", "")
            if not any(token in agent for token in _AGENT_TOKENS):
                raise HttpError(400, _WRONG_AGENT)
        if not _needs_trust(method, path) or (is_page_path(path) and path != METRICS):
            return ""
        user, password = parse_credentials(headers.get("authorization", ""))
        if await self.passwords.check(address, password, user):
            return user.decode("latin-1") or OWNER
        if page is not None and not page.is_allowed:
            raise HttpError(
                403,
                f"web pages of {page.origin[:80] or 'unknown origin'!r} may not do this "
                "(start the portal with --allow-origin)",
            )
        if self.passwords.is_set and needs_password(method, path):
            raise HttpError(401, "API authentication failed.", _challenge(headers))
        if path == METRICS and not (is_direct and is_loopback(address)):
            raise HttpError(403, "without a password this is for loopback addresses only")
        return ""


def _check_service_worker(host: RequestHost, headers: Mapping[str, str]) -> None:
    """Refuse Service Workers under the portal's own host: they could intercept its requests."""
    if _SERVICE_WORKER in headers and not host.content:
        raise HttpError(
            403, "a Service Worker is only served under a host that selects its content"
        )


def _challenge(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Ask for the password. Browsers are not asked: they would then send it for every page."""
    if headers.get("user-agent", "").startswith(BROWSER):
        return ()
    return (("WWW-Authenticate", f'Basic realm="{REALM}"'),)


class AccessMiddleware:
    """ASGI middleware that checks the rules, adds CORS headers, and maps hosts to content."""

    def __init__(self, app: ASGIApp, rules: AccessRules, on_error: ErrorHandler) -> None:
        self._app = app
        self._rules = rules
        self._on_error = on_error
        self._told = set[str]()

    def _tell(self, arrived: str, message: str) -> None:
        """Log what is wrong with a Host header, once for each that arrives."""
        if len(self._told) < _TOLD_LIMIT and arrived not in self._told:
            self._told.add(arrived)
            _log.warning("%s", message)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a WebSocket: no endpoint takes it
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        added: responses.HeaderList = []
        client = self._rules.proxies.client(scope["client"][0], scope["scheme"], headers)
        note(scope, address=client.address)
        scope = {
            **scope,
            "client": (client.address, 0),
            "scheme": client.scheme,
            HAS_PAGES: not self._rules.require_agent,
            REQUESTER: Requester.of(headers),
            PORTAL_URL: self._rules.public_url,
        }

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                raw = [*message["headers"], *responses.encode_headers(added)]
                status = message["status"]
                names = self._depends_on(status, scope)
                message = {**message, "headers": caching.complete(status, raw, names)}
            await send(message)

        # HTTP/1.0 needs no Host header. Browsers, which could be deceived, always send one.
        try:
            reached = scope["server"][0] if scope["http_version"] == "1.0" else ""
            host = self._rules.host(headers.get("host", reached), scope["path"])
            wrong = self._wrong_host(scope, host, headers)
            own_origin = self._rules.own_origin(client.scheme, host)
            scope[PORTAL_URL] = self._rules.public_url or own_origin
            added += _portal_address(scope[PORTAL_URL])
            _check_service_worker(host, headers)
            page = page_origin(headers, own_origin, self._rules.origins)
            is_isolated = own_origin not in self._rules.origins
            scope = {
                **_select_content(scope, host),
                HOST: host,
                IS_ISOLATED: is_isolated,
                WRONG_HOST: wrong,
            }
            note(scope, path=scope["path"])
            method, path = _intended_method(scope, headers), scope["path"]
            if is_page_path(path) or page is None or "origin" not in headers:
                cors: responses.HeaderList = []
            else:
                cors = page.cors(reading=not _needs_trust(method, path))
            added += cors
            if scope["method"] != "OPTIONS":
                version = scope["http_version"]
                is_direct = is_loopback(host.name) and not came_through_proxy(
                    version, headers, is_browser=True
                )
                user = await self._rules.check(
                    method, path, headers, page, client.address, is_direct=is_direct
                )
                note(scope, user=user)
            elif page is not None:
                if not cors:
                    raise HttpError(403, "web pages of this origin may not do this")
                added += page.preflight(headers)
        except HttpError as error:
            if error.status == 421:
                self._tell(headers.get("host", ""), error.message)
            response = await self._on_error(Request(scope), error)
            await response(scope, receive, send_with_headers)
            return
        app = Response(status_code=204) if scope["method"] == "OPTIONS" else self._app
        await app(scope, receive, send_with_headers)

    def _wrong_host(self, scope: Scope, host: RequestHost, headers: Headers) -> WrongHost | None:
        """Find out whether a browser's request came through a proxy, and what that did to it."""
        requester: Requester = scope[REQUESTER]
        if requester.kind in (Kind.PROGRAM, Kind.AGENT):
            return None
        public = self._rules.public_url.partition("://")[2]
        version = scope["http_version"]
        is_proxied = came_through_proxy(version, headers, is_browser=requester.is_browser)
        wrong = find_wrong_host(
            host, scope["server"][0], headers, is_proxied=is_proxied, public=public
        )
        is_public = bool(public) and not is_loopback(RequestHost.parse(public).name)
        scope[IS_PROXIED] = is_proxied or is_public or wrong is not None
        if wrong is not None:
            self._tell(wrong.arrived, str(wrong))
        return wrong

    def _depends_on(self, status: int, scope: Scope) -> Iterator[str]:
        """Yield the request headers that decide an answer, besides those its endpoint names."""
        path = scope["path"]
        if not is_page_path(path):
            yield "Origin"
        if (
            status >= caching.FIRST_ERROR
            and scope[HAS_PAGES]
            and scope["method"] in ("GET", "HEAD")
        ):
            yield from scope[REQUESTER].shown_by
        if self._rules.require_agent and needs_agent(path):
            yield "User-Agent"


def _host_of(url: str) -> RequestHost:
    return RequestHost.parse(url.partition("://")[2])


def parse_public_url(text: str) -> str:
    """Return the public address of a portal, ``https://portal.example``; MalformedError."""
    if not text:
        return ""
    origin = parse_origin(text)
    if not origin.startswith(("http://", "https://")):
        raise MalformedError(f"not an address like https://portal.example: {text[:80]!r}")
    return origin


def _portal_address(url: str) -> responses.HeaderList:
    return [
        (name, url)
        for dialect in PRESETS.values()
        for name in (dialect.portal_api_header, dialect.server_api_header)
    ]


def _select_content(scope: Scope, host: RequestHost) -> Scope:
    if not host.content:
        return scope
    path = host.content + scope["path"]
    return {**scope, "path": path, "raw_path": path.encode("latin-1")}


def _intended_method(scope: Scope, headers: Mapping[str, str]) -> str:
    """Return the method; of a CORS preflight the method of the request that it announces."""
    method = str(scope["method"])
    if method == "OPTIONS":
        return headers.get("access-control-request-method", method)
    return method

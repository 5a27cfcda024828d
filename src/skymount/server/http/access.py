"""Who may use the portal (docs/wire.md 9)."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Self

from skymount.errors import ConfigError, MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http.access_log import OWNER
from skymount.server.http.clients import (
    ASSETS,
    BROWSER,
    HEALTH,
    METRICS,
    PASS_HOST,
    Asker,
    Kind,
    PageOrigin,
    Requester,
    RequestHost,
    TrustedProxies,
    WrongHost,
    came_through_proxy,
    find_wrong_host,
    is_address,
    is_page_path,
    page_origin,
    parse_name,
    parse_origin,
)
from skymount.server.http.messages import Request, Response, fields
from skymount.server.http.passwords import Passwords, parse_credentials
from skymount.server.http_error import HttpError
from skymount.wire.dialect import PRESETS, REALM
from skymount.wire.http.host import is_loopback
from skymount.wire.skylink import BASE32_LENGTH, BASE64_LENGTH

_log = logging.getLogger(__name__)

_PREFIXES = frozenset(dialect.prefix for dialect in PRESETS.values())
_AGENT_TOKENS = tuple(dialect.agent for dialect in PRESETS.values())
_SKYKEY_ENDPOINTS = frozenset({"createskykey", "addskykey", "skykey", "skykeys", "deleteskykey"})
_READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_DOWNLOADS = frozenset({"file", "hns", "hnsres"})  # first path segments, besides skylinks
_HOSTS = 1024  # Host headers that are remembered
_TOLD_LIMIT = 100  # Host headers of which the log says that they are wrong
_SERVICE_WORKER = "service-worker"  # browsers send this header with a request for its script
_WRONG_AGENT = (
    "Browser access disabled due to security vulnerability. "
    "This portal answers only programs that name the agent token in their User-Agent header."
)
_NOT_INDEXED = fields(("X-Robots-Tag", "noindex, nofollow"))


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
    added: bytes = b""
    """The headers of every answer, encoded."""

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
            added=_NOT_INDEXED if config.noindex else b"",
        )

    def own_origin(self, scheme: str, host: RequestHost) -> str:
        """Return the origin of the portal, as the client of a request sees it."""
        if self.public_url and host.name == _host_of(self.public_url).name:
            scheme = self.public_url.partition("://")[0]
        return f"{scheme}://{host.authority}"

    def host(self, text: str, path: str) -> RequestHost:
        """Parse a Host header; HttpError 400, or 421 against DNS rebinding."""
        try:
            host = _parse_host(text, self.names)
        except MalformedError as error:
            raise HttpError(400, str(error)) from None
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


class Access:
    """Decides about each request of one portal, before it reaches an endpoint."""

    def __init__(self, rules: AccessRules) -> None:
        self.rules = rules
        self._told = set[str]()

    async def decide(self, request: Request) -> Response | None:
        """Find out who asks for what, and set it in the request; HttpError 400, 401, 403, 421 or
        429 unless that is allowed. Return the answer to a CORS preflight.
        """
        rules, headers, requester = self.rules, request.headers, Requester.of(request.headers)
        client = rules.proxies.client(request.peer, "http", headers)
        request.visit.address = client.address
        has_pages = not rules.require_agent
        request.asker = Asker(client.address, requester, rules.public_url, has_pages)
        request.added = rules.added
        host = self._host(request)
        own_origin = rules.own_origin(client.scheme, host)
        portal_url = rules.public_url or own_origin
        request.added += _portal_address(portal_url)
        is_proxied, wrong_host = self._proxy(request, host)
        _check_service_worker(host, headers)
        page = page_origin(headers, own_origin, rules.origins)
        request.asker = Asker(
            address=client.address,
            requester=requester,
            portal_url=portal_url,
            has_pages=has_pages,
            host=host,
            is_isolated=own_origin not in rules.origins,
            is_proxied=is_proxied,
            wrong_host=wrong_host,
        )
        request.path = request.visit.path = host.content + request.path
        method, path = request.method, request.path
        if method == "OPTIONS":
            method = headers.get("access-control-request-method", method)
        cors = b""
        if page is not None and "origin" in headers and not is_page_path(path):
            cors = fields(*page.cors(reading=not _needs_trust(method, path)))
            request.added += cors
        if request.method != "OPTIONS":
            request.visit.user = await self._user(request, page)
            return None
        if page is None:
            return Response(204)
        if not cors:
            raise HttpError(403, "web pages of this origin may not do this")
        return Response(204, fields(*page.preflight(headers)))

    def _host(self, request: Request) -> RequestHost:
        # HTTP/1.0 needs no Host header. Browsers, which could be deceived, always send one.
        reached = request.reached if request.version == "1.0" else ""
        arrived = request.headers.get("host", reached)
        try:
            return self.rules.host(arrived, request.path)
        except HttpError as error:
            if error.status == HTTPStatus.MISDIRECTED_REQUEST:
                self._tell(arrived, error.message)
            raise

    def _tell(self, arrived: str, message: str) -> None:
        """Log what is wrong with a Host header, once for each that arrives."""
        if len(self._told) < _TOLD_LIMIT and arrived not in self._told:
            self._told.add(arrived)
            _log.warning("%s", message)

    def _proxy(self, request: Request, host: RequestHost) -> tuple[bool, WrongHost | None]:
        """Return whether a browser's request came through a proxy, and what that did to its Host
        header.
        """
        requester, headers = request.asker.requester, request.headers
        if requester.kind in (Kind.PROGRAM, Kind.AGENT):
            return False, None
        public = self.rules.public_url.partition("://")[2]
        is_browser = requester.is_browser
        is_proxied = came_through_proxy(request.version, headers, is_browser=is_browser)
        wrong = find_wrong_host(
            host, request.reached, headers, is_proxied=is_proxied, public=public
        )
        is_public = bool(public) and not is_loopback(RequestHost.parse(public).name)
        if wrong is not None:
            self._tell(wrong.arrived, str(wrong))
        return is_proxied or is_public or wrong is not None, wrong

    async def _user(self, request: Request, page: PageOrigin | None) -> str:
        """Return who has given the password, empty if nobody has or it does not matter; HttpError
        400, 401, 403 or 429 for a request of a client that is not allowed.
        """
        method, path, headers = request.method, request.path, request.headers
        if self.rules.require_agent and needs_agent(path):
            agent = headers.get("user-agent", "")
            if not any(token in agent for token in _AGENT_TOKENS):
                raise HttpError(400, _WRONG_AGENT)
        if not _needs_trust(method, path) or (is_page_path(path) and path != METRICS):
            return ""
        passwords, address = self.rules.passwords, request.asker.address
        user, password = parse_credentials(headers.get("authorization", ""))
        if await passwords.check(address, password, user):
            return user.decode("latin-1") or OWNER
        if page is not None and not page.is_allowed:
            raise HttpError(
                403,
                f"web pages of {page.origin[:80] or 'unknown origin'!r} may not do this "
                "(start the portal with --allow-origin)",
            )
        if passwords.is_set and needs_password(method, path):
            raise HttpError(401, "API authentication failed.", _challenge(headers))
        if path == METRICS and not (_is_direct(request) and is_loopback(address)):
            raise HttpError(403, "without a password this is for loopback addresses only")
        return ""

    def varies(self, request: Request, status: int) -> tuple[str, ...]:
        """Return the request headers that decide an answer, besides those its endpoint names."""
        path = request.path
        names: tuple[str, ...] = () if is_page_path(path) else ("Origin",)
        is_error = status >= HTTPStatus.BAD_REQUEST
        if is_error and request.asker.has_pages and request.method in ("GET", "HEAD"):
            names += request.asker.requester.shown_by
        if self.rules.require_agent and needs_agent(path):
            names += ("User-Agent",)
        return names


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


def _is_direct(request: Request) -> bool:
    """Whether nothing shows a proxy."""
    host = request.asker.host
    return (
        host is not None
        and is_loopback(host.name)
        and not came_through_proxy(request.version, request.headers, is_browser=True)
    )


_parse_host = lru_cache(_HOSTS)(RequestHost.parse)


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


@lru_cache(64)
def _portal_address(url: str) -> bytes:
    return fields(
        *(
            (name, url)
            for dialect in PRESETS.values()
            for name in (dialect.portal_api_header, dialect.server_api_header)
        )
    )

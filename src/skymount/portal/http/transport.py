"""What httpx sends requests with: connections of our own to one portal, through a proxy where the
environment names one.
"""

import ssl
from contextlib import suppress
from functools import cached_property, partial

import httpx
import trio

from skymount.errors import PortalError, UnavailableError
from skymount.portal.http.connection_pool import ConnectionPool
from skymount.portal.http.http11 import HTTP11Connection
from skymount.portal.http.proxy import EnvironmentProxies, Route
from skymount.portal.http.stream import new_tls_context
from skymount.settings import PortalOptions
from skymount.values import is_local

_KEEPALIVE = 60.0  # seconds that an idle connection is kept; servers commonly close theirs after 75

_FORGETTING = 1.02
"""Factor by which the shortest round trip grows with each response, so that old ones fade."""


class HTTPTransport(httpx.AsyncBaseTransport):
    """Sends requests over pooled connections. `HTTP11Connection.handle` lists the extensions of
    requests. Three more are: "speculative", as in `ConnectionPool.lend`, "on_lent", which is
    called when the request has a connection, and "is_spare": it gets the one connection that is
    kept free of all other requests.

    Closing it ends what is under way.
    """

    def __init__(self, url: str, options: PortalOptions) -> None:
        self._url = url
        self._options = options
        self._tls: ssl.SSLContext | None = None
        self._tls_lock = trio.Lock()
        self.pool, self._spare = (
            ConnectionPool(size, lambda: HTTP11Connection(self._tls_context, _KEEPALIVE))
            for size in (options.connections, 1)
        )
        self.round_trip: float | None = None
        """Recent minimum of the seconds from a request to its response; None before any."""

    @property
    def closings(self) -> int:
        return self.pool.closings

    @property
    def in_flight(self) -> int:
        return self.pool.in_flight + self._spare.in_flight

    async def aclose(self) -> None:
        await self.pool.aclose()
        await self._spare.aclose()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        route = self._route(request.url)
        limit = request.extensions["timeout"]["pool"]
        speculative = request.extensions.get("speculative")
        pool = self._spare if "is_spare" in request.extensions else self.pool
        connection = await pool.lend(limit, speculative=speculative)
        begun = trio.current_time()
        request.extensions.get("on_lent", lambda: None)()
        give_back = partial(pool.take_back, connection)
        try:
            response = await connection.handle(request, route, give_back)
        except BaseException:
            give_back()
            raise
        seconds = trio.current_time() - begun
        self.round_trip = min(seconds, (self.round_trip or seconds) * _FORGETTING)
        return response

    async def connect(self, count: int) -> None:
        """Open connections until there are `count`, as far as options allow. Errors are left to
        the requests. Behind a proxy none is opened.
        """
        url = httpx.URL(self._url)

        async def open_one() -> None:
            connection = self.pool.lend_new()
            if connection is None:
                return
            try:
                with suppress(PortalError, httpx.HTTPError, UnicodeError):
                    route = self._route(url)
                    if route.proxy is None:
                        await connection.connect(route, self._options.connect_timeout)
            finally:
                self.pool.take_back(connection)

        async with trio.open_nursery() as nursery:
            for _ in range(len(self.pool), count):
                nursery.start_soon(open_one)

    @cached_property
    def _proxies(self) -> EnvironmentProxies:
        # A proxy cannot reach a portal on our own loopback.
        return EnvironmentProxies({} if is_local(self._url) else None)

    def _route(self, url: httpx.URL) -> Route:
        try:
            return Route.of(url, self._proxies.proxy_for(url))
        except UnavailableError as error:
            error.url = self._url
            raise

    async def _tls_context(self) -> ssl.SSLContext:
        """Return what TLS needs. Making it is slow: it is made once, and in a thread."""
        async with self._tls_lock:
            if self._tls is None:
                try:
                    found = await trio.to_thread.run_sync(new_tls_context, self._options.ca_file)
                except OSError as error:
                    raise UnavailableError(str(error), url=self._url) from error
                self._tls = found
            return self._tls

"""One HTTP/1.1 connection: a request out, its response in, and whether it can be used again.

h11 writes requests and reads heads. Redirects, credentials and repetitions are left to ``client``,
bytes to ``stream``.
"""

import math
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import Enum
from functools import lru_cache, partial

import h11
import httpx
import trio

from skymount.portal.http.memory_budget import take
from skymount.portal.http.proxy import ProxyAwayError, Route, TunnelRefusedError
from skymount.portal.http.request_watch import current
from skymount.portal.http.response_body import RECEIVED, Body, ChunkedBody, MinimumRate, SizedBody
from skymount.portal.http.response_head import SMALL_LIMIT, HeadBuffer
from skymount.portal.http.stream import CheckAddress, SocketStream, Wait, open_stream

_INCOMPLETE = 4 << 10  # bytes of a chunk's head or of trailers; portals send neither
_LOOKS = 2
"""Turns of the loop to wait before a stream is reused: a server may close it after a response."""

_CACHED_HEADS = 64  # content is requested range by range, with the same head but for the range
_BODILESS = (204, 304)

SILENT_END = "Server disconnected without sending a response"
_ANY_REQUEST = h11.Request(method="GET", target="/", headers=[("Host", "any")])

TLSContext = Callable[[], Awaitable[ssl.SSLContext]]
Dial = Callable[
    [str, int, ssl.SSLContext | None, float | None, CheckAddress | None], Awaitable[SocketStream]
]


class ConnectionState(Enum):
    """What a connection can do next."""

    NEW = "new"
    """There is no stream: the next request opens one."""
    ACTIVE = "active"
    """A request or its response is on its way."""
    IDLE = "idle"
    """The stream waits for the next request."""
    CLOSED = "closed"
    """`aclose` was called."""


class HTTP11Connection:
    """A connection for one request at a time, and to one origin until it is asked for another."""

    def __init__(self, tls: TLSContext, keepalive: float, dial: Dial = open_stream) -> None:
        """`tls` makes the context when it is needed; `keepalive` is how many seconds an idle
        stream is used again. `dial` opens a stream as `open_stream` does.
        """
        self._tls = tls
        self._keepalive = keepalive
        self._dial = dial
        self._state = ConnectionState.NEW
        self._stream: SocketStream | None = None
        self._route: Route | None = None
        self._idle_since = 0.0
        self._opening = trio.CancelScope()
        self._dialing: Wait | None = None

    @property
    def wait(self) -> Wait | None:
        return self._dialing or (None if self._stream is None else self._stream.wait)

    @property
    def state(self) -> ConnectionState:
        """What it can do next, as far as is known."""
        return self._state

    async def handle(
        self,
        request: httpx.Request,
        route: Route | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> httpx.Response:
        """Send a request; return the response once its head is there.

        Whoever gets the response closes it: that calls `on_close`. The body itself is in the
        extension "body", the server's numeric address, if it is known, in "peer", and a proxy that
        may have made the response itself in "proxy". Errors are those of httpx, and what a check
        raises. Extensions of the request:

        timeout       as httpx has it; `head` are the seconds until the head of the response, from
                      the call on, or from the end of a body that is sent piece by piece
        range         the value of a Range header, which is added
        head_limit    bytes of the response's head
        check_address called with each address that is connected to
        on_connected  called once there is a connection
        """
        timeouts = request.extensions.get("timeout", {})
        limit = timeouts.get("head", math.inf)
        with trio.move_on_after(limit) as scope:
            return await self._exchange(request, route or Route.of(request.url), on_close, scope)
        raise httpx.ReadTimeout(f"no headers in {limit:g} s")

    async def _exchange(
        self,
        request: httpx.Request,
        route: Route,
        on_close: Callable[[], None],
        scope: trio.CancelScope,
    ) -> httpx.Response:
        timeouts = request.extensions.get("timeout", {})
        stream = await self._connected(
            route, timeouts.get("connect"), request.extensions.get("check_address")
        )
        request.extensions.get("on_connected", lambda: None)()
        self._state = ConnectionState.ACTIVE
        try:
            with _translated():
                if isinstance(request.stream, httpx.ByteStream):
                    reusable = await _send(stream, request, route)
                else:
                    scope.deadline = math.inf
                    reusable = await _send(stream, request, route)
                    scope.deadline = trio.current_time() + timeouts.get("head", math.inf)
                return await self._response(stream, request, reusable, on_close)
        except BaseException:
            self._drop(stream)
            raise

    async def _response(
        self,
        stream: SocketStream,
        request: httpx.Request,
        reusable: bool,
        on_close: Callable[[], None],
    ) -> httpx.Response:
        """Receive the head of a response."""
        parser = _new_parser()
        timeout = request.extensions.get("timeout", {}).get("read")
        buffer = HeadBuffer(request.extensions.get("head_limit", SMALL_LIMIT))
        head, long = await _receive_head(stream, parser, buffer, timeout)
        headers = list(head.headers)
        size = _size(request.method, head, dict(headers))
        reusable = reusable and parser.our_state is h11.DONE
        release = partial(self._release, stream, reusable, on_close)
        body: Body
        if size is None:
            body = ChunkedBody(stream, buffer.rest, parser, timeout, release)
        else:
            body = SizedBody(stream, buffer.rest, size, timeout, release)
        route = self._route
        is_direct = route is not None and route.proxy is None
        extensions = {
            "body": body,
            "peer": stream.peer if is_direct else None,
            "proxy": None if route is None or route.is_tunnel else route.proxy,
        }
        headers += long
        return httpx.Response(head.status_code, headers=headers, stream=body, extensions=extensions)

    async def connect(self, route: Route, timeout: float) -> None:
        """Open a stream before there is a request."""
        self._keep(await self._connected(route, timeout))

    async def aclose(self) -> None:
        self._state = ConnectionState.CLOSED
        self._opening.cancel()
        if self._stream is not None:
            self._stream.close()

    async def _connected(
        self, route: Route, timeout: float | None, check: CheckAddress | None = None
    ) -> SocketStream:
        """Return the stream that was kept, if it has the same route, or a new one in its place."""
        if self._stream is not None:
            for _ in range(_LOOKS):
                await trio.lowlevel.checkpoint()
            if route == self._route and self._is_fresh() and self._stream.is_quiet():
                return self._stream
            self._drop(self._stream)
        self._opening = trio.CancelScope()
        if self._state is not ConnectionState.CLOSED:
            with self._opening:
                self._dialing = Wait.begin(timeout)
                stream = await self._open(route, timeout, check)
                self._dialing = None
                if self.state is not ConnectionState.CLOSED:
                    self._stream, self._route = stream, route
                    return stream
                stream.close()
        raise httpx.ConnectError("the connection was closed")

    async def _open(
        self, route: Route, timeout: float | None, check: CheckAddress | None
    ) -> SocketStream:
        proxy = route.proxy
        scheme = route.scheme if proxy is None else proxy.scheme
        context = await self._tls() if scheme == "https" else None
        if proxy is None:
            return await self._dial(route.host, route.port, context, timeout, check)
        if route.is_tunnel and context is not None:
            raise httpx.UnsupportedProtocol("no tunnel for https goes through a proxy at https://")
        try:
            stream = await self._dial(proxy.host, proxy.port, context, timeout, None)
        except httpx.ConnectError as error:
            raise ProxyAwayError(f"{proxy} of the environment: {error}") from error
        except httpx.ConnectTimeout as error:
            raise httpx.ConnectTimeout(f"{proxy} of the environment") from error
        if not route.is_tunnel:
            return stream
        try:
            with trio.move_on_after(math.inf if timeout is None else timeout), _translated():
                await _open_tunnel(stream, route)
                await stream.start_tls(await self._tls(), route.host)
                return stream
            raise httpx.ConnectTimeout(f"no tunnel through {proxy}")
        except BaseException:
            stream.close()
            raise

    def _is_fresh(self) -> bool:
        """Whether the stream was idle for a short time only."""
        age = trio.current_time() - self._idle_since
        return self._state is ConnectionState.IDLE and age <= self._keepalive

    def _release(
        self,
        stream: SocketStream,
        reusable: bool,
        on_close: Callable[[], None],
        rest: bytes | None,
    ) -> None:
        """Keep a stream whose response is at its end, with nothing behind it; close any other."""
        if stream is self._stream and reusable and rest == b"":
            self._keep(stream)
        else:
            self._drop(stream)
        on_close()

    def _drop(self, stream: SocketStream) -> None:
        stream.close()
        if stream is self._stream and self._state is not ConnectionState.CLOSED:
            self._state = ConnectionState.NEW

    def _keep(self, stream: SocketStream) -> None:
        if self._state is not ConnectionState.CLOSED:
            self._state = ConnectionState.IDLE
            self._idle_since = trio.current_time()


async def _open_tunnel(stream: SocketStream, route: Route) -> None:
    """Have a proxy connect the stream to the origin."""
    proxy = h11.Connection(h11.CLIENT, max_incomplete_event_size=_INCOMPLETE)
    await stream.send(proxy.send(route.connect_request()) or b"", None)
    proxy.send(h11.EndOfMessage())
    buffer = HeadBuffer(SMALL_LIMIT)
    head, _ = await _receive_head(stream, proxy, buffer, None)
    if not 200 <= head.status_code < 300:
        reason = head.reason.decode("ascii", "replace")
        assert route.proxy is not None
        raise TunnelRefusedError(route.proxy, head.status_code, reason)
    if buffer.rest:
        raise httpx.ProxyError(f"{route.proxy} sends something before the tunnel is used")


# --- requests


_Headers = Sequence[tuple[bytes, bytes]]


async def _send(stream: SocketStream, request: httpx.Request, route: Route) -> bool:
    """Send a request, its body as it comes; return whether another may go after it.

    A server that does not want all of it may close the connection. Its response comes all the same.
    """
    timeout = request.extensions.get("timeout", {}).get("write")
    headers = request.headers.raw
    if route.proxy is not None and not route.is_tunnel:
        headers = headers + route.proxy.headers
    target, content = route.target(request.url), request.stream
    with suppress(httpx.WriteError):
        if isinstance(content, httpx.ByteStream) and not any(content):
            head, reusable = _written(request.method, target, tuple(headers))
            byte_range = request.extensions.get("range")
            last = b"Range: %b\r\n\r\n" % byte_range if byte_range else b"\r\n"
            await stream.send(head + last, timeout)
            return reusable
        writer = h11.Connection(h11.CLIENT)
        head = _write_head(writer, request.method, target, headers)
        if isinstance(content, httpx.ByteStream):
            head += b"".join([writer.send(h11.Data(data=data)) or b"" for data in content])
        await stream.send(head, timeout)
        if isinstance(content, httpx.AsyncByteStream) and not isinstance(content, httpx.ByteStream):
            if (watch := current()) is not None:
                watch.sends(stream.sent)
            async with _closed_afterwards(aiter(content)) as pieces:
                async for data in pieces:
                    await stream.send(writer.send(h11.Data(data=data)) or b"", timeout)
        await stream.send(writer.send(h11.EndOfMessage()) or b"", timeout)
        return writer.our_state is h11.DONE
    return False


@asynccontextmanager
async def _closed_afterwards(pieces: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Close a generator of httpx, which does not."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


@lru_cache(_CACHED_HEADS)
def _written(method: str, target: bytes, headers: _Headers) -> tuple[bytes, bool]:
    """Return the head of a request without a body, up to the blank line, and whether another may
    go after it.
    """
    writer = h11.Connection(h11.CLIENT)
    head = _write_head(writer, method, target, headers)
    writer.send(h11.EndOfMessage())
    return head.removesuffix(b"\r\n"), writer.our_state is h11.DONE


def _write_head(writer: h11.Connection, method: str, target: bytes, headers: _Headers) -> bytes:
    head = writer.send(h11.Request(method=method, target=target, headers=list(headers)))
    assert head is not None
    return head


# --- responses


def _new_parser() -> h11.Connection:
    """Return what reads one response. It did not write the request, so it is shown another."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_INCOMPLETE)
    parser.send(_ANY_REQUEST)
    parser.send(h11.EndOfMessage())
    return parser


async def _receive_head(
    stream: SocketStream, parser: h11.Connection, buffer: HeadBuffer, timeout: float | None
) -> tuple[h11.Response, tuple[tuple[bytes, bytes], ...]]:
    """Return the head of the response, and the headers that are too long for the parser, which
    only a response of success has a use for. Informational responses before it are skipped.
    """
    rate, wrong = MinimumRate(timeout), ""
    while True:
        head = buffer.take()
        if head is not None:
            parser.receive_data(head.lines)
            event = parser.next_event()
            if isinstance(event, h11.Response):
                return event, head.long if 200 <= event.status_code < 300 else ()
            rate = MinimumRate(timeout)
            continue
        if wrong:
            raise httpx.ReadTimeout(wrong)
        begun = trio.current_time()
        data = await stream.receive(RECEIVED, timeout)
        wrong = rate.note(trio.current_time() - begun, len(data))
        if not data:
            raise httpx.RemoteProtocolError(f"{SILENT_END}.")
        take(len(data))
        buffer.add(data)


def _size(method: str, head: h11.Response, headers: Mapping[bytes, bytes]) -> float | None:
    """Return how many bytes a body has: inf when only the end of the connection ends it, None
    when it comes in chunks (RFC 9112, 6.3). h11 has refused what is malformed. What two readers
    could take for two things is refused here.
    """
    if method == "HEAD" or head.status_code in _BODILESS:
        return 0
    if b"transfer-encoding" in headers:
        if b"content-length" in headers or head.http_version < b"1.1":
            raise httpx.RemoteProtocolError("it is ambiguous where the body ends")
        return None
    length = headers.get(b"content-length")
    return math.inf if length is None else int(length)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what h11 says as httpx names it."""
    try:
        yield
    except h11.RemoteProtocolError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except h11.LocalProtocolError as error:
        raise httpx.LocalProtocolError(str(error)) from error

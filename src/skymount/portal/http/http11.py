"""One HTTP/1.1 connection: requests out, answers in, one after another, and when it may be used
again.

h11 writes requests and reads heads. Redirects, credentials and repetitions are not known here, and
how bytes travel is ``portal.http.stream``'s.
"""

import math
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial

import h11
import httpx
import trio

from skymount.portal.http.memory_budget import take
from skymount.portal.http.response_body import RECEIVED, Body, ChunkedBody, SizedBody
from skymount.portal.http.response_head import SMALL_LIMIT, HeadBuffer, TooLongError
from skymount.portal.http.stream import CheckAddress, Link, open_link

_JOINED = 64 << 10  # bytes of a request's body that travel in one piece with its head
_INCOMPLETE = 4 << 10  # bytes of a chunk's head or of trailers; portals send neither
_LOOKS = (
    2  # turns of the loop before a link is used again: a server may close right after an answer
)
_WRITTEN = 64  # requests whose heads stay written
_BODILESS = (204, 304)
_PORTS = {"http": 80, "https": 443}

_ANY_REQUEST = h11.Request(method="GET", target="/", headers=[("Host", "any")])

Tls = Callable[[], Awaitable[ssl.SSLContext]]
Dial = Callable[
    [str, int, ssl.SSLContext | None, float | None, CheckAddress | None], Awaitable[Link]
]


@dataclass(frozen=True, slots=True)
class Arrived:
    """An answer whose head is here. Who got it closes the body, which frees the connection."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    """Names, in lower case, and values."""
    body: Body
    next_request: httpx.Request | None = None
    """The one that follows, of a redirect."""
    peer: str | None = None
    """The numeric address that it came from; None if it is not known, as behind a proxy."""


class HeadTooLongError(httpx.RemoteProtocolError):
    """The head of an answer is too long, or has too many lines."""


class State(Enum):
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
    """A connection to one origin at a time. The answers to its requests come one after another."""

    def __init__(self, tls: Tls, kept: float, dial: Dial = open_link) -> None:
        """`tls` makes the context when it is needed; `kept` are the seconds that it stays idle.

        `dial` opens a link as `open_link` does.
        """
        self._tls = tls
        self._kept = kept
        self._dial = dial
        self._state = State.NEW
        self._link: Link | None = None
        self._origin: tuple[str, str, int] | None = None
        self._idle_since = 0.0
        self._opening = trio.CancelScope()

    async def exchange(self, request: httpx.Request, byte_range: bytes = b"") -> Arrived:
        """Send a request and return its answer once the head is there.

        The same request may be sent for each range of some content: `byte_range` is the value of
        its Range header. The extension "head_limit" of a request bounds the bytes of the answer's
        head, and "check_address" an address that is connected to anew. Errors are those of httpx,
        and what the check raises.
        """
        timeouts = request.extensions.get("timeout", {})
        check = request.extensions.get("check_address")
        link = await self._connected(request.url, timeouts.get("connect"), check)
        self._state = State.ACTIVE
        try:
            with _translated():
                reusable = await _send(link, request, byte_range, timeouts.get("write"))
                return await self._answer(link, request, reusable)
        except BaseException:
            self._release(link, False, None)
            raise

    async def _answer(self, link: Link, request: httpx.Request, reusable: bool) -> Arrived:
        """Receive the head of an answer."""
        parser = _new_parser()
        timeout = request.extensions.get("timeout", {}).get("read")
        buffer = HeadBuffer(request.extensions.get("head_limit", SMALL_LIMIT))
        head, long = await _receive_head(link, parser, buffer, timeout)
        headers = list(head.headers)
        size = _size(request.method, head, dict(headers))
        reusable = reusable and parser.our_state is h11.DONE
        release = partial(self._release, link, reusable)
        body: Body
        if size is None:
            body = ChunkedBody(link, buffer.rest, parser, timeout, release)
        else:
            body = SizedBody(link, buffer.rest, size, timeout, release)
        return Arrived(head.status_code, headers + list(long), body, peer=link.peer)

    @property
    def state(self) -> State:
        """What it can do next, as far as is known."""
        return self._state

    async def connect(self, url: httpx.URL, timeout: float) -> None:
        """Have a connection stand before there is a request."""
        self._keep(await self._connected(url, timeout))

    async def aclose(self) -> None:
        """Close it for good; what is under way fails."""
        self._state = State.CLOSED
        self._opening.cancel()
        if self._link is not None:
            self._link.close()

    async def _connected(
        self, url: httpx.URL, timeout: float | None, check: CheckAddress | None = None
    ) -> Link:
        """Return the link to an origin: the one that was kept, or a new one in its place."""
        origin = _origin(url)
        if self._link is not None:
            for _ in range(_LOOKS):
                await trio.lowlevel.checkpoint()
            if origin == self._origin and self._is_fresh() and self._link.is_quiet():
                return self._link
            self._release(self._link, False, None)
        scheme, host, port = origin
        context = await self._tls() if scheme == "https" else None
        self._opening = trio.CancelScope()
        if self._state is not State.CLOSED:
            with self._opening:
                link = await self._dial(host, port, context, timeout, check)
                if self.state is not State.CLOSED:
                    self._link, self._origin = link, origin
                    return link
                link.close()
        raise httpx.ConnectError("the connection was closed")

    def _is_fresh(self) -> bool:
        """Whether the stream was idle for a short time only."""
        age = trio.current_time() - self._idle_since
        return self._state is State.IDLE and age <= self._kept

    def _release(self, link: Link, reusable: bool, rest: bytes | None) -> None:
        """Keep a link whose answer is at its end, with nothing behind it; close any other."""
        if link is self._link and reusable and rest == b"":
            self._keep(link)
        else:
            link.close()
            if link is self._link and self._state is not State.CLOSED:
                self._state = State.NEW

    def _keep(self, link: Link) -> None:
        """Have a link wait for the next request."""
        if self._state is not State.CLOSED:
            self._state = State.IDLE
            self._idle_since = trio.current_time()


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    """Return scheme, host and port to connect to."""
    host = url.raw_host.decode("ascii")
    if url.scheme not in _PORTS or not host:
        raise httpx.UnsupportedProtocol(f"no connection can be made to {url.scheme[:20]}://")
    return url.scheme, host, url.port or _PORTS[url.scheme]


async def _send(
    link: Link, request: httpx.Request, byte_range: bytes, timeout: float | None
) -> bool:
    """Send a request, its body as it comes; return whether another may go after it.

    A server that does not want all of it may close the connection, and its answer comes all the
    same.
    """
    stream = request.stream
    with suppress(httpx.WriteError):
        if isinstance(stream, httpx.ByteStream) and not any(stream):
            head, reusable = _written(request)
            last = b"Range: %b\r\n\r\n" % byte_range if byte_range else b"\r\n"
            await link.send(head + last, timeout)
            return reusable
        writer = h11.Connection(h11.CLIENT)
        await _send_with_body(link, writer, request, timeout)
        return writer.our_state is h11.DONE
    return False


@lru_cache(_WRITTEN)
def _written(request: httpx.Request) -> tuple[bytes, bool]:
    """Return the head of a request without a body, up to the blank line, and whether another may
    go after it.
    """
    writer = h11.Connection(h11.CLIENT)
    head = _begun(writer, request)
    writer.send(h11.EndOfMessage())
    return head.removesuffix(b"\r\n"), writer.our_state is h11.DONE


def _begun(writer: h11.Connection, request: httpx.Request) -> bytes:
    """Return the head of a request."""
    target, headers = request.url.raw_path, request.headers.raw
    head = writer.send(h11.Request(method=request.method, target=target, headers=headers))
    assert head is not None
    return head


async def _send_with_body(
    link: Link, writer: h11.Connection, request: httpx.Request, timeout: float | None
) -> None:
    begin, stream = _begun(writer, request), request.stream
    if isinstance(stream, httpx.ByteStream):
        body = b"".join([writer.send(h11.Data(data=data)) or b"" for data in stream])
        end = writer.send(h11.EndOfMessage()) or b""
        if len(body) > _JOINED:
            await link.send(begin, timeout)
            begin = b""
        await link.send(begin + body + end, timeout)
        return
    assert isinstance(stream, httpx.AsyncByteStream)
    await link.send(begin, timeout)
    async with aclosing(_content(writer, stream)) as pieces:
        async for piece in pieces:
            if piece:
                await link.send(piece, timeout)


async def _content(
    writer: h11.Connection, stream: httpx.AsyncByteStream
) -> AsyncGenerator[bytes, None]:
    """Yield the body of a request as it goes out."""
    async with AsyncExitStack() as stack:
        content = aiter(stream)
        if isinstance(content, AsyncGenerator):
            await stack.enter_async_context(aclosing(content))
        async for data in content:
            yield writer.send(h11.Data(data=data)) or b""
    yield writer.send(h11.EndOfMessage()) or b""


def _new_parser() -> h11.Connection:
    """Return what reads one answer: as it does not write the request, it is shown another."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_INCOMPLETE)
    parser.send(_ANY_REQUEST)
    parser.send(h11.EndOfMessage())
    return parser


async def _receive_head(
    link: Link, parser: h11.Connection, buffer: HeadBuffer, timeout: float | None
) -> tuple[h11.Response, tuple[tuple[bytes, bytes], ...]]:
    """Return the head of the answer, and the headers that are too long for the parser: only an
    answer of success has a use for them. What goes before it is skipped.
    """
    while True:
        head = buffer.take()
        if head is not None:
            parser.receive_data(head.lines)
            event = parser.next_event()
            if isinstance(event, h11.Response):
                return event, head.long if 200 <= event.status_code < 300 else ()
            continue
        data = await link.receive(RECEIVED, timeout)
        if not data:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        take(len(data))
        buffer.add(data)


def _size(method: str, head: h11.Response, headers: Mapping[bytes, bytes]) -> float | None:
    """Return how many bytes a body has: inf when only the end of the connection ends it, None
    when it comes in chunks (RFC 9112, 6.3). h11 has refused what is not well formed; what is
    ambiguous is refused here, as two readers could take it for two things.
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
    except TooLongError as error:
        raise HeadTooLongError(str(error)) from error
    except h11.RemoteProtocolError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except h11.LocalProtocolError as error:
        raise httpx.LocalProtocolError(str(error)) from error

"""Owns the exchanges with one portal.

Sends the requests of ``wire.requests`` and hands on answers of success, whose form is checked
(status, lengths, limits, rate). Redirects, repetitions and the translation of every failure into a
`PortalError` are here and nowhere else. What an answer means is not known here.
"""

import io
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar

import httpx
import trio

from skymount.errors import (
    BadContentError,
    HeadTooLongError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.http import http11
from skymount.portal.http.channel import Channel
from skymount.portal.http.connection_pool import ConnectionPool
from skymount.portal.http.http11 import Arrived
from skymount.portal.http.memory_budget import take
from skymount.portal.http.request import Call
from skymount.portal.http.response import (
    PASSING,
    Answer,
    Headers,
    error_for,
    parse_retry_after,
    pause_before,
)
from skymount.portal.http.sending import send
from skymount.portal.http.timeouts import Content, Pace, until_the_head
from skymount.portal.options import PortalOptions
from skymount.wire import requests, responses
from skymount.wire.byte_range import ByteRange

log = logging.getLogger(__name__)

T = TypeVar("T")

_FORGETTING = 1.02
"""By which the shortest round trip seen grows with each answer, so that it is forgotten."""

_BROKEN = (
    httpx.NetworkError,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
    httpx.ConnectTimeout,
    httpx.ReadTimeout,
    httpx.WriteTimeout,
)


@dataclass(slots=True)
class _Heard:
    """What had come of an answer when an attempt ended."""

    closings: int
    """How often the connections had been closed when the request began."""
    head: bool = False
    retry_after: float | None = None


class OpenAnswer:
    """An answer of success whose body is still to come; read it with `Transport.pieces`, or into
    buffers with `Transport.fill`.
    """

    __slots__ = ("_body", "_closed", "_pace", "call", "headers", "status")

    def __init__(self, arrived: Arrived, call: Call, closed: Callable[[], None]) -> None:
        """`closed` is called once, when the body is not read any more."""
        self.status = arrived.status
        self.headers = Headers(arrived.headers)
        self.call = call
        self._body = arrived.body
        self._pace = Pace(call.options.idle_timeout)
        self._closed = closed

    def __repr__(self) -> str:
        return f"OpenAnswer({self.status}, {self.headers!r})"

    def bad(self, message: str) -> PortalError:
        """Make the error that this answer is not what was asked for."""
        return self.call.error(BadContentError, message)

    async def receive(self) -> bytes:
        """Return what comes next of the body, b"" at its end; not too slowly."""
        begun = trio.current_time()
        try:
            piece = await self._body.receive()
        except httpx.HTTPError as error:
            raise _translation(self.call, error) from error
        self._note(begun, len(piece))
        return piece

    async def receive_into(self, view: memoryview) -> int:
        """Put what comes next of the body into a buffer; return how much, 0 at its end."""
        begun = trio.current_time()
        try:
            received = await self._body.receive_into(view)
        except httpx.HTTPError as error:
            raise _translation(self.call, error) from error
        self._note(begun, received)
        return received

    async def aclose(self) -> None:
        """Free the connection."""
        try:
            await self._body.aclose()
        finally:
            self._closed()

    def _note(self, begun: float, received: int) -> None:
        wrong = self._pace.note(trio.current_time() - begun, received)
        if wrong:
            raise self.call.error(PortalTimeoutError, wrong)


class Destination(Protocol):
    """Where a body goes."""

    def clear(self) -> None:
        """Begin anew: what was put there is not wanted."""

    def room(self) -> memoryview:
        """Return where the next bytes go; some at least."""

    def filled(self, size: int) -> None:
        """Take note that so many bytes have come there."""


class Transport:
    """What is asked of one portal. Safe for many tasks at once.

    Every method raises a `PortalError` and nothing else for what happens on the wire.
    """

    def __init__(self, url: str, options: PortalOptions) -> None:
        self.url = url
        self.options = options
        self._pool = ConnectionPool(url, options)
        self.round_trip: float | None = None
        """Seconds from a request to the first of its answer, of late at best; None before any."""

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    async def aclose(self) -> None:
        """Close every connection. A further request opens new ones; those under way fail."""
        await self._pool.aclose()

    async def connect(self, count: int = 1) -> None:
        """Have up to `count` connections in all before they are needed.

        What goes wrong is the error of each request, not of this.
        """
        await self._pool.connect(count)

    def bad(
        self, request: requests.Request, options: PortalOptions, text: str, status: int | None
    ) -> PortalError:
        """Make the error that the answer to a request is not what was asked for."""
        return Call(request, options, self.url).error(BadContentError, text, status)

    # --- requests

    @asynccontextmanager
    async def open(
        self,
        request: requests.Request,
        options: PortalOptions | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        byte_range: ByteRange | None = None,
        content: Content | None = None,
        speculative: bool = False,
    ) -> AsyncIterator[OpenAnswer]:
        """Send a request and yield its answer once the head is there; success only.

        `options` are those of this call, `headers` the ones that go with `content`, and
        `byte_range` is the part of the answer's content that is wanted. A `speculative` request
        waits for a connection until no other request does. Until there is an answer a request
        that is safe is repeated, `options.retries` times at most.
        """
        call = self._call(request, options, headers)

        async def attempt(heard: _Heard) -> OpenAnswer:
            return await self._exchange(call, heard, byte_range, content, speculative=speculative)

        answer = await self._repeat(call, content, attempt)
        try:
            yield answer
        finally:
            await answer.aclose()

    async def fetch(
        self,
        request: requests.Request,
        limit: int,
        options: PortalOptions | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answer:
        """Send a request and return its whole answer; more than `limit` bytes are an error.

        A safe request is also repeated when the answer breaks off.
        """
        call = self._call(request, options, headers)

        async def attempt(heard: _Heard) -> Answer:
            async with aclosing(await self._exchange(call, heard, content=content)) as answer:
                return Answer(answer.status, answer.headers, await self.body(answer, limit))

        return await self._repeat(call, content, attempt)

    async def fetch_into(
        self,
        request: requests.Request,
        limit: int,
        into: Destination,
        options: PortalOptions | None = None,
    ) -> None:
        """The same with a body that may be long, which goes straight where it is wanted."""
        call = self._call(request, options, None)

        async def attempt(heard: _Heard) -> None:
            into.clear()
            arrived = 0
            async with aclosing(await self._exchange(call, heard)) as answer:
                while received := await answer.receive_into(into.room()):
                    take(received)
                    into.filled(received)
                    arrived += received
                    if arrived > limit:
                        raise answer.bad(f"answer is longer than {limit} bytes")

        await self._repeat(call, None, attempt)

    async def body(self, answer: OpenAnswer, limit: int) -> bytes:
        """Read a body of at most `limit` bytes; a longer one is a portal's fault."""
        found = io.BytesIO()  # which copies nothing at the end, as a list of pieces would have to
        async with aclosing(self.pieces(answer, limit=limit)) as pieces:
            async for piece in pieces:
                take(len(piece))
                found.write(piece)
        return found.getvalue()

    async def pieces(
        self, answer: OpenAnswer, length: int | None = None, *, limit: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a body as it comes. Use it with ``aclosing``.

        BadContentError unless it has exactly `length` bytes, or at most `limit`. One that drips
        is not waited for longer than silence is.
        """
        arrived = 0
        while piece := await answer.receive():
            arrived += len(piece)
            if limit is not None and arrived > limit:
                raise answer.bad(f"answer is longer than {limit} bytes")
            if length is not None and arrived > length:
                raise answer.bad("more bytes than asked for")
            yield piece
        if length is not None and arrived < length:
            raise answer.bad(f"{length - arrived} bytes too few")

    async def fill(self, answer: OpenAnswer, view: memoryview) -> None:
        """Fill a buffer with what comes next of a body; BadContentError when it ends before."""
        while view:
            received = await answer.receive_into(view)
            if not received:
                raise answer.bad(f"{len(view)} bytes too few")
            view = view[received:]

    async def finish(self, answer: OpenAnswer) -> None:
        """Make sure that a body is at its end; BadContentError when something follows."""
        if await answer.receive_into(memoryview(bytearray(1))):
            raise answer.bad("more bytes than asked for")

    async def _repeat(
        self, call: Call, content: Content | None, attempt: Callable[[_Heard], Awaitable[T]]
    ) -> T:
        """Attempt a request until it succeeds, fails for good, or failed often enough."""
        safe = call.request.is_safe and not isinstance(content, AsyncIterator)
        repetitions = call.options.retries if safe else 0
        repetition, closings = 0, self._pool.closings
        while True:
            repetition += 1
            heard = _Heard(closings)
            try:
                return await attempt(heard)
            except PortalError as error:
                error.attempts = repetition
                if repetition > repetitions or not _is_passing(error, heard):
                    raise
                if closings != self._pool.closings:
                    raise
                pause = pause_before(repetition, heard.retry_after)
                if pause is None:
                    raise
            await trio.sleep(pause)

    def _call(
        self,
        request: requests.Request,
        options: PortalOptions | None,
        headers: Mapping[str, str] | None,
    ) -> Call:
        more = tuple(headers.items()) if headers else ()
        return Call(request, options or self.options, self.url, more)

    async def _exchange(
        self,
        call: Call,
        heard: _Heard,
        byte_range: ByteRange | None = None,
        content: Content | None = None,
        *,
        speculative: bool = False,
    ) -> OpenAnswer:
        """Make one attempt, and translate what httpx says of it; who gets the answer closes it."""
        with _translated(call):
            channel = await self._pool.lend(
                call.options.idle_timeout, heard.closings, speculative=speculative
            )
        with _translated(call):
            try:
                with until_the_head(call.options, content) as watched:
                    begun = trio.current_time()
                    arrived = await send(channel, call, byte_range, watched)
                    self._note(trio.current_time() - begun)
            except BaseException:
                self._pool.take_back(channel)
                raise
        return await self._begun(channel, call, heard, arrived)

    def _note(self, seconds: float) -> None:
        """Take note of how long an answer took."""
        self.round_trip = min(seconds, (self.round_trip or seconds) * _FORGETTING)

    async def _begun(
        self,
        channel: Channel,
        call: Call,
        heard: _Heard,
        arrived: Arrived,
    ) -> OpenAnswer:
        """Return an answer whose head is there, if it is one of success."""
        heard.head = True
        answer = OpenAnswer(arrived, call, partial(self._pool.take_back, channel))
        try:
            await _check(answer, heard)
        except BaseException:
            await answer.aclose()
            raise
        return answer


def _is_passing(error: PortalError, heard: _Heard) -> bool:
    """Whether the same request may succeed a moment later."""
    if error.status is not None:
        return error.status in PASSING
    if isinstance(error, HeadTooLongError):
        return False
    if heard.head and isinstance(error, PortalTimeoutError):
        return False  # that was waited for already
    return isinstance(error.__cause__, _BROKEN)


async def _check(answer: OpenAnswer, heard: _Heard) -> None:
    """Raise the error that any status but that of success stands for."""
    status, headers = answer.status, answer.headers
    if not 200 <= status < 300:
        heard.retry_after = parse_retry_after(headers.get("retry-after", ""), datetime.now(UTC))
        words = responses.parse_error(await _beginning(answer))
        raise answer.call.error(error_for(status), words or f"HTTP status {status}", status)
    if headers.get("content-encoding", "identity") != "identity":
        raise answer.call.error(BadContentError, "the portal encoded the content", status)


async def _beginning(answer: OpenAnswer) -> bytes:
    """Read an error's body as far as it comes and is looked at: the status says enough."""
    beginning = b""
    with suppress(PortalError):
        while len(beginning) <= responses.RESPONSE_LIMIT and (piece := await answer.receive()):
            beginning += piece
    return beginning


@contextmanager
def _translated(call: Call) -> Iterator[None]:
    """Translate what httpx says of a request, which begins now."""
    begun = trio.current_time()
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        translation = _translation(call, error)
        translation.unreached = trio.current_time() - begun
        raise translation from error
    except httpx.HTTPError as error:
        raise _translation(call, error) from error
    except httpx.InvalidURL as error:
        raise call.error(RequestRefusedError, str(error)) from None


def _translation(call: Call, error: httpx.HTTPError) -> PortalError:
    """Return what is meant by an error of httpx."""
    if isinstance(error, httpx.TimeoutException):
        detail = f": {error}" if str(error) else ""
        return call.error(PortalTimeoutError, f"no answer in time{detail}")
    detail = str(error) or type(error).__name__
    if isinstance(error, http11.HeadTooLongError):
        return call.error(HeadTooLongError, detail)
    if isinstance(error, httpx.RemoteProtocolError):
        return call.error(BadContentError, detail)
    return call.error(UnavailableError, f"cannot be reached: {detail}")

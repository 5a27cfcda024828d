"""Owns the exchanges with one portal, and lends its connections to them.

Sends the requests of ``wire.messages`` and hands on answers of success, whose form is checked
(status, lengths, limits, rate). Redirects, repetitions and the translation of every failure into a
`PortalError` are here and nowhere else. What an answer means is not known here.
"""

import io
import logging
import math
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
from functools import lru_cache, partial
from typing import TypeVar

import httpx
import trio

from skymount.errors import (
    BadContentError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.answers import (
    PASSING,
    Answer,
    Headers,
    error_for,
    parse_retry_after,
    pause_before,
)
from skymount.portal.calls import Call
from skymount.portal.channel import Channel, ChannelMaker
from skymount.portal.connection import Arrived, NoTurnError
from skymount.portal.heads import SMALL_LIMIT
from skymount.portal.options import HEADER_LIMIT, PortalOptions
from skymount.portal.patience import Content, Pace, until_the_head
from skymount.wire import messages
from skymount.wire.ranges import ByteRange

log = logging.getLogger(__name__)

T = TypeVar("T")

_FORGETTING = 1.02
"""By which the shortest round trip seen grows with each answer, so that it is forgotten."""

_ALONE = 300.0
"""Seconds for which no request goes behind another after a portal did not answer one: it may have
been slow, or have closed a connection at its end. A portal that never does costs little.
"""

_MANY = 16  # connections that are busy before a patient request goes behind another
_WRITTEN = 64  # requests that stay written: content is asked for range by range
_REDIRECTS = 5  # followed for one request
_ACCEPT = (b"Accept", b"*/*")
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

    __slots__ = ("_body", "_closed", "_pace", "call", "headers", "is_behind", "status")

    def __init__(
        self, arrived: Arrived, call: Call, closed: Callable[[], None], *, is_behind: bool
    ) -> None:
        """`closed` is called once, when the body is not read any more; `is_behind` is whether it
        was asked for behind another on its connection.
        """
        self.is_behind = is_behind
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


class Transport:
    """The connections to one portal. Safe for many tasks at once.

    Every method raises a `PortalError` and nothing else for what happens on the wire.
    """

    def __init__(self, url: str, options: PortalOptions) -> None:
        self.url = url
        self.options = options
        self._maker = ChannelMaker(url)
        self._free = trio.Semaphore(options.connections)
        self._idle: list[Channel] = []
        """The last one is the next: the one that was used last, of those that still stand."""
        self._lent: dict[Channel, int] = {}
        """How many requests are on each; the one that was lent first is the first."""
        self._changed = trio.lowlevel.ParkingLot()
        """Where those wait who want to go behind another request."""
        self.round_trip: float | None = None
        """Seconds from a request to the first of its answer, of late at best; None before any."""
        self._goes_on: bool | None = None
        """Whether the portal's last answer let another follow, so the next one is likely to; None
        before any.
        """
        self._alone = -math.inf
        """Until when no request goes behind another, by trio's clock."""
        self._closings = 0

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    async def aclose(self) -> None:
        """Close every connection. A further request opens new ones; those under way fail."""
        self._closings += 1
        channels = [*self._idle, *self._lent]
        self._idle.clear()
        for channel in channels:
            await channel.aclose()

    def bad(
        self, request: messages.Request, options: PortalOptions, text: str, status: int | None
    ) -> PortalError:
        """Make the error that the answer to a request is not what was asked for."""
        return Call(request, options, self.url).error(BadContentError, text, status)

    async def connect(self, count: int = 1) -> None:
        """Have up to `count` connections in all before they are needed.

        What goes wrong is the error of each request, not of this.
        """
        url = httpx.URL(self.url)

        async def open_one() -> None:
            try:
                self._free.acquire_nowait()
            except trio.WouldBlock:
                return
            with suppress(PortalError, httpx.HTTPError, UnicodeError):
                channel = await self._new()
                try:
                    await channel.connect(url, self.options.connect_timeout)
                finally:
                    self._take_back(channel)

        async with trio.open_nursery() as nursery:
            for _ in range(len(self._idle) + len(self._lent), count):
                nursery.start_soon(open_one)

    # --- requests

    @asynccontextmanager
    async def open(
        self,
        request: messages.Request,
        options: PortalOptions | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        byte_range: ByteRange | None = None,
        content: Content | None = None,
        patient: bool = False,
    ) -> AsyncIterator[OpenAnswer]:
        """Send a request and yield its answer once the head is there; success only.

        `options` are those of this call, `headers` the ones that go with `content`, and
        `byte_range` is the part of the answer's content that is wanted. A `patient` request may
        go behind another on its connection when many are busy; it has no content. Until there is
        an answer a request that is safe is repeated, `options.retries` times at most.
        """
        call = self._call(request, options, headers)

        async def attempt(heard: _Heard) -> OpenAnswer:
            if patient and content is None:
                answer = await self._exchange_behind(call, heard, byte_range)
                if answer is not None:
                    return answer
            return await self._exchange(call, heard, byte_range, content)

        answer = await self._repeat(call, content, attempt)
        try:
            yield answer
        except BadContentError as error:
            if answer.is_behind:  # it may be the answer to another request
                self._distrust(error)
            raise
        finally:
            await answer.aclose()

    async def fetch(
        self,
        request: messages.Request,
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

    async def body(self, answer: OpenAnswer, limit: int) -> bytes:
        """Read a body of at most `limit` bytes; a longer one is a portal's fault."""
        found = io.BytesIO()  # which copies nothing at the end, as a list of pieces would have to
        async with aclosing(self.pieces(answer, limit=limit)) as pieces:
            async for piece in pieces:
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
        repetition, closings = 0, self._closings
        while True:
            repetition += 1
            heard = _Heard(closings)
            try:
                return await attempt(heard)
            except PortalError as error:
                error.attempts = repetition
                if repetition > repetitions or not _is_passing(error, heard):
                    raise
                if closings != self._closings:
                    raise
                pause = pause_before(repetition, heard.retry_after)
                if pause is None:
                    raise
            await trio.sleep(pause)

    def _call(
        self,
        request: messages.Request,
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
    ) -> OpenAnswer:
        """Make one attempt, and translate what httpx says of it; who gets the answer closes it."""
        with _translated(call):
            channel = await self._lend(call.options.idle_timeout, heard.closings)
        with _translated(call):
            try:
                with until_the_head(call.options, content) as watched:
                    begun = trio.current_time()
                    arrived = await _send(channel, call, byte_range, watched)
                    self._note(trio.current_time() - begun)
            except BaseException:
                self._take_back(channel)
                raise
        return await self._begun(channel, call, heard, arrived)

    def _note(self, seconds: float) -> None:
        """Take note of how long an answer took."""
        self.round_trip = min(seconds, (self.round_trip or seconds) * _FORGETTING)

    async def _exchange_behind(
        self, call: Call, heard: _Heard, byte_range: ByteRange | None
    ) -> OpenAnswer | None:
        """Make an attempt behind another request, so that the connection does not idle between the
        two; None when that cannot be had, which is no failure.
        """
        request, _ = _written(call)
        channel = await self._with_room_behind(request)
        if channel is None:
            return None
        self._lent[channel] += 1
        part = b"" if byte_range is None else byte_range.header().encode()
        try:
            arrived = await channel.exchange_behind(request, part)
        except NoTurnError:
            self._take_back(channel)
            return None
        except httpx.HTTPError as error:
            self._take_back(channel)
            self._distrust(error)
            return None
        except BaseException:
            self._take_back(channel)
            raise
        if 300 <= arrived.status < 400:
            await arrived.body.aclose()
            self._take_back(channel)
            return None
        return await self._begun(channel, call, heard, arrived, is_behind=True)

    @property
    def _is_orderly(self) -> bool:
        """Whether the portal answers what is sent behind another request, as far as is known."""
        return trio.current_time() >= self._alone

    def _distrust(self, error: Exception) -> None:
        """Send no request behind another for a while."""
        if self._is_orderly:
            self._changed.unpark_all()
            log.info("%s: requests are sent one at a time for %g s: %s", self.url, _ALONE, error)
        self._alone = trio.current_time() + _ALONE

    async def _with_room_behind(self, request: httpx.Request) -> Channel | None:
        """Return the connection that has been busy for longest, among those with room; None while
        few are busy, or when answers let no other follow. When all of many wait for the heads of
        their answers one is waited for.
        """
        while self._is_orderly and self._goes_on is not False and len(self._lent) >= _MANY:
            early = bool(self._goes_on)
            found = (one for one in self._lent if one.has_room_behind(request, early=early))
            channel = next(found, None)
            if channel is not None:
                return channel
            await self._changed.park()
        return None

    async def _begun(
        self,
        channel: Channel,
        call: Call,
        heard: _Heard,
        arrived: Arrived,
        *,
        is_behind: bool = False,
    ) -> OpenAnswer:
        """Return an answer whose head is there, if it is one of success."""
        heard.head = True
        self._goes_on = arrived.goes_on
        self._changed.unpark_all()
        answer = OpenAnswer(arrived, call, partial(self._take_back, channel), is_behind=is_behind)
        try:
            await _check(answer, heard)
        except BaseException:
            await answer.aclose()
            raise
        return answer

    async def _lend(self, limit: float, closings: int) -> Channel:
        """Lend a connection to one request, which waits for one so many seconds at most, and gets
        none if the connections were closed more often than `closings` by then.

        Each has a client of its own, behind a proxy too: httpcore's pool offers one connection
        to several requests that wait, all but one of which begin again, and looks through all of
        them each time. With 32 connections that takes as long as everything else.
        """
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(limit) as scope:
                await self._free.acquire()
            if scope.cancelled_caught:
                text = f"every connection is busy for {limit:g} s"
                raise httpx.PoolTimeout(text) from None
        if closings != self._closings:
            self._free.release()
            raise httpx.NetworkError("the client was closed")
        if self._idle:
            channel = self._idle.pop()
            self._lent[channel] = 1
            return channel
        return await self._new()

    async def _new(self) -> Channel:
        """Lend a new connection, for which there is room."""
        try:
            channel = await self._maker.make()
        except BaseException:
            self._free.release()
            raise
        self._lent[channel] = 1
        return channel

    def _take_back(self, channel: Channel) -> None:
        """Have a connection for the next request, once none is on it."""
        self._lent[channel] -= 1
        if not self._lent[channel]:
            del self._lent[channel]
            self._free.release()
            self._changed.unpark_all()
            if channel.stands:
                self._idle.append(channel)
            elif not channel.is_closed:
                self._idle.insert(0, channel)


def _is_passing(error: PortalError, heard: _Heard) -> bool:
    """Whether the same request may succeed a moment later."""
    if error.status is not None:
        return error.status in PASSING
    if heard.head and isinstance(error, PortalTimeoutError):
        return False  # that was waited for already
    return isinstance(error.__cause__, _BROKEN)


async def _send(
    channel: Channel, call: Call, byte_range: ByteRange | None, content: Content | None
) -> Arrived:
    """Send, and follow redirects without reading their bodies, as httpx would."""
    request, private = _written(call) if content is None else _new_request(call, content)
    part = b"" if byte_range is None else byte_range.header().encode()
    for _ in range(_REDIRECTS + 1):
        try:
            arrived = await channel.exchange(request, part)
        except UnicodeError as error:  # of a host's name, at last when it is looked up
            raise call.error(BadContentError, f"no host can have this name: {error}") from None
        if arrived.next_request is None:
            return arrived
        await arrived.body.aclose()
        request = _redirected(call, request, arrived.next_request, arrived.status, content, private)
        part = b""  # it is among the headers by now
    raise call.error(BadContentError, f"more than {_REDIRECTS} redirects")


def _new_request(call: Call, content: Content | None) -> tuple[httpx.Request, frozenset[bytes]]:
    """Make a request as httpx writes it, and the names of the headers that are private."""
    options = call.options
    headers, private = call.headers()
    timeout = httpx.Timeout(options.idle_timeout, connect=options.connect_timeout)
    limit = HEADER_LIMIT if call.request.may_tell_metadata else SMALL_LIMIT
    request = httpx.Request(
        call.request.method,
        call.address,
        headers=[*headers, _ACCEPT],
        content=content,
        extensions={"timeout": timeout.as_dict(), "head_limit": limit},
    )
    return request, private


@lru_cache(_WRITTEN)
def _written(call: Call) -> tuple[httpx.Request, frozenset[bytes]]:
    """Return a request without a body; for each range of some content it is the same."""
    return _new_request(call, None)


def _redirected(
    call: Call,
    before: httpx.Request,
    then: httpx.Request,
    status: int,
    content: Content | None,
    private: frozenset[bytes],
) -> httpx.Request:
    """Return the request that follows a redirect; an error when it must not be followed.

    Method and body are what httpx makes of them: 307 and 308 keep both, any other makes a POST a
    GET. httpx takes only the Authorization header off a request to another origin; here nothing of
    the user's but the user agent goes there.
    """
    if before.url.scheme == "https" and then.url.scheme != "https":
        raise call.error(BadContentError, "a redirect from https to http is not followed", status)
    if then.method == before.method and isinstance(content, AsyncIterator):
        raise call.error(
            RequestRefusedError,
            "the portal redirects the upload, whose content can be read only once",
            status,
        )
    dropped = set(private)
    if then.method != before.method:
        dropped.add(b"content-type")
    kept = [item for item in then.headers.raw if item[0].lower() not in dropped]
    if _origin(before.url) == _origin(then.url):
        kept += [item for item in before.headers.raw if item[0].lower() in private]
    then.headers = httpx.Headers(kept)
    return then


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _check(answer: OpenAnswer, heard: _Heard) -> None:
    """Raise the error that any status but that of success stands for."""
    status, headers = answer.status, answer.headers
    if not 200 <= status < 300:
        heard.retry_after = parse_retry_after(headers.get("retry-after", ""), datetime.now(UTC))
        words = messages.parse_error(await _beginning(answer))
        raise answer.call.error(error_for(status), words or f"HTTP status {status}", status)
    if headers.get("content-encoding", "identity") != "identity":
        raise answer.call.error(BadContentError, "the portal encoded the content", status)


async def _beginning(answer: OpenAnswer) -> bytes:
    """Read an error's body as far as it comes and is looked at: the status says enough."""
    beginning = b""
    with suppress(PortalError):
        while len(beginning) <= messages.ANSWER_LIMIT and (piece := await answer.receive()):
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
    detail = str(error) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        return call.error(PortalTimeoutError, f"no answer in time: {detail}")
    if isinstance(error, httpx.RemoteProtocolError):
        return call.error(BadContentError, detail)
    return call.error(UnavailableError, f"cannot be reached: {detail}")

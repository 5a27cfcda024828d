"""Requests to one portal, and their responses as far as HTTP goes.

Redirects, repetitions and the translation of every failure into a `PortalError` are here. What a
response means is left to ``portal.client``.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import httpx
import trio

from skymount.errors import (
    BadContentError,
    HeadTooLongError,
    MalformedError,
    NoPortalError,
    PortalError,
    PortalTimeoutError,
    ReadOnlyPortalError,
    UnavailableError,
)
from skymount.portal.http.advice import MOVED, NO_PORTAL, Refusal
from skymount.portal.http.memory_budget import take
from skymount.portal.http.portal_check import ANSWER_LIMIT, Recognition, is_of_portal, question
from skymount.portal.http.redirects import next_request, refusal
from skymount.portal.http.request import Call, Content
from skymount.portal.http.request_watch import RequestWatch, current
from skymount.portal.http.response import (
    Response,
    StreamingResponse,
    error_for,
    parse_retry_after,
    translated,
)
from skymount.portal.http.response_head import SMALL_LIMIT
from skymount.portal.http.retry import REPEATABLE_STATUSES, RetryPolicy
from skymount.portal.http.stream import NotFollowedError, Wait
from skymount.portal.http.transport import HTTPTransport
from skymount.settings import PortalOptions
from skymount.wire.dialect import Dialect
from skymount.wire.http import requests, responses
from skymount.wire.http.byte_range import ByteRange
from skymount.wording import readable_size

T = TypeVar("T")

_REDIRECTS = 5  # followed for one request
_HEADER_LIMIT = 8 << 20
"""Bytes of response headers; a directory's metadata may be in one (docs/wire.md 5). Longer metadata
is read from its own endpoint.
"""
_READING_METHODS = ("GET", "HEAD")  # all that a read-only portal is sent
_PREPARED = 64  # requests that are kept: content is asked for range by range
_SERVER = 80  # characters of a Server header
_FRESH = ("Cache-Control", "no-cache")  # for a cache in front of the portal
_ACCEPT = (b"Accept", b"*/*")
_NO_AUTH = httpx.Auth()  # else httpx takes credentials from the address that a redirect names

_REPEATABLE = (
    httpx.NetworkError,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
    httpx.ConnectTimeout,
    httpx.ReadTimeout,
    httpx.WriteTimeout,
)

# httpx logs the address of every request, with its query. Those of ours stay out of the log.
# Requests that the program makes with httpx by itself are not touched.
_sending: ContextVar[bool] = ContextVar("sending", default=False)
_log = logging.getLogger(__name__)

logging.getLogger("httpx").addFilter(lambda _: not _sending.get())


class _NoCookies(httpx.Cookies):
    def extract_cookies(self, response: httpx.Response) -> None:
        """Keep none, in no time: to look for them takes as long as to send the request."""


class _AsyncClient(httpx.AsyncClient):
    cookies = _NoCookies()  # type: ignore[override]


@dataclass(slots=True, eq=False)
class _Attempt:
    """How far an attempt came until it ended."""

    begun: float
    """When it got a connection, or else when it began to wait for one."""
    watch: RequestWatch | None
    has_head: bool = False
    is_of_portal: bool | None = None
    """Whether a portal sent the response, if it is no success; None if that is open."""

    def lent(self) -> None:
        """Note that it has a connection."""
        self.begun = trio.current_time()
        if self.watch is not None:
            self.watch.sent(self, self.begun)


class Destination(Protocol):
    """Where a body goes."""

    def clear(self) -> None:
        """Drop what was put there: the body comes once more."""

    def room(self) -> memoryview:
        """Return where the next bytes go; some at least."""

    def filled(self, size: int) -> None:
        """Take note that so many bytes have come there."""


class HttpClient:
    """Sends requests to one portal. Safe for many tasks at once.

    Every method raises a `PortalError` and nothing else for what happens on the wire.
    """

    def __init__(self, url: str, options: PortalOptions, retry: RetryPolicy | None = None) -> None:
        self.url = url
        self.options = options
        self.retry = retry or RetryPolicy()
        self._transport = HTTPTransport(url, options)
        self._http = _AsyncClient(transport=self._transport, trust_env=False)
        self._recognition = Recognition(self._is_portal)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"HttpClient({self.url!r})"

    @property
    def round_trip(self) -> float | None:
        """Recent minimum of the seconds from a request to its response; None before any."""
        return self._transport.round_trip

    @property
    def waits(self) -> list[Wait]:
        """For the portal to send or take something."""
        return self._transport.pool.waits

    @property
    def in_flight(self) -> int:
        """How many requests are under way or wait for a connection."""
        return self._transport.in_flight

    async def aclose(self) -> None:
        """Close every connection. Requests under way fail, and further ones are a RuntimeError."""
        self._is_closed = True
        await self._transport.aclose()

    async def connect(self, count: int = 1) -> None:
        """Open connections until there are `count`, as far as options allow. Errors are left to
        the requests.
        """
        await self._transport.connect(count)

    def bad(
        self,
        request: requests.Request,
        options: PortalOptions,
        text: str,
        status: int | None,
        kind: type[BadContentError] = BadContentError,
    ) -> PortalError:
        """Make the error that the response to a request is not what was asked for."""
        return Call(request, options, self.url).error(kind, text, status)

    @contextmanager
    def parsing(
        self, request: requests.Request, options: PortalOptions, status: int | None
    ) -> Iterator[None]:
        """Translate the MalformedError of a parser into the error that `bad` makes."""
        try:
            yield
        except MalformedError as error:
            made = self.bad(request, options, str(error), status)
            made.advice = "" if self._recognition.is_portal else NO_PORTAL
            raise made from None

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
        speculative: Callable[[], bool] | None = None,
    ) -> AsyncIterator[StreamingResponse]:
        """Send a request and yield its response once the head is there; success only.

        `options` are those of this call, `headers` go with `content`, and `byte_range` is the part
        of the response's content that is wanted. While `speculative` returns True other requests
        get a connection first. Until there is a response a request that is safe is repeated,
        `options.retries` times at most.
        """
        call = self._call(request, options, headers)

        async def attempt(now: _Attempt) -> StreamingResponse:
            return await self._exchange(call, now, byte_range, content, speculative)

        async with aclosing(await self._repeat(call, content, attempt)) as response:
            yield response

    async def fetch(
        self,
        request: requests.Request,
        limit: int,
        options: PortalOptions | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        believed: int | None = None,
    ) -> Response:
        """Send a request and return its whole response; more than `limit` bytes are an error.

        A safe request is also repeated when the response breaks off. `believed` is a status that
        is not doubted, though the server may be no portal.
        """
        call = self._call(request, options, headers)

        async def attempt(now: _Attempt) -> Response:
            async with aclosing(await self._exchange(call, now, content=content)) as response:
                body = await response.read(limit)
                return Response(response.status, response.headers, body)

        return await self._repeat(call, content, attempt, believed)

    async def fetch_into(self, request: requests.Request, limit: int, into: Destination) -> None:
        """The same with a body that may be long, which goes straight where it is wanted."""
        call = self._call(request, None, None)

        async def attempt(now: _Attempt) -> None:
            into.clear()
            received = 0
            async with aclosing(await self._exchange(call, now)) as response:
                while size := await response.receive_into(into.room()):
                    take(size)
                    into.filled(size)
                    received += size
                    if received > limit:
                        raise response.bad(f"answer is longer than {readable_size(limit)}")

        await self._repeat(call, None, attempt)

    async def is_alive(self, on_connected: Callable[[], None] = lambda: None) -> bool:
        """Whether the portal responds to anything. It is asked beside all other requests, by one
        task at a time; `on_connected` is called when there is a connection for it.
        """
        call = self._call(requests.Request("HEAD", "/"), None, None)
        more = {"on_connected": on_connected, "is_spare": True}
        try:
            with translated(call):
                request = _with_extensions(_prepared(call)[0], more)
                response = await self._transport.handle_async_request(request)
        except PortalError:
            return False
        await response.aclose()
        return True

    async def _repeat(
        self,
        call: Call,
        content: Content | None,
        attempt: Callable[[_Attempt], Awaitable[T]],
        believed: int | None = None,
    ) -> T:
        """Attempt a request until it succeeds, fails for good, or failed often enough."""
        is_safe = call.request.is_safe and not isinstance(content, AsyncIterator)
        repetitions = call.options.retries if is_safe else 0
        number, closings = 0, self._transport.closings
        while True:
            number += 1
            now = _Attempt(trio.current_time(), current() if call.request.is_safe else None)
            try:
                return await attempt(now)
            except PortalError as error:
                error.attempts = number
                _log.debug("%s %s: %s", call.request.method, call.shown_address, error.message)
                if number > repetitions or not self._may_repeat(error, now):
                    if error.status is None or error.status != believed:
                        await self._recognize(call, error, now)
                    raise
                pause = self.retry.pause_before(number, error.retry_after)
                if pause is None or closings != self._transport.closings:
                    raise
            await trio.sleep(pause)
            if closings != self._transport.closings:
                raise call.error(
                    UnavailableError, f"{call.host} cannot be reached: the client was closed"
                )

    def _may_repeat(self, error: PortalError, now: _Attempt) -> bool:
        """Whether the same request may succeed a moment later."""
        if error.status is not None:
            return error.status in REPEATABLE_STATUSES
        if isinstance(error, HeadTooLongError):
            return False
        if isinstance(error, PortalTimeoutError) and (now.has_head or not self.retry.after_silence):
            return False  # that was waited for already
        return isinstance(error.__cause__, _REPEATABLE)

    async def _recognize(self, call: Call, error: PortalError, now: _Attempt) -> None:
        """NoPortalError if the server behind an error turns out to be no portal."""
        if now.is_of_portal is not False:
            return
        found = await self._recognition.stranger(call.options.dialect)
        if found is not None:
            made = call.error(NoPortalError, f"{found.what}: {error.message}", error.status)
            made.advice, made.attempts = found.advice, error.attempts
            raise made from error

    async def _is_portal(self, dialect: Dialect) -> bool | None:
        """Whether a portal of a dialect answers its question; None if that cannot be told."""
        options = replace(self.options, dialect=dialect)
        now = _Attempt(trio.current_time(), None)
        try:
            call = self._call(question(dialect), options, None)
            async with aclosing(await self._exchange(call, now)) as response:
                body = await response.read(ANSWER_LIMIT)
        except PortalError as error:
            if isinstance(error, BadContentError) and error.status is not None:
                return False  # it is something else, such as a page
            return now.is_of_portal
        return is_of_portal(Response(response.status, response.headers, body))

    def _call(
        self,
        request: requests.Request,
        options: PortalOptions | None,
        headers: Mapping[str, str] | None,
    ) -> Call:
        if self._is_closed:
            raise RuntimeError("this client is closed")
        more = tuple(headers.items()) if headers else ()
        watch = current()
        if watch is not None and watch.is_fresh:
            more += (_FRESH,)
        call = Call(request, options or self.options, self.url, more)
        if self.options.read_only and request.method not in _READING_METHODS:
            text = "nothing is sent to this portal: it is used read-only"
            raise call.error(ReadOnlyPortalError, text)
        return call

    async def _exchange(
        self,
        call: Call,
        now: _Attempt,
        byte_range: ByteRange | None = None,
        content: Content | None = None,
        speculative: Callable[[], bool] | None = None,
    ) -> StreamingResponse:
        """Make one attempt. Whoever gets the response closes it."""
        with _timed(now), translated(call):
            request, private = _prepared(call) if content is None else _request(call, content)
            more: dict[str, Any] = {"speculative": speculative, "on_lent": now.lent}
            if byte_range is not None:
                more["range"] = byte_range.header().encode()
            request = _with_extensions(request, more)
            response = StreamingResponse(await self._send(call, request, private, content), call)
        now.has_head = True
        if _log.isEnabledFor(logging.DEBUG):
            answer = (response.status, (trio.current_time() - now.begun) * 1000)
            _log.debug("%s %s: %d, after %.0f ms", call.request.method, call.shown_address, *answer)
        try:
            await _check(response, now)
        except BaseException:
            await response.aclose()
            raise
        if not self._recognition.is_portal and call.options.dialect is self.options.dialect:
            self._recognition.is_portal = response.is_of_portal
        return response

    async def _send(
        self, call: Call, request: httpx.Request, private: frozenset[bytes], content: Content | None
    ) -> httpx.Response:
        """Send, and follow redirects without reading their bodies."""
        before, status = request, 0
        for _ in range(_REDIRECTS + 1):
            silenced = _sending.set(True)
            try:
                response = await self._http.send(request, stream=True, auth=_NO_AUTH)
            except NotFollowedError as error:  # the address of its host is known only now
                raise refusal(call, before, request, status, error) from None
            except UnicodeError as error:  # of a host's name, when it is looked up
                raise call.error(BadContentError, f"no host can have this name: {error}") from None
            finally:
                _sending.reset(silenced)
            if response.next_request is None:
                return response
            await response.aclose()
            before, status = request, response.status_code
            request = next_request(call, before, response, content, private)
        raise call.error(BadContentError, f"more than {_REDIRECTS} redirects")


@lru_cache(_PREPARED)
def _prepared(call: Call) -> tuple[httpx.Request, frozenset[bytes]]:
    """Return a request without a body; it is the same for each range of some content."""
    return _request(call, None)


def _request(call: Call, content: Content | None) -> tuple[httpx.Request, frozenset[bytes]]:
    """Make a request, and return the names of its headers that are private."""
    options = call.options
    headers, private = call.headers()
    idle, connect = options.idle_timeout, options.connect_timeout
    timeout = {"connect": connect, "read": idle, "write": idle, "pool": idle}
    limit = _HEADER_LIMIT if call.request.may_tell_metadata else SMALL_LIMIT
    request = httpx.Request(
        call.request.method,
        call.address,
        headers=[*headers, _ACCEPT],
        content=content,
        extensions={"timeout": {**timeout, "head": connect + 2 * idle}, "head_limit": limit},
    )
    return request, private


def _with_extensions(request: httpx.Request, more: Mapping[str, Any]) -> httpx.Request:
    """Return a shallow copy of a request, with further extensions. `copy.copy` would drop some."""
    found = httpx.Request.__new__(httpx.Request)
    vars(found).update(vars(request), extensions={**request.extensions, **more})
    return found


async def _check(response: StreamingResponse, now: _Attempt) -> None:
    """Raise the error that any status but that of success stands for, and a page of somebody else.

    Note in the attempt whether a portal sent it.
    """
    status, headers, call = response.status, response.headers, response.call
    if not 200 <= status < 300:
        beginning = await _beginning(response)
        refusal = Refusal(
            status,
            responses.parse_error(beginning),
            responses.text_of_error(beginning) if response.is_of_portal else "",
            headers.get("server", "")[:_SERVER],
            beginning,
            parse_retry_after(headers.get("retry-after", ""), datetime.now(UTC)),
            response.proxy,
            response.is_of_portal,
        )
        error = call.error(error_for(status), refusal.message, status)
        error.advice, error.retry_after = refusal.advice(call.options), refusal.retry_after
        now.is_of_portal = refusal.is_from_portal
        raise error
    if headers.get("content-encoding", "identity") != "identity":
        raise call.error(BadContentError, "the portal encoded the content", status)
    is_page = headers.get("content-type", "").startswith("text/html")
    if is_page and call.is_of_service and not response.is_of_portal:
        where, what = response.redirected_to, "the server sends a web page, not what a portal does"
        text = f"it is redirected to {where}, a web page" if where else what
        error = call.error(BadContentError, text, status)
        error.advice = MOVED if where else NO_PORTAL
        raise error


async def _beginning(response: StreamingResponse) -> bytes:
    """Read an error's body as far as it comes and is looked at: the status says enough."""
    beginning = b""
    with suppress(PortalError):
        while len(beginning) <= responses.RESPONSE_LIMIT and (piece := await response.receive()):
            beginning += piece
    return beginning


@contextmanager
def _timed(now: _Attempt) -> Iterator[None]:
    """Note when the head came; in an error, how long a portal could not be reached, or that nothing
    was sent to it.
    """
    try:
        yield
        if now.watch is not None:
            now.watch.head_came(now, trio.current_time())
    except PortalError as error:
        if isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
            error.unreached = trio.current_time() - now.begun
        error.is_unsent = isinstance(error.__cause__, httpx.PoolTimeout)
        raise
    finally:
        if now.watch is not None:
            now.watch.request_ended(now)

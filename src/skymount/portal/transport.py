"""Owns the connections to one portal; the only importer of httpx.

Sends the requests of ``wire.messages`` and hands on answers of success, whose form is checked
(status, lengths, limits, rate). Redirects, repetitions and the translation of every failure into a
`PortalError` are here and nowhere else. What an answer means is not known here.
"""

import logging
import math
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Self, TypeVar

import httpcore
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
from skymount.portal.heads import bound_lines
from skymount.portal.options import HEADER_LIMIT, PortalOptions, is_local
from skymount.wire import messages

# httpcore has no option for either (its class attributes are the documented way round): it refuses
# headers over 100 KB, and receives in 64 KiB pieces, which costs two thirds of the throughput.
httpcore.AsyncHTTP11Connection.MAX_INCOMPLETE_EVENT_SIZE = HEADER_LIMIT
httpcore.AsyncHTTP11Connection.READ_NUM_BYTES = 1 << 20
bound_lines()

# httpx logs the address of every request, with its query. Ours stay out of the log, whoever keeps
# it; requests that the program makes with httpx by itself are not touched.
_sending: ContextVar[bool] = ContextVar("sending", default=False)
logging.getLogger("httpx").addFilter(lambda _: not _sending.get())

T = TypeVar("T")
Content = bytes | AsyncIterable[bytes]
"""A request's body. To be sent again after a redirect it must begin anew at each iteration."""

_REDIRECTS = 5  # followed for one request
_KEPT = 60.0  # seconds that an idle connection is kept; servers commonly close theirs after 75
_SLOWEST = 8 << 10  # bytes a second; a portal that drips more slowly counts as silent
_CLOSING = 1.0  # seconds that closing an answer may take, also when its reader was cancelled

_AS_IT_IS = httpx.Auth()  # else httpx takes credentials from the address that a redirect names

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


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """An answer of success whose body is still to come; read it with `Transport.pieces`."""

    status: int
    headers: Headers
    _call: Call = field(repr=False)
    _response: httpx.Response = field(repr=False)

    def bad(self, message: str) -> PortalError:
        """Make the error that this answer is not what was asked for."""
        return self._call.error(BadContentError, message)


class Transport:
    """The connections to one portal. Safe for many tasks at once.

    Every method raises a `PortalError` and nothing else for what happens on the wire.
    """

    def __init__(self, url: str, options: PortalOptions) -> None:
        self.url = url
        self.options = options
        self._tls: ssl.SSLContext | None = None
        self._opening = trio.Lock()
        self._free = trio.Semaphore(options.connections)
        self._idle: list[httpx.AsyncClient] = []  # the one that was used last is the next
        self._lent: set[httpx.AsyncClient] = set()
        self._closings = 0

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    async def aclose(self) -> None:
        """Close every connection. A further request opens new ones; those under way fail."""
        self._closings += 1
        clients = [*self._idle, *self._lent]
        self._idle.clear()
        self._lent.clear()
        for client in clients:
            await client.aclose()

    def bad(
        self, request: messages.Request, options: PortalOptions, text: str, status: int | None
    ) -> PortalError:
        """Make the error that the answer to a request is not what was asked for."""
        return Call(request, options, self.url).error(BadContentError, text, status)

    async def prepare(self) -> None:
        """Do now what the first request would otherwise wait for. No network traffic.

        What goes wrong is the error of each request, not of this.
        """
        with suppress(PortalError):
            async with self._client():
                pass

    # --- requests

    @asynccontextmanager
    async def open(
        self,
        request: messages.Request,
        options: PortalOptions | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        content: Content | None = None,
    ) -> AsyncIterator[OpenAnswer]:
        """Send a request and yield its answer once the head is there; success only.

        `options` are those of this call, `headers` the ones that go with `content`. Until there
        is an answer a request that is safe is repeated, `options.retries` times at most.
        """
        call = Call(request, options or self.options, self.url, headers or {})
        async with AsyncExitStack() as stack:

            async def attempt(heard: _Heard) -> OpenAnswer:
                return await stack.enter_async_context(self._exchange(call, content, heard))

            yield await self._repeat(call, content, attempt)

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
        call = Call(request, options or self.options, self.url, headers or {})

        async def attempt(heard: _Heard) -> Answer:
            async with self._exchange(call, content, heard) as answer:
                return Answer(answer.status, answer.headers, await self.body(answer, limit))

        return await self._repeat(call, content, attempt)

    async def body(self, answer: OpenAnswer, limit: int) -> bytes:
        """Read a body of at most `limit` bytes; a longer one is a portal's fault."""
        async with aclosing(self.pieces(answer, limit=limit)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def pieces(
        self, answer: OpenAnswer, length: int | None = None, *, limit: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a body as it comes. Use it with ``aclosing``.

        BadContentError unless it has exactly `length` bytes, or at most `limit`. One that drips
        is not waited for longer than silence is.
        """
        arrived = 0
        async with aclosing(_raw(answer._call, answer._response)) as pieces:
            async for piece in pieces:
                arrived += len(piece)
                if limit is not None and arrived > limit:
                    raise answer.bad(f"answer is longer than {limit} bytes")
                if length is not None and arrived > length:
                    raise answer.bad("more bytes than asked for")
                yield piece
        if length is not None and arrived < length:
            raise answer.bad(f"{length - arrived} bytes too few")

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

    @asynccontextmanager
    async def _exchange(
        self, call: Call, content: Content | None, heard: _Heard
    ) -> AsyncIterator[OpenAnswer]:
        """Make one attempt, and translate what httpx says of it and of reading the answer."""
        try:
            async with self._turn(call.options.idle_timeout):
                if heard.closings != self._closings:
                    raise httpx.NetworkError("the client was closed")
                async with self._client() as http:
                    with _patience(call.options, content) as watched:
                        response = await _send(http, call, watched)
                    try:
                        heard.head = True
                        yield await _accepted(call, response, heard)
                    finally:
                        await _close(response)
        except httpx.TimeoutException as error:
            detail = str(error) or type(error).__name__
            raise call.error(PortalTimeoutError, f"no answer in time: {detail}") from error
        except httpx.RemoteProtocolError as error:
            raise call.error(BadContentError, str(error)) from error
        except httpx.HTTPError as error:
            detail = str(error) or type(error).__name__
            raise call.error(UnavailableError, f"cannot be reached: {detail}") from error
        except httpx.InvalidURL as error:
            raise call.error(RequestRefusedError, str(error)) from None

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Lend an HTTP client to one request at a time.

        Each has a connection of its own: httpcore's pool offers one connection to several requests
        that wait, all but one of which begin again, and looks through all of them each time. With
        32 connections that takes as long as everything else.
        """
        client = self._idle.pop() if self._idle else await self._new_client()
        self._lent.add(client)
        try:
            yield client
        finally:
            if client in self._lent:  # or else it was closed meanwhile
                self._lent.remove(client)
                self._idle.append(client)

    async def _new_client(self) -> httpx.AsyncClient:
        """Make an HTTP client; what is slow about TLS happens once, and off the event loop."""
        environment = not is_local(self.url)  # a proxy cannot reach our own loopback
        create = partial(httpx.create_ssl_context, trust_env=environment)
        try:
            async with self._opening:
                if self._tls is None:
                    self._tls = await trio.to_thread.run_sync(create)
            return httpx.AsyncClient(
                verify=self._tls,
                limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=_KEPT),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none are kept
                trust_env=environment,
            )
        except httpx.InvalidURL:  # of a proxy; what is wrong may be part of a password
            raise UnavailableError(
                "the address of a proxy in the environment is not valid", url=self.url
            ) from None
        except Exception as error:  # a proxy or a certificate file in the environment
            raise UnavailableError(
                f"the HTTP client cannot be set up: {error}", url=self.url
            ) from error

    @asynccontextmanager
    async def _turn(self, limit: float) -> AsyncIterator[None]:
        """Wait for one of the connections. httpcore's own bound loses one for good when a request
        is cancelled while it waits.
        """
        with trio.move_on_after(limit) as scope:
            await self._free.acquire()
        if scope.cancelled_caught:
            raise httpx.PoolTimeout(f"every connection is busy for {limit:g} s")
        try:
            yield
        finally:
            self._free.release()


def _is_passing(error: PortalError, heard: _Heard) -> bool:
    """Whether the same request may succeed a moment later."""
    if error.status is not None:
        return error.status in PASSING
    if heard.head and isinstance(error, PortalTimeoutError):
        return False  # that was waited for already
    return isinstance(error.__cause__, _BROKEN)


@contextmanager
def _patience(options: PortalOptions, content: Content | None) -> Iterator[Content | None]:
    """Bound the time until the headers are there, however slowly they drip in.

    Yields the content to send: what is not in memory takes as long as it takes, and the time begins
    when it is sent.
    """
    limit = options.connect_timeout + 2 * options.idle_timeout
    uploading = content is not None and not isinstance(content, bytes)
    try:
        with trio.fail_after(math.inf if uploading else limit) as scope:
            if content is None or isinstance(content, bytes):
                yield content
            else:
                kind = _Once if isinstance(content, AsyncIterator) else _Timed
                yield kind(content, scope, limit)
    except trio.TooSlowError:
        raise httpx.ReadTimeout(f"no headers in {limit:g} s") from None


class _Timed:
    """A body that starts the time of a scope when it is sent, and stops it when sent again."""

    def __init__(
        self, content: AsyncIterable[bytes], scope: trio.CancelScope, limit: float
    ) -> None:
        self._content = content
        self._scope = scope
        self._limit = limit

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Once(aiter(self._content), self._scope, self._limit)


class _Once(_Timed):
    """The same of a body that can be read only once. No generator: httpx does not close one."""

    _content: AsyncIterator[bytes]

    def __aiter__(self) -> Self:
        self._scope.deadline = math.inf
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._content)
        except StopAsyncIteration:
            self._scope.deadline = trio.current_time() + self._limit
            raise


async def _send(http: httpx.AsyncClient, call: Call, content: Content | None) -> httpx.Response:
    """Send, and follow redirects without reading their bodies, as httpx would."""
    options = call.options
    headers, private = call.headers()
    request = http.build_request(
        call.request.method,
        call.address,
        headers=headers,
        content=content,
        timeout=httpx.Timeout(options.idle_timeout, connect=options.connect_timeout),
    )
    for _ in range(_REDIRECTS + 1):
        if http.is_closed:
            raise httpx.NetworkError("the client was closed")
        silenced = _sending.set(True)
        try:
            response = await http.send(request, stream=True, auth=_AS_IT_IS)
        except UnicodeError as error:  # of a host's name, at last when it is looked up
            raise call.error(BadContentError, f"no host can have this name: {error}") from None
        finally:
            _sending.reset(silenced)
        if response.next_request is None:
            return response
        await _close(response)
        request = _redirected(call, response, content, private)
    raise call.error(BadContentError, f"more than {_REDIRECTS} redirects")


def _redirected(
    call: Call, response: httpx.Response, content: Content | None, private: frozenset[bytes]
) -> httpx.Request:
    """Return the request that follows a redirect; an error when it must not be followed.

    Method and body are what httpx makes of them: 307 and 308 keep both, any other makes a POST a
    GET. httpx takes only the Authorization header off a request to another origin; here nothing of
    the user's but the user agent goes there.
    """
    before, then = response.request, response.next_request
    assert then is not None
    status = response.status_code
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


async def _accepted(call: Call, response: httpx.Response, heard: _Heard) -> OpenAnswer:
    """Return an answer of success; raise the error that any other status stands for."""
    headers = Headers(response.headers.raw)
    status = response.status_code
    if not response.is_success:
        heard.retry_after = parse_retry_after(headers.get("retry-after", ""), datetime.now(UTC))
        words = messages.parse_error(await _beginning(call, response))
        raise call.error(error_for(status), words or f"HTTP status {status}", status)
    if headers.get("content-encoding", "identity") != "identity":
        raise call.error(BadContentError, "the portal encoded the content", status)
    return OpenAnswer(status, headers, call, response)


async def _beginning(call: Call, response: httpx.Response) -> bytes:
    """Read an error's body as far as it comes and is looked at: the status says enough."""
    body = b""
    with suppress(httpx.HTTPError, PortalError):
        async with aclosing(_raw(call, response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > messages.ANSWER_LIMIT:
                    break
    return body


async def _raw(call: Call, response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield a body as it comes; one that drips is not waited for longer than silence is."""
    waited, arrived = 0.0, 0
    body = response.aiter_raw()
    while True:
        begun = trio.current_time()
        piece = await anext(body, None)
        if piece is None:
            return
        waited += trio.current_time() - begun
        arrived += len(piece)
        yield piece
        if waited > call.options.idle_timeout:
            if arrived < _SLOWEST * waited:
                slow = f"only {arrived} bytes in {waited:.0f} s"
                raise call.error(PortalTimeoutError, slow)
            waited, arrived = 0.0, 0


async def _close(response: httpx.Response) -> None:
    """Close an answer, also when its reader was cancelled."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSING):
        await response.aclose()

"""A portal's response: headers, body, and the error that a status or a failure stands for."""

import io
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
import trio

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    HeadTooLongError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.http import advice
from skymount.portal.http.memory_budget import take
from skymount.portal.http.proxy import Proxy
from skymount.portal.http.request import Call
from skymount.portal.http.request_watch import current
from skymount.portal.http.response_body import Body, MinimumRate
from skymount.portal.http.response_head import TooLongError
from skymount.wording import readable_size

_STATUS_ERRORS: Mapping[int, type[PortalError]] = {
    401: AccessDeniedError,
    402: AccessDeniedError,
    403: AccessDeniedError,
    404: NotFoundError,
    407: UnavailableError,  # of a proxy: the portal was not asked
    410: NotFoundError,
    408: UnavailableError,
    429: UnavailableError,
    451: AccessDeniedError,
}

_SECONDS = re.compile(r"\d{1,9}")
_DATE_LIMIT = 64  # characters; an HTTP date has 29
_TOTAL = re.compile(r"\d{1,19}")


class Headers(Mapping[str, str]):
    """The headers of a response by their names in any case; the repr shows no values."""

    __slots__ = ("_found",)

    def __init__(self, raw: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._found: dict[str, list[bytes]] = {}
        for name, value in raw:
            self._found.setdefault(name.decode("latin-1").lower(), []).append(value)

    def __getitem__(self, name: str) -> str:
        """Return a header as text, several of one name joined: UTF-8, or else latin-1."""
        value = b", ".join(self._found[name.lower()])
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._found

    def __repr__(self) -> str:
        return f"Headers({', '.join(self._found)})"

    def raw(self, name: str) -> bytes | None:
        """Return the bytes of the first header of that name as they came, None without one."""
        values = self._found.get(name.lower())
        return values[0] if values else None

    @property
    def length(self) -> int | None:
        """The Content-Length in bytes, None without a good one."""
        text = self.get("content-length", "")
        return int(text) if _TOTAL.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response of success."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)


class StreamingResponse:
    """A response of success whose body is still to come.

    Errors of what follows are those of `translated`, and BadContentError for a body of another
    length than it should have.
    """

    __slots__ = ("_body", "_rate", "_response", "_watch", "call", "headers", "proxy", "status")

    def __init__(self, response: httpx.Response, call: Call) -> None:
        self.status = response.status_code
        self.headers = Headers(response.headers.raw)
        self.call = call
        self._response = response
        self.proxy: Proxy | None = response.extensions.get("proxy")
        """A proxy of the environment that may have made it."""
        self._body: Body = response.extensions["body"]
        self._rate = MinimumRate(call.options.idle_timeout)
        self._watch = current() if call.request.is_safe else None

    def __repr__(self) -> str:
        return f"StreamingResponse({self.status}, {self.headers!r})"

    @property
    def is_of_portal(self) -> bool:
        """Whether it surely is a portal's: it has a header that only portals send."""
        return any(name in self.headers for name in self.call.options.dialect.answer_headers)

    @property
    def redirected_to(self) -> str:
        """The address that a redirect led to, without its query; "" without one."""
        url = self._response.request.url
        asked = httpx.URL(self.call.address)
        same = (url.scheme, url.netloc, url.path) == (asked.scheme, asked.netloc, asked.path)
        return "" if same else str(url.copy_with(userinfo=b"", query=None, fragment=None))

    def bad(self, message: str) -> PortalError:
        """Make the error that this response is not what was asked for."""
        return self.call.error(BadContentError, message)

    async def receive(self) -> bytes:
        """Return what comes next of the body, b"" at its end."""
        begun = self._wait_begins()
        with translated(self.call):
            piece = await self._body.receive()
        self._note(begun, len(piece))
        return piece

    async def receive_into(self, view: memoryview) -> int:
        """Put what comes next of the body into a buffer; return how much, 0 at its end."""
        begun = self._wait_begins()
        with translated(self.call):
            received = await self._body.receive_into(view)
        self._note(begun, received)
        return received

    async def fill(self, view: memoryview) -> None:
        """Fill a buffer with all of the body that is left."""
        await self.fill_next(view)
        await self.finish()

    async def fill_each(self, views: Sequence[memoryview]) -> AsyncGenerator[int, None]:
        """Fill buffers, together as long as the body; yields the number of each that may be used.

        The last one may be used once it is known that nothing follows. If the response does not
        say how long it is, only its end tells whether it is what was asked for: then no buffer may
        be used before.
        """
        is_sized = self.headers.length is not None
        for number, view in enumerate(views[:-1]):
            await self.fill_next(view)
            if is_sized:
                yield number
        await self.fill(views[-1])
        for number in range(len(views) - 1 if is_sized else 0, len(views)):
            yield number

    async def fill_next(self, view: memoryview) -> None:
        """Fill a buffer with what comes next of the body."""
        while view:
            received = await self.receive_into(view)
            if not received:
                raise self.bad(f"body ended {readable_size(len(view))} early")
            view = view[received:]

    async def finish(self) -> None:
        """Make sure that the body is at its end."""
        if await self.receive_into(memoryview(bytearray(1))):
            raise self.bad("more bytes than asked for")

    async def pieces(
        self, length: int | None = None, *, limit: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes: exactly `length` bytes, or at most `limit`.

        Use it with ``aclosing``.
        """
        received = 0
        while piece := await self.receive():
            received += len(piece)
            if limit is not None and received > limit:
                raise self.bad(f"answer is longer than {readable_size(limit)}")
            if length is not None and received > length:
                raise self.bad("more bytes than asked for")
            yield piece
        if length is not None and received < length:
            raise self.bad(f"body ended {readable_size(length - received)} early")

    async def read(self, limit: int) -> bytes:
        """Return the whole body, of at most `limit` bytes. It counts for the memory budget."""
        found = io.BytesIO()  # joining a list of pieces would copy all of them at the end
        async with aclosing(self.pieces(limit=limit)) as pieces:
            async for piece in pieces:
                take(len(piece))
                found.write(piece)
        return found.getvalue()

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.body_closed(self)
        try:
            await self._response.aclose()
        finally:
            # httpx's response and its stream refer to each other. Without this, the buffers that
            # the request refers to could not be reused before a garbage collection.
            self._response.stream = httpx.ByteStream(b"")

    def _wait_begins(self) -> float:
        now = trio.current_time()
        if self._watch is not None:
            self._watch.body_awaited(self, now)
        return now

    def _note(self, begun: float, received: int) -> None:
        now = trio.current_time()
        if self._watch is not None:
            self._watch.bytes_came(self, received, now)
        wrong = self._rate.note(now - begun, received)
        if wrong:
            raise self.call.error(PortalTimeoutError, wrong)


def error_for(status: int) -> type[PortalError]:
    """Return the error that a status other than success stands for."""
    known = _STATUS_ERRORS.get(status)
    if known is not None:
        return known
    return RequestRefusedError if 400 <= status < 500 else UnavailableError


def parse_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, None when it is not one."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text[:_DATE_LIMIT])
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0.0, (date - now).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


@contextmanager
def translated(call: Call) -> Iterator[None]:
    """Raise errors of httpx as those of a request."""
    try:
        yield
    except httpx.TimeoutException as error:
        detail = f": {error}" if str(error) else ""
        raise call.error(PortalTimeoutError, f"no answer in time{detail}") from error
    except httpx.RemoteProtocolError as error:
        kind = HeadTooLongError if isinstance(error.__cause__, TooLongError) else BadContentError
        raise _advised(call.error(kind, str(error)), error, call) from error
    except httpx.HTTPError as error:
        detail = str(error) or type(error).__name__
        what = f"{call.host} cannot be reached: {detail}"
        raise _advised(call.error(UnavailableError, what), error, call) from error
    except httpx.InvalidURL as error:
        raise call.error(RequestRefusedError, str(error)) from None


def _advised(made: PortalError, cause: httpx.HTTPError, call: Call) -> PortalError:
    made.advice = advice.about_failure(cause, call.portal)
    return made

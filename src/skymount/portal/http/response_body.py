"""Response bodies, received by the piece or straight into the reader's buffers.

Only chunks go through h11, which copies each byte several times.
"""

import math
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable

import h11
import httpx
import trio

from skymount.portal.http.stream import SocketStream
from skymount.wording import readable_size

RECEIVE_SIZE = 1 << 20
"""Bytes of a body that are received at once, at most."""

RECEIVED = 64 << 10
"""Bytes that are received at once with a head: all of a small response, and little of a large one,
whose reader has a buffer for it.
"""

_LINES = 200  # given to h11 at once: chunk heads and trailers take it 10 us each

_FREE_CHUNKS = 1000  # of any size
_CHUNK = 256  # bytes of further chunks on average, at least: each takes h11 20 us

_LEAST_RATE = 8 << 10  # bytes a second; a portal that sends more slowly counts as silent

Release = Callable[[bytes | None], None]
"""Called once, when the reader is done, with what was received after the body; None if the body is
not at its end.
"""


class MinimumRate:
    """Notices what trickles in: it gets no more patience than silence."""

    def __init__(self, limit: float | None) -> None:
        """`limit` is for how many seconds a portal may be silent."""
        self._limit = math.inf if limit is None else limit
        self._waited, self._received = 0.0, 0

    def note(self, waited: float, received: int) -> str:
        """Note how many seconds something was waited for; return what is wrong, "" if nothing."""
        self._waited += waited
        self._received += received
        if not received or self._waited <= self._limit:
            return ""
        if self._received < _LEAST_RATE * self._waited:
            return f"only {readable_size(self._received)} in {self._waited:.0f} s"
        self._waited, self._received = 0.0, 0
        return ""


class Body(httpx.AsyncByteStream):
    """A body whose `aclose` frees the connection."""

    @abstractmethod
    async def receive(self, limit: int = RECEIVE_SIZE) -> bytes:
        """Return at least one byte of what comes next and at most `limit`; none at the end."""

    async def receive_into(self, view: memoryview) -> int:
        """Put at least one byte of what comes next into a buffer; return how many, 0 at the end."""
        data = await self.receive(len(view))
        view[: len(data)] = data
        return len(data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.receive():
            yield data


class SizedBody(Body):
    """A body of `size` bytes; `math.inf` if it ends with the connection."""

    def __init__(
        self,
        stream: SocketStream,
        buffered: bytes,
        size: float,
        timeout: float | None,
        release: Release,
    ) -> None:
        self._stream = stream
        self._size = size
        self._left = size
        self._buffered = memoryview(buffered)
        self._timeout = timeout
        self._release: Release | None = release

    async def receive(self, limit: int = RECEIVE_SIZE) -> bytes:
        count = self._count(limit)
        if not count:
            return b""
        if self._buffered:
            return bytes(self._take_buffered(count))
        data = await self._stream.receive(count, self._timeout)
        self._note(len(data))
        return data

    async def receive_into(self, view: memoryview) -> int:
        count = self._count(len(view))
        if not count:
            return 0
        if self._buffered:
            taken = self._take_buffered(count)
            view[: len(taken)] = taken
            return len(taken)
        received = await self._stream.receive_into(view[:count], self._timeout)
        self._note(received)
        return received

    async def aclose(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            is_here = self._left <= len(self._buffered)
            release(bytes(self._buffered[int(self._left) :]) if is_here else None)

    def _count(self, limit: int) -> int:
        if self._release is None:
            raise httpx.StreamClosed
        return int(min(limit, self._left))

    def _take_buffered(self, count: int) -> memoryview:
        taken, self._buffered = self._buffered[:count], self._buffered[count:]
        self._left -= len(taken)
        return taken

    def _note(self, received: int) -> None:
        self._left -= received
        if not received:
            if self._left != math.inf:
                arrived = self._size - self._left
                raise httpx.RemoteProtocolError(
                    f"the connection was closed after {arrived} bytes of {self._size}"
                )
            self._left = 0


class ChunkedBody(Body):
    """A body in chunks. The parser has read the head."""

    def __init__(
        self,
        stream: SocketStream,
        buffered: bytes,
        parser: h11.Connection,
        timeout: float | None,
        release: Release,
    ) -> None:
        self._stream = stream
        self._unparsed = buffered
        self._parser = parser
        self._piece = memoryview(b"")
        self._timeout = timeout
        self._is_complete = False
        self._chunks = 0
        self._received = 0
        self._release: Release | None = release

    async def receive(self, limit: int = RECEIVE_SIZE) -> bytes:
        if self._release is None:
            raise httpx.StreamClosed
        try:
            while not self._piece and not self._is_complete:
                await self._advance()
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        data, self._piece = bytes(self._piece[:limit]), self._piece[limit:]
        return data

    async def aclose(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release(self._parser.trailing_data[0] + self._unparsed if self._is_complete else None)

    async def _advance(self) -> None:
        event = self._parser.next_event()
        if isinstance(event, h11.Data):
            self._piece = memoryview(event.data)
            self._note(event)
        elif event is not h11.NEED_DATA:
            self._is_complete = True
        elif self._unparsed:
            await trio.lowlevel.checkpoint()
            stop = _few_lines(self._unparsed)
            self._parser.receive_data(self._unparsed[:stop])
            self._unparsed = self._unparsed[stop:]
        else:
            self._unparsed = await self._stream.receive(RECEIVED, self._timeout)
            if not self._unparsed:
                self._parser.receive_data(b"")  # an error unless the body is complete

    def _note(self, event: h11.Data) -> None:
        self._chunks += event.chunk_start
        self._received += len(event.data)
        if self._chunks > _FREE_CHUNKS + self._received // _CHUNK:
            raise h11.RemoteProtocolError("the body comes in too many small chunks")


def _few_lines(data: bytes) -> int:
    stop = len(data)
    while data.count(b"\n", 0, stop) > _LINES:
        stop //= 2
    return stop

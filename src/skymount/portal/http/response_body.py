"""Owns how the body of an answer is received: by the piece, or into buffers of the reader's.

A body whose length is known, or that ends with the connection, comes straight from the stream; h11
takes chunks apart. Through h11 each byte would be copied several times.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Self

import h11
import httpx
import trio

from skymount.portal.http.stream import SocketStream

RECEIVE_SIZE = 1 << 20
"""Bytes of a body that are received at once, at most."""

RECEIVED = 64 << 10
"""Bytes that are received at once where it is not known what comes: all of a small answer, and
little of a large one, whose reader has a better place for it.
"""

_LINES = (
    200  # given to h11 at once; they may be chunks' heads or trailers, which take it 10 us each
)

_FREE_CHUNKS = 1000  # of any size; honest servers flush now and then
_CHUNK = 256  # bytes of a chunk on average at least, beyond those: each takes h11 20 us

Release = Callable[[bytes | None], None]
"""Called once, when the reader is done: with what has come after the body; with None if the body is
not at its end, or it is not known what came after.
"""


class Body(httpx.AsyncByteStream):
    """A body on its way. Closing it frees the connection."""

    @abstractmethod
    async def receive(self, limit: int = RECEIVE_SIZE) -> bytes:
        """Return at least one byte of what comes next and at most `limit`; none at the end."""

    async def receive_into(self, view: memoryview) -> int:
        """Put at least one byte of what comes next into a buffer; return how many, 0 at the end."""
        data = await self.receive(len(view))
        view[: len(data)] = data
        return len(data)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        data = await self.receive()
        if not data:
            raise StopAsyncIteration
        return data


class SizedBody(Body):
    """A body of so many bytes; of `math.inf`, when it ends with the connection."""

    def __init__(
        self,
        stream: SocketStream,
        held: bytes,
        size: float,
        timeout: float | None,
        release: Release,
    ) -> None:
        self._stream = stream
        self._size = size
        self._left = size
        self._held = memoryview(held)
        self._timeout = timeout
        self._release: Release | None = release

    async def receive(self, limit: int = RECEIVE_SIZE) -> bytes:
        count = self._count(limit)
        if not count:
            return b""
        if self._held:
            return bytes(self._take_held(count))
        data = await self._stream.receive(count, self._timeout)
        self._note(len(data))
        return data

    async def receive_into(self, view: memoryview) -> int:
        count = self._count(len(view))
        if not count:
            return 0
        if self._held:
            held = self._take_held(count)
            view[: len(held)] = held
            return len(held)
        received = await self._stream.receive_into(view[:count], self._timeout)
        self._note(received)
        return received

    async def aclose(self) -> None:
        """Free the connection; for the next answer if this one is here to its end."""
        release, self._release = self._release, None
        if release is not None:
            is_here = self._left <= len(self._held)
            release(bytes(self._held[int(self._left) :]) if is_here else None)

    def _count(self, limit: int) -> int:
        if self._release is None:
            raise httpx.StreamClosed
        return int(min(limit, self._left))

    def _take_held(self, count: int) -> memoryview:
        taken, self._held = self._held[:count], self._held[count:]
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
    """A body in chunks, whose parser has read the head."""

    def __init__(
        self,
        stream: SocketStream,
        held: bytes,
        parser: h11.Connection,
        timeout: float | None,
        release: Release,
    ) -> None:
        self._stream = stream
        self._unparsed = held
        self._parser = parser
        self._piece = memoryview(b"")
        self._timeout = timeout
        self._ended = False
        self._chunks = 0
        self._received = 0
        self._release: Release | None = release

    async def receive(self, limit: int = RECEIVE_SIZE) -> bytes:
        if self._release is None:
            raise httpx.StreamClosed
        try:
            while not self._piece and not self._ended:
                await self._advance()
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        data, self._piece = bytes(self._piece[:limit]), self._piece[limit:]
        return data

    async def aclose(self) -> None:
        """Free the connection; for the next answer if this one was read to its end."""
        release, self._release = self._release, None
        if release is not None:
            release(self._parser.trailing_data[0] + self._unparsed if self._ended else None)

    async def _advance(self) -> None:
        """Take one step: a piece, the end, or more bytes for the parser."""
        event = self._parser.next_event()
        if isinstance(event, h11.Data):
            self._piece = memoryview(event.data)
            self._note(event)
        elif event is not h11.NEED_DATA:
            self._ended = True
        elif self._unparsed:
            await trio.lowlevel.checkpoint()
            stop = _few_lines(self._unparsed)
            self._parser.receive_data(self._unparsed[:stop])
            self._unparsed = self._unparsed[stop:]
        else:
            self._unparsed = await self._stream.receive(RECEIVED, self._timeout)
            if not self._unparsed:
                self._parser.receive_data(b"")  # the end, which it refuses unless it is time

    def _note(self, event: h11.Data) -> None:
        """RemoteProtocolError of h11 for a body that costs far more than its bytes are worth."""
        self._chunks += event.chunk_start
        self._received += len(event.data)
        if self._chunks > _FREE_CHUNKS + self._received // _CHUNK:
            raise h11.RemoteProtocolError("the body comes in too many small chunks")


def _few_lines(data: bytes) -> int:
    """Return how much of the beginning has few enough lines to be parsed at once."""
    stop = len(data)
    while data.count(b"\n", 0, stop) > _LINES:
        stop //= 2
    return stop

"""Comparison of a download with its skylink while it arrives. Requests and files are not known."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import trio

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    MalformedError,
    NotFoundError,
    RequestRefusedError,
)
from skymount.policies import Verified
from skymount.wire import base_sector
from skymount.wire.http.byte_range import ByteRange
from skymount.wording import readable_size

NOT_OFFERED = (NotFoundError, RequestRefusedError, AccessDeniedError)
"""What a portal answers that does not serve a base sector, or a part of the content."""

NO_REST = "the portal does not send the rest of its chunks"

ReadPayload = Callable[[ByteRange], AsyncGenerator[bytes, None]]


class DownloadCheck:
    """Compares a download with its skylink; this class compares nothing.

    Every method raises MalformedError for other content; `finish` also when the rest cannot be
    verified but must be.
    """

    verified = Verified.NO

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        """Why the content is not compared, or only in part."""

    def update(self, piece: bytes) -> None:
        """Compare the next bytes. CPU-bound: for a thread."""

    def restart(self) -> None:
        """Begin again: the first byte comes next."""

    async def finish(self) -> None:
        """Compare what is left after the last byte."""


class SizeCheck(DownloadCheck):
    """Compares the size only."""

    verified = Verified.PARTLY

    def __init__(self, size: int, reason: str = "") -> None:
        super().__init__(reason)
        self._size = size
        self._received = 0

    def update(self, piece: bytes) -> None:
        self._received += len(piece)
        if self._received > self._size:
            raise MalformedError(f"it is not the content: more than {readable_size(self._size)}")

    def restart(self) -> None:
        self._received = 0

    async def finish(self) -> None:
        if self._received < self._size:
            missing = readable_size(self._size - self._received)
            raise MalformedError(f"it is not the content: body ended {missing} early")


class PayloadCheck(SizeCheck):
    """Compares with the payload, which the base sector holds."""

    verified = Verified.YES

    def __init__(self, content: memoryview) -> None:
        super().__init__(len(content))
        self._content = content

    def update(self, piece: bytes) -> None:
        start = self._received
        super().update(piece)
        if self._content[start : self._received] != piece:
            raise MalformedError("it is not the content")


class ChunkCheck(SizeCheck):
    """Compares chunk by chunk with the fan-out.

    The parts of the first and the last chunk that are not downloaded are read from the portal.
    """

    verified = Verified.YES

    def __init__(
        self,
        layout: base_sector.Layout,
        fanout: bytes,
        offset: int,
        size: int,
        read: ReadPayload,
        *,
        is_required: bool,
    ) -> None:
        super().__init__(size)
        self._layout = layout
        self._fanout = fanout
        self._read = read
        self._is_required = is_required
        self._part_size = base_sector.part_size(layout)
        self._offset = offset
        self._position = offset // layout.chunk_size * layout.chunk_size
        self._part = bytearray()
        self._hashes: list[tuple[bytes, ...]] = []  # of the parts of the current chunk
        self._initial = (self._position, b"", tuple(self._hashes))

    async def begin(self) -> None:
        """Read what the first chunk has before the download."""
        if self._size:
            await self._read_to(self._offset)
        self._initial = (self._position, bytes(self._part), tuple(self._hashes))

    def update(self, piece: bytes) -> None:
        super().update(piece)
        self._hash(piece)

    def restart(self) -> None:
        super().restart()
        self._position, part, hashes = self._initial
        self._part, self._hashes = bytearray(part), list(hashes)

    async def finish(self) -> None:
        await super().finish()
        if self._part or self._hashes:
            try:
                await self._read_to(self._chunk_end)
            except (BadContentError, *NOT_OFFERED):
                if self._is_required:
                    raise MalformedError(f"it cannot be verified: {NO_REST}") from None
                self.verified, self.reason = Verified.NO, NO_REST

    @property
    def _chunk_end(self) -> int:
        chunk_size = self._layout.chunk_size
        return min((self._position // chunk_size + 1) * chunk_size, self._layout.filesize)

    async def _read_to(self, stop: int) -> None:
        if self._position < stop:
            async with aclosing(self._read(ByteRange(self._position, stop))) as pieces:
                async for piece in pieces:
                    await trio.to_thread.run_sync(self._hash, piece)

    def _hash(self, piece: bytes) -> None:
        """Hash the next bytes, and verify each chunk that is complete."""
        rest = memoryview(piece)
        while rest:
            end = self._chunk_end
            taken = rest[: min(self._part_size - len(self._part), end - self._position)]
            rest = rest[len(taken) :]
            index = self._position // self._layout.chunk_size
            self._part += taken
            self._position += len(taken)
            is_complete = self._position == end
            if len(self._part) == self._part_size or is_complete:
                self._hashes.append(base_sector.hash_part(self._layout, bytes(self._part)))
                self._part.clear()
            if is_complete:
                hashes, self._hashes = self._hashes, []
                if not base_sector.is_authentic(self._layout, self._fanout, index, hashes):
                    raise MalformedError(f"it is not the content: chunk {index} is another one")

"""Cuts an upload into sectors; encrypts, hashes and writes them as they fill.

Where the store takes parts of a sector, and nothing is encrypted, they are parts of one.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio

from skymount.concurrency import in_one_of
from skymount.large_buffers import BufferUse
from skymount.server.http_error import HttpError
from skymount.server.storage.disk_errors import StorageUnavailableError
from skymount.server.storage.interfaces import ContentStore, Upload
from skymount.server.storage.stored_skyfile import BuiltSkyfile
from skymount.wire import merkle
from skymount.wire.base_sector import LAYOUT_SIZE, build_fanned_out, build_inline, fits_inline
from skymount.wire.skyfile_encryption import SkyfileKey
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")

PART_SIZE = 1 << 20
"""Bytes of a part. It is all that an upload holds while its client is slow."""

SECTORS_IN_MEMORY = 22
"""Whole sectors of all uploads, from when they fill until they are stored."""

_BEGINNING = 256 << 10  # bytes of a sector that may be here before it is one of those
_FILL_TIME = 60.0  # seconds in which a client has to fill one while others wait
_IN_FLIGHT = 3  # parts of one upload being hashed and written while the next one fills
_IN_FLIGHT_IN_ALL = 12
_WHOLE_IN_MEMORY = 12  # uploads whose base sector, over _QUICK_SIZE, has their content
_PUBLISHING = 32  # uploads that wait for the disk at once, which makes them durable together
_PATIENCE = 60.0  # seconds that an upload waits until others are stored
_QUICK_SIZE = 64 << 10  # bytes that are hashed without a thread: at most two milliseconds


def _hashing_threads() -> int:
    """Return how many threads hash; one where hashing holds the interpreter lock."""
    return (os.cpu_count() or 1) if merkle.COMPILED else 1


@dataclass(slots=True)
class UploadLimits:
    """What all uploads of a portal share."""

    hashing: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(_hashing_threads())
    )
    publishing: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(_PUBLISHING)
    )
    in_flight: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(_IN_FLIGHT_IN_ALL))
    whole: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(_WHOLE_IN_MEMORY))
    sectors: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(SECTORS_IN_MEMORY))
    fill_time: float = _FILL_TIME
    buffers: BufferUse = field(default_factory=BufferUse)


class SectorWriter:
    """The content of one upload. Call `write`; at the end `build`, and `publish` to keep it."""

    def __init__(
        self,
        store: ContentStore,
        limits: UploadLimits,
        nursery: trio.Nursery,
        *,
        keep: bool,
        key: SkyfileKey | None,
    ) -> None:
        self._store = store
        self._limits = limits
        self._nursery = nursery
        self._key = key
        self._parts = store.begin_in_parts() if keep and key is None else None
        self._upload: Upload | None = self._parts or (store.begin() if keep else None)
        self._part_size = SECTOR_SIZE if self._parts is None else PART_SIZE
        self._in_flight = trio.Semaphore(_IN_FLIGHT)
        self._buffer = bytearray()
        self._sector_since: float | None = None  # when the buffer became a sector in memory
        self._groups: list[bytes] = []  # of each part, in order
        self._is_whole = False  # it is one of those in memory
        self.size = 0

    @property
    def is_open(self) -> bool:
        """Whether there is something to `close`."""
        return self._upload is not None and bool(self._groups)

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        rest = memoryview(data)
        while rest:
            if self._part_size == SECTOR_SIZE and len(self._buffer) + len(rest) > _BEGINNING:
                await self._enter_sector()
            room = self._part_size - len(self._buffer)
            self._buffer += rest[:room]
            rest = rest[room:]
            if len(self._buffer) == self._part_size:
                await self._start_part()

    async def _enter_sector(self) -> None:
        """Make the buffer one of the sectors in memory, once there is room; HttpError 408 if its
        client is so slow that it keeps others waiting.
        """
        sectors = self._limits.sectors
        if self._sector_since is None:
            await sectors.acquire()
            self._sector_since = trio.current_time()
        elif (
            sectors.statistics().tasks_waiting
            and trio.current_time() > self._sector_since + self._limits.fill_time
        ):
            raise HttpError(408, "failed to upload file: the body came too slowly")

    async def _start_part(self) -> None:
        await self._in_flight.acquire()
        with _refusing(), trio.fail_after(_PATIENCE):
            await self._limits.in_flight.acquire()
        index, part, is_sector = len(self._groups), self._buffer, self._sector_since is not None
        self._buffer, self._sector_since = bytearray(), None
        self._groups.append(b"")
        self._nursery.start_soon(self._write_part, index, part, is_sector)

    async def _write_part(self, index: int, part: bytearray, is_sector: bool) -> None:
        try:
            self._groups[index], sector = await self._in_thread(self._hash, index, part)
            if self._upload is not None and self._parts is None:
                # Not by a thread that hashes: it may wait for another machine.
                stored = partial(self._release_later, trio.lowlevel.current_trio_token())
                put = partial(self._put, self._upload, index, sector)
                await trio.to_thread.run_sync(put, stored if is_sector else None)
                is_sector = False
        finally:
            if is_sector:
                self._limits.sectors.release()
            self._limits.in_flight.release()
            self._in_flight.release()

    async def _in_thread(self, work: Callable[[*_Args], _Result], *args: *_Args) -> _Result:
        return await trio.to_thread.run_sync(work, *args, limiter=self._limits.hashing)

    def _hash(self, index: int, part: bytearray) -> tuple[bytes, bytearray]:
        """Return the hashes of a part, and what is stored of it. Parts are written as well."""
        if self._key is not None:
            part = bytearray(self._key.seal_sector(index, bytes(part)))
        groups = merkle.piece_groups(part, 0, 1)
        if self._parts is not None:
            self._parts.put_part(index * PART_SIZE, part)
        return groups, part

    def _release_later(self, loop: trio.lowlevel.TrioToken) -> None:
        with suppress(trio.RunFinishedError):
            loop.run_sync_soon(self._limits.sectors.release)

    def _put(
        self,
        upload: Upload,
        index: int,
        sector: bytearray,
        stored: Callable[[], None] | None,
    ) -> None:
        root = merkle.joined_root([self._groups[index]])
        upload.put_sector(index, root, sector, stored)

    async def build(self, metadata: bytes) -> tuple[BuiltSkyfile, Skylink]:
        """Return what to `publish`, once all of the content is written."""
        is_small = fits_inline(len(metadata), self.size)
        if not is_small and (self._buffer or not self._groups):
            await self._start_part()
        if self._groups:
            for _ in range(_IN_FLIGHT):
                await self._in_flight.acquire()
        if is_small and self._key is None and len(metadata) + self.size <= _QUICK_SIZE:
            return self._build_small(metadata)
        if is_small:
            with _refusing(), trio.fail_after(_PATIENCE):
                await self._limits.whole.acquire()
            self._is_whole = True
        build = self._build_small if is_small else self._build_large
        return await self._in_thread(build, metadata)

    async def publish(self, built: BuiltSkyfile, skylink: Skylink) -> None:
        """Make the skyfile visible and durable."""
        small = self._store.small if built.is_small else None
        if small is not None:
            await small.put((skylink, built.base))
            return
        with _refusing():
            await in_one_of(self._limits.publishing, _PATIENCE, self._publish, built, skylink)

    def _build_small(self, metadata: bytes) -> tuple[BuiltSkyfile, Skylink]:
        payload = bytes(self._buffer)
        if self._groups and self._parts is not None:
            payload = self._parts.take_parts() + payload
        used = LAYOUT_SIZE + len(metadata) + len(payload)
        build = build_inline if self._key is None else self._key.build_inline
        base = build(metadata, payload)
        return BuiltSkyfile(base), Skylink.v1(merkle.sector_root(base), used)

    def _build_large(self, metadata: bytes) -> tuple[BuiltSkyfile, Skylink]:
        count = SECTOR_SIZE // self._part_size
        sectors = range(0, len(self._groups), count) if self.size else ()
        roots = b"".join(merkle.joined_root(self._groups[at : at + count]) for at in sectors)
        spilled: list[bytes] = []
        if self._key is None:
            base, spilled = build_fanned_out(self.size, roots, metadata)
            used = len(base)
        else:
            base, used = self._key.build_fanned_out(self.size, roots, metadata)
        built = BuiltSkyfile(base, tuple(spilled), roots)
        return built, Skylink.v1(merkle.sector_root(base), used)

    def _publish(self, built: BuiltSkyfile, skylink: Skylink) -> None:
        assert self._upload is not None
        self._upload.publish(skylink, built)
        self.close()

    def end(self) -> None:
        """Let others take its place in memory."""
        if self._sector_since is not None:
            self._sector_since = None
            self._limits.sectors.release()
        if self._is_whole:
            self._is_whole = False
            self._limits.whole.release()

    def close(self) -> None:
        if self._upload is not None:
            self._upload.close()
            self._upload = None


@contextmanager
def _refusing() -> Iterator[None]:
    """StorageUnavailableError when an upload has waited too long for its turn."""
    try:
        yield
    except trio.TooSlowError:
        raise StorageUnavailableError("too many uploads wait to be stored") from None


@asynccontextmanager
async def open_sector_writer(
    store: ContentStore, limits: UploadLimits, *, keep: bool, key: SkyfileKey | None = None
) -> AsyncIterator[SectorWriter]:
    """Receive one upload, encrypted if a key is given. Without `publish` nothing of it is kept."""
    writer: SectorWriter | None = None
    limits.buffers.begin()
    try:
        async with trio.open_nursery() as nursery:
            writer = SectorWriter(store, limits, nursery, keep=keep, key=key)
            yield writer
    except BaseExceptionGroup as group:  # the nursery wraps even a single exception
        raise _first(group) from None
    finally:
        with trio.CancelScope(shield=True):
            try:
                if writer is not None and writer.is_open:
                    await trio.to_thread.run_sync(writer.close)
            finally:
                if writer is not None:
                    writer.end()
                await limits.buffers.end(writer.size if writer is not None else 0)


def _first(group: BaseExceptionGroup) -> BaseException:
    """Return the first failure in a group, past the cancellations that it caused."""
    others = group.split(trio.Cancelled)[1]
    error = (others or group).exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error

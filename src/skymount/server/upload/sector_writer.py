"""Cuts an upload into sectors; encrypts, hashes and writes them as they fill."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, TypeVarTuple

import trio

from skymount.server.storage.interfaces import ContentStore, Upload
from skymount.server.storage.stored_skyfile import BuiltSkyfile
from skymount.wire import merkle
from skymount.wire.base_sector import LAYOUT_SIZE, build_fanned_out, build_inline, fits_inline
from skymount.wire.skyfile_encryption import SkyfileKey
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")

_IN_FLIGHT = 2  # sectors being hashed and written while the next one fills


class SectorWriter:
    """The content of one upload. Call `write`, and `finish` at the end."""

    def __init__(
        self,
        store: ContentStore,
        hashing: trio.CapacityLimiter,
        nursery: trio.Nursery,
        *,
        keep: bool,
        key: SkyfileKey | None,
    ) -> None:
        self._store = store
        self._hashing = hashing
        self._nursery = nursery
        self._keep = keep
        self._key = key
        self._in_flight = trio.Semaphore(_IN_FLIGHT)
        self._buffer = bytearray()
        self._roots: list[bytes] = []
        self._upload: Upload | None = None
        self.size = 0

    async def write(self, data: bytes) -> None:
        self._buffer += data
        self.size += len(data)
        while len(self._buffer) >= SECTOR_SIZE:
            sector = bytes(memoryview(self._buffer)[:SECTOR_SIZE])
            del self._buffer[:SECTOR_SIZE]
            await self._start_sector(sector)

    async def _start_sector(self, sector: bytes) -> None:
        index = len(self._roots)
        self._roots.append(b"")
        await self._in_flight.acquire()
        if self._keep and self._upload is None:
            self._upload = await trio.to_thread.run_sync(self._store.begin)
        self._nursery.start_soon(self._write_sector, index, sector)

    async def _write_sector(self, index: int, sector: bytes) -> None:
        try:
            self._roots[index] = await self._in_thread(self._hash_and_write, index, sector)
        finally:
            self._in_flight.release()

    async def _in_thread(self, work: Callable[[*_Args], _Result], *args: *_Args) -> _Result:
        return await trio.to_thread.run_sync(work, *args, limiter=self._hashing)

    def _hash_and_write(self, index: int, sector: bytes) -> bytes:
        if self._key is not None:
            sector = self._key.seal_sector(index, sector)
        root = merkle.sector_root(sector)
        if self._upload is not None:
            self._upload.put_sector(index, root, sector)
        return root

    async def finish(self, metadata: bytes) -> Skylink:
        """Return the skylink of content and metadata; store both unless it is a dry run."""
        if not self._roots and fits_inline(len(metadata), len(self._buffer)):
            return await self._in_thread(self._finish_small, metadata, bytes(self._buffer))
        if self._buffer or not self._roots:
            await self._start_sector(bytes(self._buffer))
        for _ in range(_IN_FLIGHT):
            await self._in_flight.acquire()
        return await self._in_thread(self._finish_large, metadata)

    def _finish_small(self, metadata: bytes, payload: bytes) -> Skylink:
        used = LAYOUT_SIZE + len(metadata) + len(payload)
        build = build_inline if self._key is None else self._key.build_inline
        return self._publish(BuiltSkyfile(build(metadata, payload)), used)

    def _finish_large(self, metadata: bytes) -> Skylink:
        roots = b"".join(self._roots) if self.size else b""
        spilled: list[bytes] = []
        if self._key is None:
            base, spilled = build_fanned_out(self.size, roots, metadata)
            used = len(base)
        else:
            base, used = self._key.build_fanned_out(self.size, roots, metadata)
        return self._publish(BuiltSkyfile(base, tuple(spilled), roots), used)

    def _publish(self, built: BuiltSkyfile, used: int) -> Skylink:
        skylink = Skylink.v1(merkle.sector_root(built.base), used)
        if self._keep:
            if self._upload is None:
                self._upload = self._store.begin()
            self._upload.publish(skylink, built)
        return skylink

    def close(self) -> None:
        if self._upload is not None:
            self._upload.close()
            self._upload = None


@asynccontextmanager
async def open_sector_writer(
    store: ContentStore, hashing: trio.CapacityLimiter, *, keep: bool, key: SkyfileKey | None = None
) -> AsyncIterator[SectorWriter]:
    """Receive one upload, encrypted if a key is given. Without `finish` nothing of it is kept."""
    writer: SectorWriter | None = None
    try:
        async with trio.open_nursery() as nursery:
            writer = SectorWriter(store, hashing, nursery, keep=keep, key=key)
            yield writer
    except BaseExceptionGroup as group:  # the nursery wraps even a single exception
        raise _first(group) from None
    finally:
        if writer is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(writer.close)


def _first(group: BaseExceptionGroup) -> BaseException:
    """Return the first failure in a group, past the cancellations that it caused."""
    others = group.split(trio.Cancelled)[1]
    error = (others or group).exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error

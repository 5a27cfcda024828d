"""Owns the content of one upload while it arrives: sectors cut, hashed and written to disk.

Memory stays at a few sectors whatever the size. What the bytes belong to (parts, names) is
`upload`'s matter, how they are kept is `store`'s.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import trio

from skymount import file_permissions
from skymount.errors import SkymountError, StorageError
from skymount.server.storage.skyfile_store import PAYLOAD, SkyfileStore
from skymount.storage.atomic_file import write_all_at
from skymount.wire import merkle
from skymount.wire.base_sector import LAYOUT_SIZE, build_fanned_out, build_inline, fits_inline
from skymount.wire.skyfile_encryption import SkyfileKey
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")

_IN_FLIGHT = 2  # sectors being written and hashed while the next one fills


class SectorWriter:
    """The content of one upload. Use `receiving`; call `write`, and at the end `finish`."""

    def __init__(
        self,
        store: SkyfileStore,
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
        self._slots = trio.Semaphore(_IN_FLIGHT)
        self._buffer = bytearray()
        self._roots: list[bytes] = []
        self._directory: Path | None = None
        self._file: int | None = None
        self.size = 0

    async def write(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the content."""
        self._buffer += data
        self.size += len(data)
        while len(self._buffer) >= SECTOR_SIZE:
            chunk = bytes(memoryview(self._buffer)[:SECTOR_SIZE])
            del self._buffer[:SECTOR_SIZE]
            await self._seal(chunk)

    async def _seal(self, chunk: bytes) -> None:
        """Hash and store a sector of content in a thread while the next one arrives."""
        index = len(self._roots)
        self._roots.append(b"")
        await self._slots.acquire()
        if self._keep and self._file is None:
            await trio.to_thread.run_sync(self._open_payload)
        self._nursery.start_soon(self._seal_in_thread, index, chunk)

    async def _seal_in_thread(self, index: int, chunk: bytes) -> None:
        try:
            root = await self._in_thread(self._write_and_hash, index, chunk)
            self._roots[index] = root
        finally:
            self._slots.release()

    async def _in_thread(self, work: Callable[[*_Args], _Result], *args: *_Args) -> _Result:
        """Do what hashes in a thread, no more at a time over all uploads than is of use."""
        return await trio.to_thread.run_sync(work, *args, limiter=self._hashing)

    def _write_and_hash(self, index: int, chunk: bytes) -> bytes:
        if self._key is not None:
            chunk = self._key.seal_sector(index, chunk)
        if self._file is not None:
            try:
                write_all_at(self._file, chunk, index * SECTOR_SIZE)
            except OSError as error:
                raise StorageError(f"cannot write an upload: {error.strerror}") from error
        return merkle.sector_root(chunk)

    def _open_payload(self) -> None:
        self._directory = self._store.begin()
        try:
            self._file = file_permissions.create_file(self._directory / PAYLOAD)
        except OSError as error:
            raise StorageError(f"cannot write an upload: {error.strerror}") from error

    async def finish(self, metadata: bytes) -> Skylink:
        """Return the skylink of content and metadata; keep both unless it is a dry run."""
        if not self._roots and fits_inline(len(metadata), len(self._buffer)):
            payload = bytes(self._buffer)
            return await self._in_thread(self._finish_small, metadata, payload)
        if self._buffer or not self._roots:
            await self._seal(bytes(self._buffer))
        for _ in range(_IN_FLIGHT):
            await self._slots.acquire()
        return await self._in_thread(self._finish_large, metadata)

    def _finish_small(self, metadata: bytes, payload: bytes) -> Skylink:
        used = LAYOUT_SIZE + len(metadata) + len(payload)
        build = build_inline if self._key is None else self._key.build_inline
        return self._publish(build(metadata, payload), used, [])

    def _finish_large(self, metadata: bytes) -> Skylink:
        roots = b"".join(self._roots) if self.size else b""
        spilled: list[bytes] = []
        if self._key is None:
            base, spilled = build_fanned_out(self.size, roots, metadata)
            used = len(base)
        else:
            base, used = self._key.build_fanned_out(self.size, roots, metadata)
        if self._file is not None:
            try:
                os.fsync(self._file)
            except OSError as error:
                raise StorageError(f"cannot write an upload: {error.strerror}") from error
        return self._publish(base, used, spilled, roots if self._key is not None else b"")

    def _publish(self, base: bytes, used: int, spilled: list[bytes], roots: bytes = b"") -> Skylink:
        skylink = Skylink.v1(merkle.sector_root(base), used)
        if self._keep:
            if self._directory is None:
                self._directory = self._store.begin()
            directory, self._directory = self._directory, None
            try:
                self._store.commit(directory, skylink, base, spilled, roots)
            except BaseException:
                self._directory = directory
                raise
        return skylink

    def dispose(self) -> None:
        """Close the file and remove what was not published."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._directory is not None and self._directory.exists():
            self._store.discard(self._directory)
            self._directory = None


@asynccontextmanager
async def receiving(
    store: SkyfileStore, hashing: trio.CapacityLimiter, *, keep: bool, key: SkyfileKey | None = None
) -> AsyncIterator[SectorWriter]:
    """Receive one upload, encrypted if a key is given; what is not finished is gone afterwards."""
    intake: SectorWriter | None = None
    try:
        async with trio.open_nursery() as nursery:
            intake = SectorWriter(store, hashing, nursery, keep=keep, key=key)
            yield intake
    except BaseExceptionGroup as group:
        ours, foreign = group.split(SkymountError)
        if ours is not None and foreign is None:
            raise _first(ours) from None
        if len(group.exceptions) == 1:  # the nursery wraps even what was raised in its own block
            raise group.exceptions[0] from None
        raise
    finally:
        if intake is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(intake.dispose)


def _first(group: BaseExceptionGroup[SkymountError]) -> SkymountError:
    """Return the first error in a group: the nursery wraps even a single one."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error

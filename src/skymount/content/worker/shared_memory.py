"""Large data in memory files (memfd): shared with workers, copied and freed without the GIL.

Copies between `bytes` and memoryviews hold the GIL, and freeing them returns pages one by one.
"""

import mmap
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from weakref import WeakSet

import trio

from skymount.concurrency import in_thread
from skymount.errors import UnavailableError
from skymount.storage.atomic_file import write_all_at

_WINDOW = 1 << 20  # bytes of a file mapped at a time

_SMALL = 1 << 20  # bytes that are copied faster than a file is made


class _Mapping(mmap.mmap):
    """A read-only mapping, whose pages `release_mappings` unloads."""


_mappings: WeakSet[_Mapping] = WeakSet()

_RESIDENT_LIMIT = 32 << 20
"""Bytes of file-backed memory, program and libraries included, above which pages are unloaded."""


class MemoryFile:
    """A file in memory (memfd). Its methods copy, so large data belongs in a thread."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("skymount")

    def __len__(self) -> int:
        return os.fstat(self.descriptor).st_size

    def put(self, data: bytes | bytearray | memoryview | mmap.mmap, at: int = 0) -> None:
        write_all_at(self.descriptor, memoryview(data), at)

    def get(self, start: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, start)

    def content(self) -> memoryview:
        """Map the whole content; valid after the file is closed."""
        length = len(self)
        if not length:
            return memoryview(b"")
        memory = _Mapping(self.descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        _mappings.add(memory)
        return memoryview(memory)

    def truncate(self, size: int) -> None:
        """Set the length; the memory behind it is freed."""
        os.ftruncate(self.descriptor, size)

    def window(self, at: int) -> memoryview:
        """Map a part of the file for writing, from an offset on; unmapped with the last view."""
        start = at // _WINDOW * _WINDOW
        if len(self) < start + _WINDOW:
            self.truncate(start + _WINDOW)
        return memoryview(mmap.mmap(self.descriptor, _WINDOW, offset=start))[at - start :]

    def close(self) -> None:
        """Close it; the memory is freed when no process has it open or mapped."""
        os.close(self.descriptor)


class FileReceiver:
    """Receives a response body straight into a memory file."""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file
        self._window = memoryview(b"")
        self.size = 0

    def clear(self) -> None:
        self.finish()
        self._file.truncate(0)
        self.size = 0

    def room(self) -> memoryview:
        """Return the buffer for the next bytes; UnavailableError when there is no memory."""
        if not self._window:
            try:
                self._window = self._file.window(self.size)
            except OSError as error:
                raise _no_memory(error) from error
        return self._window

    def filled(self, size: int) -> None:
        self._window = self._window[size:]
        self.size += size

    def finish(self) -> None:
        self._window = memoryview(b"")
        self._file.truncate(self.size)


@asynccontextmanager
async def open_memory_file() -> AsyncIterator[MemoryFile]:
    """Make a memory file for the block; UnavailableError when there is no memory."""
    try:
        made = MemoryFile()
    except OSError as error:
        raise _no_memory(error) from error
    try:
        yield made
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(made.close)


def _no_memory(error: OSError) -> UnavailableError:
    return UnavailableError(f"cannot allocate memory: {error.strerror}")


def release_mappings() -> bool:
    """Unload the pages of all mappings if they are many; return whether any mapping exists."""
    with open("/proc/self/statm", "rb") as status:
        resident = int(status.read().split()[2]) * mmap.PAGESIZE
    if resident > _RESIDENT_LIMIT:
        for mapping in list(_mappings):
            mapping.madvise(mmap.MADV_DONTNEED)
    return bool(_mappings)


def is_large(size: int) -> bool:
    """Whether so many bytes belong in a memory file."""
    return size > _SMALL


def joined(parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
    """Join parts, in a memory file if they are large; for a thread then."""
    if not is_large(sum(map(len, parts))):
        return b"".join(parts)
    with suppress(OSError), closing(MemoryFile()) as file:
        at = 0
        for part in parts:
            file.put(part, at)
            at += len(part)
        return file.content()
    return b"".join(parts)

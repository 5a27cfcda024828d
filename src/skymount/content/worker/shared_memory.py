"""Owns memory by the many megabytes: how it is shared with a process apart, copied, and given back,
while the interpreter runs other threads. `bytes` and memoryviews copy each other without letting
them, and give thousands of small pages back one by one.
"""

import mmap
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import TypeVar
from weakref import WeakSet

import trio

from skymount.errors import UnavailableError
from skymount.storage.atomic_file import write_all_at

T = TypeVar("T")

_COMPARED = 1 << 20  # bytes that are compared at a time

_WINDOW = 1 << 20  # bytes of a file that are mapped at a time

_LITTLE = 1 << 20  # bytes that are copied in less time than it takes to make a file


class _Shared(mmap.mmap):
    """Memory of a file, to be looked at. It is the file's, not the mount's: what is not looked at
    for a while is let go of (`let_go`), and is there again when it is.
    """


_shared: WeakSet[_Shared] = WeakSet()

_LOOKED_AT = 32 << 20
"""Bytes of such memory that stay with the mount. Its program and its libraries count as well."""


class MemoryFile:
    """A file that is nothing but memory. Its functions are for threads."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("skymount")

    def __len__(self) -> int:
        return os.fstat(self.descriptor).st_size

    def put(self, data: bytes | bytearray | memoryview | mmap.mmap, at: int = 0) -> None:
        """Write at an offset."""
        write_all_at(self.descriptor, memoryview(data), at)

    def get(self, start: int, size: int) -> bytes:
        """Return what lies at an offset."""
        return os.pread(self.descriptor, size, start)

    def content(self) -> memoryview:
        """Return all of it, which stays where it is; the file may be closed."""
        length = len(self)
        if not length:
            return memoryview(b"")
        memory = _Shared(self.descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        _shared.add(memory)
        return memoryview(memory)

    def truncate(self, size: int) -> None:
        """Give it a length; what is behind that is given back."""
        os.ftruncate(self.descriptor, size)

    def window(self, at: int) -> memoryview:
        """Return memory of the file itself to write to, from an offset on; it is mapped as long as
        anybody looks at it.
        """
        start = at // _WINDOW * _WINDOW
        if len(self) < start + _WINDOW:
            self.truncate(start + _WINDOW)
        return memoryview(mmap.mmap(self.descriptor, _WINDOW, offset=start))[at - start :]

    def close(self) -> None:
        """Give the memory back, unless another process has the file too."""
        os.close(self.descriptor)


class Inflow:
    """Lets what comes from a socket go into a file, past all memory of the mount's own."""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file
        self._window = memoryview(b"")
        self.size = 0
        """Bytes that have come."""

    def clear(self) -> None:
        """Begin anew."""
        self.finish()
        self._file.truncate(0)
        self.size = 0

    def room(self) -> memoryview:
        """Return where the next bytes go; UnavailableError when there is no memory."""
        if not self._window:
            try:
                self._window = self._file.window(self.size)
            except OSError as error:
                raise _no_memory(error) from error
        return self._window

    def filled(self, size: int) -> None:
        """Take note that so many bytes have come."""
        self._window = self._window[size:]
        self.size += size

    def finish(self) -> None:
        """Let the file end with what has come."""
        self._window = memoryview(b"")
        self._file.truncate(self.size)


class LongText(mmap.mmap):
    """Much text in memory of a file. A part that is read is a copy; the rest is not the mount's."""

    def __getitem__(self, part: slice) -> bytes:  # type: ignore[override]
        found = super().__getitem__(part)
        self.madvise(mmap.MADV_DONTNEED)
        return found

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, bytes | bytearray | LongText):
            return NotImplemented
        return len(other) == len(self) and self.startswith(other)

    __hash__ = None  # type: ignore[assignment]

    def startswith(self, start: "bytes | bytearray | LongText") -> bool:
        """As `bytes.startswith`."""
        pieces = (slice(at, at + _COMPARED) for at in range(0, len(start), _COMPARED))
        return len(start) <= len(self) and all(
            self[piece][: len(start) - piece.start] == start[piece] for piece in pieces
        )


def text_of(file: MemoryFile) -> bytes | LongText:
    """Return what is in a file, which may be closed; for a thread."""
    length = len(file)
    if not is_much(length):
        return file.get(0, length)
    with suppress(OSError):
        return LongText(file.descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    return file.get(0, length)


@asynccontextmanager
async def open_memory_file() -> AsyncIterator[MemoryFile]:
    """Make such a file, whose memory is given back at the end; UnavailableError without any."""
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
    return UnavailableError(f"no memory can be had: {error.strerror}")


def let_go() -> bool:
    """Let go of what is looked at of files, if that is much; return whether there is any."""
    with open("/proc/self/statm", "rb") as status:
        resident = int(status.read().split()[2]) * mmap.PAGESIZE
    if resident > _LOOKED_AT:
        for memory in list(_shared):
            memory.madvise(mmap.MADV_DONTNEED)
    return bool(_shared)


async def in_thread(work: Callable[[], T]) -> T:
    """Do in a thread what lets others run meanwhile, such as to copy much."""
    return await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))


def is_much(size: int) -> bool:
    """Whether so many bytes are worth a file."""
    return size > _LITTLE


def joined(parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
    """Return parts in one piece; for a thread where they are long."""
    if not is_much(sum(map(len, parts))):
        return b"".join(parts)
    with suppress(OSError), closing(MemoryFile()) as file:
        at = 0
        for part in parts:
            file.put(part, at)
            at += len(part)
        return file.content()
    return b"".join(parts)

"""Ranges of stored bytes: how every byte that the portal keeps is read, and decrypted if need be.

Where the bytes are is behind `StoredBytes`: a file of this disk here, objects or another portal
elsewhere. Functions that are not async block, unless a range is in memory: async code calls them
in a thread.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from skymount.errors import StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.wire.metadata import INTEGER_LIMIT

STREAM_CHUNK_SIZE = 1 << 20
"""Bytes read and sent at once: each piece costs a change of threads."""

Decrypt = Callable[[bytes, int], bytes]  # of stored bytes and their offset in what is stored


class OpenBytes(Protocol):
    """Stored bytes while they are read, by one thread at a time."""

    def read(self, offset: int, length: int) -> bytes:
        """Return at most `length` bytes, and none only beyond the end; StorageError, OSError."""

    def close(self) -> None: ...


class Announced(ABC):
    """A reader that is told what is about to be read, in order and in chunks."""

    @abstractmethod
    def announce(self, offset: int, length: int) -> None: ...


class StoredBytes(Protocol):
    """Bytes that never change, wherever they are kept."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def open(self) -> OpenBytes:
        """Return a reader, to be closed; StorageError, OSError."""


class _OpenFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Stored bytes that are a file of a skyfile."""

    path: Path

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    def open(self) -> OpenBytes:
        return _OpenFile(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))


@dataclass(frozen=True, slots=True)
class InMemory:
    """Stored bytes that were read already."""

    name: str
    data: bytes

    def open(self) -> OpenBytes:
        return self

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class StoredRange:
    """A range of stored bytes."""

    source: StoredBytes
    offset: int
    length: int
    decrypt: Decrypt | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether reading it does not block."""
        return self.decrypt is None and isinstance(self.source, InMemory)


async def fetch_range(stored: StoredRange) -> bytes:
    """Return all bytes of a range, read in a thread if need be; errors as of `read_range`."""
    if stored.is_in_memory:
        return read_range(stored)
    return await trio.to_thread.run_sync(read_range, stored)


def read_range(stored: StoredRange) -> bytes:
    """Return all bytes of a range; StorageError when there are fewer or none."""
    with disk_errors("read stored content"):
        return b"".join(read_chunks(stored))


def read_chunks(
    stored: StoredRange,
    parts: Iterable[tuple[int, int]] | None = None,
    size: int = STREAM_CHUNK_SIZE,
) -> Generator[bytes, int | None]:
    """Yield a range, or only these parts, (offset, length), in chunks of at most `size` bytes, or
    of what is sent; StorageError, OSError.
    """
    with closing(stored.source.open()) as opened:
        for start, length in ((0, stored.length),) if parts is None else parts:
            size = yield from read_open(opened, stored, start, length, size)


def read_open(
    opened: OpenBytes, stored: StoredRange, start: int, length: int, size: int = STREAM_CHUNK_SIZE
) -> Generator[bytes, int | None, int]:
    """Yield a part of a range that is open already, as `read_chunks` does; return the size."""
    offset, end = stored.offset + start, stored.offset + start + length
    if end >= INTEGER_LIMIT:
        raise StorageError(f"stored {stored.source.name} is damaged: it cannot be that long")
    if isinstance(opened, Announced):
        opened.announce(offset, end - offset)
    while offset < end:
        data = opened.read(offset, min(size, end - offset))
        if not data:
            raise StorageError(f"stored {stored.source.name} is damaged: shorter than recorded")
        start, offset = offset, offset + len(data)
        if stored.decrypt is not None:
            data = stored.decrypt(data, start)
        size = (yield data) or size
    return size

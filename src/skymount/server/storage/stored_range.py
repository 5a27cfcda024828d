"""Ranges of stored files: how every byte that the portal keeps is read, and decrypted if need be.

Every function blocks on the disk: async code calls it in a thread.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from skymount.errors import StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.wire.metadata import INTEGER_LIMIT

STREAM_CHUNK_SIZE = 1 << 20
"""Bytes read and sent at once: each piece costs a change of threads."""

Decrypt = Callable[[bytes, int], bytes]  # of stored bytes and their offset in the file


@dataclass(frozen=True, slots=True)
class StoredRange:
    """A range of bytes of one file of the store."""

    file: Path
    offset: int
    length: int
    decrypt: Decrypt | None = None


def read_range(stored: StoredRange) -> bytes:
    """Return all bytes of a range; StorageError when the file is shorter or gone."""
    with disk_errors("read stored content"):
        return b"".join(read_chunks(stored))


def read_chunks(
    stored: StoredRange, parts: Iterable[tuple[int, int]] | None = None
) -> Generator[bytes]:
    """Yield a range, or only these parts, (offset, length), in chunks; StorageError, OSError."""
    fd = os.open(stored.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, length in ((0, stored.length),) if parts is None else parts:
            yield from read_open(fd, stored, start, length)
    finally:
        os.close(fd)


def read_open(fd: int, stored: StoredRange, start: int, length: int) -> Iterator[bytes]:
    """Yield a part of a range, whose file is open already, in chunks; errors as `read_chunks`."""
    offset, end = stored.offset + start, stored.offset + start + length
    if end >= INTEGER_LIMIT:
        raise StorageError(f"stored file {stored.file.name} is damaged: it cannot be that long")
    while offset < end:
        data = os.pread(fd, min(STREAM_CHUNK_SIZE, end - offset), offset)
        if not data:
            raise StorageError(f"stored file {stored.file.name} is damaged: shorter than recorded")
        yield data if stored.decrypt is None else stored.decrypt(data, offset)
        offset += len(data)

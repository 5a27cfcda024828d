"""Owns zip, tar and targz of parts of a payload, produced piece by piece as they are read.

The generator blocks on the disk: async code runs each step of it in a thread. Members carry their
full stored name (wire notes 4.3) and no time, so that an archive is the same on every download.
"""

import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from skymount.server.download.path_selection import ArchiveMember
from skymount.server.http.responses import read_piece
from skymount.server.storage.skyfile_store import Decrypt

READ_CHUNK_SIZE = 1 << 20
"""Bytes read at once, and collected before they are handed on."""

_DEFAULT_MODE = 0o644  # of a member whose upload gave none; mode 0 would unpack unreadable


@dataclass(frozen=True, slots=True)
class Source:
    """The payload that members lie in."""

    file: str
    offset: int
    decrypt: Decrypt | None = None


def pieces(archive: str, members: Sequence[ArchiveMember], source: Source) -> Iterator[bytes]:
    """Yield an archive of the members in pieces of about 1 MiB."""
    fd = os.open(source.file, os.O_RDONLY | os.O_CLOEXEC)
    try:

        def content(member: ArchiveMember) -> Iterator[bytes]:
            return _content(fd, source.offset + member.offset, member.length, source.decrypt)

        if archive == "zip":
            yield from _collected(_zip(members, content))
        elif archive == "tar":
            yield from _collected(_tar(members, content))
        else:
            yield from _collected(_gzip(_tar(members, content)))
    finally:
        os.close(fd)


_Content = Callable[[ArchiveMember], Iterator[bytes]]


def _content(fd: int, offset: int, length: int, decrypt: Decrypt | None) -> Iterator[bytes]:
    while length > 0:
        data = read_piece(fd, offset, min(READ_CHUNK_SIZE, length), decrypt)
        yield data
        offset, length = offset + len(data), length - len(data)


def _collected(source: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces, so that a thousand tiny members are not a thousand sends."""
    waiting, size = [], 0
    for data in source:
        waiting.append(data)
        size += len(data)
        if size >= READ_CHUNK_SIZE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


class _Sink(io.RawIOBase):
    """A file that cannot seek and gives back what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self._waiting.append(bytes(data))  # type: ignore[call-overload]
        return len(self._waiting[-1])

    def take(self) -> bytes:
        taken, self._waiting = b"".join(self._waiting), []
        return taken


def _zip(members: Sequence[ArchiveMember], content: _Content) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for member in members:
            info = zipfile.ZipInfo(member.name)
            info.external_attr = (member.mode & 0o7777 or _DEFAULT_MODE) << 16
            info.file_size = member.length
            with archive.open(info, "w") as file:
                for data in content(member):
                    file.write(data)
                    yield sink.take()
            yield sink.take()
    yield sink.take()


def _tar(members: Sequence[ArchiveMember], content: _Content) -> Iterator[bytes]:
    for member in members:
        info = tarfile.TarInfo(member.name)
        info.size = member.length
        info.mode = member.mode & 0o7777 or _DEFAULT_MODE
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        yield from content(member)
        yield bytes(-member.length % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _gzip(source: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(level=1, wbits=31)  # 31: gzip framing, no time in its header
    for data in source:
        yield packer.compress(data)
    yield packer.flush()

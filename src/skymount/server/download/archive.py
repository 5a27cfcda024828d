"""zip, tar and targz of files of a skyfile, made while they are read.

The generators block on the disk: each step runs in a thread. Members have their full stored name
(docs/wire.md 4.3) and no time, so that an archive is the same on every download.
"""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

from skymount.server.http.messages import FIRST_PIECE
from skymount.server.storage.stored_range import StoredRange, read_open
from skymount.wire.metadata import Subfile

_DEFAULT_MODE = 0o644  # of a file uploaded without one: with mode 0 it would unpack unreadable

Member = tuple[str, Subfile]  # its name in the archive, and where its content is
_Content = Callable[[Subfile], Iterator[bytes]]


def archive_pieces(
    archive: str, members: Sequence[Member], payload: StoredRange
) -> Generator[bytes, int | None]:
    """Yield an archive of the members in pieces of `FIRST_PIECE`, or of what is sent."""
    with closing(payload.source.open()) as opened:

        def content(sub: Subfile) -> Iterator[bytes]:
            return read_open(opened, payload, sub.offset, sub.len, FIRST_PIECE)

        if archive == "zip":
            small = _zip(members, content)
        else:
            small = _tar(members, content)
            small = small if archive == "tar" else _gzip(small)
        waiting, size, wanted = [], 0, FIRST_PIECE
        for data in small:  # a thousand tiny members are not a thousand sends
            waiting.append(data)
            size += len(data)
            if size >= wanted:
                piece, waiting, size = b"".join(waiting), [], 0
                wanted = (yield piece) or wanted
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


def _zip(members: Sequence[Member], content: _Content) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name, sub in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = (sub.mode & 0o7777 or _DEFAULT_MODE) << 16
            info.file_size = sub.len
            with archive.open(info, "w") as file:
                for data in content(sub):
                    file.write(data)
                    yield sink.take()
            yield sink.take()
    yield sink.take()


def _tar(members: Sequence[Member], content: _Content) -> Iterator[bytes]:
    for name, sub in members:
        info = tarfile.TarInfo(name)
        info.size = sub.len
        info.mode = sub.mode & 0o7777 or _DEFAULT_MODE
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        yield from content(sub)
        yield bytes(-sub.len % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _gzip(source: Iterator[bytes]) -> Iterator[bytes]:
    compressor = zlib.compressobj(level=1, wbits=31)  # 31: gzip format, no time in its header
    for data in source:
        yield compressor.compress(data)
    yield compressor.flush()

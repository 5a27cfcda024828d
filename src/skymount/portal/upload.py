"""Owns an upload: what is sent, its exact size, read piece by piece from disk.

A file and a directory are both multipart forms (contract, endpoints 1 and 2). Nothing is held in
memory but one piece.
"""

import mimetypes
import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

import trio

from skymount.errors import MalformedError
from skymount.portal.options import OnUploadProgress, PortalOptions
from skymount.portal.transport import Transport
from skymount.wire import messages

PIECE = 1 << 20  # bytes read and sent at a time

Progress = Callable[[int, int], None]
"""Called with (bytes sent, bytes in all)."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file to send: where it is, its path inside the upload, size in bytes and mode."""

    file: Path
    name: str
    size: int
    mode: int


def _checked_name(file: Path, name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(file).decode("utf-8", "backslashreplace")
        raise MalformedError(f"{shown}: the name is not valid UTF-8") from None
    return name


def _source(file: Path, name: str, status: os.stat_result) -> Source:
    name = _checked_name(file, name)
    return Source(file, name, status.st_size, stat.S_IMODE(status.st_mode) & 0o777)


def file_source(file: Path, name: str = "") -> Source:
    """Describe a single file; OSError when it cannot be read, MalformedError for a device."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise MalformedError(f"{file}: only regular files can be uploaded")
    return _source(file, name or file.name, status)


def _status(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except FileNotFoundError:
        if file.is_symlink():
            raise MalformedError(f"{file}: a link to nothing") from None
        raise


def directory_sources(directory: Path) -> list[Source]:
    """List the regular files below a directory, in the order of their paths.

    Symbolic links to files are followed, those to directories are not (there may be a loop);
    MalformedError names what cannot be stored: a device, a socket, a name that is not UTF-8.
    """
    found: list[Source] = []
    for parent, subdirs, names in os.walk(directory, onerror=_raise):
        subdirs.sort()
        for name in names:
            file = Path(parent, name)
            status = _status(file)
            if not stat.S_ISREG(status.st_mode):
                raise MalformedError(f"{file}: only regular files can be uploaded")
            found.append(_source(file, file.relative_to(directory).as_posix(), status))
        for name in subdirs:
            if Path(parent, name).is_symlink():
                raise MalformedError(f"{Path(parent, name)}: links to directories are not followed")
    return sorted(found, key=lambda source: source.name.encode())


def empty_directories(directory: Path) -> list[str]:
    """List the directories below that hold nothing: a skylink has no place for them."""
    found = os.walk(directory)
    return [parent for parent, subdirs, names in found if not subdirs and not names]


def _raise(error: OSError) -> None:
    raise error


class UploadBody:
    """A multipart body. `size` is its exact length in bytes.

    Each iteration reads the files anew, so that it can be sent again after a redirect.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        field: str,
        dirname: str = "",
        query: Iterable[tuple[str, str]] = (),
        progress: Progress | None = None,
    ) -> None:
        self.dirname = dirname
        self.query = tuple(query)
        self._boundary = secrets.token_hex(16)
        self._progress = progress
        self._parts = [(self._head(source, field), source) for source in sources]
        self._tail = f"--{self._boundary}--\r\n".encode()
        self.size = len(self._tail) + sum(
            len(head) + source.size + 2 for head, source in self._parts
        )

    @classmethod
    def of_path(cls, path: Path, progress: Progress | None = None) -> Self:
        """Prepare a file or a whole directory; OSError or MalformedError when it cannot be sent."""
        if not path.is_dir():
            return cls([file_source(path)], field="file", progress=progress)
        sources = directory_sources(path)
        if not sources:
            raise MalformedError(f"{path}: there is no file in it")
        name = _checked_name(path, path.resolve().name) or "root"
        return cls(sources, field="files[]", dirname=name, progress=progress)

    def reporting(self, report: OnUploadProgress) -> Self:
        """Return the same body, which also tells a caller of the library how far it is."""
        before = self._progress

        def progress(sent: int, total: int) -> None:
            if before is not None:
                before(sent, total)
            report(sent / total, {"loaded": sent, "total": total})

        body = copy(self)
        body._progress = progress
        return body

    @property
    def content_type(self) -> str:
        """Value of the Content-Type header."""
        return f"multipart/form-data; boundary={self._boundary}"

    def _head(self, source: Source, field: str) -> bytes:
        guessed = mimetypes.guess_type(source.name)[0] or "application/octet-stream"
        part = messages.Part(field, source.name, guessed, source.mode)
        return b"--" + self._boundary.encode() + b"\r\n" + part.encode() + b"\r\n"

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Sending(self._pieces(), self.size, self._progress)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces of about 1 MiB: small files share one, and one thread hop."""
        piece = bytearray()
        for head, source in self._parts:
            piece += head
            for data in _read(source):
                piece += data
                if len(piece) >= PIECE:
                    yield bytes(piece)
                    piece.clear()
            piece += b"\r\n"
            if len(piece) >= PIECE:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece + self._tail)


async def send(
    transport: Transport, body: UploadBody, options: PortalOptions | None = None
) -> messages.UploadResult:
    """Send content (endpoints 1 and 2). Sent again only after a redirect.

    BadContentError when the answer is not an upload's, MalformedError or OSError when a file
    changed or cannot be read meanwhile.
    """
    call = options or transport.options
    request = messages.upload(
        call.dialect, f"skymount/{uuid4().hex}", filename=body.dirname, query=body.query
    )
    headers = {"Content-Type": body.content_type, "Content-Length": str(body.size)}
    content = body.reporting(call.on_upload_progress) if call.on_upload_progress else body
    async with transport.open(request, call, headers=headers, content=content) as answer:
        found = await transport.body(answer, messages.ANSWER_LIMIT)
        try:
            return messages.UploadResult.parse(found)
        except MalformedError as error:
            raise answer.bad(str(error)) from None


class _Sending:
    """An iteration over a body. No generator: httpx leaves it where it is when sending fails."""

    def __init__(self, pieces: Iterator[bytes], size: int, progress: Progress | None) -> None:
        self._pieces = pieces
        self._size = size
        self._progress = progress
        self._handed_out = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._handed_out and self._progress is not None:  # asked for more: that was sent
            self._progress(self._handed_out, self._size)
        piece = await trio.to_thread.run_sync(next, self._pieces, b"")
        if not piece:
            raise StopAsyncIteration
        self._handed_out += len(piece)
        return piece


def _read(source: Source) -> Iterator[bytes]:
    """Yield exactly `source.size` bytes; MalformedError when the file changed meanwhile."""
    left = source.size
    with open(source.file, "rb", buffering=0) as file:
        while left:
            data = file.read(min(PIECE, left))
            if not data:
                raise MalformedError(f"{source.file}: became shorter while it was read")
            left -= len(data)
            yield data
        if file.read(1):  # it grew, or it is of a kind whose size is not known beforehand
            raise MalformedError(f"{source.file}: holds more than its size of {source.size} bytes")

"""Owns an upload: the multipart body of a file or a directory (contract, endpoints 1 and 2), its
exact size, and sending it. Nothing is held in memory but one piece.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Self
from uuid import uuid4

import trio

from skymount.errors import MalformedError
from skymount.portal.client.upload_source import (
    UPLOAD_CHUNK_SIZE,
    UploadSource,
    checked_name,
    directory_sources,
)
from skymount.portal.http.client import HttpClient
from skymount.portal.options import OnUploadProgress, PortalOptions
from skymount.wire import multipart, requests, responses

FILE_FIELD = "file"
"""Multipart field of a single file (contract, upload options)."""

DIRECTORY_FIELD = "files[]"
"""Multipart field of a directory's files (contract, upload options)."""

_AT_ONCE = 128 << 10  # bytes; the time-out is for each write, and a slow line takes long for more

Progress = Callable[[int, int | None], None]
"""Called with (bytes sent, bytes in all or None when that is not known)."""


def upload_query(
    *,
    skykey_name: str = "",
    skykey_id: str = "",
    default_path: str = "",
    disable_default_path: bool = False,
    try_files: Sequence[str] | None = None,
    error_pages: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> list[tuple[str, str]]:
    """Return the query parameters of an upload (wire notes 3.2).

    MalformedError for what excludes each other.
    """
    if skykey_name and skykey_id:
        raise MalformedError("cannot set both a 'skykeyname' and 'skykeyid'")
    if default_path and disable_default_path:
        raise MalformedError("default_path and disable_default_path exclude each other")
    if try_files is not None and (default_path or disable_default_path):
        raise MalformedError("try_files excludes default_path and disable_default_path")
    query = [
        ("skykeyname", skykey_name),
        ("skykeyid", skykey_id),
        ("defaultpath", default_path),
        ("disabledefaultpath", "true" if disable_default_path else ""),
        ("dryrun", "true" if dry_run else ""),
    ]
    found = [(name, value) for name, value in query if value]
    if try_files is not None:
        found.append(("tryfiles", json.dumps(list(try_files))))
    if error_pages:
        found.append(("errorpages", json.dumps(dict(error_pages))))
    return found


class UploadBody:
    """A multipart body. `size` is its exact length in bytes, None when a source's is not known.

    Each iteration reads the sources anew, so that it can be sent again after a redirect.
    """

    def __init__(
        self,
        sources: Iterable[UploadSource],
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
        self.size = self._size()

    def _size(self) -> int | None:
        total = len(self._tail)
        for head, source in self._parts:
            if source.size is None:
                return None
            total += len(head) + source.size + 2
        return total

    @classmethod
    def of_path(
        cls,
        path: Path,
        progress: Progress | None = None,
        *,
        name: str = "",
        field: str = "",
        query: Iterable[tuple[str, str]] = (),
    ) -> Self:
        """Prepare a file or a whole directory; OSError or MalformedError when it cannot be sent.

        `name` replaces the name that it has.
        """
        if not path.is_dir():
            source = UploadSource.of_path(path, name)
            return cls([source], field=field or FILE_FIELD, query=query, progress=progress)
        sources = directory_sources(path)
        if not sources:
            raise MalformedError(f"{path}: there is no file in it")
        dirname = checked_name(name or path.resolve().name or "root", path)
        return cls(
            sources,
            field=field or DIRECTORY_FIELD,
            dirname=dirname,
            query=query,
            progress=progress,
        )

    @property
    def is_replayable(self) -> bool:
        """Whether it can be read a second time."""
        return self.size is not None

    def with_progress(self, progress: Progress | None) -> Self:
        """Return the same body, which tells how many bytes of how many are sent."""
        body = copy(self)
        body._progress = progress
        return body

    def reporting(self, report: OnUploadProgress) -> Self:
        """Return the same body, which also tells a caller of the library how far it is.

        The total of a body of unknown size is what has been sent so far.
        """
        before = self._progress

        def progress(sent: int, total: int | None) -> None:
            if before is not None:
                before(sent, total)
            known = sent if total is None else total
            report(sent / known, {"loaded": sent, "total": known})

        body = copy(self)
        body._progress = progress
        return body

    @property
    def headers(self) -> dict[str, str]:
        """The headers that go with it."""
        headers = {"Content-Type": f"multipart/form-data; boundary={self._boundary}"}
        if self.size is not None:
            headers["Content-Length"] = str(self.size)
        return headers

    def _head(self, source: UploadSource, field: str) -> bytes:
        part = multipart.PartHeader(field, source.name, source.media_type, source.mode)
        return b"--" + self._boundary.encode() + b"\r\n" + part.encode() + b"\r\n"

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Sending(self._pieces(), self.size, self._progress)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces of about 1 MiB: small files share one, and one thread hop."""
        piece = bytearray()
        for head, source in self._parts:
            piece += head
            for data in source.read():
                piece += data
                if len(piece) >= UPLOAD_CHUNK_SIZE:
                    yield bytes(piece)
                    piece.clear()
            piece += b"\r\n"
            if len(piece) >= UPLOAD_CHUNK_SIZE:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece + self._tail)


async def send(
    transport: HttpClient, body: UploadBody, options: PortalOptions | None = None
) -> responses.UploadResult:
    """Send content (endpoints 1 and 2). Sent again only after a redirect.

    BadContentError when the answer is not an upload's, MalformedError or OSError when a file
    changed or cannot be read meanwhile.
    """
    call = options or transport.options
    request = requests.upload(
        call.dialect, f"skymount/{uuid4().hex}", filename=body.dirname, query=body.query
    )
    sent = body.reporting(call.on_upload_progress) if call.on_upload_progress else body
    content = sent if sent.is_replayable else aiter(sent)
    async with transport.open(request, call, headers=body.headers, content=content) as answer:
        found = await answer.read(responses.RESPONSE_LIMIT)
        try:
            return responses.UploadResult.parse(found, call.dialect)
        except MalformedError as error:
            raise answer.bad(str(error)) from None


class _Sending:
    """An iteration over a body. No generator: httpx leaves it where it is when sending fails."""

    def __init__(
        self, pieces: Iterator[bytes], size: int | None, progress: Progress | None
    ) -> None:
        self._pieces = pieces
        self._size = size
        self._progress = progress
        self._handed_out = 0
        self._read = memoryview(b"")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._handed_out and self._progress is not None:  # asked for more: that was sent
            self._progress(self._handed_out, self._size)
        if not self._read:
            endless = self._size is None  # a pipe may be silent for ever
            piece = await trio.to_thread.run_sync(
                next, self._pieces, b"", abandon_on_cancel=endless
            )
            self._read = memoryview(piece)
        if not self._read:
            raise StopAsyncIteration
        sent, self._read = self._read[:_AT_ONCE], self._read[_AT_ONCE:]
        self._handed_out += len(sent)
        return bytes(sent)

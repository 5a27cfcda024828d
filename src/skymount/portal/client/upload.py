"""Uploads: the multipart body of a file or a directory (contract, endpoints 1 and 2)."""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Protocol, Self
from uuid import uuid4

import trio

from skymount.errors import MalformedError
from skymount.portal.client.arguments import text_mapping
from skymount.portal.client.upload_source import (
    UPLOAD_CHUNK_SIZE,
    UploadSource,
    checked_name,
)
from skymount.portal.http.client import HttpClient
from skymount.settings import OnUploadProgress, PortalOptions
from skymount.upload_selection.selection import EVERYTHING, Selection, SelectionRules, listed
from skymount.values import flag, text, texts
from skymount.wire.http import multipart, requests, responses
from skymount.wire.metadata import Subfile

FILE_FIELD = "file"
"""Multipart field of a single file (contract, upload options)."""

DIRECTORY_FIELD = "files[]"
"""Multipart field of a directory's files (contract, upload options)."""

_WRITE_SIZE = 128 << 10  # bytes; the time-out is for each write, also on a slow connection

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
    """Return the query parameters of an upload (docs/wire.md 3.2).

    WrongTypeError for another type, MalformedError for options that exclude each other.
    """
    if skykey_name and skykey_id:
        raise MalformedError("cannot set both a 'skykeyname' and 'skykeyid'")
    is_disabled = flag(disable_default_path, "disable_default_path")
    if default_path and is_disabled:
        raise MalformedError("default_path and disable_default_path exclude each other")
    if try_files is not None and (default_path or is_disabled):
        raise MalformedError("try_files excludes default_path and disable_default_path")
    query = [
        ("skykeyname", text(skykey_name, "skykey_name")),
        ("skykeyid", text(skykey_id, "skykey_id")),
        ("defaultpath", text(default_path, "default_path")),
        ("disabledefaultpath", "true" if is_disabled else ""),
        ("dryrun", "true" if flag(dry_run, "dry_run") else ""),
    ]
    found = [(name, value) for name, value in query if value]
    if try_files is not None:
        found.append(("tryfiles", json.dumps(texts(try_files, "try_files"))))
    if error_pages is not None and (pages := text_mapping(error_pages, "error_pages")):
        found.append(("errorpages", json.dumps(pages)))
    return found


class UploadBody:
    """A multipart body. `size` is its exact length in bytes, None when a source's is not known.

    Each iteration reads the sources again, so that it can be sent again after a redirect, or to
    another portal.
    """

    def __init__(
        self,
        sources: Iterable[UploadSource],
        *,
        field: str = FILE_FIELD,
        dirname: str = "",
        query: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.dirname = dirname
        self.query = tuple(query)
        self._boundary = secrets.token_hex(16)
        self.progress: Progress | None = None
        self.selection = Selection([], [], [])
        self._parts = [(self._head(source, field), source) for source in sources]
        self._tail = f"--{self._boundary}--\r\n".encode()
        self.size: int | None = len(self._tail)
        for head, source in self._parts:
            if source.size is None:
                self.size = None
                break
            self.size += len(head) + source.size + 2

    @classmethod
    def of_path(
        cls,
        path: Path,
        *,
        name: str = "",
        field: str = "",
        query: Iterable[tuple[str, str]] = (),
        rules: SelectionRules = EVERYTHING,
    ) -> Self:
        """Prepare a file or a whole directory; OSError or MalformedError when it cannot be sent.

        `name` replaces its own name. The rules say what of a directory is taken: `selection` is
        what is, and what is not.
        """
        if not path.is_dir():
            if not rules.take_all:
                from skymount.upload_selection.own_state import refuse_secret

                refuse_secret(path)
            source = UploadSource.of_path(path, name)
            return cls([source], field=field or FILE_FIELD, query=query)
        from skymount.upload_selection.folder_walk import select  # costs a file nothing

        selection = select(path, rules)
        if not selection.files:
            raise MalformedError(f"{path}: there is no file in it{_but(selection)}")
        dirname = checked_name(name or path.resolve().name or "root", path)
        sources = map(UploadSource.of_found, selection.files)
        body = cls(sources, field=field or DIRECTORY_FIELD, dirname=dirname, query=query)
        body.selection = selection
        return body

    @classmethod
    def of_document(cls, document: bytes, name: str) -> Self:
        return cls([UploadSource.of_bytes(document, name, contenttype="application/json")])

    def with_progress(self, progress: Progress | None) -> Self:
        body = copy(self)
        body.progress = progress
        return body

    def reporting(self, report: OnUploadProgress) -> Self:
        """Return the same body with a caller's `on_upload_progress` as a second callback.

        The total of a body of unknown size is what has been sent so far.
        """
        before = self.progress

        def progress(sent: int, total: int | None) -> None:
            if before is not None:
                before(sent, total)
            known = sent if total is None else total
            report(sent / known, {"loaded": sent, "total": known})

        return self.with_progress(progress)

    @property
    def is_spent(self) -> bool:
        """Whether it cannot be sent any more, as a source can be read only once."""
        return any(source.is_spent for _, source in self._parts)

    @property
    def is_shared(self) -> bool:
        """Whether it can be sent several times at once."""
        return all(source.is_shared for _, source in self._parts)

    @property
    def is_encrypted(self) -> bool:
        """Whether the portal encrypts it with a skykey; it has another skylink each time then."""
        return any(name in ("skykeyname", "skykeyid") for name, _ in self.query)

    @property
    def is_dry_run(self) -> bool:
        """Whether the portal is to store nothing."""
        return ("dryrun", "true") in self.query

    @property
    def subfiles(self) -> dict[str, Subfile]:
        """The records of the files, as portals store them; of files of one name the last one."""
        found, offset = {}, 0
        for _, source in self._parts:
            name, size = source.name, source.length
            found[name] = Subfile(source.mode, name, source.media_type, offset, size)
            offset += size
        return found

    @property
    def content_size(self) -> int:
        """Bytes of all files, of a pipe those that were read."""
        return sum(source.length for _, source in self._parts)

    def held(self) -> Self:
        """Return the same body with its content in memory, as it is now."""
        body = copy(self)
        body._parts = [(head, source.held()) for head, source in self._parts]
        return body

    def payload(self) -> Iterator[bytes]:
        """Yield the content of the files, one after the other."""
        return chain.from_iterable(source.read() for _, source in self._parts)

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": f"multipart/form-data; boundary={self._boundary}"}
        if self.size is not None:
            headers["Content-Length"] = str(self.size)
        return headers

    def _head(self, source: UploadSource, field: str) -> bytes:
        part = multipart.PartHeader(field, source.name, source.media_type, source.mode)
        return b"--" + self._boundary.encode() + b"\r\n" + part.encode() + b"\r\n"

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _BodyStream(self._chunks(), self.size, self.progress)

    def _chunks(self) -> Iterator[bytes]:
        """Yield chunks of about 1 MiB. Small files share one, which saves calls of threads."""
        chunk = bytearray()
        for head, source in self._parts:
            for data in chain([head], source.read(), [b"\r\n"]):
                chunk += data
                if len(chunk) >= UPLOAD_CHUNK_SIZE:
                    yield bytes(chunk)
                    chunk.clear()
        yield bytes(chunk + self._tail)


def _but(selection: Selection) -> str:
    count = len(selection.left_out)
    return f" but what is left out: {listed(selection.left_out)}" if count else ""


class Body(Protocol):
    """What `post` sends. `size` is in bytes, None when it is not known."""

    @property
    def dirname(self) -> str: ...
    @property
    def query(self) -> Sequence[tuple[str, str]]: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def size(self) -> int | None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


async def send(
    http: HttpClient, body: UploadBody, options: PortalOptions | None = None
) -> responses.UploadResult:
    """Send content. OSError when a file changes or cannot be read."""
    call = options or http.options
    sent = body.reporting(call.on_upload_progress) if call.on_upload_progress else body
    return await post(http, sent, call)


async def post(http: HttpClient, body: Body, call: PortalOptions) -> responses.UploadResult:
    """Post the body of an upload, as it is; errors of its iteration are raised."""
    request = requests.upload(
        call.dialect, f"skymount/{uuid4().hex}", filename=body.dirname, query=body.query
    )
    content = aiter(body) if body.size is None else body
    async with http.open(request, call, headers=body.headers, content=content) as answer:
        found = await answer.read(responses.RESPONSE_LIMIT)
        with http.parsing(request, call, answer.status):
            return responses.UploadResult.parse(found, call.dialect)


class _BodyStream:
    """An iteration over a body. Not a generator, as httpx does not close it when sending fails."""

    def __init__(
        self, chunks: Iterator[bytes], size: int | None, progress: Progress | None
    ) -> None:
        self._chunks = chunks
        self._size = size
        self._progress = progress
        self._yielded = 0
        self._chunk = memoryview(b"")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._yielded and self._progress is not None:  # the previous bytes have been sent
            self._progress(self._yielded, self._size)
        if not self._chunk:
            is_pipe = self._size is None  # which may never send anything
            chunk = await trio.to_thread.run_sync(
                next, self._chunks, b"", abandon_on_cancel=is_pipe
            )
            self._chunk = memoryview(chunk)
        if not self._chunk:
            raise StopAsyncIteration
        data, self._chunk = self._chunk[:_WRITE_SIZE], self._chunk[_WRITE_SIZE:]
        self._yielded += len(data)
        return bytes(data)

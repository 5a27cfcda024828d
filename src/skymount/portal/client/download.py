"""Downloads into a file: first into a temporary one, continued where a transfer broke off."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

import trio

from skymount.errors import (
    BadContentError,
    MalformedError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.policies import Verified
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import StreamingResponse
from skymount.settings import PortalOptions
from skymount.storage.atomic_file import Replacement
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.http.requests import Request

Progress = Callable[[int, int | None], None]
"""Called with (bytes on disk, bytes in all or None); from 0 again when a download starts again."""

FindCheck = Callable[[], Awaitable[tuple[Request, DownloadCheck]]]
"""Finds out what a download is compared with; returns the request to make, and the check."""

_STALLED_TRANSFERS = 5  # in a row that bring nothing, before giving up
_SHORT_TRANSFER = 64 << 10  # bytes; a shorter transfer is followed by a pause
_SHORT_TRANSFERS = 20  # in a row, before giving up


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """What was downloaded."""

    size: int
    """In bytes."""
    verified: Verified
    """``yes``, ``partly`` or ``no``: how far it was compared with its skylink."""


class _CheckedFile(Replacement):
    """The new file, which is compared with its skylink while it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.check = DownloadCheck()

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.check.update(data)
        super().write(data)

    def restart(self) -> None:
        self.check.restart()
        super().restart()


async def to_file(
    http: HttpClient,
    request: Request,
    destination: Path,
    options: PortalOptions,
    progress: Progress | None = None,
    find_check: FindCheck | None = None,
) -> DownloadResult:
    """Download into a file, which keeps its old content until the new one is complete.

    A transfer that breaks off continues if the portal sends an ETag and serves ranges; otherwise it
    starts again. `find_check` is called before the request and may replace it. OSError when the
    file cannot be written, BadContentError for other content.
    """
    file = await trio.to_thread.run_sync(_CheckedFile, destination)
    try:
        if find_check is not None:
            request, file.check = await find_check()
        with http.parsing(request, options, None):
            await _fill(http, request, file, options, progress)
            await file.check.finish()
        await trio.to_thread.run_sync(partial(file.finish, synced=True))
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(file.discard)
        raise
    return DownloadResult(file.size, file.check.verified)


async def _fill(
    http: HttpClient,
    request: Request,
    file: _CheckedFile,
    options: PortalOptions,
    progress: Progress | None,
) -> None:
    """Transfer until the file is complete, or too many transfers in a row brought nothing new.

    A failed first request is not repeated here: `HttpClient` did that.
    """
    tag, most, stalled, short = "", 0, 0, 0
    while True:
        if file.size and not tag:
            await trio.to_thread.run_sync(file.restart)
        rest = {"Range": f"bytes={file.size}-", "If-Range": tag} if file.size else {}
        is_open, limit = False, min(_STALLED_TRANSFERS, options.retries)
        try:
            async with http.open(request, options, headers=rest) as answer:
                is_open, asked, tag = True, tag, ""
                tag, total = await _position(file, answer, asked)
                await _copy(answer, file, total, progress)
                return
        except (UnavailableError, BadContentError):
            if not (is_open or most):
                raise
            stalled = 0 if file.size > most else stalled + 1
            if stalled > limit or short >= _SHORT_TRANSFERS:
                raise
        except RequestRefusedError as error:
            if error.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not rest:
                raise
            tag, stalled = "", stalled + 1  # the content changed: start again
            if stalled > _STALLED_TRANSFERS:
                raise
        short = 0 if file.size >= most + _SHORT_TRANSFER else short + 1
        most = max(most, file.size)
        await trio.sleep((http.retry.pause_before(short) or 0) if short else 0)


async def _copy(
    answer: StreamingResponse,
    file: _CheckedFile,
    total: int | None,
    progress: Progress | None,
) -> None:
    missing = None if total is None else total - file.size
    async with aclosing(answer.pieces(missing)) as pieces:
        async for piece in pieces:
            await trio.to_thread.run_sync(file.write, piece)
            if progress is not None:
                progress(file.size, total)


async def _position(
    file: _CheckedFile, answer: StreamingResponse, asked: str
) -> tuple[str, int | None]:
    """Restart the file unless the answer is the rest of it.

    Returns the content's strong ETag or "", and its size if known. BadContentError for a part that
    is not the rest of the content with the ETag `asked`.
    """
    tag = answer.headers.get("etag", "")
    if tag.startswith("W/"):
        tag = ""
    if answer.status != HTTPStatus.PARTIAL_CONTENT:
        if file.size:
            await trio.to_thread.run_sync(file.restart)
        return tag, answer.headers.length
    try:
        given, total = ByteRange.parse_content_range(answer.headers.get("content-range", ""))
    except MalformedError as error:
        raise answer.bad(str(error)) from None
    if not file.size or given.start != file.size or given.stop != total:
        raise answer.bad("the portal sent another range than the rest of the content")
    if file.size and tag and tag != asked:
        raise answer.bad("the portal sent the rest of other content")
    return tag or asked, given.stop

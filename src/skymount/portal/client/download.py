"""Owns a download into a file: a temporary file first, its name at the end, and going on where a
transfer broke. What it is compared with comes from ``portal.client.verification``.
"""

import errno
import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import trio

from skymount.errors import (
    BadContentError,
    MalformedError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import StreamingResponse
from skymount.portal.options import PortalOptions
from skymount.portal.verify_policy import Verified
from skymount.storage.atomic_file import write_all
from skymount.wire.byte_range import ByteRange
from skymount.wire.requests import Request

Progress = Callable[[int, int | None], None]
"""Called with (bytes on disk, bytes in all or None). It goes back to 0 when a download that broke
begins again."""

Compare = Callable[[], Awaitable[tuple[Request, DownloadCheck]]]
"""Finds out what a download is compared with; returns the request to make, and that."""

_ROUNDS = 5  # transfers in a row that bring nothing, before giving up
_MEAGRE = 64 << 10  # bytes; a transfer that brings less is followed by a pause
_MEAGRE_ROUNDS = 20  # such transfers in a row, before giving up
_NAME = 200  # bytes of the destination's name in that of the temporary file; at most 255 are legal


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """A file that was downloaded."""

    size: int
    """In bytes."""
    verified: Verified
    """How far it was compared with its skylink: ``yes``, ``partly`` or ``no``."""


class _File:
    """The temporary file beside the destination; file calls run in threads."""

    def __init__(self, destination: Path) -> None:
        self.check = DownloadCheck()
        self.destination = destination
        self.path = destination
        self.size = 0
        self._fd = -1

    def open(self) -> None:
        """Make the temporary file; OSError when the destination cannot become a file.

        A symbolic link is followed: its target is what gets replaced. Its permissions stay.
        """
        self.destination = Path(os.path.realpath(self.destination))
        if self.destination.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(self.destination))
        mode = _mode_of(self.destination)
        name = os.fsdecode(os.fsencode(self.destination.name)[:_NAME])
        self.path = self.destination.with_name(f".{name}.{os.urandom(6).hex()}.part")
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        if mode is not None:
            os.fchmod(self._fd, mode)

    def write(self, piece: bytes) -> None:
        self.check.update(piece)
        write_all(self._fd, piece)
        self.size += len(piece)

    def restart(self) -> None:
        self.check.restart()
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.size = 0

    def finish(self) -> None:
        """Make it durable, and give it its name."""
        os.fsync(self._fd)
        self.close()
        os.replace(self.path, self.destination)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def discard(self) -> None:
        self.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)


def _mode_of(path: Path) -> int | None:
    """Return the permission bits of a file that is replaced, None when there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, "Is not a regular file", str(path))
    return stat.S_IMODE(status.st_mode) & 0o777


async def to_file(
    transport: HttpClient,
    request: Request,
    destination: Path,
    options: PortalOptions,
    progress: Progress | None = None,
    compare: Compare | None = None,
) -> DownloadResult:
    """Download into a file.

    The destination has its old content until the new one is complete, and keeps it if that never
    comes. A transfer that breaks goes on where it was if the portal names the content by an ETag
    and serves ranges, and begins again if not. OSError when the file cannot be written,
    BadContentError when it is not what `compare` says, which is called before the request and may
    replace it.
    """
    file = _File(destination)
    await trio.to_thread.run_sync(file.open)
    try:
        if compare is not None:
            request, file.check = await compare()
        try:
            await _fill(transport, request, file, options, progress)
            await file.check.finish()
        except MalformedError as error:
            raise transport.bad(request, options, str(error), None) from None
        await trio.to_thread.run_sync(file.finish)
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(file.discard)
        raise
    return DownloadResult(file.size, file.check.verified)


async def _fill(
    transport: HttpClient,
    request: Request,
    file: _File,
    options: PortalOptions,
    progress: Progress | None,
) -> None:
    """Transfer until it is complete, or as many rounds in a row brought nothing new.

    A first request that fails is not made again here: the transport did that.
    """
    tag, most, fruitless, meagre = "", 0, 0, 0
    while True:
        if file.size and not tag:
            await trio.to_thread.run_sync(file.restart)
        rest = {"Range": f"bytes={file.size}-", "If-Range": tag} if file.size else {}
        begun, rounds = False, min(_ROUNDS, options.retries)
        try:
            async with transport.open(request, options, headers=rest) as answer:
                begun, asked, tag = True, tag, ""
                tag, total = await _take_place(file, answer, asked)
                await _copy(answer, file, total, progress)
                return
        except (UnavailableError, BadContentError):
            if not (begun or most):
                raise
            fruitless = 0 if file.size > most else fruitless + 1
            if fruitless > rounds or meagre >= _MEAGRE_ROUNDS:
                raise
        except RequestRefusedError as error:
            if error.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not rest:
                raise
            tag, fruitless = "", fruitless + 1  # it is not what it was: from the start
            if fruitless > _ROUNDS:
                raise
        meagre = 0 if file.size >= most + _MEAGRE else meagre + 1
        most = max(most, file.size)
        await trio.sleep((transport.retry.pause_before(meagre) or 0) if meagre else 0)


async def _copy(
    answer: StreamingResponse,
    file: _File,
    total: int | None,
    progress: Progress | None,
) -> None:
    missing = None if total is None else total - file.size
    async with aclosing(answer.pieces(missing)) as pieces:
        async for piece in pieces:
            await trio.to_thread.run_sync(file.write, piece)
            if progress is not None:
                progress(file.size, total)


async def _take_place(file: _File, answer: StreamingResponse, asked: str) -> tuple[str, int | None]:
    """Put the file where the answer begins.

    Returns the content's strong ETag, empty without one, and the size of the whole, None when it is
    not known. BadContentError for a part that is not the rest of what has the ETag `asked`.
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

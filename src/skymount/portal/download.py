"""Owns a download into a file: a temporary file first, its name at the end, and going on where a
transfer broke.
"""

import os
from collections.abc import Callable
from contextlib import aclosing, suppress
from http import HTTPStatus
from pathlib import Path

import trio

from skymount.errors import (
    BadContentError,
    MalformedError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.options import PortalOptions
from skymount.portal.transport import OpenAnswer, Transport
from skymount.wire.messages import Request
from skymount.wire.ranges import ByteRange

Progress = Callable[[int, int | None], None]
"""Called with (bytes on disk, bytes in all or None)."""

_ROUNDS = 5  # transfers in a row that bring nothing, before giving up


class _File:
    """The temporary file beside the destination; file calls run in threads."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self.path = destination.with_name(f".{destination.name[:200]}.{os.urandom(6).hex()}.part")
        self.size = 0
        self._fd = -1

    def open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size += len(piece)

    def restart(self) -> None:
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


async def to_file(
    transport: Transport,
    request: Request,
    destination: Path,
    options: PortalOptions,
    progress: Progress | None = None,
) -> int:
    """Download into a file; return its size in bytes.

    The destination has its old content until the new one is complete, and keeps it if that never
    comes. A transfer that breaks goes on where it was if the portal names the content by an ETag
    and serves ranges, and begins again if not. OSError when the file cannot be written.
    """
    file = _File(destination)
    await trio.to_thread.run_sync(file.open)
    try:
        await _fill(transport, request, file, options, progress)
        await trio.to_thread.run_sync(file.finish)
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(file.discard)
        raise
    return file.size


async def _fill(
    transport: Transport,
    request: Request,
    file: _File,
    options: PortalOptions,
    progress: Progress | None,
) -> None:
    tag, fruitless = "", 0
    while True:
        before = file.size
        if file.size and not tag:
            await trio.to_thread.run_sync(file.restart)
        rest = {"Range": f"bytes={file.size}-", "If-Range": tag} if file.size else {}
        try:
            async with transport.open(request, options, headers=rest) as answer:
                tag = answer.headers.get("etag", "")
                if tag.startswith("W/"):
                    tag = ""
                total = await _take_place(file, answer)
                await _copy(transport, answer, file, total, progress)
                return
        except (UnavailableError, BadContentError):
            fruitless = 0 if file.size > before else fruitless + 1
            if fruitless > min(_ROUNDS, options.retries):
                raise
        except RequestRefusedError as error:
            if error.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not file.size:
                raise
            tag, fruitless = "", fruitless + 1  # it is not what it was: from the start
            if fruitless > _ROUNDS:
                raise


async def _copy(
    transport: Transport,
    answer: OpenAnswer,
    file: _File,
    total: int | None,
    progress: Progress | None,
) -> None:
    async with aclosing(transport.pieces(answer)) as pieces:
        async for piece in pieces:
            await trio.to_thread.run_sync(file.write, piece)
            if progress is not None:
                progress(file.size, total)
    if total is not None and file.size != total:
        raise answer.bad(f"{total - file.size} bytes are missing")


async def _take_place(file: _File, answer: OpenAnswer) -> int | None:
    """Put the file where the answer begins; return the size of the whole, None when unknown."""
    if answer.status != HTTPStatus.PARTIAL_CONTENT:
        if file.size:
            await trio.to_thread.run_sync(file.restart)
        return answer.headers.length
    try:
        given, total = ByteRange.parse_content_range(answer.headers.get("content-range", ""))
    except MalformedError as error:
        raise answer.bad(str(error)) from None
    if given.start != file.size or (total is not None and given.stop != total):
        raise answer.bad("the portal sent another range than the rest of the content")
    return total if total is not None else given.stop

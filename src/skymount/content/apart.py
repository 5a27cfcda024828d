"""Owns the processes apart that read large JSON, and the memory that they share with the mount.

A parser lets no other thread run meanwhile: a hundred megabytes would stop the mount for seconds,
and cost it a gigabyte. What goes to such a process and comes back lies in files that are nothing but
memory, which no event loop has to pass on; and what takes long to be given back to the system, as
many pages do, a thread gives back.
"""

import mmap
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import trio

from skymount.content.program import MALFORMED
from skymount.errors import BadContentError, MalformedError, UnavailableError

T = TypeVar("T")

_TABULATE = "skymount.content.tabulate"

_TIME = 120.0
"""Seconds that it may take; a million files take about four."""

_REASON = 300  # characters of what it says on stderr


class MemoryFile:
    """A file that is nothing but memory; `open_memory_file` makes it."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("apart")

    def put(self, data: bytes | memoryview, at: int = 0) -> None:
        """Write at an offset. Like all that takes time here, it lets other threads run."""
        left = memoryview(data)
        while left:
            written = os.pwrite(self.descriptor, left, at)
            left, at = left[written:], at + written

    def get(self, start: int, size: int) -> bytes:
        """Return what lies at an offset."""
        return os.pread(self.descriptor, size, start)

    def content(self) -> memoryview:
        """Return a copy of everything, in large pages where those can be had: such memory is given
        back at once.
        """
        length = os.fstat(self.descriptor).st_size
        if not length:
            return memoryview(b"")
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        view, at = memoryview(memory), 0
        while at < length:
            at += os.preadv(self.descriptor, [view[at:]], at)
        return view.toreadonly()


@asynccontextmanager
async def open_memory_file() -> AsyncIterator[MemoryFile]:
    """Make such a file; its memory is given back at the end. UnavailableError when there is none."""
    try:
        made = MemoryFile()
    except OSError as error:
        raise UnavailableError(f"no memory for a process apart: {error.strerror}") from error
    try:
        yield made
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(partial(os.close, made.descriptor))


async def in_thread(work: Callable[[], T]) -> T:
    """Do in a thread what lets others run meanwhile, such as to copy much."""
    return await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))


async def tabulate_apart(
    raw: bytes | memoryview, size: int | None, answered: int | None
) -> memoryview:
    """Do what `tabulate.tabulate` does, in another process; it is killed when this is cancelled."""
    async with open_memory_file() as file:
        await in_thread(partial(file.put, raw))
        return await tabulate_file(file, 0, size, answered)


async def tabulate_file(
    file: MemoryFile, start: int, size: int | None, answered: int | None
) -> memoryview:
    """Do the same with what lies in a file from an offset on."""
    arguments = ("" if number is None else str(number) for number in (size, answered))
    return await run_apart(_TABULATE, "the metadata", file, *arguments, start=start)


async def run_apart(
    program: str, what: str, given: MemoryFile, *arguments: str, start: int = 0
) -> memoryview:
    """Run a module of ours as a program in another process, and return what it wrote.

    It reads what was `given`, from an offset on; `what` that is, is told when it fails:
    MalformedError when it says so, else BadContentError. It is killed when this is cancelled.
    """
    command = [sys.executable, "-P", "-m", program, *arguments]
    os.lseek(given.descriptor, start, os.SEEK_SET)
    async with open_memory_file() as output:
        process = None
        try:
            with trio.move_on_after(_TIME):
                process = await trio.run_process(
                    command,
                    stdin=given.descriptor,
                    stdout=output.descriptor,
                    capture_stderr=True,
                    check=False,
                    deliver_cancel=_kill,
                    start_new_session=True,  # a Ctrl-C in our terminal is not for it
                )
        except OSError as error:
            text = f"no process can be had to read {what}: {error.strerror}"
            raise UnavailableError(text) from error
        if process is None:
            raise BadContentError(f"reading {what} takes more than {_TIME:.0f} s")
        _check(process.returncode, process.stderr, what)
        written = await in_thread(output.content)
        if not written:
            raise BadContentError(f"reading {what} failed without a word")
        return written


def _check(status: int, stderr: bytes, what: str) -> None:
    """Raise the error that a process ended with, if any."""
    said = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:_REASON]
    if status == MALFORMED:
        raise MalformedError(said)
    if status:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        raise BadContentError(f"reading {what} ended with {how}: {said or 'no reason given'}")


async def _kill(process: trio.Process) -> None:
    process.kill()

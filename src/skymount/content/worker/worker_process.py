"""Owns the processes apart that read large JSON.

A parser lets no other thread run meanwhile: a hundred megabytes would stop the mount for seconds,
and cost it a gigabyte. What goes to such a process and comes back lies in files that are nothing
but memory, so the event loop passes none of it on.
"""

import os
import sys
from functools import partial

import trio

from skymount.content.worker.shared_memory import MemoryFile, in_thread, open_memory_file
from skymount.content.worker.worker_main import MALFORMED
from skymount.errors import BadContentError, MalformedError, UnavailableError

_TABULATE = "skymount.content.model.listing_builder"

_TIME = 120.0
"""Seconds that it may take; a million files take about four."""

_REASON = 300  # characters of what it says on stderr


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
    async with open_memory_file() as listing:
        await run_apart(_TABULATE, "the metadata", file, listing, *arguments, start=start)
        return await in_thread(listing.content)


async def run_apart(
    program: str,
    what: str,
    given: MemoryFile,
    output: MemoryFile,
    *arguments: str,
    start: int = 0,
) -> None:
    """Run a module of ours as a program in another process, which writes to a file.

    It reads what was `given`, from an offset on; `what` that is, is told when it fails:
    MalformedError when it says so, else BadContentError. It is killed when this is cancelled.
    """
    command = [sys.executable, "-P", "-m", program, *arguments]
    os.lseek(given.descriptor, start, os.SEEK_SET)
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
    if not len(output):
        raise BadContentError(f"reading {what} failed without a word")


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

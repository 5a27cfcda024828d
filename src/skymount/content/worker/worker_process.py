"""Runs worker processes, which parse large JSON: the parent's side (`worker_main` is the child's).

A JSON parser holds the GIL: a hundred megabytes would block the mount for seconds and take a
gigabyte of its memory. Input and output are memory files, so the event loop copies nothing.
"""

import os
import sys

import trio

from skymount.concurrency import in_thread
from skymount.content.worker.shared_memory import MemoryFile, open_memory_file
from skymount.content.worker.worker_main import MALFORMED
from skymount.errors import BadContentError, MalformedError, UnavailableError

_TABULATE = "skymount.content.model.listing_builder"

_TIMEOUT = 120.0
"""Seconds that a worker may take; a million files take about four."""

_REASON_LIMIT = 300  # characters of the worker's stderr that an error quotes


async def tabulate_in_worker(
    file: MemoryFile, start: int, size: int | None, default_size: int | None
) -> memoryview:
    """Do what `listing_builder.tabulate` does with a file's content from offset `start` on."""
    arguments = ("" if number is None else str(number) for number in (size, default_size))
    async with open_memory_file() as listing:
        await run_worker(_TABULATE, "the metadata", file, listing, *arguments, start=start)
        return await in_thread(listing.content)


async def run_worker(
    module: str,
    what: str,
    given: MemoryFile,
    output: MemoryFile,
    *arguments: str,
    start: int = 0,
    timeout: float = _TIMEOUT,
) -> None:
    """Run a module of ours in a worker process. It reads `given` from offset `start` on, and writes
    to `output`. Killed when this is cancelled.

    `what` names the input in errors: MalformedError if the worker says that it is malformed,
    UnavailableError if no process can be started, else BadContentError.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    os.lseek(given.descriptor, start, os.SEEK_SET)
    process = None
    try:
        with trio.move_on_after(timeout):
            process = await trio.run_process(
                command,
                stdin=given.descriptor,
                stdout=output.descriptor,
                capture_stderr=True,
                check=False,
                deliver_cancel=_kill,
                start_new_session=True,  # so that Ctrl-C does not reach it
            )
    except OSError as error:
        text = f"cannot start a worker to read {what}: {error.strerror}"
        raise UnavailableError(text) from error
    if process is None:
        raise BadContentError(f"reading {what} takes more than {timeout:g} s")
    _check(process.returncode, process.stderr, what)
    if not len(output):
        raise BadContentError(f"reading {what}: worker produced no output")


def _check(status: int, stderr: bytes, what: str) -> None:
    """Raise the error that a worker ended with, if any."""
    reason = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:_REASON_LIMIT]
    if status == MALFORMED:
        raise MalformedError(reason)
    if status:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        raise BadContentError(
            f"reading {what}: worker ended with {how}: {reason or 'no reason given'}"
        )


async def _kill(process: trio.Process) -> None:
    process.kill()

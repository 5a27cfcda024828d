"""Owns the process apart that makes a listing of large metadata.

Parsing a hundred megabytes of JSON would stop the mount for seconds, and cost it a gigabyte.
"""

import mmap
import os
import sys

import trio

from skymount.content.tabulate import MALFORMED
from skymount.errors import BadContentError, MalformedError, UnavailableError

_PROGRAM = "skymount.content.tabulate"

_TIME = 120.0
"""Seconds that it may take; a million files take about four."""

_REASON = 300  # characters of what it says on stderr


async def tabulate_apart(
    raw: bytes | memoryview, size: int | None, answered: int | None
) -> memoryview:
    """Do what `tabulate.tabulate` does, in another process; it is killed when this is cancelled.

    It writes to a file that is nothing but memory, so that nobody copies what it wrote.
    """
    command = [sys.executable, "-P", "-m", _PROGRAM, *map(_argument, (size, answered))]
    output = os.memfd_create("listing")
    try:
        process = None
        with trio.move_on_after(_TIME):
            process = await trio.run_process(
                command,
                stdin=raw,
                stdout=output,
                capture_stderr=True,
                check=False,
                deliver_cancel=_kill,
                start_new_session=True,  # a Ctrl-C in our terminal is not for it
            )
        if process is None:
            raise BadContentError(f"reading the metadata takes more than {_TIME:.0f} s")
        _check(process.returncode, process.stderr)
        length = os.fstat(output).st_size
        if not length:
            raise BadContentError("reading the metadata failed without a word")
        return memoryview(mmap.mmap(output, length, access=mmap.ACCESS_READ))
    except OSError as error:
        text = f"no process can be had to read the metadata: {error.strerror}"
        raise UnavailableError(text) from error
    finally:
        os.close(output)


def _argument(number: int | None) -> str:
    return "" if number is None else str(number)


def _check(status: int, stderr: bytes) -> None:
    """Raise the error that a process ended with, if any."""
    said = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:_REASON]
    if status == MALFORMED:
        raise MalformedError(said)
    if status:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        raise BadContentError(f"reading the metadata ended with {how}: {said or 'no reason given'}")


async def _kill(process: trio.Process) -> None:
    process.kill()

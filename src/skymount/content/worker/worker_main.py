"""What worker programs have in common: input, output, exit status and resource limits."""

import mmap
import os
import sys
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeAlias

from skymount import process_hardening
from skymount.errors import MalformedError

Buffer: TypeAlias = "bytes | bytearray | array[int]"

MALFORMED = 65
"""Exit status for malformed input (EX_DATAERR); stderr has the reason in one line."""

_MEMORY = 1 << 30
"""Bytes of address space; the largest metadata (256 MiB, two million records) need 90 %."""

_CPU_SECONDS = 60
"""The largest metadata takes ten."""


def run(work: Callable[[Callable[[], bytes | memoryview]], Iterable[Buffer]], what: str) -> int:
    """Run `work`, write its result to stdout, and return the exit status.

    `work` gets a function that returns the content of stdin (a file), from its offset on.
    `what` describes the work in the error for exceeding the limit of memory.
    """
    _limit_resources()
    try:
        for part in work(_stdin_content):
            sys.stdout.buffer.write(part)
    except MalformedError as error:
        sys.stderr.write(f"{error}\n")
        return MALFORMED
    except MemoryError:
        sys.stderr.write(f"{what} takes more than {_MEMORY >> 20} MiB of memory\n")
        return MALFORMED
    return 0


def _stdin_content() -> bytes | memoryview:
    """Map the file on stdin from its offset on; not copied."""
    start, size = os.lseek(0, 0, os.SEEK_CUR), os.fstat(0).st_size
    skipped = start % mmap.ALLOCATIONGRANULARITY
    length = size - start + skipped
    if length <= skipped:
        return b""
    return memoryview(mmap.mmap(0, length, access=mmap.ACCESS_READ, offset=start - skipped))[
        skipped:
    ]


def _limit_resources() -> None:
    """Limit memory and processor time, and be the first choice of the OOM killer."""
    import resource  # not at the top: the mount imports this module too and does not need it

    process_hardening.harden_service()
    for kind, limit in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _CPU_SECONDS),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (bound, bound))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")

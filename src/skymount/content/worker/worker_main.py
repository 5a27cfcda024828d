"""Owns what the programs have in common that run in a process apart: how each takes and gives
bytes, says what is wrong, and how much of the machine it may take. `apart` runs them.
"""

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
"""Exit status that says that the input is (EX_DATAERR); why is a line on stderr."""

METADATA_MEMORY = 1 << 30
"""Bytes of address space for metadata. Those of the greatest length that is read, 256 MiB with two
million records, take nine tenths of it."""

DOCUMENT_MEMORY = 4 << 30
"""Bytes of it for a document."""

_SECONDS = 60
"""Of processor time; the greatest metadata takes ten."""


def run(
    work: Callable[[Callable[[], bytes | memoryview]], Iterable[Buffer]], what: str, memory: int
) -> int:
    """Do the work, and write its result to stdout; return the exit status.

    The work gets what returns the file that stdin is, from its offset on. `what` is what is done,
    for who must be told that it takes more memory than that.
    """
    _limit_resources(memory)
    try:
        for part in work(_given):
            sys.stdout.buffer.write(part)
    except MalformedError as error:
        sys.stderr.write(f"{error}\n")
        return MALFORMED
    except MemoryError:
        sys.stderr.write(f"{what} takes more than {memory >> 20} MiB of memory\n")
        return MALFORMED
    return 0


def _given() -> bytes | memoryview:
    """Return what lies in the file that stdin is; it is no copy."""
    start, size = os.lseek(0, 0, os.SEEK_CUR), os.fstat(0).st_size
    skipped = start % mmap.ALLOCATIONGRANULARITY
    length = size - start + skipped
    if length <= skipped:
        return b""
    return memoryview(mmap.mmap(0, length, access=mmap.ACCESS_READ, offset=start - skipped))[
        skipped:
    ]


def _limit_resources(memory: int) -> None:
    """Bound memory and time, and be the first to go when the machine is out of memory."""
    import resource  # the mount, which reads what is small itself, has no need of it

    process_hardening.harden_service()
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, _SECONDS),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (bound, bound))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")

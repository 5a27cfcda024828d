"""Owns what the programs have in common that run in a process apart: how each takes and gives
bytes, says what is wrong, and how much of the machine it may take. `apart` runs them.
"""

import sys
from collections.abc import Callable
from contextlib import suppress

from skymount import private
from skymount.errors import MalformedError

MALFORMED = 65
"""Exit status that says that the input is (EX_DATAERR); why is a line on stderr."""

MEMORY_LIMIT = 4 << 30
"""Bytes of address space. Metadata of the greatest length that is read, 256 MiB with two million
records, takes 1.6 GB, and malformed metadata twice that."""

_SECONDS = 60
"""Of processor time; the greatest metadata takes ten."""


def run(work: Callable[[bytes], bytes], what: str) -> int:
    """Do the work on stdin, and write its result to stdout; return the exit status.

    `what` is what is done, for who must be told that it takes too much memory.
    """
    _limit_resources()
    try:
        result = work(sys.stdin.buffer.read())
    except MalformedError as error:
        sys.stderr.write(f"{error}\n")
        return MALFORMED
    except MemoryError:
        sys.stderr.write(f"{what} takes too much memory\n")
        return MALFORMED
    sys.stdout.buffer.write(result)
    return 0


def _limit_resources() -> None:
    """Bound memory and time, and be the first to go when the machine is out of memory."""
    import resource  # the mount, which reads what is small itself, has no need of it

    private.be_a_service()
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_LIMIT),
        (resource.RLIMIT_CPU, _SECONDS),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (bound, bound))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")

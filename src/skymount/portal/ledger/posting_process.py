"""Which process is posting something, as the ledger stores it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which process records something, and when."""

    poster: str
    now: float


def name_of(process: int) -> str:
    """Return a name that no other process has until the next boot."""
    return f"{process} {_start_of(process)}"


def is_running(poster: str | None) -> bool:
    """Whether the process of a name still runs."""
    if not poster:
        return False
    process, _, start = poster.partition(" ")
    return bool(start) and start == _start_of(int(process))


def _start_of(process: int) -> str:
    """Return when a process started, as ids are used again; empty if it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return ""

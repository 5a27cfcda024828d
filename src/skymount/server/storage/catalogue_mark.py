"""The mark of a clean end: that the catalogue has all skyfiles that are on disk.

    <data>/v1/catalogue.clean         while no portal runs, after one that ended cleanly

It has the time of change of each shard, a directory of skyfiles, so that the next start knows in
which ones something was added or removed meanwhile. Every function blocks.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from skymount.storage import atomic_file

MARK_FILE = "catalogue.clean"

_LIMIT = 64 << 10  # bytes


class _Mark(msgspec.Struct):
    skyfiles: int
    bytes: int
    changed: list[int]
    newest_small: int


def take(
    path: Path, totals: tuple[int, int], changed: Sequence[int], newest_small: int
) -> set[int] | None:
    """Remove the mark, and return the shards that changed since; None without a clean end.

    `totals` are those of the catalogue: a mark with others belongs to another file. So does one
    with another newest small skyfile.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT)
        path.unlink()  # possible on a full disk too
        atomic_file.sync_directory(path.parent)
        mark = msgspec.json.decode(raw, type=_Mark)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        remove(path)
        return None
    known = (mark.skyfiles, mark.bytes, mark.newest_small, len(mark.changed))
    if known != (*totals, newest_small, len(changed)):
        return None
    return {shard for shard, time in enumerate(changed) if mark.changed[shard] != time}


def remove(path: Path) -> None:
    """Remove the mark, if there is one."""
    with suppress(OSError):
        path.unlink()


def write(path: Path, totals: tuple[int, int], changed: Sequence[int], newest_small: int) -> None:
    """Leave the mark; OSError."""
    mark = _Mark(*totals, [*changed], newest_small)
    atomic_file.replace(path, msgspec.json.encode(mark))

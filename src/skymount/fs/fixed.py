"""Owns the part of the tree that is always there: the root, the name spaces in it, and
``.skymount`` with the daemon's own files. Inode numbers below 2**24 are its.
"""

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

ROOT = 1
SKYLINKS = 2
CONTROL = 3
_HELP = 4
_STATUS = 5

HELP = b"""\
This directory is a content portal, mounted by skymount.

  skylinks/<skylink>/<path>   the files of a skylink, read-only; what you used is listed
  .skymount/status.json       how the mount is doing

Publish a file or a directory with:   skymount upload PATH
Unmount with:                         skymount umount MOUNTPOINT
Where a file came from:               getfattr -d -m user.skymount FILE
"""


@dataclass(frozen=True, slots=True)
class FixedDirectory:
    """A directory that is always there."""

    parent: int
    children: Mapping[bytes, int] = field(default_factory=dict)
    mode: int = stat.S_IFDIR | 0o555


@dataclass(frozen=True, slots=True)
class FixedFile:
    """A file whose content the daemon makes at each open."""

    content: Callable[[], bytes]
    changes: bool
    """Whether the content may differ between two opens, so that nobody may cache it."""
    mode: int = stat.S_IFREG | 0o444


FixedNode = FixedDirectory | FixedFile


def fixed_nodes(status: Callable[[], bytes]) -> dict[int, FixedNode]:
    """Return the fixed nodes by inode number; `status` makes the JSON of ``status.json``."""
    return {
        ROOT: FixedDirectory(ROOT, {b".skymount": CONTROL, b"skylinks": SKYLINKS}),
        SKYLINKS: FixedDirectory(ROOT),
        CONTROL: FixedDirectory(ROOT, {b"help.txt": _HELP, b"status.json": _STATUS}),
        _HELP: FixedFile(lambda: HELP, changes=False),
        _STATUS: FixedFile(status, changes=True),
    }

"""Owns the part of the tree that is always there: the root, the names of the realms in it, and
``.skymount`` with the daemon's own files. Inode numbers below 2**24 are its.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from skymount.fs.subtree import (
    FOREVER,
    Child,
    Entry,
    OpenDirectory,
    OpenFile,
    Subtree,
    child_of,
    refuse,
)

ROOT = 1
SKYLINKS = 2
CONTROL = 3
_HELP = 4
_STATUS = 5
HNS = 6
REGISTRY = 7
SKYDB = 8

FIXED_LIMIT = 1 << 24
"""Inode numbers below it are fixed."""

REALMS: Mapping[bytes, int] = {
    b"skylinks": SKYLINKS,
    b"hns": HNS,
    b"registry": REGISTRY,
    b"skydb": SKYDB,
}
"""The directories in the root that are realms of their own."""

HELP = b"""\
This directory is a content portal, mounted by skymount.

  skylinks/<skylink>/<path>   the files of a skylink, read-only; what you used is listed
  hns/<domain>/<path>         the same for what a domain leads to now
  registry/<key>/<data key>   small signed files, written back when they are closed
  skydb/<key>/<data key>.json JSON documents of any size, likewise
  .skymount/status.json       how the mount is doing

Publish a file or a directory with:   skymount upload PATH
Make a key to write with:             skymount key generate NAME
Unmount with:                         skymount umount MOUNTPOINT
Where a file came from:               getfattr -d -m user.skymount FILE
"""


@dataclass(frozen=True, slots=True)
class FixedDirectory:
    """A directory that is always there."""

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
        ROOT: FixedDirectory({b".skymount": CONTROL, **REALMS}),
        **{inode: FixedDirectory() for inode in REALMS.values()},
        CONTROL: FixedDirectory({b"help.txt": _HELP, b"status.json": _STATUS}),
        _HELP: FixedFile(lambda: HELP, changes=False),
        _STATUS: FixedFile(status, changes=True),
    }


class StaticTree(Subtree):
    """The nodes that are always there, which the kernel's references do not matter to."""

    def __init__(self, status: Callable[[], bytes]) -> None:
        self._nodes = fixed_nodes(status)

    def lookup(self, parent: int, name: bytes) -> Entry:
        node = self._node(parent)
        if not isinstance(node, FixedDirectory):
            refuse(errno.ENOTDIR)
        child = node.children.get(name)
        return Entry(0) if child is None else self.entry(child)

    def getattr(self, inode: int) -> Entry:
        return self.entry(inode)

    def entry(self, inode: int) -> Entry:
        """Return the entry of a node; OSError when there is none of that number."""
        node = self._node(inode)
        if isinstance(node, FixedDirectory):
            return Entry(inode, node.mode)
        ttl = 0.0 if node.changes else FOREVER
        return Entry(inode, node.mode, len(node.content()), attr_ttl=ttl)

    def opendir(self, inode: int) -> OpenDirectory:
        node = self._node(inode)
        if not isinstance(node, FixedDirectory):
            refuse(errno.ENOTDIR)
        return _Listing(self, node.children)

    def open(self, inode: int, flags: int) -> OpenFile:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            refuse(errno.EROFS)
        node = self._node(inode)
        if not isinstance(node, FixedFile):
            refuse(errno.EISDIR)
        return _Bytes(node.content(), keep=not node.changes)

    def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        self._node(inode)
        return {b"user.skymount.pid": str(os.getpid()).encode()} if inode == ROOT else {}

    def _node(self, inode: int) -> FixedNode:
        node = self._nodes.get(inode)
        return node if node is not None else refuse(errno.ESTALE)


class _Listing(OpenDirectory):
    def __init__(self, fixed: StaticTree, children: Mapping[bytes, int]) -> None:
        self._fixed = fixed
        self._children = list(children.items())

    def readdir(self, position: int) -> Iterator[Child]:
        for at, (name, inode) in enumerate(self._children[position:], position + 1):
            yield child_of(name, self._fixed.entry(inode), at)


class _Bytes(OpenFile):
    def __init__(self, data: bytes, keep: bool) -> None:
        self._data = data
        self.keep = keep

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

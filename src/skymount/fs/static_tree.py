"""The root of the mount, the directories of the other subtrees, and ``.skymount``."""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from skymount.fs.inode_space import (
    CONTROL,
    HELP,
    HNS,
    METRICS,
    REGISTRY,
    ROOT,
    SKYDB,
    SKYLINKS,
    STATUS,
)
from skymount.fs.subtree import (
    IMMUTABLE_TIMEOUT,
    NO_ENTRY,
    DirectoryEntry,
    InodeAttributes,
    OpenDirectory,
    OpenFile,
    Subtree,
    directory_entry,
    refuse,
)

_SUBTREES: Mapping[bytes, int] = {
    b"skylinks": SKYLINKS,
    b"hns": HNS,
    b"registry": REGISTRY,
    b"skydb": SKYDB,
}

_FILES: Mapping[bytes, int] = {b"help.txt": HELP, b"status.json": STATUS, b"metrics": METRICS}

_HELP_TEXT = b"""\
This directory is a content portal, mounted by skymount.

  skylinks/<skylink>/<path>   the files of a skylink, read-only; what you used is listed
  hns/<domain>/<path>         the same for what a domain leads to now
  registry/<key>/<data key>   small signed files, written back when they are closed
  skydb/<key>/<data key>.json JSON documents of up to 4 MiB, likewise
  .skymount/status.json       how the mount is doing; see also `skymount status`
  .skymount/metrics           the same as figures for Prometheus

Publish a file or a directory with:   skymount upload PATH
Make a key to write with:             skymount key generate NAME
Unmount with:                         skymount umount MOUNTPOINT
Where a file came from:               skymount status FILE
Why reading or writing it failed:     getfattr -n user.skymount.last_error FILE
"""


@dataclass(frozen=True, slots=True)
class _StaticFile:
    content: Callable[[], bytes]  # makes the content, at each open
    is_constant: bool


_StaticDirectory: TypeAlias = Mapping[bytes, int]


class StaticTree(Subtree):
    """Nodes that live as long as the mount, so that the kernel's references are not counted.

    `status` makes the JSON of ``status.json``, `metrics` the text of ``metrics``.
    """

    has_own_deadline = True  # nothing here waits

    def __init__(self, status: Callable[[], bytes], metrics: Callable[[], bytes]) -> None:
        self._nodes: Mapping[int, _StaticDirectory | _StaticFile] = {
            ROOT: {b".skymount": CONTROL, **_SUBTREES},
            **{inode: {} for inode in _SUBTREES.values()},
            CONTROL: _FILES,
            HELP: _StaticFile(lambda: _HELP_TEXT, is_constant=True),
            STATUS: _StaticFile(status, is_constant=False),
            METRICS: _StaticFile(metrics, is_constant=False),
        }

    def path(self, inode: int) -> bytes:
        if inode == ROOT:
            return b"."
        inside = {b".skymount": CONTROL, **_SUBTREES}
        found = {number: name for name, number in inside.items()}
        found |= {number: b".skymount/" + name for name, number in _FILES.items()}
        return found.get(inode, b"")

    def parent(self, inode: int) -> int:
        return ROOT

    async def lookup(self, parent: int, name: bytes) -> InodeAttributes:
        child = self._directory(parent).get(name)
        return NO_ENTRY if child is None else self.attributes(child)

    async def getattr(self, inode: int) -> InodeAttributes:
        return self.attributes(inode)

    def attributes(self, inode: int) -> InodeAttributes:
        node = self._node(inode)
        if not isinstance(node, _StaticFile):
            return InodeAttributes(inode, stat.S_IFDIR | 0o555)
        mode, timeout = stat.S_IFREG | 0o444, IMMUTABLE_TIMEOUT if node.is_constant else 0.0
        return InodeAttributes(inode, mode, len(node.content()), attr_timeout=timeout)

    async def opendir(self, inode: int) -> OpenDirectory:
        return _StaticListing(self, self._directory(inode))

    async def open(self, inode: int, flags: int) -> OpenFile:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            refuse(errno.EROFS)
        node = self._node(inode)
        if not isinstance(node, _StaticFile):
            refuse(errno.EISDIR)
        return _StaticFileHandle(node.content(), node.is_constant)

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        self._node(inode)
        return {b"user.skymount.pid": str(os.getpid()).encode()} if inode == ROOT else {}

    def _node(self, inode: int) -> _StaticDirectory | _StaticFile:
        return self._nodes[inode] if inode in self._nodes else refuse(errno.ESTALE)

    def _directory(self, inode: int) -> _StaticDirectory:
        node = self._node(inode)
        return refuse(errno.ENOTDIR) if isinstance(node, _StaticFile) else node


class _StaticListing(OpenDirectory):
    def __init__(self, tree: StaticTree, children: Mapping[bytes, int]) -> None:
        self._tree = tree
        self._children = list(children.items())

    def readdir(self, position: int) -> Iterator[DirectoryEntry]:
        for at, (name, inode) in enumerate(self._children[position:], position + 1):
            yield directory_entry(name, self._tree.attributes(inode), at)


class _StaticFileHandle(OpenFile):
    has_own_deadline = True

    def __init__(self, data: bytes, keep_cache: bool) -> None:
        self._data = data
        self.keep_cache = keep_cache

    async def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

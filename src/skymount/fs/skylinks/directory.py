"""Owns ``/skylinks``: the trees of skylinks, read-only. What a name leads to, and when it is asked
for again, is decided in `slots`; the bytes come from `content`.
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import TypeVar

from skymount.content.fetch.reader import ContentFile, ContentReader
from skymount.errors import MalformedError, NotFoundError
from skymount.fs.skylinks import xattrs
from skymount.fs.skylinks.mounted_name import MountedName, TreeVersion
from skymount.fs.skylinks.name_table import NameTable
from skymount.fs.skylinks.tree import Directory, Entries, Tree
from skymount.fs.static_tree import SKYLINKS
from skymount.fs.subtree import (
    MOMENT,
    UNCHANGING,
    Answer,
    Child,
    Entry,
    OpenDirectory,
    OpenFile,
    Subtree,
    child_of,
    refuse,
)

R = TypeVar("R")

_OFFERED = 64 << 10
"""Bytes of the largest file that the kernel is given when it is opened: copying more in vain would
cost more than the requests that it saves."""


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """Times in seconds."""

    lookup_grace: float = 0.5
    """How long a lookup waits for a portal while it holds up others in the same directory."""


def _tree_entry(slot: TreeVersion, tree: Tree, index: int) -> Entry:
    return Entry(slot.inode(index), tree.mode(index), tree.size(index))


class SkylinksDirectory(Subtree):
    """The directory ``skylinks``, and the trees in it."""

    directory = SKYLINKS
    """The inode number of the directory with the names."""

    def __init__(self, reader: ContentReader, slots: NameTable, config: TreeConfig) -> None:
        self._reader = reader
        self._slots = slots
        self._config = config
        self._opened = Counter[int]()
        """Open handles of each file, by its inode number."""

    # Names and attributes

    def lookup(self, parent: int, name: bytes) -> Answer[Entry]:
        if parent == self.directory:
            return self._lookup_name(name)
        return self._at(parent, partial(self._lookup_child, name))

    def _lookup_child(self, name: bytes, slot: TreeVersion, tree: Tree, index: int) -> Entry:
        child = tree.child(_directory(tree, index), name)
        if child is None:
            return Entry(0)
        self._slots.refer(slot)
        return _tree_entry(slot, tree, child)

    async def _lookup_name(self, name: bytes) -> Entry:
        try:
            point = self._slots.point(name.decode())
        except (MalformedError, UnicodeDecodeError):
            return Entry(0)
        try:
            # not for long: other lookups stand behind this one
            await self._slots.settle(point, self._config.lookup_grace)
        except NotFoundError:
            return Entry(0, entry_ttl=self._kept(point, self._slots.negative_ttl(point)))
        self._slots.refer(point.slot)
        return self.entry(point)

    def entry(self, point: MountedName) -> Entry:
        """Return the entry of a name; one that cannot move lives as long as what it stands for."""
        slot = point.slot
        if self._slots.shown(slot) is None:
            return Entry(slot.inode(), Directory.mode, entry_ttl=0, attr_ttl=0)
        ttl = self._kept(point, self._slots.ttl(point))
        return Entry(slot.inode(), Directory.mode, entry_ttl=ttl)

    @staticmethod
    def _kept(point: MountedName, ttl: float) -> float:
        """Return the seconds for which the kernel may keep what holds for so many."""
        return min(MOMENT, ttl) if point.moves or point.slot.is_provisional else ttl

    def getattr(self, inode: int) -> Answer[Entry]:
        if inode == self.directory:
            return Entry(inode, Directory.mode)
        slot, index = self._slot(inode)
        if index == 0 and self._slots.shown(slot) is None:
            return Entry(inode, Directory.mode, entry_ttl=0, attr_ttl=0)
        return self._at(inode, _tree_entry)

    def forget(self, inode: int, count: int) -> None:
        self._slots.forget(inode, count)

    # Directories

    def opendir(self, inode: int) -> Answer[OpenDirectory]:
        if inode == self.directory:
            return _Names(self, self._slots)
        return self._at(inode, self._listing)

    def _listing(self, slot: TreeVersion, tree: Tree, index: int) -> OpenDirectory:
        return _Listing(self._slots, slot, tree, _directory(tree, index))

    # Files

    def open(self, inode: int, flags: int) -> Answer[OpenFile]:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            refuse(errno.EROFS)
        if inode == self.directory:
            refuse(errno.EISDIR)
        return self._at(inode, self._content)

    def _content(self, slot: TreeVersion, tree: Tree, index: int) -> OpenFile:
        if tree.is_directory(index):
            refuse(errno.EISDIR)
        extent = self._reader.open(tree.skyfile, *tree.extent(index))
        return _Content(self._slots, slot, extent, slot.inode(index), self._opened)

    def xattrs(self, inode: int) -> Answer[Mapping[bytes, bytes]]:
        return {} if inode == self.directory else self._at(inode, self._attributes)

    def _attributes(self, slot: TreeVersion, tree: Tree, index: int) -> Mapping[bytes, bytes]:
        if not slot.point.moves:
            return xattrs.attributes(tree, index)
        stale = self._slots.is_stale(slot)
        return xattrs.attributes(tree, index, verified=slot.verified, stale=stale)

    # Trees

    def _at(self, inode: int, work: Callable[[TreeVersion, Tree, int], R]) -> Answer[R]:
        """Do some work on a node of a tree: now if the tree is there, else once it is loaded."""
        slot, index = self._slot(inode)
        tree = self._slots.shown(slot)
        if tree is None:
            return self._at_loaded(slot, index, work)
        return work(slot, tree, _checked(tree, index))

    async def _at_loaded(
        self, slot: TreeVersion, index: int, work: Callable[[TreeVersion, Tree, int], R]
    ) -> R:
        tree = await self._slots.tree(slot)
        return work(slot, tree, _checked(tree, index))

    def _slot(self, inode: int) -> tuple[TreeVersion, int]:
        try:
            return self._slots.of_inode(inode)
        except KeyError:
            refuse(errno.ESTALE)


def _checked(tree: Tree, index: int) -> int:
    """Return the index of a node; OSError when the tree has none of that number."""
    return index if index < len(tree) else refuse(errno.ESTALE)


def _directory(tree: Tree, index: int) -> int:
    return index if tree.is_directory(index) else refuse(errno.ENOTDIR)


class _Names(OpenDirectory):
    """The listing of the names: what is loaded."""

    def __init__(self, realm: SkylinksDirectory, slots: NameTable) -> None:
        self._realm = realm
        self._slots = slots
        self._names = [point.name for point in slots if point.slot.tree is not None]

    def readdir(self, position: int) -> Iterator[Child]:
        for at, name in enumerate(self._names[position:], position + 1):
            point = self._slots.find(name)
            if point is not None:
                yield child_of(name.encode(), self._realm.entry(point), at)

    def referred(self, start: int, stop: int, count: int) -> None:
        for name in self._names[start:stop]:
            point = self._slots.find(name)
            if point is not None:
                self._slots.refer(point.slot)


class _Listing(OpenDirectory):
    """The listing of a directory in a tree. A position is the index of the child after it."""

    def __init__(self, slots: NameTable, slot: TreeVersion, tree: Tree, directory: int) -> None:
        self._slots = slots
        self._slot = slot
        self._tree = tree
        self._directory = directory
        slots.refer(slot)

    def readdir(self, position: int) -> Iterator[Child]:
        runs = self._tree.runs(self._directory, position)
        return chain.from_iterable(map(self._children, runs))

    def _children(self, run: Entries) -> Iterator[Child]:
        root, indexes = self._slot.inode(), run.indexes
        inodes = range(root + indexes.start, root + indexes.stop)
        return zip(
            run.names, inodes, run.modes, run.sizes, run.positions, repeat(UNCHANGING), strict=False
        )

    def referred(self, start: int, stop: int, count: int) -> None:
        self._slots.refer(self._slot, count)

    def release(self) -> None:
        self._slots.refer(self._slot, -1)


class _Content(OpenFile):
    """An open file: an extent of a skyfile's payload."""

    __slots__ = ("_extent", "_inode", "_opened", "_slot", "_slots")

    def __init__(
        self,
        slots: NameTable,
        slot: TreeVersion,
        extent: ContentFile,
        inode: int,
        opened: Counter[int],
    ) -> None:
        self.keep = not slot.was_provisional
        self._slots = slots
        self._slot = slot
        self._extent = extent
        self._inode = inode
        self._opened = opened
        opened[inode] += 1
        slots.refer(slot)

    def offer(self) -> bytes | memoryview | None:
        extent = self._extent
        if not self.keep or extent.size > _OFFERED or self._opened[self._inode] > 1:
            return None
        return extent.ready(0, extent.size)

    def read(self, offset: int, length: int) -> Answer[bytes | memoryview]:
        data = self._extent.ready(offset, length)
        return self._extent.wait(offset, length) if data is None else data

    def release(self) -> None:
        self._opened[self._inode] -= 1
        if not self._opened[self._inode]:
            del self._opened[self._inode]
        self._slots.refer(self._slot, -1)
        self._extent.close()

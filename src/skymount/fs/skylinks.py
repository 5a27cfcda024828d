"""Owns ``/skylinks``: the trees of skylinks, read-only. What a name leads to, and when it is asked
for again, is decided in `slots`; the bytes come from `content`.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from skymount.content.reader import ContentReader
from skymount.errors import MalformedError, NotFoundError
from skymount.fs import xattrs
from skymount.fs.fixed import SKYLINKS
from skymount.fs.realm import Child, Entry, OpenDirectory, OpenFile, Realm, refuse
from skymount.fs.slots import INDEX_BITS, Point, Slot, Slots
from skymount.fs.tree import Directory, File, Tree


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """Times in seconds."""

    lookup_grace: float = 0.5
    """How long a lookup waits for a portal while it holds up others in the same directory."""


def _tree_entry(slot: Slot, tree: Tree, index: int) -> Entry:
    node = tree.nodes[index]
    return Entry(slot.inode(index), node.mode, node.size if isinstance(node, File) else 0)


class Skylinks(Realm):
    """The directory ``skylinks``, and the trees in it."""

    directory = SKYLINKS
    """The inode number of the directory with the names."""

    def __init__(self, reader: ContentReader, slots: Slots, config: TreeConfig) -> None:
        self._reader = reader
        self._slots = slots
        self._config = config

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> Entry:
        if parent == self.directory:
            return await self._lookup_name(name)
        slot, tree, directory = await self._directory(parent)
        index = directory.children.get(name)
        if index is None:
            return Entry(0)
        self._slots.refer(slot)
        return _tree_entry(slot, tree, index)

    async def _lookup_name(self, name: bytes) -> Entry:
        try:
            point = self._slots.point(name.decode())
        except (MalformedError, UnicodeDecodeError):
            return Entry(0)
        try:
            # not for long: other lookups stand behind this one
            await self._slots.settle(point, self._config.lookup_grace)
        except NotFoundError:
            return Entry(0, entry_ttl=self._slots.negative_ttl(point))
        self._slots.refer(point.slot)
        return self.entry(point)

    def entry(self, point: Point) -> Entry:
        """Return the entry of a name, as long-lived as what it stands for."""
        slot = point.slot
        if slot.tree is None:
            return Entry(slot.inode(), Directory.mode, entry_ttl=0, attr_ttl=0)
        return Entry(slot.inode(), Directory.mode, entry_ttl=self._slots.ttl(point))

    async def getattr(self, inode: int) -> Entry:
        if inode == self.directory:
            return Entry(inode, Directory.mode)
        try:
            slot, index = self._slots.of_inode(inode)
        except KeyError:
            refuse(errno.ESTALE)
        if slot.tree is None and index == 0:
            return Entry(inode, Directory.mode, entry_ttl=0, attr_ttl=0)
        slot, tree, _ = await self._node(inode)
        return _tree_entry(slot, tree, index)

    def forget(self, inode: int, count: int) -> None:
        self._slots.forget(inode, count)

    # Directories

    async def opendir(self, inode: int) -> OpenDirectory:
        if inode == self.directory:
            return _Names(self, self._slots)
        slot, tree, directory = await self._directory(inode)
        return _Listing(self._slots, slot, tree, directory)

    # Files

    async def open(self, inode: int, flags: int) -> OpenFile:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            refuse(errno.EROFS)
        slot, tree, node = await self._node(inode)
        if not isinstance(node, File):
            refuse(errno.EISDIR)
        return _Content(self._reader, self._slots, slot, tree, node)

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        if inode == self.directory:
            return {}
        slot, tree, node = await self._node(inode)
        path = xattrs.path_of(tree, inode - slot.inode())
        if not slot.point.moves:
            return xattrs.attributes(tree, node, path)
        stale = self._slots.is_stale(slot)
        return xattrs.attributes(tree, node, path, verified=slot.verified, stale=stale)

    async def _node(self, inode: int) -> tuple[Slot, Tree, File | Directory]:
        if inode == self.directory:
            refuse(errno.EISDIR)
        try:
            return await self._slots.node(inode)
        except KeyError:
            refuse(errno.ESTALE)

    async def _directory(self, inode: int) -> tuple[Slot, Tree, Directory]:
        slot, tree, node = await self._node(inode)
        if not isinstance(node, Directory):
            refuse(errno.ENOTDIR)
        return slot, tree, node


class _Names(OpenDirectory):
    """The listing of the names: what is loaded."""

    def __init__(self, realm: Skylinks, slots: Slots) -> None:
        self._realm = realm
        self._slots = slots
        self._names = [point.name for point in slots if point.slot.tree is not None]

    def readdir(self, position: int) -> Iterator[Child]:
        for at, name in enumerate(self._names[position:], position + 1):
            point = self._slots.find(name)
            if point is not None:
                yield Child.of(name.encode(), self._realm.entry(point), at)

    def referred(self, start: int, stop: int) -> None:
        for name in self._names[start:stop]:
            point = self._slots.find(name)
            if point is not None:
                self._slots.refer(point.slot)


class _Listing(OpenDirectory):
    """The listing of a directory in a tree."""

    def __init__(self, slots: Slots, slot: Slot, tree: Tree, directory: Directory) -> None:
        self._slots = slots
        self._slot = slot
        self._nodes = tree.nodes
        self._children = directory.children
        self._names = list(directory.children)
        slots.refer(slot)

    def readdir(self, position: int) -> Iterator[Child]:
        base, nodes = self._slot.number << INDEX_BITS, self._nodes
        for at in range(position, len(self._names)):
            name = self._names[at]
            index = self._children[name]
            node = nodes[index]
            size = node.size if isinstance(node, File) else 0
            yield Child(name, base | index, node.mode, size, at + 1)

    def referred(self, start: int, stop: int) -> None:
        self._slots.refer(self._slot, stop - start)

    def release(self) -> None:
        self._slots.refer(self._slot, -1)


class _Content(OpenFile):
    """An open file: an extent of a skyfile's payload."""

    __slots__ = ("_offset", "_reader", "_size", "_skyfile", "_slot", "_slots")

    keep = True

    def __init__(
        self, reader: ContentReader, slots: Slots, slot: Slot, tree: Tree, file: File
    ) -> None:
        self._reader = reader
        self._slots = slots
        self._slot = slot
        self._skyfile = tree.skyfile
        self._offset = file.offset
        self._size = file.size
        slots.refer(slot)
        reader.opened()

    def read_now(self, offset: int, length: int) -> bytes | memoryview | None:
        length = min(length, self._size - offset)
        return self._reader.ready(self._skyfile, self._offset + offset, length)

    async def read(self, offset: int, length: int) -> bytes | memoryview:
        length = min(length, self._size - offset)
        return await self._reader.wait(self._skyfile, self._offset + offset, length)

    async def release(self) -> None:
        self._slots.refer(self._slot, -1)
        self._reader.closed()

"""Owns ``/skylinks``: the trees of skylinks, read-only. What a name leads to, and when it is asked
for again, is decided in `slots`; the bytes come from `content`.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import trio

from skymount.content.reader import ContentReader
from skymount.errors import MalformedError, NotFoundError
from skymount.fs import xattrs
from skymount.fs.fixed import SKYLINKS
from skymount.fs.realm import FOREVER, Child, Entry, OpenDirectory, OpenFile, Realm, refuse
from skymount.fs.slots import INDEX_BITS, Slot, Slots
from skymount.fs.tree import Directory, File, Tree

NEGATIVE_TTL = 5.0
"""Seconds for which «not found» is kept: the content may be uploaded any moment."""


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """Times in seconds."""

    lookup_grace: float = 0.5
    """How long a lookup waits for a portal while it holds up others in the same directory."""
    resolve_ttl: float = 60.0
    """How long a v2 skylink stays resolved."""


def _tree_entry(slot: Slot, tree: Tree, index: int) -> Entry:
    node = tree.nodes[index]
    return Entry(slot.inode(index), node.mode, node.size if isinstance(node, File) else 0)


class Skylinks(Realm):
    """The directory ``skylinks``, and the trees in it."""

    def __init__(self, reader: ContentReader, slots: Slots, config: TreeConfig) -> None:
        self._reader = reader
        self._slots = slots
        self._config = config

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> Entry:
        if parent == SKYLINKS:
            return await self._lookup_skylink(name)
        slot, tree, directory = await self._directory(parent)
        index = directory.children.get(name)
        if index is None:
            return Entry(0)
        self._slots.refer(slot)
        return _tree_entry(slot, tree, index)

    async def _lookup_skylink(self, name: bytes) -> Entry:
        try:
            slot = self._current_slot(name.decode())
        except (MalformedError, UnicodeDecodeError):
            return Entry(0)
        if slot.tree is None:
            try:
                await self._wait_a_little(slot)
            except NotFoundError:
                return Entry(0, entry_ttl=NEGATIVE_TTL)
        self._slots.refer(slot)
        return self.entry(slot)

    def entry(self, slot: Slot) -> Entry:
        """Return the entry of a name in ``skylinks``, as long-lived as what it stands for."""
        if slot.tree is None:
            return Entry(slot.inode(), Directory.mode, entry_ttl=0, attr_ttl=0)
        ttl = FOREVER
        if slot.skylink.version == 2:
            age = trio.current_time() - slot.loaded_at
            ttl = max(0.0, self._config.resolve_ttl - age)
        return Entry(slot.inode(), Directory.mode, entry_ttl=ttl)

    def _current_slot(self, name: str) -> Slot:
        """Return the slot of a name, a new one where its resolution is too old."""
        slot = self._slots.slot(name)
        if slot.skylink.version == 2 and slot.tree is not None:
            age = trio.current_time() - slot.loaded_at
            if age >= self._config.resolve_ttl:
                self._slots.expire(slot)
                slot = self._slots.slot(name)
        return slot

    async def _wait_a_little(self, slot: Slot) -> None:
        """Wait for a slot's tree, but not for long: other lookups stand behind this one."""
        if slot.loading is None or not slot.references:  # else it was waited for before
            await self._slots.wait(slot, self._config.lookup_grace)
        if slot.tree is None and slot.error is not None:
            raise slot.error

    async def getattr(self, inode: int) -> Entry:
        if inode == SKYLINKS:
            return Entry(SKYLINKS, Directory.mode)
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
        if inode == SKYLINKS:
            return _Names(self, self._slots, [s for s in self._slots if s.tree is not None])
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
        if inode == SKYLINKS:
            return {}
        slot, tree, node = await self._node(inode)
        index = inode - slot.inode()
        return xattrs.attributes(tree, node, xattrs.path_of(tree, index))

    async def _node(self, inode: int) -> tuple[Slot, Tree, File | Directory]:
        if inode == SKYLINKS:
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
    """The listing of ``skylinks``: what is loaded."""

    def __init__(self, realm: Skylinks, slots: Slots, loaded: list[Slot]) -> None:
        self._realm = realm
        self._slots = slots
        self._names = [(slot.name.encode(), slot.inode()) for slot in loaded]

    def _slot(self, inode: int) -> Slot | None:
        try:
            slot, _ = self._slots.of_inode(inode)
        except KeyError:
            return None
        return slot if slot.tree is not None else None

    def readdir(self, position: int) -> Iterator[Child]:
        for at, (name, inode) in enumerate(self._names[position:], position + 1):
            slot = self._slot(inode)
            if slot is not None:
                yield Child.of(name, self._realm.entry(slot), at)

    def referred(self, start: int, stop: int) -> None:
        for _, inode in self._names[start:stop]:
            slot = self._slot(inode)
            if slot is not None:
                self._slots.refer(slot)


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

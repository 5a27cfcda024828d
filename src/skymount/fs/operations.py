"""Owns what each file operation means. Inode numbers, names and bytes in; entries, bytes or an
OSError out. Knows nothing of pyfuse3, and nothing of URLs.

Promises: docs/semantics.md. What POSIX has a word for is raised as the OSError of that errno,
what a portal did wrong as the PortalError that it is.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import trio

from skymount.content.reader import ContentReader
from skymount.errors import MalformedError, NotFoundError
from skymount.fs import xattrs
from skymount.fs.fixed import ROOT, SKYLINKS, FixedDirectory, FixedFile, fixed_nodes
from skymount.fs.slots import INDEX_BITS, Slot, Slots
from skymount.fs.tree import NAME_LIMIT, Directory, File, Tree

FOREVER = 365 * 86400.0
"""Seconds for which the kernel keeps what can never change."""

NEGATIVE_TTL = 5.0
"""Seconds for which «not found» is kept: the content may be uploaded any moment."""

MTIME = 1577836800
"""Seconds since the epoch, 2020-01-01: skylinks carry no time, and tools want a sane one."""


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """Times in seconds."""

    lookup_grace: float = 0.5
    """How long a lookup waits for a portal while it holds up others in the same directory."""
    resolve_ttl: float = 60.0
    """How long a v2 skylink stays resolved."""


class Entry(NamedTuple):
    """What the kernel is told of a name: ``st_mode``, size in bytes, times in seconds.

    An inode of 0 says that there is no such name, and for how long that holds.
    """

    inode: int
    mode: int = 0
    size: int = 0
    entry_ttl: float = FOREVER
    attr_ttl: float = FOREVER


class Child(NamedTuple):
    """A name in a directory listing; `position` continues the listing behind it."""

    name: bytes
    inode: int
    mode: int
    size: int
    position: int
    entry_ttl: float = FOREVER
    attr_ttl: float = FOREVER


class _OpenDirectory:
    """A directory listing as it was when it was opened."""

    __slots__ = ("children", "names", "slot", "tree")

    def __init__(
        self, children: Mapping[bytes, int], tree: Tree | None = None, slot: Slot | None = None
    ) -> None:
        self.names = list(children)
        self.children = children
        self.tree = tree
        self.slot = slot


class _OpenFile:
    """An open file: an extent of a skyfile, or bytes made at open."""

    __slots__ = ("data", "file", "slot", "tree")

    def __init__(
        self,
        file: File | None = None,
        tree: Tree | None = None,
        slot: Slot | None = None,
        data: bytes = b"",
    ) -> None:
        self.file = file
        self.tree = tree
        self.slot = slot
        self.data = data


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _tree_entry(slot: Slot, tree: Tree, index: int) -> Entry:
    node = tree.nodes[index]
    return Entry(slot.inode(index), node.mode, node.size if isinstance(node, File) else 0)


def _status_json(status: Mapping[str, object]) -> bytes:
    return json.dumps(status, indent=2).encode() + b"\n"


class Operations:
    """The file system, seen from above."""

    def __init__(
        self,
        reader: ContentReader,
        slots: Slots,
        config: TreeConfig,
        status: Callable[[], Mapping[str, object]],
    ) -> None:
        self._reader = reader
        self._slots = slots
        self._config = config
        self._fixed = fixed_nodes(lambda: _status_json(status()))
        self._handles: dict[int, _OpenDirectory | _OpenFile] = {}
        self._next_handle = 1

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name in a directory, and count the kernel's reference to it."""
        if len(name) > NAME_LIMIT:
            raise _error(errno.ENAMETOOLONG)
        if parent == SKYLINKS:
            return await self._lookup_skylink(name)
        fixed = self._fixed.get(parent)
        if fixed is not None:
            if not isinstance(fixed, FixedDirectory):
                raise _error(errno.ENOTDIR)
            child = fixed.children.get(name)
            return Entry(0) if child is None else self._fixed_entry(child)
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
        return self._skylink_entry(slot)

    def _skylink_entry(self, slot: Slot) -> Entry:
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
        """Return the attributes of an inode."""
        if inode in self._fixed:
            return self._fixed_entry(inode)
        try:
            slot, index = self._slots.of_inode(inode)
        except KeyError:
            raise _error(errno.ESTALE) from None
        if slot.tree is None and index == 0:
            return Entry(inode, Directory.mode, entry_ttl=0, attr_ttl=0)
        slot, tree, _ = await self._node(inode)
        return _tree_entry(slot, tree, index)

    def _fixed_entry(self, inode: int) -> Entry:
        node = self._fixed[inode]
        if isinstance(node, FixedDirectory):
            return Entry(inode, node.mode)
        ttl = 0.0 if node.changes else FOREVER
        return Entry(inode, node.mode, len(node.content()), attr_ttl=ttl)

    def forget(self, inode: int, count: int) -> None:
        """Take note that the kernel dropped so many references."""
        self._slots.forget(inode, count)

    # Directories

    async def opendir(self, inode: int) -> int:
        """Open a directory; the listing is of this moment."""
        if inode == SKYLINKS:
            loaded = {s.name.encode(): s.inode() for s in self._slots if s.tree is not None}
            return self._new_handle(_OpenDirectory(loaded))
        fixed = self._fixed.get(inode)
        if isinstance(fixed, FixedDirectory):
            return self._new_handle(_OpenDirectory(fixed.children))
        slot, tree, directory = await self._directory(inode)
        self._slots.refer(slot)
        return self._new_handle(_OpenDirectory(directory.children, tree, slot))

    def readdir(self, handle: int, position: int) -> Iterator[Child]:
        """Yield the listing from a position on; the caller counts references that it passes on."""
        opened = self._handles[handle]
        assert isinstance(opened, _OpenDirectory)
        slot, tree = opened.slot, opened.tree
        if slot is None or tree is None:
            for at, name in enumerate(opened.names[position:], position + 1):
                inode = opened.children[name]
                entry = self._entry_of(inode)
                if entry is not None:
                    yield Child(
                        name, inode, entry.mode, entry.size, at, entry.entry_ttl, entry.attr_ttl
                    )
            return
        base, nodes = slot.number << INDEX_BITS, tree.nodes
        for at in range(position, len(opened.names)):
            name = opened.names[at]
            index = opened.children[name]
            node = nodes[index]
            size = node.size if isinstance(node, File) else 0
            yield Child(name, base | index, node.mode, size, at + 1)

    def _entry_of(self, inode: int) -> Entry | None:
        """Return the entry of a fixed node or of a loaded skylink."""
        if inode in self._fixed:
            return self._fixed_entry(inode)
        try:
            slot, _ = self._slots.of_inode(inode)
        except KeyError:
            return None
        return None if slot.tree is None else self._skylink_entry(slot)

    def referred(self, handle: int, start: int, stop: int) -> None:
        """Count the references that a listing gave to the kernel, by their positions."""
        opened = self._handles[handle]
        assert isinstance(opened, _OpenDirectory)
        if opened.slot is not None:
            self._slots.refer(opened.slot, stop - start)
            return
        for inode in map(opened.children.__getitem__, opened.names[start:stop]):
            if inode not in self._fixed and self._entry_of(inode) is not None:
                self._slots.refer(self._slots.of_inode(inode)[0])

    # Files

    async def open(self, inode: int, flags: int) -> tuple[int, bool]:
        """Open a file for reading; returns (handle, whether the kernel may keep its pages)."""
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            raise _error(errno.EROFS)
        fixed = self._fixed.get(inode)
        if isinstance(fixed, FixedFile):
            return self._new_handle(_OpenFile(data=fixed.content())), not fixed.changes
        if fixed is not None:
            raise _error(errno.EISDIR)
        slot, tree, node = await self._node(inode)
        if not isinstance(node, File):
            raise _error(errno.EISDIR)
        self._slots.refer(slot)
        self._reader.opened()
        return self._new_handle(_OpenFile(node, tree, slot)), True

    def read_now(self, handle: int, offset: int, length: int) -> bytes | memoryview | None:
        """Read what is in memory; None when `read` must wait for it."""
        opened = self._handles[handle]
        assert isinstance(opened, _OpenFile)
        file, tree = opened.file, opened.tree
        if file is None or tree is None:
            return opened.data[offset : offset + length]
        length = min(length, file.size - offset)
        return self._reader.ready(tree.skyfile, file.offset + offset, length)

    async def read(self, handle: int, offset: int, length: int) -> bytes | memoryview:
        """Read what `read_now` did not have; shorter than asked for only at the file's end."""
        opened = self._handles[handle]
        assert isinstance(opened, _OpenFile) and opened.file and opened.tree
        length = min(length, opened.file.size - offset)
        return await self._reader.wait(opened.tree.skyfile, opened.file.offset + offset, length)

    def release(self, handle: int) -> None:
        """Close a file or a directory."""
        opened = self._handles.pop(handle)
        if opened.slot is not None:
            self._slots.refer(opened.slot, -1)
            if isinstance(opened, _OpenFile):
                self._reader.closed()

    # The rest

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        """Return the extended attributes of an inode."""
        if inode == ROOT:
            return {b"user.skymount.pid": str(os.getpid()).encode()}
        if inode in self._fixed:
            return {}
        slot, tree, node = await self._node(inode)
        index = inode - slot.inode()
        return xattrs.attributes(tree, node, xattrs.path_of(tree, index))

    def usage(self) -> tuple[int, int]:
        """Return (bytes, files) of the skylinks that the mount knows."""
        trees = [slot.tree for slot in self._slots if slot.tree is not None]
        return sum(tree.skyfile.size for tree in trees), sum(len(tree.nodes) for tree in trees)

    async def _node(self, inode: int) -> tuple[Slot, Tree, File | Directory]:
        try:
            return await self._slots.node(inode)
        except KeyError:
            raise _error(errno.ESTALE) from None

    async def _directory(self, inode: int) -> tuple[Slot, Tree, Directory]:
        slot, tree, node = await self._node(inode)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR)
        return slot, tree, node

    def _new_handle(self, opened: _OpenDirectory | _OpenFile) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = opened
        return handle

"""`/skylinks` and `/hns`: the trees of skylinks and domains, read-only."""

import errno
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat

import trio

from skymount.content.fetch.reader import ContentFile, ContentReader
from skymount.errors import MalformedError, NotFoundError
from skymount.fs.inode_space import DIRECTORY_INODES, PATHS, ROOT
from skymount.fs.skylinks import xattrs
from skymount.fs.skylinks.lookup_budget import LookupBudget
from skymount.fs.skylinks.mounted_name import MountedName, TreeVersion
from skymount.fs.skylinks.name_freshness import NameFreshness
from skymount.fs.skylinks.name_loader import NameLoader
from skymount.fs.skylinks.name_table import NameTable
from skymount.fs.skylinks.tree import DIRECTORY_MODE, ChildRange, Tree
from skymount.fs.skylinks.waiting_reads import WaitingReads
from skymount.fs.subtree import (
    IMMUTABLE_TIMEOUT,
    LIVE,
    MUTABLE_TIMEOUT,
    NO_ENTRY,
    DirectoryEntry,
    InodeAttributes,
    Limit,
    OpenDirectory,
    OpenFile,
    Subtree,
    directory_entry,
    refuse,
)

_REPETITION = 0.2  # seconds after a read ran out of time in which the kernel asks once more
_PRELOAD_LIMIT = 64 << 10  # bytes of a file; if nobody reads it, its copy was made in vain


class SkylinksDirectory(Subtree):
    """The directory of the names in `table`, and the trees in it.

    Lookups in it wait for portals for at most `lookup_grace` seconds in each second: the kernel
    lets others queue behind one. Any request waits for a portal within `limit`.
    """

    has_own_deadline = True

    def __init__(
        self,
        reader: ContentReader,
        table: NameTable,
        loader: NameLoader,
        freshness: NameFreshness,
        reads: WaitingReads,
        *,
        lookup_grace: float,
        limit: Limit,
    ) -> None:
        self._reader = reader
        self.table = table
        self._loader = loader
        self._freshness = freshness
        self._reads = reads
        self._root = DIRECTORY_INODES[table.space]
        self._budget = LookupBudget(lookup_grace)
        self._limit = limit
        self._opened = Counter[int]()  # open handles of each file, by its inode number

    def usage(self) -> tuple[int, int]:
        return self.table.usage()

    def path(self, inode: int) -> bytes:
        top = PATHS[self.table.space]
        if inode == self._root:
            return top
        version, index = self.table.node_of(inode)
        path, tree = top + b"/" + version.mounted.name.encode(), version.tree
        if index and tree is not None and index < len(tree):
            path += b"/" + tree.listing.path(index)
        return path

    def parent(self, inode: int) -> int:
        if inode == self._root:
            return ROOT
        version, index = self.table.node_of(inode)
        if index == 0:
            return self._root
        tree = version.tree
        assert tree is not None  # as it is open
        return version.inode(tree.listing.parents[index])

    async def lookup(self, parent: int, name: bytes) -> InodeAttributes:
        if parent == self._root:
            return await self._lookup_name(name)
        version, tree, index = await self._node(parent)
        child = tree.listing.find(_directory(tree, index), name)
        if child is None:
            return NO_ENTRY
        self.table.add_references(version)
        return _attributes(version, tree, child)

    async def _lookup_name(self, name: bytes) -> InodeAttributes:
        try:
            mounted = self.table.get_or_add(name.decode())
        except (MalformedError, UnicodeDecodeError):
            return NO_ENTRY
        try:
            with self._budget.waiting() as limit, self._limit():
                await self._freshness.revalidate(mounted, limit)
        except NotFoundError:
            timeout = _limited(mounted, self._freshness.negative_ttl(mounted))
            return InodeAttributes(0, entry_timeout=timeout)
        self.table.add_references(mounted.version)
        return self.name_attributes(mounted)

    def name_attributes(self, mounted: MountedName) -> InodeAttributes:
        version = mounted.version
        if not version.is_known:
            return _unknown(version.inode())
        timeout = _limited(mounted, self._freshness.ttl(mounted))
        return _root_attributes(version)._replace(entry_timeout=timeout)

    async def getattr(self, inode: int) -> InodeAttributes:
        if inode == self._root:
            return InodeAttributes(inode, DIRECTORY_MODE)
        version, index = self.table.node_of(inode)
        if index == 0:
            return _root_attributes(version) if version.is_known else _unknown(inode)
        return _attributes(*await self._node(inode))

    def forget(self, inode: int, count: int) -> None:
        self.table.forget(inode, count)

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        if inode == self._root:
            return {}
        version, tree, index = await self._node(inode)
        if not version.mounted.moves:
            return xattrs.attributes(tree, index)
        stale = self._freshness.is_stale(version)
        return xattrs.attributes(tree, index, verified=version.verified, stale=stale)

    async def listed_xattrs(self, inode: int) -> Sequence[bytes]:
        return [name for name in await self.xattrs(inode) if not name.startswith(LIVE.encode())]

    async def opendir(self, inode: int) -> OpenDirectory:
        if inode == self._root:
            return _NameListing(self, self.table)
        version, tree, index = await self._node(inode)
        return _TreeListing(self.table, version, tree, _directory(tree, index))

    async def open(self, inode: int, flags: int) -> OpenFile:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            refuse(errno.EROFS)
        if inode == self._root:
            refuse(errno.EISDIR)
        version, tree, index = await self._node(inode)
        if tree.is_directory(index):
            refuse(errno.EISDIR)
        extent = self._reader.open(tree.skyfile, *tree.extent(index))
        return _TreeFileHandle(
            self.table, version, extent, inode, self._opened, self._reads, self._limit
        )

    async def _node(self, inode: int) -> tuple[TreeVersion, Tree, int]:
        """Return (version, tree, index) of an inode; ESTALE when there is no such node."""
        version, index = self.table.node_of(inode)
        tree = version.shown
        if tree is None:
            with self._limit():
                tree = await self._loader.load_tree(version)
        return (version, tree, index) if index < len(tree) else refuse(errno.ESTALE)


def _limited(mounted: MountedName, ttl: float) -> float:
    """Return an entry_timeout for what holds for `ttl` seconds."""
    may_change = mounted.moves or mounted.version.is_provisional
    return min(MUTABLE_TIMEOUT, ttl) if may_change else ttl


def _unknown(inode: int) -> InodeAttributes:
    return InodeAttributes(inode, DIRECTORY_MODE, entry_timeout=0, attr_timeout=0)


def _root_attributes(version: TreeVersion) -> InodeAttributes:
    return InodeAttributes(version.inode(), DIRECTORY_MODE, mtime_ns=version.mtime_ns)


def _attributes(version: TreeVersion, tree: Tree, index: int) -> InodeAttributes:
    inode, mtime_ns = version.inode(index), version.mtime_ns
    return InodeAttributes(inode, tree.mode(index), tree.size(index), mtime_ns=mtime_ns)


def _directory(tree: Tree, index: int) -> int:
    return index if tree.is_directory(index) else refuse(errno.ENOTDIR)


class _NameListing(OpenDirectory):
    def __init__(self, subtree: SkylinksDirectory, table: NameTable) -> None:
        self._subtree = subtree
        self.table = table
        self._names = table.listed()

    def readdir(self, position: int) -> Iterator[DirectoryEntry]:
        for at in range(position, len(self._names)):
            found = self.table.find(self._names[at])
            if isinstance(found, MountedName):
                attributes = self._subtree.name_attributes(found)
            elif found is not None:
                attributes = InodeAttributes(found.inode, DIRECTORY_MODE)
            else:
                continue
            yield directory_entry(found.name.encode(), attributes, at + 1)

    def referred(self, start: int, stop: int, count: int) -> None:
        for listed in self._names[start:stop]:
            self.table.refer(listed)


class _TreeListing(OpenDirectory):
    """The listing of a directory in a tree. A position is the index of the child after it."""

    def __init__(self, table: NameTable, version: TreeVersion, tree: Tree, directory: int) -> None:
        self.table = table
        self._version = version
        self._tree = tree
        self._directory = directory
        table.add_handle(version)

    def readdir(self, position: int) -> Iterator[DirectoryEntry]:
        ranges = self._tree.child_ranges(self._directory, position)
        return chain.from_iterable(map(self._entries, ranges))

    def _entries(self, children: ChildRange) -> Iterator[DirectoryEntry]:
        root, indexes = self._version.inode(), children.indexes
        return zip(
            children.names,
            range(root + indexes.start, root + indexes.stop),
            children.modes,
            children.sizes,
            children.positions,
            repeat((IMMUTABLE_TIMEOUT, IMMUTABLE_TIMEOUT, self._version.mtime_ns)),
            strict=False,
        )

    def referred(self, start: int, stop: int, count: int) -> None:
        self.table.add_references(self._version, count)

    def release(self) -> None:
        self.table.remove_handle(self._version)


@dataclass(frozen=True, slots=True)
class _RanOut:
    """The last read of a handle that ran out of time.

    The kernel reads ahead. What it failed to get it asks for once more, page by page, for the same
    call of a program, whose time is over by then.
    """

    at: float = -math.inf
    start: int = 0
    stop: int = 0

    def is_repeated(self, offset: int, now: float) -> bool:
        """Whether a read that begins now is the kernel's repetition."""
        return self.start <= offset < self.stop and now < self.at + _REPETITION


class _TreeFileHandle(OpenFile):
    has_own_deadline = True

    def __init__(
        self,
        table: NameTable,
        version: TreeVersion,
        extent: ContentFile,
        inode: int,
        opened: Counter[int],
        reads: WaitingReads,
        limit: Limit,
    ) -> None:
        self.keep_cache = not version.was_provisional
        self.table = table
        self._version = version
        self._extent = extent
        self._inode = inode
        self._opened = opened
        self._reads = reads
        self._limit = limit
        self._ran_out = _RanOut()
        opened[inode] += 1
        table.add_handle(version)

    def preload(self) -> bytes | memoryview | None:
        extent = self._extent
        if not self.keep_cache or extent.size > _PRELOAD_LIMIT or self._opened[self._inode] > 1:
            return None
        return extent.ready(0, extent.size)

    async def read(self, offset: int, length: int) -> bytes | memoryview:
        data = self._extent.ready(offset, length)
        if data is None:
            began = trio.current_time()
            if self._ran_out.is_repeated(offset, began):
                raise trio.TooSlowError
            try:
                with self._limit():
                    data = await self._reads.wait(
                        partial(self._extent.wait, offset, length),
                        partial(self._extent.needs_portal, offset, length),
                    )
            except trio.TooSlowError:
                self._ran_out = _RanOut(trio.current_time(), offset, offset + length)
                raise
        return data

    async def release(self) -> None:
        self._opened[self._inode] -= 1
        if not self._opened[self._inode]:
            del self._opened[self._inode]
        self._extent.close()
        self.table.remove_handle(self._version)

"""A file system without a kernel and without sockets. The content is made up; a load takes as long
as a test says, by trio's clock.
"""

import math
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import trio

from skymount.content.model.skyfile import Skyfile, Verified
from skymount.errors import NotFoundError
from skymount.fs.dispatcher import FileSystem
from skymount.fs.inode_space import PATHS, ROOT, InodeSpace, first_tree_number
from skymount.fs.skylinks.directory import SkylinksDirectory
from skymount.fs.skylinks.mounted_name import MountedName, TreeVersion
from skymount.fs.skylinks.name_freshness import NameFreshness
from skymount.fs.skylinks.name_loader import NameLoader
from skymount.fs.skylinks.name_parsing import parse_domain_name, parse_skylink_name
from skymount.fs.skylinks.name_table import NameTable
from skymount.fs.skylinks.name_times import NameTimes
from skymount.fs.skylinks.tree_cache import TreeCache, TreeCacheConfig
from skymount.fs.skylinks.waiting_reads import WaitingReads
from skymount.fs.static_tree import StaticTree
from skymount.fs.subtree import DirectoryEntry, InodeAttributes
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.entries import EntryId
from skymount.portal.registry.entry_reader import EntryState
from skymount.portal.registry.name_resolver import (
    NameResolver,
    NameResolverConfig,
    Resolution,
    ResolutionPath,
    ResolvableName,
)
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.registry_entry import entry_link, hash_data_key
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import describe, inline_skylink, listing_of

FILES = {"a.txt": b"hello", "d/b.bin": bytes(range(256)) * 8, "d/empty": b""}


@dataclass
class FakeReader:
    """Stands for the content reader: knows some content, and says so after a while."""

    content: dict[Skylink, dict[str, bytes]] = field(default_factory=dict)
    errors: dict[Skylink, Exception] = field(default_factory=dict)
    delays: dict[Skylink, float] = field(default_factory=dict)
    """Seconds that a load takes."""
    loads: list[Skylink] = field(default_factory=list)
    forgotten: list[Skylink] = field(default_factory=list)
    provisional: dict[Skylink, dict[str, bytes]] = field(default_factory=dict)
    """What a portal says that cannot prove it, while another one fails."""
    unverified: set[Skylink] = field(default_factory=set)
    """Content that nobody can prove."""
    open_files: int = 0
    cold: bool = False
    """Whether reads have to wait."""

    def add(self, files: dict[str, bytes]) -> Skylink:
        """Publish files; return their skylink."""
        skylink = inline_skylink(describe(files), b"".join(files.values()))
        self.content[skylink] = files
        return skylink

    async def load(self, skylink: Skylink, fingerprint: bytes | None = None) -> Skyfile:
        self.loads.append(skylink)
        await trio.sleep(self.delays.get(skylink, 0))
        if skylink in self.errors:
            raise self.errors[skylink]
        if skylink not in self.content:
            raise NotFoundError("not here")
        files = self.provisional.get(skylink, self.content[skylink])
        size = sum(map(len, files.values()))
        listing = listing_of(describe(files))
        if skylink in self.provisional:
            number = len(self.loads)
            return Skyfile(skylink, listing, size, "http://p", Verified.NO, provisional=number)
        verified = Verified.NO if skylink in self.unverified else Verified.YES
        return Skyfile(skylink, listing, size, "http://p", verified)

    def forget(self, skyfile: Skyfile) -> None:
        """Note that a description was dropped."""
        self.forgotten.append(skyfile.skylink)

    def open(self, skyfile: Skyfile, start: int, size: int) -> "FakeContentFile":
        self.open_files += 1
        return FakeContentFile(self, skyfile.skylink, start, size)


@dataclass
class FakeContentFile:
    """An open file of the fake reader."""

    reader: FakeReader
    skylink: Skylink
    start: int
    size: int

    def ready(self, offset: int, length: int) -> bytes | None:
        """Return content, unless reads have to wait."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        if self.reader.cold:
            return None
        payload = b"".join(self.reader.content[self.skylink].values())
        return payload[self.start + offset :][:length]

    async def wait(self, offset: int, length: int) -> bytes:
        """Return content after a second."""
        await trio.sleep(1)
        if self.skylink in self.reader.errors:
            raise self.reader.errors[self.skylink]
        self.reader.cold = False
        return self.ready(offset, length) or b""

    def needs_portal(self, offset: int, length: int) -> bool:
        return self.reader.cold

    def close(self) -> None:
        """Count it off."""
        self.reader.open_files -= 1


OWNER = bytes(32)
SOMEWHERE = entry_link(OWNER, bytes(32))


def entry_of(name: ResolvableName) -> EntryId:
    return EntryId(OWNER, hash_data_key(str(name)))


class FakeEntries(VerifiedRegistry):
    """A registry whose entries change when a test says so."""

    def watch(self, changed: Callable[[EntryId, EntryState], None]) -> None:
        self.changed = changed


FIRST_SEEN = 1_700_000_000  # seconds, the time of what a name leads to first


class FakeNames(NameResolver):
    """A resolver whose answers a test says; how long they hold is decided as in earnest."""

    def __init__(self, ttl: float) -> None:
        portals = Portals([])
        self.entries = FakeEntries(portals, None)
        super().__init__(portals, self.entries, NameResolverConfig(ttl))
        self.leads: dict[ResolvableName, Skylink | Exception] = {}
        self.unproven: set[ResolvableName] = set()
        self.delays: dict[ResolvableName, float] = {}
        """Seconds that an answer takes."""
        self.asked: list[ResolvableName] = []
        self.seen: dict[str, tuple[str, int]] = {}

    async def since(self, name: str, target: str) -> int:
        """Return the time of what a name leads to, one later whenever that changes."""
        before, seconds = self.seen.get(name, ("", FIRST_SEEN - 1))
        self.seen[name] = target, seconds + (before != target)
        return self.seen[name][1]

    def move(self, goal: ResolvableName, target: Skylink) -> None:
        """Let a name lead elsewhere, and notice that, as when an entry turns out to be another."""
        self.leads[goal] = target
        self.entries.changed(
            entry_of(goal), EntryState(None, trio.current_time(), 0.0, trio.current_time())
        )

    async def find(self, goal: ResolvableName, path: ResolutionPath) -> Resolution:
        """Return what the test says; each name has an entry of its own on its path."""
        self.asked.append(goal)
        found = self.leads.get(goal, NotFoundError("no such name"))
        path[entry_link(OWNER, entry_of(goal).tweak)] = SOMEWHERE
        await trio.sleep(self.delays.get(goal, 0))
        if isinstance(found, Exception):
            raise found
        return Resolution(found, goal not in self.unproven)


class Opened(NamedTuple):
    """A file that was opened."""

    handle: int
    keep: bool
    """Whether the kernel may keep its pages."""
    content: bytes | memoryview | None
    """What the kernel is given before it reads."""


class Requests:
    """What the kernel may ask of a file system, without a kernel."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self.usage = files.usage

    async def lookup(self, parent: int, name: bytes) -> InodeAttributes:
        return await self._files.subtree(parent).lookup(parent, name)

    async def getattr(self, inode: int) -> InodeAttributes:
        return await self._files.subtree(inode).getattr(inode)

    async def access(self, inode: int, mode: int) -> bool:
        return await self._files.subtree(inode).access(inode, mode)

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        return await self._files.subtree(inode).xattrs(inode)

    def forget(self, inode: int, count: int) -> None:
        self._files.subtree(inode).forget(inode, count)

    async def opendir(self, inode: int) -> int:
        return self._files.add_directory(await self._files.subtree(inode).opendir(inode))

    def readdir(self, handle: int, position: int) -> Iterator[DirectoryEntry]:
        return self._files.open_directories[handle].readdir(position)

    def referred(self, handle: int, start: int, stop: int, count: int) -> None:
        self._files.open_directories[handle].referred(start, stop, count)

    def releasedir(self, handle: int) -> None:
        self._files.open_directories.pop(handle).release()

    async def open(self, inode: int, flags: int) -> Opened:
        opened = await self._files.subtree(inode).open(inode, flags)
        return Opened(self._files.add_file(opened), opened.keep_cache, opened.preload())

    async def read(self, handle: int, offset: int, length: int) -> bytes | memoryview:
        return await self._files.open_files[handle].read(offset, length)

    async def flush(self, handle: int) -> None:
        await self._files.open_files[handle].flush()

    async def release(self, handle: int) -> None:
        await self._files.open_files.pop(handle).release()


class Listed(NamedTuple):
    """A name in a listing."""

    name: bytes
    inode: int
    mode: int
    size: int
    position: int
    entry_timeout: float
    attr_timeout: float
    mtime_ns: int

    @classmethod
    def of(cls, child: DirectoryEntry) -> "Listed":
        """Give its parts their names."""
        return cls(*child[:5], *child[5])


@dataclass
class InMemoryMount:
    """A file system and what is behind it."""

    operations: Requests
    files: FileSystem
    table: NameTable
    """The names in ``skylinks``."""
    loader: NameLoader
    """Loads their trees."""
    freshness: NameFreshness
    domains: NameTable
    """The names in ``hns``."""
    domain_freshness: NameFreshness
    reader: FakeReader
    names: FakeNames
    trees: TreeCache


_FEW_TREES = TreeCacheConfig(count=64)

TREES = TreeCacheConfig(size=1 << 20, count=4)
"""So few that `crowd_out` works."""


def push_out(table: NameTable) -> None:
    """Use so many names that those which nothing refers to are dropped."""
    for number in range(130):
        table.get_or_add(str(Skylink.v1(number.to_bytes(32, "big"), 1)))


@asynccontextmanager
async def open_in_memory_mount(
    *,
    lookup_grace: float = 0.5,
    ttl: float = 60.0,
    deadline: float = math.inf,
    tree_number: Callable[[InodeSpace, str], int] = first_tree_number,
    trees: TreeCacheConfig = _FEW_TREES,
) -> AsyncIterator[InMemoryMount]:
    """Make a file system; what it does in the background ends with the block.

    `ttl` is the seconds for which a name stays resolved.
    """
    reader, names, cache = FakeReader(), FakeNames(ttl), TreeCache(trees)
    async with trio.open_nursery() as nursery:

        def made(
            parse: Callable[[str], tuple[str, ResolvableName]], space: InodeSpace
        ) -> tuple[NameTable, NameLoader, NameFreshness]:
            table = NameTable(parse, space, cache, reader.forget, tree_number)
            times = NameTimes(names.since, PATHS[space].decode())
            loader = NameLoader(table, reader, names, nursery, times)
            return table, loader, NameFreshness(table, loader, names, nursery)

        skylinks = made(parse_skylink_name, InodeSpace.SKYLINKS)
        domains = made(parse_domain_name, InodeSpace.HNS)
        files = FileSystem(
            StaticTree(lambda: b'{"pid": 1}', lambda: b"skymount_open_files 0\n"),
            {
                each[0].space: SkylinksDirectory(
                    reader,  # type: ignore[arg-type]
                    *each,
                    WaitingReads(lambda _: True, trio.sleep_forever, ()),
                    lookup_grace=lookup_grace,
                    limit=partial(trio.fail_after, deadline),
                )
                for each in (skylinks, domains)
            },
        )
        yield InMemoryMount(
            Requests(files), files, *skylinks, domains[0], domains[2], reader, names, cache
        )
        nursery.cancel_scope.cancel()


def links(mount: InMemoryMount, count: int) -> list[Skylink]:
    """Publish so many skylinks."""
    return [mount.reader.add({"f": str(n).encode()}) for n in range(count)]


def at(mount: InMemoryMount, name: object) -> MountedName:
    """Return a name in ``skylinks``."""
    return mount.table.get_or_add(str(name))


async def lookup(mount: InMemoryMount, *names: str) -> InodeAttributes:
    """Look a path up from the root, name by name."""
    entry = InodeAttributes(ROOT)
    for name in names:
        entry = await mount.operations.lookup(entry.inode, os.fsencode(name))
        assert entry.inode, name
    return entry


async def listing(mount: InMemoryMount, inode: int, position: int = 0) -> list[Listed]:
    handle = await mount.operations.opendir(inode)
    found = list(map(Listed.of, mount.operations.readdir(handle, position)))
    mount.operations.releasedir(handle)
    return found


async def crowd_out(mount: InMemoryMount) -> None:
    """Look at so many other skylinks that all trees that may be evicted are."""
    for number in range(10):
        await lookup(mount, "skylinks", str(mount.reader.add({"other": b"%d" % number})))


def kept(table: NameTable, *versions: TreeVersion) -> list[TreeVersion]:
    """Return the versions that the table still knows."""
    found = []
    for version in versions:
        with suppress(OSError):
            found.append(table.node_of(version.inode())[0])
    return found

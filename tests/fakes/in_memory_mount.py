"""A file system without a kernel and without sockets. The content is made up; a load takes as long
as a test says, by trio's clock.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from skymount.content.model.skyfile import Skyfile, Verified
from skymount.errors import NotFoundError
from skymount.fs.dispatcher import FileSystem, Opened
from skymount.fs.skylinks import hns
from skymount.fs.skylinks.directory import SkylinksDirectory, TreeConfig
from skymount.fs.skylinks.hns import HnsDirectory
from skymount.fs.skylinks.mounted_name import space_of
from skymount.fs.skylinks.name_table import NameTable, parse_name
from skymount.fs.static_tree import HNS, SKYLINKS, StaticTree
from skymount.fs.subtree import Child, Entry, settled
from skymount.portal.failover import Portals
from skymount.portal.registry.name_resolver import (
    Goal,
    NameResolver,
    NameResolverConfig,
    Resolution,
    Way,
)
from skymount.portal.registry.verified_registry import VerifiedRegistry
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
    provisional: dict[Skylink, dict[str, bytes]] = field(default_factory=dict)
    """What a portal says that cannot prove it, while another one fails."""
    open_files: int = 0
    cold: bool = False
    """Whether reads have to wait."""

    def add(self, files: dict[str, bytes]) -> Skylink:
        """Publish files; return their skylink."""
        skylink = inline_skylink(describe(files), b"".join(files.values()))
        self.content[skylink] = files
        return skylink

    async def load(self, skylink: Skylink) -> Skyfile:
        """Describe a skylink."""
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
        return Skyfile(skylink, listing, size, "http://p", Verified.YES)

    def open(self, skyfile: Skyfile, start: int, size: int) -> "FakeExtent":
        """Open a file."""
        self.open_files += 1
        return FakeExtent(self, skyfile.skylink, start, size)


@dataclass
class FakeExtent:
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

    def close(self) -> None:
        """Count it off."""
        self.reader.open_files -= 1


class FakeNames(NameResolver):
    """A resolver whose answers a test says; how long they hold is decided as in earnest."""

    def __init__(self, ttl: float) -> None:
        portals = Portals([])
        super().__init__(portals, VerifiedRegistry(portals, None), NameResolverConfig(ttl))
        self.leads: dict[Goal, Skylink | Exception] = {}
        self.unproven: set[Goal] = set()
        self.delays: dict[Goal, float] = {}
        """Seconds that an answer takes."""
        self.asked: list[Goal] = []

    def move(self, goal: Goal, target: Skylink) -> None:
        """Let a name lead elsewhere, and notice that, as when an entry turns out to be another."""
        self.leads[goal] = target
        self._hold(goal).outdate()

    async def _find(self, goal: Goal, way: Way) -> Resolution:
        self.asked.append(goal)
        found = self.leads.get(goal, NotFoundError("no such name"))
        await trio.sleep(self.delays.get(goal, 0))
        if isinstance(found, Exception):
            raise found
        return Resolution(found, goal not in self.unproven)


class PatientOperations(FileSystem):
    """The same operations; whether an answer was there at once or not, it is waited for."""

    async def lookup(self, parent: int, name: bytes) -> Entry:
        return await settled(super().lookup(parent, name))

    async def getattr(self, inode: int) -> Entry:
        return await settled(super().getattr(inode))

    async def access(self, inode: int, mode: int) -> bool:
        return await settled(super().access(inode, mode))

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        return await settled(super().xattrs(inode))

    async def opendir(self, inode: int) -> int:
        return await settled(super().opendir(inode))

    async def open(self, inode: int, flags: int) -> Opened:
        return await settled(super().open(inode, flags))

    async def read(self, handle: int, offset: int, length: int) -> bytes | memoryview:
        return await settled(super().read(handle, offset, length))

    async def flush(self, handle: int) -> None:
        await settled(super().flush(handle))

    async def release(self, handle: int) -> None:
        await settled(super().release(handle))


class Listed(NamedTuple):
    """A name in a listing."""

    name: bytes
    inode: int
    mode: int
    size: int
    position: int
    entry_ttl: float
    attr_ttl: float
    mtime_ns: int

    @classmethod
    def of(cls, child: Child) -> "Listed":
        """Give its parts their names."""
        return cls(*child[:5], *child[5])


@dataclass
class InMemoryMount:
    """A file system and what is behind it."""

    operations: PatientOperations
    mounted: FileSystem
    """The same file system as a mount has it: what is in memory is answered at once."""
    slots: NameTable
    domains: NameTable
    reader: FakeReader
    names: FakeNames


@asynccontextmanager
async def open_in_memory_mount(
    *, lookup_grace: float = 0.5, ttl: float = 60.0
) -> AsyncIterator[InMemoryMount]:
    """Make a file system; what it does in the background ends with the block.

    `ttl` is the seconds for which a name stays resolved.
    """
    reader, names = FakeReader(), FakeNames(ttl)
    async with trio.open_nursery() as nursery:
        slots = NameTable(reader.load, nursery, names, parse_name)
        domains = NameTable(reader.load, nursery, names, hns.parse_name, hns.SPACE)
        config = TreeConfig(lookup_grace=lookup_grace)
        skylinks = SkylinksDirectory(reader, slots, config)  # type: ignore[arg-type]
        realms = skylinks, HnsDirectory(reader, domains, config)  # type: ignore[arg-type]
        parts = (
            StaticTree(lambda: b'{"pid": 1}'),
            {SKYLINKS: skylinks, HNS: realms[hns.SPACE]},
            lambda inode: realms[space_of(inode)],
            slots.usage,
        )
        yield InMemoryMount(
            PatientOperations(*parts), FileSystem(*parts), slots, domains, reader, names
        )
        nursery.cancel_scope.cancel()

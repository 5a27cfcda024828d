"""Owns a file system without a kernel and without sockets: content is made up, loads take as long
as a test says, by trio's clock.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from skymount.content.skyfile import Skyfile, Verified
from skymount.errors import NotFoundError
from skymount.fs import hns
from skymount.fs.fixed import HNS, SKYLINKS, Fixed
from skymount.fs.hns import Hns
from skymount.fs.operations import Operations
from skymount.fs.skylinks import Skylinks, TreeConfig
from skymount.fs.slots import Slots, parse_name, space_of
from skymount.portal.failover import Portals
from skymount.portal.resolve import Goal, Names, NamesConfig, Resolution
from skymount.wire.metadata import parse_metadata
from skymount.wire.sector import inline_skylink
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import describe

FILES = {"a.txt": b"hello", "d/b.bin": bytes(range(256)) * 8, "d/empty": b""}


@dataclass
class FakeReader:
    """Stands for the content reader: knows some content, and says so after a while."""

    content: dict[Skylink, dict[str, bytes]] = field(default_factory=dict)
    errors: dict[Skylink, Exception] = field(default_factory=dict)
    delays: dict[Skylink, float] = field(default_factory=dict)
    """Seconds that a load takes."""
    loads: list[Skylink] = field(default_factory=list)
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
        files = self.content[skylink]
        size = sum(map(len, files.values()))
        return Skyfile(skylink, parse_metadata(describe(files)), size, "http://p", Verified.YES)

    def opened(self) -> None:
        """Count an open file."""
        self.open_files += 1

    def closed(self) -> None:
        """Count it off."""
        self.open_files -= 1

    def ready(self, skyfile: Skyfile, offset: int, length: int) -> bytes | None:
        """Return content, unless reads have to wait."""
        if length <= 0:
            return b""
        if self.cold:
            return None
        files = self.content[skyfile.skylink]
        return b"".join(files.values())[offset : offset + length]

    async def wait(self, skyfile: Skyfile, offset: int, length: int) -> bytes:
        """Return content after a second."""
        await trio.sleep(1)
        if skyfile.skylink in self.errors:
            raise self.errors[skyfile.skylink]
        self.cold = False
        return self.ready(skyfile, offset, length) or b""


class FakeNames(Names):
    """Names whose answers a test says; how long they hold is decided as in earnest."""

    def __init__(self, ttl: float) -> None:
        super().__init__(Portals([]), config=NamesConfig(ttl))
        self.leads: dict[Goal, Skylink | Exception] = {}
        self.unproven: set[Goal] = set()
        self.delays: dict[Goal, float] = {}
        """Seconds that an answer takes."""
        self.asked: list[Goal] = []

    async def _find(self, goal: Goal) -> Resolution:
        self.asked.append(goal)
        found = self.leads.get(goal, NotFoundError("no such name"))
        await trio.sleep(self.delays.get(goal, 0))
        if isinstance(found, Exception):
            raise found
        return Resolution(found, goal not in self.unproven)


@dataclass
class Kit:
    """A file system and what is behind it."""

    operations: Operations
    slots: Slots
    domains: Slots
    reader: FakeReader
    names: FakeNames


@asynccontextmanager
async def open_kit(*, lookup_grace: float = 0.5, ttl: float = 60.0) -> AsyncIterator[Kit]:
    """Make a file system; what it does in the background ends with the block.

    `ttl` is the seconds for which a name stays resolved.
    """
    reader, names = FakeReader(), FakeNames(ttl)
    async with trio.open_nursery() as nursery:
        slots = Slots(reader.load, nursery, names, parse_name)
        domains = Slots(reader.load, nursery, names, hns.parse_name, hns.SPACE)
        config = TreeConfig(lookup_grace=lookup_grace)
        skylinks = Skylinks(reader, slots, config)  # type: ignore[arg-type]
        realms = skylinks, Hns(reader, domains, config)  # type: ignore[arg-type]
        operations = Operations(
            Fixed(lambda: b'{"pid": 1}'),
            {SKYLINKS: skylinks, HNS: realms[hns.SPACE]},
            lambda inode: realms[space_of(inode)],
            slots.usage,
        )
        yield Kit(operations, slots, domains, reader, names)
        nursery.cancel_scope.cancel()

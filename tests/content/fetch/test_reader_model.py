"""Any sequence of opening, reading, closing, giving up and misbehaving portals: the bytes are the
content, the memory is kept within its bound, and nothing is left over.

The portal is one in memory, on trio's clock, so that each sequence is the same each time.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from skymount.content.cache.buffer_pool import BufferPool, BufferPoolConfig
from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.fetch.fetch_job import FetchJob
from skymount.content.fetch.fetcher import Fetcher
from skymount.content.fetch.readahead import ReadaheadConfig
from skymount.content.fetch.reader import ContentFile, ContentReader
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import Skyfile, Verified, VerifyPolicy
from skymount.errors import (
    BadContentError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import describe, listing_of, noise

BLOCK = 4096
SMALL_BLOCK = BLOCK // 32
EVERY_TRY = 20_000.0  # seconds, far beyond what all tries of all fetches can take


CONFIG = ReadaheadConfig(
    max_gap=SMALL_BLOCK,
    max_reorder=2 * BLOCK,
    max_skip=4 * BLOCK,
    first_request=BLOCK,
    full_request=BLOCK,
    max_request=8 * BLOCK,
    max_window=32 * BLOCK,
    small_file=2 * BLOCK,
)


@dataclass(frozen=True)
class _Content:
    """A skyfile, and the truth about it."""

    skyfile: Skyfile
    payload: bytes
    extents: dict[str, tuple[int, int]]
    """Start and size of each of its files by path."""


def _content(seed: int, sizes: list[int], *, whole_units: bool = False) -> _Content:
    """Make content of files of these sizes; `whole_units`: it cannot be fetched in pieces."""
    files = {f"{n}": noise(size, 100 * seed + n) for n, size in enumerate(sizes)}
    payload = b"".join(files.values())
    skyfile = Skyfile(
        Skylink.v1(noise(32, seed), 4096),
        listing_of(describe(files), len(payload)),
        len(payload),
        "http://one.test",
        Verified.YES if whole_units else Verified.NO,
        fanout=b"known" if whole_units else b"",
        block_size=BLOCK,
    )
    starts = accumulate(sizes, initial=0)
    return _Content(
        skyfile, payload, dict(zip(files, zip(starts, sizes, strict=False), strict=True))
    )


CONTENTS = [
    _content(1, [40 * BLOCK + 17]),
    _content(2, [300, 0, 5000, 9000, *[777] * 30]),
    _content(3, [20 * BLOCK + 1], whole_units=True),
]


@dataclass
class _Weather:
    """How the portals do just now."""

    fault: str = ""
    delay: float = 0.0
    """Seconds before the answer, and a tenth of it before each unit or file."""
    concat: bool = True


class _Portal(PortalReader):
    """A portal in memory that serves the contents."""

    def __init__(self, url: str, weather: _Weather) -> None:
        super().__init__(url)
        self._weather = weather
        self._truth = {each.skyfile.skylink: each for each in CONTENTS}

    @asynccontextmanager
    async def open_range(  # type: ignore[override]  # no options
        self,
        skylink: Skylink,
        path: str,
        byte_range: ByteRange,
        size: int,
        *,
        speculative: Callable[[], bool] | None = None,
    ) -> AsyncIterator["_Stream"]:
        content = self._truth[skylink]
        start = 0
        if path:
            start, _ = content.extents[path]
        elif not self._weather.concat and len(content.extents) > 1:
            raise RequestRefusedError("please specify a format")
        assert byte_range.stop <= size
        await trio.sleep(self._weather.delay)
        if self._weather.fault == "down":
            raise UnavailableError("down")
        if self._weather.fault == "missing":
            raise NotFoundError("missing")
        if self._weather.fault == "silent":
            await trio.sleep(5)
            raise PortalTimeoutError("silent")
        data = content.payload[start + byte_range.start : start + byte_range.stop]
        yield _Stream(data, self._weather)


class _Stream:
    """An answer of the portal in memory."""

    def __init__(self, data: bytes, weather: _Weather) -> None:
        self._data = memoryview(data)
        self._cut = len(data) // 2 if weather.fault == "cut" else 0
        self._pause = weather.delay / 10

    async def fill(self, view: memoryview) -> None:
        async for _ in self.fill_each([view]):
            pass

    async def fill_each(self, views: Sequence[memoryview]) -> AsyncGenerator[int, None]:
        for number, view in enumerate(views):
            await trio.sleep(self._pause)
            if len(self._data) - len(view) < self._cut:
                raise BadContentError("broken off")
            view[:], self._data = self._data[: len(view)], self._data[len(view) :]
            yield number
        assert not self._data


# --- what is done, in any order


@dataclass(frozen=True)
class Open:
    """Open a file of a content."""

    content: int
    file: int


@dataclass(frozen=True)
class Read:
    """Read an open file in the background; `at` in thousandths of it, negative: where the last read
    of it ended.
    """

    handle: int
    at: int
    length: int


@dataclass(frozen=True)
class Scan:
    """Read an open file from where it was last read, several times."""

    handle: int
    times: int
    length: int


@dataclass(frozen=True)
class Document:
    """Read a part of a content without opening it, in the background; `at` in thousandths."""

    content: int
    at: int
    length: int


@dataclass(frozen=True)
class Cancel:
    """Give up a read."""

    reader: int


@dataclass(frozen=True)
class Close:
    """Give up what is read of an open file, and close it."""

    handle: int


@dataclass(frozen=True)
class Wait:
    """Let time go by; seconds."""

    time: float


@dataclass(frozen=True)
class Change:
    """Let the portals do otherwise from now on."""

    fault: str
    delay: float
    concat: bool


Action = Open | Read | Scan | Document | Cancel | Close | Wait | Change

SMALL = st.integers(0, 5)
LENGTHS = st.sampled_from([1, 100, SMALL_BLOCK, BLOCK, BLOCK + 1, 3 * BLOCK, 20 * BLOCK])
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(Open, SMALL, st.integers(0, 40)),
    st.builds(Read, SMALL, st.just(-1), LENGTHS),
    st.builds(Read, SMALL, st.integers(0, 999), LENGTHS),
    st.builds(Scan, SMALL, st.integers(2, 20), st.sampled_from([500, SMALL_BLOCK, BLOCK])),
    st.builds(Document, SMALL, st.integers(0, 999), LENGTHS),
    st.builds(Cancel, SMALL),
    st.builds(Close, SMALL),
    st.builds(Wait, st.sampled_from([0.0, 0.001, 0.02, 0.5, 1.1, 20.0])),
    st.builds(
        Change,
        st.sampled_from(["", "", "", "down", "missing", "silent", "cut"]),
        st.sampled_from([0.0, 0.01, 3.0]),
        st.booleans(),
    ),
)
SIZES = st.sampled_from(
    [0, 1, SMALL_BLOCK, BLOCK - 1, BLOCK, BLOCK + SMALL_BLOCK, 3 * BLOCK, 10 * BLOCK, 400 * BLOCK]
)


@dataclass
class _Handle:
    content: _Content
    start: int
    size: int
    extent: ContentFile
    position: int = 0
    readers: list[trio.CancelScope] = field(default_factory=list)


class Model:
    """Does what it is told, and checks after each step what must hold."""

    def __init__(self, size: int, nursery: trio.Nursery, readers: trio.Nursery) -> None:
        self.weather = _Weather()
        portals = Portals([_Portal(f"http://{name}.test", self.weather) for name in ("one", "two")])
        buffers = BufferPool(BufferPoolConfig(max_idle=4 * BLOCK, min_pooled=BLOCK))
        self.cache = MemoryCache(size, buffers)
        loader = SkyfileLoader(portals, VerifyPolicy.AVAILABLE)
        fetcher = Fetcher(portals, loader, self.cache, None, nursery, CONFIG)
        self.reader = ContentReader(loader, fetcher, nursery)
        self.readers = readers
        self.handles: list[_Handle] = []
        self.documents = 0
        """Reads without an open file that are under way."""
        self.troubled = False
        """Whether a read that fails now may."""

    async def do(self, action: Action) -> None:
        match action:
            case Open():
                self._open(CONTENTS[action.content % len(CONTENTS)], action.file)
            case Read() if self.handles:
                self._read(self._handle(action.handle), action.at, action.length)
            case Scan() if self.handles:
                handle = self._handle(action.handle)
                for _ in range(action.times):
                    self._read(handle, -1, action.length)
                    await wait_all_tasks_blocked()
                    self.check()
            case Document():
                content = CONTENTS[action.content % len(CONTENTS)]
                offset = len(content.payload) * action.at // 1000
                length = min(action.length, len(content.payload) - offset)
                self.documents += 1
                self.readers.start_soon(self._read_document, content, offset, length)
            case Cancel():
                under_way = [scope for handle in self.handles for scope in handle.readers]
                if under_way:
                    under_way[action.reader % len(under_way)].cancel()
            case Close() if self.handles:
                await self._close(self._handle(action.handle))
            case Wait():
                await trio.sleep(action.time)
            case Change():
                self.troubled |= bool(action.fault)
                self.weather.fault, self.weather.delay = action.fault, action.delay
                self.weather.concat = action.concat

    def _handle(self, number: int) -> _Handle:
        return self.handles[number % len(self.handles)]

    def _open(self, content: _Content, file: int) -> None:
        start, size = list(content.extents.values())[file % len(content.extents)]
        extent = self.reader.open(content.skyfile, start, size)
        self.handles.append(_Handle(content, start, size, extent))

    def _read(self, handle: _Handle, at: int, length: int) -> None:
        offset = handle.position if at < 0 else handle.size * at // 1000
        if offset > handle.size:
            offset = 0
        handle.position = offset + length
        scope = trio.CancelScope()
        handle.readers.append(scope)
        self.readers.start_soon(self._read_in, scope, handle, offset, length)

    async def _read_in(
        self, scope: trio.CancelScope, handle: _Handle, offset: int, length: int
    ) -> None:
        try:
            with scope:
                found = handle.extent.ready(offset, length)
                if found is None:
                    found = await handle.extent.wait(offset, length)
                start = handle.start + offset
                stop = min(start + length, handle.start + handle.size)
                assert bytes(found) == handle.content.payload[start:stop]
        except PortalError:
            if not self.troubled:
                raise
        finally:
            handle.readers.remove(scope)

    async def _read_document(self, content: _Content, offset: int, length: int) -> None:
        try:
            found = await self.reader.read(content.skyfile, offset, length)
            assert bytes(found) == content.payload[offset : offset + length]
        except PortalError:
            if not self.troubled:
                raise
        finally:
            self.documents -= 1

    async def _close(self, handle: _Handle) -> None:
        for scope in handle.readers:
            scope.cancel()
        while handle.readers:  # the kernel releases a file when its last read has ended
            await trio.lowlevel.checkpoint()
        handle.extent.close()
        self.handles.remove(handle)

    @property
    def jobs(self) -> list[FetchJob]:
        return list(self.reader.fetcher.jobs)

    def check(self) -> None:
        """What must hold whenever all tasks wait."""
        cache, pending = self.cache, self.reader.fetcher.pending
        alone = [] if cache._oversized is None else [len(cache._oversized[1])]
        largest = max((*alone, *map(self._total, self.jobs)), default=0)
        assert cache.used + cache.reserved <= max(cache.size, largest), "R4"
        expected = {
            key: unit
            for job in self.jobs
            for key, unit in list(zip(job.keys, job.units, strict=True))[job.arrived :]
        }
        left = sum(len(job.keys) - job.arrived for job in self.jobs)
        assert len(expected) == left, "R3: a unit is on its way twice"
        assert pending == expected, "what is on its way has a task, and the other way round"
        if not self.jobs:
            assert cache.reserved == 0, "R4"

    @staticmethod
    def _total(job: FetchJob) -> int:
        return sum(job.bytes_at(number) for number in range(len(job.keys)))

    async def settle(self) -> None:
        """Close everything; after a while nothing is on its way."""
        for handle in list(self.handles):
            await self._close(handle)
        documents = self.documents
        await trio.sleep(CONFIG.linger + 0.01)
        assert documents or not any(job.speculative for job in self.jobs), "R5"
        await trio.sleep(EVERY_TRY)
        assert not self.jobs, "every fetch ends"
        self.check()

    async def everything_reads(self) -> None:
        """All content reads right once the portals do well."""
        self.weather.fault, self.weather.delay = "", 0.0
        for content in CONTENTS:
            whole = await self.reader.read(content.skyfile, 0, content.skyfile.size)
            assert bytes(whole) == content.payload


async def play(size: int, actions: list[Action]) -> None:
    """Do these things one after another, in a world of their own."""
    async with trio.open_nursery() as fetches:
        async with trio.open_nursery() as readers:
            model = Model(size, fetches, readers)
            for action in actions:
                await model.do(action)
                await wait_all_tasks_blocked()
                model.check()
            await model.settle()
        await model.everything_reads()
        fetches.cancel_scope.cancel()


@settings(max_examples=300, deadline=None)
@given(size=SIZES, actions=st.lists(ACTIONS, min_size=3, max_size=60))
def test_any_sequence_of_reads(size: int, actions: list[Action]) -> None:
    """R1, R3, R4, R5: A read returns exactly the bytes of the content or fails; each unit is on its
    way once; memory is bounded; what nobody waits for is given up when the last file is closed.
    """
    trio.run(play, size, actions, clock=MockClock(autojump_threshold=0))


async def test_what_a_read_needs_later_is_not_given_up(autojump_clock: MockClock) -> None:
    """R5: fetches that nobody waits for are given up; a read that consists of several that were
    begun ahead needs them all, though it waits for one at a time.
    """
    slowly = [Open(0, 0), Scan(0, 2, BLOCK), Change("", 3.0, True), Scan(0, 5, BLOCK)]
    await play(400 * BLOCK, [*slowly, Close(0), Document(0, 0, 40 * BLOCK)])

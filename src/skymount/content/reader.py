"""Owns reading: bytes of a skyfile by offset, from memory or fetched, each unit once whoever asks.

Fetches run in the daemon's nursery, not in the task of the one who reads: a reader that gives up
does not end the fetch that others wait for. A run of neighbouring units is one request, whose
units are handed out one by one as they arrive and are verified.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import trio
from cachetools import LRUCache

from skymount.content import payload
from skymount.content.cache import MemoryCache
from skymount.content.loader import Loaded, Loader, off_loop
from skymount.content.prefetch import MAX_WINDOW, Readers
from skymount.content.skyfile import Skyfile, UnitKey
from skymount.errors import BadContentError, PortalError
from skymount.portal.client import PortalClient
from skymount.portal.failover import Portals
from skymount.wire import sector
from skymount.wire.ranges import ByteRange
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)

_TRACKED = 64  # skyfiles whose readers are remembered
_FETCHES = 24  # requests for content at once, over all readers


class _Pending:
    """A unit that is on its way."""

    __slots__ = ("data", "done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.data: bytes | None = None
        self.error: PortalError | None = None

    def settle(self, data: bytes | None, error: PortalError | None = None) -> None:
        self.data, self.error = data, error
        self.done.set()


class ContentReader:
    """Reads skyfiles. Made by `open_reader`, which owns the tasks that fetch."""

    def __init__(
        self, portals: Portals, loader: Loader, cache: MemoryCache, nursery: trio.Nursery
    ) -> None:
        self._portals = portals
        self._loader = loader
        self._cache = cache
        self._nursery = nursery
        self._fetches = trio.CapacityLimiter(_FETCHES)
        self._pending: dict[UnitKey, _Pending] = {}
        self._readers: LRUCache[Skylink, Readers] = LRUCache(_TRACKED)
        self._open = 0

    async def load(self, skylink: Skylink) -> Skyfile:
        """Describe a skylink; a payload that came along is kept."""
        loaded: Loaded = await self._loader.load(skylink)
        if loaded.payload is not None:
            self._cache.put(loaded.skyfile.key(0), loaded.payload)
        return loaded.skyfile

    def opened(self) -> None:
        """Note that one more file is open: all of them share what may be fetched ahead."""
        self._open += 1

    def closed(self) -> None:
        """Note that one of them is closed."""
        self._open -= 1

    @property
    def _max_window(self) -> int:
        """Bytes to fetch ahead of one reader: half of the memory, shared by the open files."""
        return min(MAX_WINDOW, self._cache.size // 2 // max(1, self._open))

    async def read(self, skyfile: Skyfile, offset: int, length: int) -> bytes | memoryview:
        """Return the payload's bytes at offset, all of them; PortalError when they cannot be had.

        The range must lie in the payload.
        """
        ready = self.ready(skyfile, offset, length)
        if ready is not None:
            return ready
        stop = offset + length
        first, last = offset // skyfile.unit, (stop - 1) // skyfile.unit
        if first == last:
            start = offset - first * skyfile.unit
            return memoryview(await self._unit(skyfile, first))[start : start + length]
        parts: list[bytes | memoryview] = []
        for index in range(first, last + 1):
            data = await self._unit(skyfile, index)
            base = index * skyfile.unit
            parts.append(memoryview(data)[max(0, offset - base) : stop - base])
        return b"".join(parts)

    def ready(self, skyfile: Skyfile, offset: int, length: int) -> bytes | memoryview | None:
        """Return the bytes if they are in memory and need no joining; start what is missing."""
        if length <= 0:
            return b""
        stop = offset + length
        first, last = offset // skyfile.unit, (stop - 1) // skyfile.unit
        self._look_ahead(skyfile, offset, stop, first, last)
        data = self._cache.get(skyfile.key(first)) if first == last else None
        if data is None:
            return None
        start = offset - first * skyfile.unit
        return memoryview(data)[start : start + length]

    def _look_ahead(self, skyfile: Skyfile, offset: int, stop: int, first: int, last: int) -> None:
        """Start fetching what is missing of a read, and what is likely to be read next."""
        self._start(skyfile, first, last + 1)
        if skyfile.units == 1:
            return
        readers = self._readers.get(skyfile.skylink)
        if readers is None:
            readers = self._readers[skyfile.skylink] = Readers()
        ahead = readers.note(offset, stop, self._max_window)
        if ahead is not None and ahead[0] < skyfile.size:
            self._start(skyfile, ahead[0] // skyfile.unit, -(-ahead[1] // skyfile.unit))

    def _start(self, skyfile: Skyfile, first: int, stop: int) -> None:
        """Start one fetch for each run of missing units among first to stop."""
        run: list[_Pending] = []
        for index in range(first, min(stop, skyfile.units)):
            key = skyfile.key(index)
            if key in self._pending or key in self._cache:
                self._start_run(skyfile, index - len(run), run)
                run = []
            else:
                run.append(_Pending())
                self._pending[key] = run[-1]
        self._start_run(skyfile, min(stop, skyfile.units) - len(run), run)

    def _start_run(self, skyfile: Skyfile, first: int, run: list[_Pending]) -> None:
        if run:
            self._nursery.start_soon(self._fetch, skyfile, first, run)

    async def _unit(self, skyfile: Skyfile, index: int) -> bytes:
        """Return a unit: from memory, or when it has arrived."""
        data = self._cache.get(skyfile.key(index))
        while data is None:
            self._start(skyfile, index, index + 1)
            pending = self._pending[skyfile.key(index)]
            await pending.done.wait()
            if pending.error is not None:
                raise pending.error
            data = pending.data
        return data

    async def _fetch(self, skyfile: Skyfile, first: int, run: list[_Pending]) -> None:
        """Fetch a run of units and settle each; what fails is the error of all that are left."""
        arrived = 0

        def settle(data: bytes) -> None:
            nonlocal arrived
            key = skyfile.key(first + arrived)
            self._cache.put(key, data)
            self._pending.pop(key).settle(data)
            arrived += 1

        async def ask(client: PortalClient) -> None:
            units = self._units_from(client, skyfile, first + arrived, first + len(run))
            async with aclosing(units):
                async for data in units:
                    settle(data)

        error: PortalError | None = None
        try:
            async with self._fetches:
                if skyfile.inline:
                    settle(await self._loader.payload(skyfile))
                else:
                    await self._portals.first(ask)
        except PortalError as problem:
            error = problem
            log.warning("%s: reading failed: %s", skyfile.skylink, problem)
        finally:
            for index in range(first + arrived, first + len(run)):
                pending = self._pending.pop(skyfile.key(index))
                pending.settle(None, error or PortalError("the reading was stopped"))

    async def _units_from(
        self, client: PortalClient, skyfile: Skyfile, first: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield units first to stop from one portal, each checked if it can be."""
        wanted = ByteRange(first * skyfile.unit, min(skyfile.size, stop * skyfile.unit))
        index = first
        async with payload.stream(client, skyfile, wanted) as pieces:
            async for unit in payload.cut(pieces, skyfile.unit):
                if skyfile.layout is not None and not await off_loop(
                    partial(sector.chunk_is_authentic, skyfile.layout, skyfile.fanout, index, unit)
                ):
                    raise BadContentError(
                        f"{skyfile.skylink}: chunk {index} is not the content", url=client.url
                    )
                yield unit
                index += 1


@asynccontextmanager
async def open_reader(
    portals: Portals, loader: Loader, cache: MemoryCache
) -> AsyncIterator[ContentReader]:
    """Make a reader whose fetches end when the block is left."""
    async with trio.open_nursery() as nursery:
        yield ContentReader(portals, loader, cache, nursery)
        nursery.cancel_scope.cancel()

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
from skymount.portal.failover import Portals
from skymount.portal.reading import PortalReader
from skymount.wire import sector
from skymount.wire.ranges import ByteRange
from skymount.wire.skylink import Skylink

log = logging.getLogger(__name__)

_TRACKED = 64  # skyfiles whose readers are remembered
_FETCHES = 24  # requests at once for content that somebody waits for
_PREFETCHES = 16  # requests at once for content that is only likely to be read


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

    async def arrival(self) -> bytes:
        """Wait for the unit; raises what went wrong with it."""
        await self.done.wait()
        if self.data is None:
            raise self.error or PortalError("the reading was stopped")
        return self.data


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
        self._prefetches = trio.CapacityLimiter(_PREFETCHES)
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
    def _share(self) -> int:
        """Bytes of memory that one reader may fill ahead: half of it, shared by the open files."""
        return self._cache.size // 2 // max(1, self._open)

    async def read(self, skyfile: Skyfile, offset: int, length: int) -> bytes | memoryview:
        """Return the payload's bytes at offset, all of them; PortalError when they cannot be had.

        The range must lie in the payload.
        """
        ready = self.ready(skyfile, offset, length)
        return ready if ready is not None else await self.wait(skyfile, offset, length)

    async def wait(self, skyfile: Skyfile, offset: int, length: int) -> bytes | memoryview:
        """As `read`, for a range of at least one byte that `ready` was just asked for in vain."""
        stop = offset + length
        first, last = offset // skyfile.unit, (stop - 1) // skyfile.unit
        self._start(skyfile, first, last + 1)
        # Taken hold of before the first wait: a small cache may drop one while another arrives.
        units = [
            self._pending.get(key) or self._cache.get(key)
            for key in map(skyfile.key, range(first, last + 1))
        ]
        parts: list[bytes | memoryview] = []
        for index, unit in enumerate(units, first):
            assert unit is not None
            data = await unit.arrival() if isinstance(unit, _Pending) else unit
            base = index * skyfile.unit
            parts.append(memoryview(data)[max(0, offset - base) : stop - base])
        return parts[0] if len(parts) == 1 else b"".join(parts)

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
        if skyfile.units == 1 or skyfile.unit > self._share:  # it would push out what is read
            return
        readers = self._readers.get(skyfile.skylink)
        if readers is None:
            readers = self._readers[skyfile.skylink] = Readers()
        ahead = readers.note(offset, stop, min(MAX_WINDOW, self._share))
        if ahead is None or ahead[0] >= skyfile.size:
            return
        # None is queued: who comes to need a unit of it would wait behind all that is before it.
        if self._prefetches.available_tokens >= 1:
            self._start(
                skyfile, ahead[0] // skyfile.unit, -(-ahead[1] // skyfile.unit), self._prefetches
            )

    def _start(
        self,
        skyfile: Skyfile,
        first: int,
        stop: int,
        limiter: trio.CapacityLimiter | None = None,
    ) -> None:
        """Start one fetch for each run of missing units among first to stop."""
        run: list[_Pending] = []
        for index in range(first, min(stop, skyfile.units)):
            key = skyfile.key(index)
            if key in self._pending or key in self._cache:
                self._start_run(skyfile, index - len(run), run, limiter)
                run = []
            else:
                run.append(_Pending())
                self._pending[key] = run[-1]
        self._start_run(skyfile, min(stop, skyfile.units) - len(run), run, limiter)

    def _start_run(
        self,
        skyfile: Skyfile,
        first: int,
        run: list[_Pending],
        limiter: trio.CapacityLimiter | None,
    ) -> None:
        if run:
            self._nursery.start_soon(self._fetch, skyfile, first, run, limiter or self._fetches)

    async def _fetch(
        self, skyfile: Skyfile, first: int, run: list[_Pending], limiter: trio.CapacityLimiter
    ) -> None:
        """Fetch a run of units and settle each; what fails is the error of all that are left."""
        arrived = 0

        def settle(data: bytes) -> None:
            nonlocal arrived
            key = skyfile.key(first + arrived)
            self._cache.put(key, data)
            self._pending.pop(key).settle(data)
            arrived += 1

        async def ask(client: PortalReader) -> None:
            if arrived == len(run):  # what failed came after the last byte
                return
            units = self._units_from(client, skyfile, first + arrived, first + len(run))
            async with aclosing(units):
                async for data in units:
                    settle(data)

        error: PortalError | None = None
        try:
            async with limiter:
                if skyfile.inline:
                    settle(await self._loader.payload(skyfile))
                else:
                    await self._portals.first(ask)
        except PortalError as problem:
            error = problem
            log.warning("%s: reading failed: %s", skyfile.skylink, problem)
        except Exception as problem:
            # Nobody foresaw it, but it must not end the tasks of everybody else.
            error = PortalError(f"reading failed: {problem!r}")
            log.exception("%s: reading failed", skyfile.skylink)
        finally:
            for index in range(first + arrived, first + len(run)):
                self._pending.pop(skyfile.key(index)).settle(None, error)

    async def _units_from(
        self, client: PortalReader, skyfile: Skyfile, first: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield units first to stop from one portal, each checked if it can be."""
        wanted = ByteRange(first * skyfile.unit, min(skyfile.size, stop * skyfile.unit))
        index = first
        async with (
            payload.stream(client, skyfile, wanted) as pieces,
            aclosing(payload.cut(pieces, skyfile.unit)) as cut,
        ):
            async for unit in cut:
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

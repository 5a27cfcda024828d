"""Owns reading: bytes of a skyfile by offset, from memory or fetched, each unit once whoever asks.

Which units a read needs, which are fetched with them, and which ahead of it, is decided here and in
`prefetch`, without waiting; how they come is the business of `fetching`.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
from cachetools import LRUCache

from skymount.concurrency import in_thread
from skymount.content.cache.disk_cache import DiskCache
from skymount.content.cache.memory_cache import Data, MemoryCache
from skymount.content.fetch.fetcher import Fetcher, FetchJob, Pending
from skymount.content.fetch.readahead import Cursor, Cursors, Neighbours, Shares
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model import skyfile as shape
from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, UnitKey
from skymount.content.worker.shared_memory import is_large, release_mappings
from skymount.errors import PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover import PROOF_TIMEOUT, Portals
from skymount.wire.skylink import Skylink

_TRACKED = 64  # skyfiles whose readers are remembered though no file of them is open

_SMALL = 1 << 20
"""Bytes of a file that is fetched whole when it is first read."""

_LARGE = 8 << 20
"""Bytes of a skyfile from which on connections are made before it is known how much is read."""

_LOOKED_AT = 0.5
"""Seconds after which it is looked how much memory large descriptions take."""

_LINGER = 1.0
"""Seconds for which a fetch ahead outlives the last close: a directory is read file by file."""


class _Source:
    """A skyfile that is read: what is known of its readers."""

    __slots__ = (
        "closed_at",
        "cursors",
        "divisible",
        "identity",
        "is_watched",
        "neighbours",
        "opened",
        "prepared",
        "refused",
        "runs",
        "skyfile",
        "unit",
    )

    def __init__(self, skyfile: Skyfile) -> None:
        self.skyfile = skyfile
        self.identity = skyfile.identity
        self.unit = skyfile.unit
        self.divisible = skyfile.divisible
        self.cursors = Cursors()
        self.neighbours = Neighbours()
        self.opened = 0
        """Files of it that are open."""
        self.closed_at = 0.0
        """When the last one of them was closed, by trio's clock."""
        self.is_watched = False
        """Whether a task waits for it to be idle for long enough."""
        self.prepared = False
        """Whether connections were made for it."""
        self.runs: set[FetchJob] = set()
        """What is fetched of it ahead of need."""
        self.refused: set[PortalReader] = set()

    def key(self, index: int, size: int) -> UnitKey:
        return (self.identity, size, index)


class Extent:
    """A part of a payload that is open for reading: a file. Offsets count from its start."""

    __slots__ = ("_reader", "_source", "_start", "size")

    def __init__(self, reader: "ContentReader", source: _Source, start: int, size: int) -> None:
        self._reader = reader
        self._source = source
        self._start = start
        self.size = size
        """Bytes of it."""

    def ready(self, offset: int, length: int) -> Data | None:
        """Return up to `length` bytes at an offset if they are in memory; None: `wait` for them."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        return self._reader._ready(self._source, self._start + offset, length)

    async def wait(self, offset: int, length: int) -> Data:
        """Return what `ready` did not have; PortalError when it cannot be had."""
        length = min(length, self.size - offset)
        return await self._reader._wait(
            self._source, self._start + offset, length, (self._start, self._start + self.size)
        )

    def close(self) -> None:
        """Say that no more is read from it."""
        self._reader._closed(self._source)


class ContentReader:
    """Reads skyfiles. Made by `open_reader`, which owns the tasks that fetch."""

    def __init__(
        self,
        portals: Portals,
        loader: SkyfileLoader,
        cache: MemoryCache,
        shelf: DiskCache | None,
        nursery: trio.Nursery,
    ) -> None:
        self._loader = loader
        self._shelf = shelf
        self._cache = cache
        self._nursery = nursery
        self._pending: dict[UnitKey, Pending] = {}
        self._beginning: deque[tuple[_Source, FetchJob]] = deque()
        """What was given a task that has not begun."""
        self._fetcher = Fetcher(portals, loader, cache, shelf, self._pending)
        self._open: dict[str, _Source] = {}
        self._closed_ones: LRUCache[str, _Source] = LRUCache(_TRACKED)
        self._shares = Shares(cache.prefetch_limit)
        self._is_letting_go = False

    @property
    def counts(self) -> Mapping[str, float | None]:
        """What came from portals: requests for ranges of content, bytes in all with those of
        descriptions, and seconds to an answer.
        """
        fetcher = self._fetcher
        return {
            "requests": fetcher.requests,
            "bytes": fetcher.fetched + self._loader.fetched,
            "round_trip": fetcher.measured and round(fetcher.measured, 4),
        }

    async def load(self, skylink: Skylink) -> Skyfile:
        """Describe a skylink, from disk if it can be; a payload that came along is kept."""
        kept = None if self._shelf is None else await self._shelf.load_description(skylink)
        if kept is not None and self._loader.is_enough(kept.skyfile):
            loaded = kept
        else:
            loaded = await self._ask(skylink, kept)
        skyfile = loaded.skyfile
        size = len(skyfile.listing.packed) + len(skyfile.fanout)
        if is_large(size) and not self._is_letting_go:
            self._is_letting_go = True
            self._nursery.start_soon(self._let_go)
        if loaded.payload is not None:
            self._cache.put((skyfile.identity, skyfile.unit, 0), loaded.payload)
        return skyfile

    async def _let_go(self) -> None:
        """See to it that large descriptions take no memory of the mount's while nobody looks."""
        while True:
            if not await in_thread(release_mappings):
                break
            await trio.sleep(_LOOKED_AT)
        self._is_letting_go = False

    async def _ask(self, skylink: Skylink, kept: LoadedSkyfile | None) -> LoadedSkyfile:
        """Ask the portals for a description; what was kept unverified, if none of them answers."""
        try:
            with trio.fail_after(math.inf if kept is None else PROOF_TIMEOUT):
                loaded = await self._loader.load(skylink)
        except (PortalError, trio.TooSlowError):
            if kept is None:
                raise
            return replace(kept, skyfile=replace(kept.skyfile, is_unconfirmed=True))
        if self._shelf is not None:
            await self._shelf.store_description(loaded)
        return loaded

    def open(self, skyfile: Skyfile, start: int, size: int) -> Extent:
        """Open a part of a skyfile's payload; the caller closes it."""
        source = self._source(skyfile)
        self._open[source.identity] = source
        source.opened += 1
        return Extent(self, source, start, size)

    async def read(self, skyfile: Skyfile, offset: int, length: int) -> Data:
        """Return the payload's bytes at offset, all of them; PortalError when they cannot be had.

        The range must lie in the payload.
        """
        if length <= 0:
            return b""
        source = self._source(skyfile)
        found = self._ready(source, offset, length)
        if found is None:
            found = await self._wait(source, offset, length, (0, skyfile.size))
        return found

    def _source(self, skyfile: Skyfile) -> _Source:
        identity = skyfile.identity
        found = self._open.get(identity) or self._closed_ones.get(identity)
        if found is None or found.unit != skyfile.unit:
            found = self._closed_ones[identity] = _Source(skyfile)
        return found

    def _closed(self, source: _Source) -> None:
        source.opened -= 1
        if not source.opened:
            self._open.pop(source.identity, None)
            self._shares.forget(source.cursors)
            self._closed_ones[source.identity] = source
            source.closed_at = trio.current_time()
            if source.runs and not source.is_watched:
                source.is_watched = True
                self._nursery.start_soon(self._give_up, source)

    async def _give_up(self, source: _Source) -> None:
        """End the fetches ahead that nobody waits for, unless a file is opened again soon."""
        await trio.sleep_until(source.closed_at + _LINGER)
        if not source.opened and source.closed_at + _LINGER > trio.current_time():
            self._nursery.start_soon(self._give_up, source)  # one was, and is closed again
            return
        source.is_watched = False
        if not source.opened:
            for run in source.runs:
                if not run.is_wanted:
                    self._fetcher.abandon(run)
                    run.scope.cancel()

    # Reading

    def _ready(self, source: _Source, offset: int, length: int) -> Data | None:
        """Return the bytes if they are in memory, and look ahead; None if some are missing."""
        unit, stop = source.unit, offset + length
        index = offset // unit
        data = self._cache.get((source.identity, unit, index))
        if data is None:
            if not source.divisible:
                return None
            unit = shape.PIECE
            index = offset // unit
            data = self._cache.get((source.identity, unit, index))
            if data is None:
                return None
        end = (index + 1) * unit
        if stop > end and end // source.unit == (stop - 1) // source.unit == index + 1:
            return self._of_two(source, data, offset, stop, end)
        if stop > end:
            return None
        self._go_on(source, self._note(source, offset, stop), offset, stop)
        return memoryview(data)[offset - index * unit : stop - index * unit]

    def _of_two(
        self, source: _Source, data: Data, offset: int, stop: int, middle: int
    ) -> Data | None:
        """Return bytes that lie in two units, if the second one is in memory as well."""
        after = self._cache.get((source.identity, source.unit, middle // source.unit))
        if after is None or middle % source.unit:
            return None
        self._go_on(source, self._note(source, offset, stop), offset, stop)
        return b"".join((memoryview(data)[offset - middle :], memoryview(after)[: stop - middle]))

    async def _wait(
        self, source: _Source, offset: int, length: int, extent: tuple[int, int]
    ) -> Data:
        """Return bytes of which some have to be fetched."""
        stop = offset + length
        at_start = offset == extent[0] and extent[1] - offset >= _LARGE
        cursor = self._note(source, offset, stop, at_start=at_start)
        keys = self._demand(source, offset, stop, extent, cursor)
        # Taken hold of before the first wait: a small cache may drop one while another arrives.
        units = [self._pending.get(key) or self._cache.get(key) for key in keys]
        cursor.waited = trio.current_time()
        self._look_ahead(source, cursor)
        if not source.prepared and source.skyfile.size >= _LARGE:
            source.prepared = True
            self._nursery.start_soon(self._fetcher.prepare)
        try:
            data = await _joined(keys, units, offset, stop)
            self._leave(source, cursor, offset, stop)
            return data
        except PortalError:
            found = await self._kept_pieces(source, offset, stop)
            if found is None:
                raise
            return found

    async def _kept_pieces(self, source: _Source, offset: int, stop: int) -> Data | None:
        """Return bytes from pieces on disk, when the block around them cannot be had."""
        skyfile = source.skyfile
        if self._shelf is None or not source.divisible:
            return None
        if not await self._shelf.has_pieces(skyfile):
            return None
        first, last = offset // shape.PIECE, -(-stop // shape.PIECE)
        pieces = await self._shelf.load_units(skyfile, shape.PIECE, range(first, last))
        there = [piece for piece in pieces if piece is not None]
        if len(there) < len(pieces):
            return None
        base = first * shape.PIECE
        return b"".join(there)[offset - base : stop - base]

    def _demand(
        self, source: _Source, offset: int, stop: int, extent: tuple[int, int], cursor: Cursor
    ) -> list[UnitKey]:
        """Start fetching what is missing of a read; return the units that it consists of."""
        unit = source.unit
        keys = self._finest(source, offset, stop) if source.divisible else []
        if not keys or (
            self._is_missing(keys) and (cursor.sequential or stop - offset >= unit // 2)
        ):
            keys = [source.key(n, unit) for n in range(offset // unit, -(-stop // unit))]
        elif extent[1] - extent[0] <= _SMALL and self._is_missing(keys):
            self._start(source, self._of_small_file(source, offset, extent))
            keys = self._finest(source, offset, stop)
        self._start(source, keys)
        return keys

    def _of_small_file(
        self, source: _Source, offset: int, extent: tuple[int, int]
    ) -> list[UnitKey]:
        """Return what to fetch for a small file: all of it, or a stretch with its neighbours."""
        unit = source.unit
        group = source.neighbours.missed(offset // unit)
        if group is None or (group[1] - group[0]) * unit > self._cache.size // 4:
            return self._finest(source, *extent)
        blocks = range(group[0], min(group[1], -(-source.skyfile.size // unit)))
        return [source.key(n, unit) for n in blocks]

    def _finest(self, source: _Source, offset: int, stop: int) -> list[UnitKey]:
        """Return the units of a range: pieces, or whole blocks that are here or on their way."""
        found: list[UnitKey] = []
        while offset < stop:
            key = source.key(offset // source.unit, source.unit)
            size = source.unit
            if key not in self._cache and key not in self._pending:
                size = shape.PIECE
                key = source.key(offset // size, size)
            found.append(key)
            offset = (offset // size + 1) * size
        return found

    def _is_missing(self, keys: Iterable[UnitKey]) -> bool:
        return any(key not in self._cache and key not in self._pending for key in keys)

    # Looking ahead

    def _note(self, source: _Source, offset: int, stop: int, *, at_start: bool = False) -> Cursor:
        return source.cursors.note(offset, stop, trio.current_time(), at_start=at_start)

    def _go_on(self, source: _Source, cursor: Cursor, offset: int, stop: int) -> None:
        self._leave(source, cursor, offset, stop)
        self._look_ahead(source, cursor)

    def _leave(self, source: _Source, cursor: Cursor, offset: int, stop: int) -> None:
        """Let units that a reader in order has passed go first, and drop those far enough behind
        it, unless another one is about to read them.
        """
        if not cursor.sequential:
            return
        unit, now = source.unit, trio.current_time()
        is_at_end = cursor.mark >= source.skyfile.size
        passed = stop if is_at_end else min(stop, cursor.mark // unit * unit)
        for index in range(offset // unit, -(-passed // unit)):
            if not source.cursors.is_ahead(index * unit, now):
                self._cache.mark_consumed(source.key(index, unit))
        for index in cursor.left_behind(unit):
            if not source.cursors.is_ahead(index * unit, now):
                self._cache.drop(source.key(index, unit))

    def _look_ahead(self, source: _Source, cursor: Cursor) -> None:
        """Start fetching what is likely to be read next."""
        unit, size = source.unit, source.skyfile.size
        if not cursor.goes_on or size <= unit:
            return
        now = trio.current_time()
        share = self._shares.take_out(cursor, now) - cursor.mark % unit
        if unit <= share:  # or it would push out what is read
            trip = self._fetcher.round_trip
            for start, stop in cursor.requests(unit, share, trip, now):
                if start >= size:
                    break
                indexes = range(start // unit, -(-min(stop, size) // unit))
                if not self._start(source, [source.key(n, unit) for n in indexes], likely=True):
                    break
        self._shares.put_back(cursor, unit, now)

    def _start(self, source: _Source, keys: list[UnitKey], *, likely: bool = False) -> bool:
        """Start one fetch for each run of missing units; False when there was no room for it."""
        run: list[UnitKey] = []
        for key in keys:
            missing = key not in self._pending and self._cache.get(key) is None
            if run and (not missing or key[1:] != (run[-1][1], run[-1][2] + 1)):
                if not self._start_run(source, run, likely):
                    return False
                run = []
            if missing:
                run.append(key)
        return not run or self._start_run(source, run, likely)

    def _start_run(self, source: _Source, keys: list[UnitKey], likely: bool) -> bool:
        _, size, first = keys[0]
        run = FetchJob(source.skyfile, size, first, keys, source.refused, likely=likely)
        if likely and not self._fetcher.admit(run):
            return False
        self._pending.update(zip(keys, run.units, strict=True))
        self._beginning.append((source, run))
        self._nursery.start_soon(self._fetch_next)
        return True

    async def _fetch_next(self) -> None:
        """Fetch the run whose turn it is. Tasks begin in any order; runs do so in the one that they
        are read in, as the later ones may have to go behind others.
        """
        await self._fetch(*self._beginning.popleft())

    async def _fetch(self, source: _Source, run: FetchJob) -> None:
        if run.likely:
            source.runs.add(run)
        try:
            await self._fetcher.fetch(run)
        finally:
            source.runs.discard(run)


async def _joined(
    keys: Sequence[UnitKey], units: Sequence[Pending | Data | None], offset: int, stop: int
) -> Data:
    """Return bytes of the payload out of the units that hold them, once all are here."""
    awaited = [unit for unit in units if isinstance(unit, Pending)]
    for pending in awaited:
        pending.waiting += 1
    parts: list[Data] = []
    try:
        for (_, size, index), unit in zip(keys, units, strict=True):
            assert unit is not None
            data = await unit.arrival() if isinstance(unit, Pending) else unit
            base = index * size
            parts.append(memoryview(data)[max(0, offset - base) : stop - base])
    finally:
        for pending in awaited:
            pending.waiting -= 1
    return parts[0] if len(parts) == 1 else b"".join(parts)


@asynccontextmanager
async def open_reader(
    portals: Portals, loader: SkyfileLoader, cache: MemoryCache, shelf: DiskCache | None = None
) -> AsyncIterator[ContentReader]:
    """Make a reader whose fetches end when the block is left."""
    async with trio.open_nursery() as nursery:
        yield ContentReader(portals, loader, cache, shelf, nursery)
        nursery.cancel_scope.cancel()

"""Reads skyfiles by offset, from the memory cache or through the fetcher.

Decides, without waiting, which units a read needs, and which to fetch with them and ahead of them.
The read-ahead policy is in `readahead`; how units arrive is left to `fetcher`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio
from cachetools import LRUCache

from skymount.concurrency import in_thread, off_loop
from skymount.content.cache.memory_cache import Data
from skymount.content.fetch.fetch_job import Pending
from skymount.content.fetch.fetcher import Fetcher
from skymount.content.fetch.readahead import (
    MemoryShares,
    ReadaheadConfig,
    SmallFileGroups,
    Stream,
    Streams,
)
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, UnitKey
from skymount.content.worker.shared_memory import is_large, release_mappings
from skymount.errors import PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import PROOF_TIMEOUT
from skymount.wire.skylink import Skylink

_DEFAULTS = ReadaheadConfig()

_REMEMBERED = 64  # skyfiles whose readers are remembered though no file of them is open

_MAPPINGS_INTERVAL = 0.5  # seconds between two looks at the memory of large descriptions


@dataclass(slots=True, eq=False)
class _SkyfileState:
    """What is remembered of a skyfile that is read: its open files and its readers."""

    skyfile: Skyfile
    streams: Streams
    groups: SmallFileGroups
    opened: int = 0  # files
    closed_at: float = 0.0  # when the last one was, by trio's clock
    is_watched: bool = False
    """Whether a task waits to cancel what is fetched ahead."""
    refused: set[PortalReader] = field(default_factory=set)
    """Portals that do not send the payload as one stream."""
    identity: str = field(init=False)
    unit: int = field(init=False)

    def __post_init__(self) -> None:
        self.identity, self.unit = self.skyfile.identity, self.skyfile.unit

    def keys(self, start: int, stop: int) -> list[UnitKey]:
        """Return the units that hold a range."""
        unit = self.unit
        return [(self.identity, unit, index) for index in range(start // unit, -(-stop // unit))]


class ContentReader:
    """Reads skyfiles. Its tasks run in the nursery."""

    def __init__(self, loader: SkyfileLoader, fetcher: Fetcher, nursery: trio.Nursery) -> None:
        self.fetcher = fetcher
        self.config = fetcher.config
        self.cache = fetcher.cache
        self.disk = fetcher.disk
        self.nursery = nursery
        self.shares = MemoryShares(self.cache.prefetch_limit, self.config.idle)
        self.loader = loader
        self._open: dict[str, _SkyfileState] = {}
        self._closed: LRUCache[str, _SkyfileState] = LRUCache(_REMEMBERED)
        self._releases_mappings = False
        self.hits = 0
        """Reads that were answered from memory."""
        self.misses = 0
        """Reads that had to wait."""

    @property
    def counts(self) -> Mapping[str, float | None]:
        """Requests for content, bytes from portals, and seconds of a round trip."""
        fetcher, round_trip = self.fetcher, self.fetcher.round_trip
        return {
            "requests": fetcher.requests,
            "bytes": fetcher.fetched + self.loader.fetched,
            "round_trip": round_trip and round(round_trip, 4),
        }

    async def load(self, skylink: Skylink, fingerprint: bytes | None = None) -> Skyfile:
        """Describe a skylink, from disk if possible; a payload that comes with it is cached.

        A description with the fingerprint was used before: portals need not prove it again.
        """
        kept = None if self.disk is None else await self.disk.load_description(skylink)
        if kept is not None and await self._is_enough(kept.skyfile, fingerprint):
            loaded = kept
        else:
            loaded = await self._load_from_portals(skylink, kept)
        skyfile = loaded.skyfile
        size = len(skyfile.listing.packed) + len(skyfile.fanout)
        if is_large(size) and not self._releases_mappings:
            self._releases_mappings = True
            self.nursery.start_soon(self._release_mappings)
        if loaded.payload is not None:
            self.cache.put((skyfile.identity, skyfile.unit, 0), loaded.payload)
        return skyfile

    async def _is_enough(self, kept: Skyfile, fingerprint: bytes | None) -> bool:
        """Whether a description from disk is used as it is."""
        if self.loader.is_enough(kept):
            return True
        if fingerprint is None:
            return False
        size = len(kept.listing.packed)
        return await off_loop(partial(kept.fingerprint), size) == fingerprint

    def forget(self, skyfile: Skyfile) -> None:
        """Let go of a skyfile whose description is dropped, unless a file of it is open."""
        state = self._closed.get(skyfile.identity)
        if state is not None and state.skyfile is skyfile:
            del self._closed[skyfile.identity]

    async def _release_mappings(self) -> None:
        """Keep large descriptions that nobody uses out of the mount's memory."""
        while True:
            if not await in_thread(release_mappings):
                break
            await trio.sleep(_MAPPINGS_INTERVAL)
        self._releases_mappings = False

    async def _load_from_portals(
        self, skylink: Skylink, kept: LoadedSkyfile | None
    ) -> LoadedSkyfile:
        """Ask the portals for a description; if none answers, use the unverified one from disk."""
        try:
            with trio.fail_after(math.inf if kept is None else PROOF_TIMEOUT):
                loaded = await self.loader.load(skylink)
        except (PortalError, trio.TooSlowError):
            if kept is None:
                raise
            return replace(kept, skyfile=replace(kept.skyfile, is_unconfirmed=True))
        if self.disk is not None:
            await self.disk.store_description(loaded)
        return loaded

    def open(self, skyfile: Skyfile, start: int, size: int) -> "ContentFile":
        """Open a part of a skyfile's payload; the caller closes it."""
        state = self._state(skyfile)
        self._open[state.identity] = state
        state.opened += 1
        return ContentFile(self, state, start, size)

    async def read(self, skyfile: Skyfile, offset: int, length: int) -> Data:
        """Return bytes of the payload, all of them; PortalError when they cannot be had.

        The range must lie in the payload.
        """
        file = ContentFile(self, self._state(skyfile), 0, skyfile.size)
        found = file.ready(offset, length)
        return await file.wait(offset, length) if found is None else found

    def _state(self, skyfile: Skyfile) -> _SkyfileState:
        identity = skyfile.identity
        found = self._open.get(identity) or self._closed.get(identity)
        if found is None or found.unit != skyfile.unit:
            config = self.config
            found = _SkyfileState(skyfile, Streams(config), SmallFileGroups(config.max_group))
            self._closed[identity] = found
        return found

    def close(self, state: _SkyfileState) -> None:
        state.opened -= 1
        if state.opened:
            return
        self._open.pop(state.identity, None)
        self.shares.forget(state.streams)
        self._closed[state.identity] = state
        state.closed_at = trio.current_time()
        if not state.is_watched and self.fetcher.has_speculative(state.identity):
            state.is_watched = True
            self.nursery.start_soon(self._cancel_unwanted, state)

    async def _cancel_unwanted(self, state: _SkyfileState) -> None:
        """Cancel what is fetched ahead once no file was open for long enough."""
        until = state.closed_at + self.config.linger
        await trio.sleep_until(until)
        if not state.opened and state.closed_at + self.config.linger > until:
            self.nursery.start_soon(self._cancel_unwanted, state)  # reopened and closed meanwhile
            return
        state.is_watched = False
        if not state.opened:
            self.fetcher.cancel_unwanted(state.identity)


@dataclass(slots=True, eq=False)
class ContentFile:
    """A part of a payload that is open for reading: a file. Offsets count from its start."""

    _reader: ContentReader
    _state: _SkyfileState
    _start: int
    size: int

    def close(self) -> None:
        self._reader.close(self._state)

    # Reading

    def ready(self, offset: int, length: int) -> Data | None:
        """Return up to `length` bytes at an offset, and fetch ahead; None if some are not in
        memory (then `wait` for them).
        """
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        start = self._start + offset
        stop = start + length
        found = self._cached(start)
        if found is None:
            return None
        data, base = memoryview(found[0]), found[1]
        end = base + len(data)
        if stop <= end:
            result: Data = data[start - base : stop - base]
        else:
            found = self._cached(end)
            if found is None or stop > end + len(found[0]):
                return None
            result = b"".join((data[start - base :], memoryview(found[0])[: stop - end]))
        self._reader.hits += 1
        stream = self._state.streams.note(start, stop, trio.current_time())
        self._consume(stream, start, stop)
        self._fetch_ahead(stream)
        return result

    def _cached(self, position: int) -> tuple[Data, int] | None:
        """Return the unit in memory that holds a position of the payload, and where it begins."""
        state, get = self._state, self._reader.cache.get
        size = state.unit
        data = get((state.identity, size, position // size))
        if data is None and state.skyfile.divisible:
            size = state.skyfile.small_block_size
            data = get((state.identity, size, position // size))
        return None if data is None else (data, position // size * size)

    async def wait(self, offset: int, length: int) -> Data:
        """Return what `ready` did not have; PortalError when it cannot be had."""
        state, reader = self._state, self._reader
        reader.misses += 1
        start = self._start + offset
        stop = start + min(length, self.size - offset)
        at_start = not offset and self.size >= reader.config.large_file
        now = trio.current_time()
        stream = state.streams.note(start, stop, now, waits=True, at_start=at_start)
        keys = self._demand(stream, start, stop)
        # Looked up before the first wait: a small cache may evict one while another arrives.
        units = [reader.fetcher.find(key) for key in keys]
        self._fetch_ahead(stream)
        data = await _joined(keys, units, start, stop)
        self._consume(stream, start, stop)
        return data

    def needs_portal(self, offset: int, length: int) -> bool:
        """Whether bytes that are waited for are on the way from a portal."""
        state, pending = self._state, self._reader.fetcher.pending
        start = self._start + offset
        stop = start + min(length, self.size - offset)
        for size in {state.unit, state.skyfile.small_block_size}:
            for index in range(start // size, -(-stop // size)):
                unit = pending.get((state.identity, size, index))
                if unit is not None and unit.needs_portal:
                    return True
        return False

    def _demand(self, stream: Stream, start: int, stop: int) -> list[UnitKey]:
        """Start fetching what is missing of a read; return the units that it consists of."""
        state, fetcher = self._state, self._reader.fetcher
        if not state.skyfile.divisible:
            keys = state.keys(start, stop)
        else:
            keys = self._smallest(start, stop)
            if not all(map(fetcher.has, keys)):
                if stream.sequential or stop - start >= state.unit // 2:
                    keys = state.keys(start, stop)
                elif self.size <= self._reader.config.small_file:
                    fetcher.start(state.skyfile, self._with_neighbours(start), state.refused)
                    keys = self._smallest(start, stop)
        fetcher.start(state.skyfile, keys, state.refused)
        return keys

    def _with_neighbours(self, start: int) -> list[UnitKey]:
        """Return what to fetch for a small file: all of it, or its group of small files."""
        state = self._state
        group = state.groups.missed(start // state.unit)
        if group is None or (group[1] - group[0]) * state.unit > self._reader.cache.size // 4:
            return self._smallest(self._start, self._start + self.size)
        return state.keys(group[0] * state.unit, min(group[1] * state.unit, state.skyfile.size))

    def _smallest(self, start: int, stop: int) -> list[UnitKey]:
        """Return the units of a range: blocks that it covers, or that are in memory or in flight,
        or no larger than small ones; else small blocks.
        """
        state, fetcher = self._state, self._reader.fetcher
        small = state.skyfile.small_block_size
        found: list[UnitKey] = []
        while start < stop:
            size = state.unit
            key = (state.identity, size, start // size)
            end = min((start // size + 1) * size, state.skyfile.size)
            is_covered = start % size == 0 and end <= stop
            if not (is_covered or end - start // size * size <= small or fetcher.has(key)):
                size = small
                key = (state.identity, size, start // size)
            found.append(key)
            start = (start // size + 1) * size
        return found

    # Read-ahead

    def _consume(self, stream: Stream, start: int, stop: int) -> None:
        """Mark what a sequential reader has read as first to evict; drop what lies further back."""
        if not stream.sequential:
            return
        state, cache, now = self._state, self._reader.cache, trio.current_time()
        unit = state.unit
        if stream.mark < state.skyfile.size:
            stop = min(stop, stream.mark // unit * unit)
        for index in range(start // unit, -(-stop // unit)):
            if not state.streams.is_ahead(index * unit, now):
                cache.mark_consumed((state.identity, unit, index))
        for index in stream.passed_units(unit):
            if not state.streams.is_ahead(index * unit, now):
                cache.drop((state.identity, unit, index))

    def _fetch_ahead(self, stream: Stream) -> None:
        state, reader = self._state, self._reader
        unit, size = state.unit, state.skyfile.size
        if not stream.window or size <= unit:
            return
        now = trio.current_time()
        share = reader.shares.take(stream, now) - stream.mark % unit
        if unit <= share:  # or it would evict what is read
            for start, stop in stream.requests(unit, share, reader.fetcher.round_trip):
                if start >= size:
                    break
                keys = state.keys(start, min(stop, size))
                if not reader.fetcher.start(state.skyfile, keys, state.refused, speculative=True):
                    break
        reader.shares.put_back(stream, unit, now)


async def _joined(
    keys: Sequence[UnitKey], units: Sequence[Pending | Data | None], start: int, stop: int
) -> Data:
    """Return bytes of the payload out of the units that hold them, once all have arrived."""
    awaited = [unit for unit in units if isinstance(unit, Pending)]
    for pending in awaited:
        pending.waiting += 1
    parts: list[Data] = []
    try:
        for (_, size, index), unit in zip(keys, units, strict=True):
            assert unit is not None
            data = await unit.wait() if isinstance(unit, Pending) else unit
            base = index * size
            parts.append(memoryview(data)[max(0, start - base) : stop - base])
    finally:
        for pending in awaited:
            pending.waiting -= 1
    return parts[0] if len(parts) == 1 else b"".join(parts)

"""Owns how a run of neighbouring units comes: from disk, else with one request from the first
portal that has it, each unit checked where it can be, and settled as it arrives.

Fetches run in the daemon's nursery, not in the task of the one who reads: a reader that gives up
does not end the fetch that others wait for. Which units are wanted is not decided here.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import trio

from skymount.content.cache.disk_cache import DiskCache
from skymount.content.cache.memory_cache import Data, MemoryCache
from skymount.content.fetch import range_request
from skymount.content.fetch.chunk_verifier import Hashes, receive_chunks
from skymount.content.fetch.readahead import requests_at_once
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import Skyfile, UnitKey, Verified
from skymount.errors import BadContentError, PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover import Portals
from skymount.wire import base_sector

log = logging.getLogger(__name__)

_FETCHES = 24  # requests at once for content that somebody waits for
_PREFETCHES = 32  # requests at once for content that is only likely to be read

_PATIENCE = 5.0
"""Seconds for which a fetch that its reader gave up is kept on, whoever else has to wait."""

_LATER = 0.1  # of a round trip

_FIRST_GUESS = 0.02  # seconds; of a round trip, until one was measured


class Pending:
    """A unit that is on its way."""

    __slots__ = ("data", "done", "error", "waiting")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.data: Data | None = None
        self.error: PortalError | None = None
        self.waiting = 0
        """Reads that need it, also those that wait for another unit before it; they count it."""

    def settle(self, data: Data | None, error: PortalError | None = None) -> None:
        """Say that it is here, or that it will not come."""
        self.data, self.error = data, error
        self.done.set()

    async def arrival(self) -> Data:
        """Wait for the unit; raises what went wrong with it."""
        await self.done.wait()
        if self.data is None:
            raise self.error or PortalError("the reading was stopped")
        return self.data


class FetchJob:
    """Neighbouring units of one size that are fetched together."""

    __slots__ = (
        "arrived",
        "first",
        "keys",
        "likely",
        "refused",
        "scope",
        "size",
        "skyfile",
        "units",
    )

    def __init__(
        self,
        skyfile: Skyfile,
        size: int,
        first: int,
        keys: list[UnitKey],
        refused: set[PortalReader],
        *,
        likely: bool,
    ) -> None:
        self.skyfile = skyfile
        self.size = size
        """Bytes in a unit; the payload's last one may have less."""
        self.first = first
        """Index of the first unit."""
        self.keys = keys
        self.units = [Pending() for _ in keys]
        self.refused = refused
        """Portals that do not send this payload as one stream."""
        self.likely = likely
        """Whether it is only likely to be read: nobody waited for it when it was begun."""
        self.arrived = 0
        self.scope = trio.CancelScope()

    def bytes_at(self, number: int) -> int:
        """Return the length of one of its units."""
        return min(self.size, self.skyfile.size - (self.first + number) * self.size)

    @property
    def bytes_left(self) -> int:
        """Bytes that have not arrived."""
        size = self.skyfile.size
        start = min(size, (self.first + self.arrived) * self.size)
        return min(size, (self.first + len(self.keys)) * self.size) - start

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for any of it."""
        return any(unit.waiting for unit in self.units)


class Fetcher:
    """Brings runs of units into the cache.

    `pending` holds what is on its way; a unit is taken out of it when it is settled.
    """

    def __init__(
        self,
        portals: Portals,
        loader: SkyfileLoader,
        cache: MemoryCache,
        shelf: DiskCache | None,
        pending: dict[UnitKey, Pending],
    ) -> None:
        self._portals = portals
        self._shelf = shelf
        self._loader = loader
        self._cache = cache
        self._pending = pending
        self._fetches = trio.CapacityLimiter(_FETCHES)
        self._likely = 0
        self._demanded: dict[FetchJob, float] = {}
        """What somebody waited for when it was begun, and when that was: the oldest first."""
        self._last = portals.clients[0] if portals.clients else None
        """The portal that was asked last."""
        self.fetched = 0
        """Bytes that came from portals."""
        self.requests = 0
        """Runs that were asked for."""

    @property
    def measured(self) -> float | None:
        """Seconds to the portal and back, as far as is known."""
        return None if self._last is None else self._last.round_trip

    @property
    def round_trip(self) -> float:
        """The same, or a guess."""
        return self.measured or _FIRST_GUESS

    async def prepare(self) -> None:
        """Have connections stand to the portal, if it is far: each takes a round trip.

        A little later than what somebody waits for, so that its answer is handed out before them.
        """
        likely = requests_at_once(self.round_trip) // 2
        if self._last is not None and likely > 1:
            await trio.sleep(self.round_trip * _LATER)
            await self._last.connect(likely + 1)

    def admit(self, run: FetchJob) -> bool:
        """Whether what is only likely to be read may be fetched now; it has its room then.

        It never stands in a queue: who came to need a unit of it would wait behind all that is
        before it.
        """
        if self._likely >= _PREFETCHES or not self._cache.try_reserve(
            run.bytes_left, self._cache.prefetch_limit
        ):
            return False
        self._likely += 1
        return True

    async def fetch(self, run: FetchJob) -> None:
        """Fetch a run and settle each unit; what fails is the error of all that are left.

        A likely one was admitted.
        """
        error: PortalError | None = None
        held = run.likely
        try:
            with run.scope:
                if run.likely:
                    await self._bring(run)
                else:
                    self._make_way(run)
                    async with self._turn():
                        await self._cache.reserve(run.bytes_left)
                        held = True
                        await self._bring(run)
        except PortalError as problem:
            error = problem
            log.warning("%s: reading failed: %s", run.skyfile.skylink, problem)
        except Exception as problem:
            # Nobody foresaw it, but it must not end the tasks of everybody else.
            error = PortalError(f"reading failed: {problem!r}")
            log.exception("%s: reading failed", run.skyfile.skylink)
        finally:
            self._likely -= run.likely
            self._demanded.pop(run, None)
            if held:
                self._cache.release(run.bytes_left)
            self.abandon(run)
            for unit in run.units[run.arrived :]:
                unit.settle(None, error)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold one of the places for what somebody waits for; a free one is taken at once, or what
        is likely would be asked for before it.
        """
        try:
            self._fetches.acquire_nowait()
        except trio.WouldBlock:
            await self._fetches.acquire()
        try:
            yield
        finally:
            self._fetches.release()

    def _make_way(self, run: FetchJob) -> None:
        """Give up a fetch that nobody waits for any more, if it is in the way of this one."""
        now = trio.current_time()
        self._demanded[run] = now
        if self._fetches.available_tokens:
            return
        for other, begun in self._demanded.items():
            if begun > now - _PATIENCE:
                return
            if not other.is_wanted:
                self.abandon(other)
                other.scope.cancel()
                return

    def abandon(self, run: FetchJob) -> None:
        """Let whoever needs what has not arrived of a run fetch it anew."""
        for number in range(run.arrived, len(run.keys)):
            self._forget(run, number)

    def _forget(self, run: FetchJob, number: int) -> None:
        key = run.keys[number]
        if self._pending.get(key) is run.units[number]:
            del self._pending[key]

    async def _bring(self, run: FetchJob) -> None:
        if run.skyfile.inline:
            self._settle(run, await self._payload(run.skyfile))
            return
        kept = await self._kept(run)
        while run.arrived < len(run.keys):
            data = kept[run.arrived]
            if data is not None:
                self._settle(run, data)
            else:
                rest = (n for n in range(run.arrived, len(run.keys)) if kept[n] is not None)
                await self._ask(run, next(rest, len(run.keys)))

    async def _payload(self, skyfile: Skyfile) -> Data:
        """Return the payload of an inline skyfile, which is part of its description."""
        loaded = (
            None if self._shelf is None else await self._shelf.load_description(skyfile.skylink)
        )
        if loaded is None or loaded.payload is None or loaded.skyfile.identity != skyfile.identity:
            return await self._loader.payload(skyfile)
        return loaded.payload

    async def _kept(self, run: FetchJob) -> Sequence[Data | None]:
        """Return the units of a run that are on disk, which need no check any more."""
        if self._shelf is None:
            return [None] * len(run.keys)
        indexes = range(run.first, run.first + len(run.keys))
        return await self._shelf.load_units(run.skyfile, run.size, indexes)

    async def _ask(self, run: FetchJob, stop: int) -> None:
        """Fetch the units of a run up to one, from whichever portal has them."""
        self.requests += 1

        async def ask(client: PortalReader) -> None:
            if run.arrived < stop:  # or else what failed came after the last byte
                await self._receive(client, run, stop)

        await self._portals.first(ask)

    async def _receive(self, client: PortalReader, run: FetchJob, stop: int) -> None:
        """Receive units of a run from one portal, and check each that can be."""
        skyfile = run.skyfile
        self._last = client
        first = run.first + run.arrived
        take = self._cache.buffers.take
        views = [take(run.bytes_at(at)) for at in range(run.arrived, stop)]

        def receive(parts: Sequence[memoryview]) -> AsyncGenerator[int, None]:
            start = first * run.size
            speculative = run.likely and not run.is_wanted
            return range_request.receive(
                client, skyfile, start, parts, run.refused, speculative=speculative
            )

        def accept(number: int) -> None:
            data = views[number].toreadonly()
            self.fetched += len(data)
            if self._shelf is not None and _may_keep(skyfile, client):
                self._shelf.store_unit(skyfile, run.size, first + number, data)
            self._settle(run, data)

        layout = skyfile.layout
        if layout is None:
            async with aclosing(receive(views)) as filled:
                async for number in filled:
                    accept(number)
            return

        def check(number: int, hashes: Hashes) -> None:
            index = first + number
            if not base_sector.is_authentic(layout, skyfile.fanout, index, hashes):
                text = f"{skyfile.skylink}: chunk {index} is not the content"
                raise BadContentError(text, url=client.url)
            accept(number)

        size = layout.chunk_size if run.likely else base_sector.part_size(layout)
        await receive_chunks(layout, size, views, receive, check)

    def _settle(self, run: FetchJob, data: Data) -> None:
        """Hand out the next unit of a run."""
        number = run.arrived
        run.arrived += 1
        self._cache.release(len(data))
        self._cache.put(run.keys[number], data)
        self._forget(run, number)
        run.units[number].settle(data)


def _may_keep(skyfile: Skyfile, client: PortalReader) -> bool:
    """Whether bytes from a portal may be kept on disk: what is not verified, as its own word only.

    The skyfile may be another portal's word.
    """
    return skyfile.verified is Verified.YES or client.url == skyfile.portal

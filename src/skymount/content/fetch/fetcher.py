"""Fetches units of content: from disk, else from the first portal that has them.

Fetches run in the daemon's nursery, not in the reader's task: a reader that gives up does not end a
fetch that others wait for. Which units are wanted is decided by the reader.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial

import trio

from skymount.content.cache.disk_cache import DiskCache
from skymount.content.cache.memory_cache import Data, MemoryCache
from skymount.content.cache.room import Room
from skymount.content.fetch import range_request
from skymount.content.fetch.chunk_verifier import Hashes, receive_chunks
from skymount.content.fetch.fetch_job import FetchJob, Pending
from skymount.content.fetch.readahead import ReadaheadConfig
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import Skyfile, UnitKey, Verified
from skymount.errors import DisprovedError, PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.wire import base_sector

log = logging.getLogger(__name__)

_ROOM_POLL = 0.1
"""Seconds between two looks for room to ask a second portal."""


class Fetcher:
    """Fetches units, each once, however many ask for it. Owns the units in flight."""

    def __init__(
        self,
        portals: Portals,
        loader: SkyfileLoader,
        cache: MemoryCache,
        disk: DiskCache | None,
        nursery: trio.Nursery,
        config: ReadaheadConfig,
    ) -> None:
        self._portals = portals
        self._loader = loader
        self.cache = cache
        self.disk = disk
        self._nursery = nursery
        self.config = config
        self.pending: dict[UnitKey, Pending] = {}
        self.jobs: dict[FetchJob, None] = {}  # the oldest first
        self._demanded = trio.CapacityLimiter(config.max_demanded)
        self._disk_room = Room(config.disk_room)
        self._hedge_room = Room(config.hedge_room)
        self._speculative = 0
        self._last = portals.clients[0] if portals.clients else None
        self.fetched = 0
        self.requests = 0

    @property
    def round_trip(self) -> float | None:
        """Seconds to the portal and back, if they were measured."""
        return None if self._last is None else self._last.round_trip

    def find(self, key: UnitKey) -> Pending | Data | None:
        return self.pending.get(key) or self.cache.get(key)

    def has(self, key: UnitKey) -> bool:
        return key in self.cache or key in self.pending

    def start(
        self,
        skyfile: Skyfile,
        keys: Iterable[UnitKey],
        refused: set[PortalReader],
        *,
        speculative: bool = False,
    ) -> bool:
        """Start fetching what is missing of some units, neighbours in one job.

        False when a speculative job found no room. It is not queued: a read
        that then needed its units would wait for the whole queue.
        """
        stretches: list[list[UnitKey]] = []
        last: UnitKey | None = None
        for key in keys:
            if self.find(key) is None:
                if last is None or key[1:] != (last[1], last[2] + 1):
                    stretches.append([])
                stretches[-1].append(key)
                last = key
            else:
                last = None
        for stretch in stretches:
            job = FetchJob(skyfile, stretch, refused, speculative, trio.current_time(), self.cache)
            if speculative:
                if self._speculative >= self.config.max_speculative or not self.cache.try_reserve(
                    job.bytes_left, self.cache.prefetch_limit
                ):
                    return False
                self._speculative += 1
            self.pending.update(zip(stretch, job.units, strict=True))
            self.jobs[job] = None
            self._nursery.start_soon(self._run, job)
        return True

    def cancel_unwanted(self, identity: str) -> None:
        for job in self.jobs:
            if job.speculative and job.skyfile.identity == identity and not job.is_wanted:
                self._cancel(job)

    def has_speculative(self, identity: str) -> bool:
        return any(job.speculative and job.skyfile.identity == identity for job in self.jobs)

    def _cancel(self, job: FetchJob) -> None:
        self._forget(job)
        job.scope.cancel()

    def _forget(self, job: FetchJob) -> None:
        """Let whoever needs what has not arrived fetch it anew."""
        for key, unit in zip(job.keys[job.arrived :], job.units[job.arrived :], strict=True):
            if self.pending.get(key) is unit:
                del self.pending[key]

    async def _run(self, job: FetchJob) -> None:
        """Fetch a job's units; an error is that of all units that have not arrived."""
        error: PortalError | None = None
        try:
            with job.scope:
                if job.speculative:  # it has its room already
                    await trio.lowlevel.checkpoint()  # what somebody waits for is requested first
                    await self._fetch(job)
                else:
                    await self._fetch_demanded(job)
        except PortalError as problem:
            error = problem
            log.debug("%s: reading failed: %s", job.skyfile.skylink, problem)
        except Exception as problem:  # a bug must not end everybody else's tasks
            error = PortalError(f"reading failed: {problem!r}")
            log.exception("%s: reading failed", job.skyfile.skylink)
        finally:
            if job.speculative:
                self._speculative -= 1
                job.room.release(job.bytes_left)
            del self.jobs[job]
            self._forget(job)
            for unit in job.units[job.arrived :]:
                unit.settle(None, error)

    async def _fetch_demanded(self, job: FetchJob) -> None:
        """Fetch what somebody waits for. What is on disk waits for no other fetch, nor for the room
        that these have, as all of them may hang.
        """
        if not self.cache.try_reserve(job.bytes_left, self.cache.size):
            job.room = self._disk_room
            await job.room.reserve(job.bytes_left)
        try:
            found = await self._load(job)
        finally:
            job.room.release(job.bytes_left)
        if job.arrived == len(job.keys):
            return
        job.need_portal()
        try:
            self._demanded.acquire_nowait()  # without a checkpoint, so before speculative jobs
        except trio.WouldBlock:
            self._cancel_abandoned()
            await self._demanded.acquire()
        try:
            job.room = self.cache
            await job.room.reserve(job.bytes_left)
            try:
                is_gap = any(data is not None for data in found[job.arrived :])
                await self._fetch(job, None if is_gap else found)
            finally:
                job.room.release(job.bytes_left)
        finally:
            self._demanded.release()

    def _cancel_abandoned(self) -> None:
        """Cancel demanded jobs whose readers have gone away, since another one has to wait: also
        those that wait themselves, or they would be next.
        """
        oldest = trio.current_time() - self.config.patience
        for job in self.jobs:
            if job.begun > oldest:
                return
            if not (job.speculative or job.is_wanted or job.scope.cancel_called):
                self._cancel(job)

    async def _load(self, job: FetchJob) -> Sequence[Data | None]:
        """Return what is on disk of a job's units that have not arrived, at their numbers; those
        before the first one that is not on disk have arrived then.
        """
        skyfile, count = job.skyfile, len(job.keys)
        found: Sequence[Data | None] = [None] * count
        if skyfile.inline:
            found = [await self._inline_on_disk(skyfile)]
        elif self.disk is not None:
            indexes = range(job.first, job.first + count)
            found = await self.disk.load_units(skyfile, job.size, indexes)
        while job.arrived < count:
            data = found[job.arrived]
            if data is None:
                break
            self._settle(job, data)
        return found

    async def _fetch(self, job: FetchJob, on_disk: Sequence[Data | None] | None = None) -> None:
        """Fetch a job's units; `on_disk` is what `_load` returned, if it was called."""
        if on_disk is None:
            on_disk = await self._load(job)
        skyfile, count = job.skyfile, len(job.keys)
        job.need_portal()
        while job.arrived < count:
            data = on_disk[job.arrived]
            if data is None and skyfile.inline:
                data = await self._loader.payload(skyfile)
            if data is not None:
                self._settle(job, data)
                continue
            rest = range(job.arrived, count)
            stop = next((number for number in rest if on_disk[number] is not None), count)
            self.requests += 1
            await self._portals.first(
                partial(self._receive, job, stop),
                urgent=lambda: not job.speculative or job.is_wanted,
                probe=lambda client: client.sample(skyfile.skylink),
            )

    async def _inline_on_disk(self, skyfile: Skyfile) -> Data | None:
        loaded = None if self.disk is None else await self.disk.load_description(skyfile.skylink)
        if loaded is None or loaded.skyfile.identity != skyfile.identity:
            return None
        return loaded.payload

    async def _receive(self, job: FetchJob, stop: int, client: PortalReader) -> None:
        """Receive a job's units up to one from a portal, and check each that can be checked.

        This may run for several portals at once. A unit counts as it first arrives.
        """
        async with self._room(job, stop):
            if job.arrived < stop:  # else the attempt before failed after the last byte
                await self._receive_units(job, stop, client)

    @asynccontextmanager
    async def _room(self, job: FetchJob, stop: int) -> AsyncIterator[None]:
        """Have room for the units of one attempt: what the job has reserved, or if another attempt
        uses that, as much again.
        """
        more, room = 0, None
        while job.is_receiving and room is None:
            more = sum(map(job.bytes_at, range(job.arrived, stop)))
            room = self._try_reserve_again(more)
            if room is None:
                await trio.sleep(_ROOM_POLL)
        if room is None:
            job.is_receiving = True
        try:
            yield
        finally:
            if room is None:
                job.is_receiving = False
            else:
                room.release(more)

    def _try_reserve_again(self, size: int) -> MemoryCache | Room | None:
        """Reserve room for a second attempt, and return where."""
        if self.cache.try_reserve(size, self.cache.size):
            return self.cache
        return self._hedge_room if self._hedge_room.try_reserve(size) else None

    async def _receive_units(self, job: FetchJob, stop: int, client: PortalReader) -> None:
        skyfile, first = job.skyfile, job.first + job.arrived
        self._last = client
        take = self.cache.buffers.take
        views = [take(job.bytes_at(number)) for number in range(job.arrived, stop)]

        def receive(parts: Sequence[memoryview]) -> AsyncGenerator[int, None]:
            speculative = (lambda: not job.is_wanted) if job.speculative else None
            return range_request.receive(
                client, skyfile, first * job.size, parts, job.refused, speculative=speculative
            )

        def accept(number: int) -> None:
            if first + number < job.first + job.arrived:
                return  # another portal was quicker
            data = views[number].toreadonly()
            self.fetched += len(data)
            if self.disk is not None and _may_keep(skyfile, client):
                self.disk.store_unit(skyfile, job.size, first + number, data)
            self._settle(job, data)

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
                raise DisprovedError(text, url=client.url)
            accept(number)

        size = layout.chunk_size if job.speculative else base_sector.part_size(layout)
        await receive_chunks(layout, size, views, receive, check)

    def _settle(self, job: FetchJob, data: Data) -> None:
        key, unit = job.keys[job.arrived], job.units[job.arrived]
        job.arrived += 1
        job.room.release(len(data))
        self.cache.put(key, data)
        if self.pending.get(key) is unit:
            del self.pending[key]
        unit.settle(data)


def _may_keep(skyfile: Skyfile, client: PortalReader) -> bool:
    """Whether bytes may go to disk: unverified ones only if the describing portal sent them."""
    return skyfile.verified is Verified.YES or client.url == skyfile.portal

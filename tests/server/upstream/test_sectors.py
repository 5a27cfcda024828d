"""The sectors of upstream portals: what waits for what."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skymount.content.cache.block_store import BlockStore
from skymount.content.cache.write_behind import WriteBehindQueue, open_write_behind
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import VerifyPolicy
from skymount.errors import PortalError
from skymount.portal.failover.portals import Portals
from skymount.server.upstream.sectors import SectorCache, sector_key
from skymount.server.upstream.waiting_threads import WaitingThreads

FETCHES = 16  # at once
KEPT = b"k" * 32


@dataclass(frozen=True)
class HangingPortals(Portals):
    """Portals that fail once they are let to."""

    asked: list[None] = field(default_factory=list)
    released: trio.Event = field(default_factory=trio.Event)

    async def first(self, *args: Any, **options: Any) -> Any:
        self.asked.append(None)
        await self.released.wait()
        raise PortalError("it fails")


@dataclass(frozen=True)
class Opened:
    portals: HangingPortals
    queue: WriteBehindQueue
    sectors: SectorCache


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Opened]:
    portals = HangingPortals([])
    store = BlockStore.open(directory, 64 << 20)
    async with open_write_behind(store) as queue, trio.open_nursery() as nursery:
        loader = SkyfileLoader(portals, VerifyPolicy.REQUIRE)
        yield Opened(portals, queue, SectorCache(portals, loader, queue, nursery))
        nursery.cancel_scope.cancel()


async def until_asked(portals: HangingPortals, count: int) -> None:
    while len(portals.asked) < count:
        await trio.sleep(0.01)


async def test_what_is_kept_waits_for_no_portal(tmp_path: Path) -> None:
    """U3: though as many fetches hang as may be under way."""
    async with opened(tmp_path) as it, trio.open_nursery() as nursery:
        for number in range(FETCHES + 2):
            nursery.start_soon(it.sectors.sector, bytes([number]) * 32)
        with trio.fail_after(30):
            await until_asked(it.portals, FETCHES)
            it.queue.offer(sector_key(KEPT), b"kept")
            assert bytes(await it.sectors.sector(KEPT)) == b"kept"
        assert len(it.portals.asked) == FETCHES
        nursery.cancel_scope.cancel()


async def test_nothing_is_fetched_that_nobody_waits_for_any_more(tmp_path: Path) -> None:
    """U2: what had to wait is not fetched then; what had begun goes on."""
    async with opened(tmp_path) as it:
        with trio.fail_after(30):
            async with trio.open_nursery() as readers:
                for number in range(FETCHES + 4):
                    readers.start_soon(it.sectors.sector, bytes([number]) * 32)
                await until_asked(it.portals, FETCHES)
                await wait_all_tasks_blocked(0.05)
                readers.cancel_scope.cancel()
            async with trio.open_nursery() as readers:
                readers.start_soon(fails, it.sectors, KEPT)
                await wait_all_tasks_blocked(0.05)
                it.portals.released.set()
        assert len(it.portals.asked) == FETCHES + 1


async def fails(sectors: SectorCache, root: bytes) -> None:
    with pytest.raises(PortalError, match="it fails"):
        await sectors.sector(root)


async def test_threads_may_wait_for_the_same() -> None:
    """U7: requests for one skyfile that is in memory."""
    threads, asked, released = WaitingThreads(), list[None](), trio.Event()

    async def ask() -> str:
        asked.append(None)
        if len(asked) == 2:
            released.set()
        await released.wait()
        return "found"

    found: list[str] = []

    async def request() -> None:
        found.append(await trio.to_thread.run_sync(threads.run, ask, ""))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(request)
            nursery.start_soon(request)
    assert found == ["found", "found"]

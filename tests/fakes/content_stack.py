"""Fake portals, clients, caches and a content reader, connected as the daemon connects them, except
that failover hardly waits.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from skymount.content.cache.block_store import BlockStore
from skymount.content.cache.disk_cache import DiskCache
from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.cache.write_behind import WriteBehindQueue, open_write_behind
from skymount.content.fetch.fetcher import Fetcher
from skymount.content.fetch.readahead import ReadaheadConfig
from skymount.content.fetch.reader import ContentReader
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import BLOCK_SIZE, VerifyPolicy
from skymount.content.opening import Content, ContentSettings, open_content
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.contestants import FailoverConfig
from skymount.portal.failover.health import HedgeBudget
from skymount.portal.failover.portals import Portals
from skymount.settings import Config, PortalOptions
from tests.fakes.portal import FakePortal, running

_DISK = 1 << 30  # bytes


@dataclass
class ContentStack:
    """Everything between a portal's socket and the file system."""

    reader: ContentReader
    loader: SkyfileLoader
    cache: MemoryCache
    portals: list[FakePortal]
    clients: list[PortalClient]
    failover: Portals
    queue: WriteBehindQueue | None

    async def settled(self) -> None:
        """Wait until all that was offered to the disk is written."""
        while self.queue is not None and self.queue.queued_bytes:
            await trio.sleep(0.01)

    @property
    def portal(self) -> FakePortal:
        return self.portals[0]


OpenContentStack = Callable[..., AbstractAsyncContextManager[ContentStack]]


def open_at(*urls: str, **settings: Any) -> AbstractAsyncContextManager[Content]:
    """Open what reads content at some portals."""
    given: dict[str, Any] = {"silence": 20.0, "verify": VerifyPolicy.AVAILABLE, "memory": 8 << 20}
    return open_content(
        ContentSettings(portals=Config(portals=tuple(urls)).portal_options, **given | settings)
    )


@asynccontextmanager
async def open_reader(
    portals: Portals,
    loader: SkyfileLoader,
    cache: MemoryCache,
    disk: DiskCache | None = None,
    config: ReadaheadConfig = ReadaheadConfig(),  # noqa: B008
) -> AsyncIterator[ContentReader]:
    """Make a reader whose fetches end with the block."""
    async with trio.open_nursery() as nursery:
        fetcher = Fetcher(portals, loader, cache, disk, nursery, config)
        yield ContentReader(loader, fetcher, nursery)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_content_stack(
    *,
    portals: int = 1,
    cache: int = 64 << 20,
    policy: VerifyPolicy = VerifyPolicy.AVAILABLE,
    idle: float = 5.0,
    connections: int = 32,
    disk: Path | None = None,
    disk_size: int = _DISK,
    urls: Sequence[str] = (),
    block_size: int = BLOCK_SIZE,
    readahead: ReadaheadConfig = ReadaheadConfig(),  # noqa: B008
    hedges: HedgeBudget | None = None,
) -> AsyncIterator[ContentStack]:
    """Make a stack with so many portals; `idle` is the time-out between two pieces, in seconds.

    `disk` is where a cache on disk of `disk_size` bytes is; without one nothing outlives the block.
    `urls` are those of portals that are there already, to be used instead.
    """
    async with AsyncExitStack() as stack:
        clients = []
        fakes = [
            await stack.enter_async_context(running(FakePortal()))
            for _ in range(0 if urls else portals)
        ]
        for url in urls or [fake.url for fake in fakes]:
            options = PortalOptions(url, idle_timeout=idle, connections=connections, retries=0)
            clients.append(await stack.enter_async_context(PortalClient.of(options)))
        probes = await stack.enter_async_context(trio.open_nursery())
        stack.callback(probes.cancel_scope.cancel)
        budget = hedges or HedgeBudget()
        asked = Portals(clients, FailoverConfig(backoff=0.001), background=probes, hedges=budget)
        memory = MemoryCache(cache)
        loader = SkyfileLoader(asked, policy, block_size)
        disk_cache = queue = None
        if disk is not None:
            store = BlockStore.open(disk, disk_size, memory.buffers)
            queue = await stack.enter_async_context(open_write_behind(store))
            disk_cache = DiskCache(queue, [client.url for client in clients], policy)
        reader = await stack.enter_async_context(
            open_reader(asked, loader, memory, disk_cache, readahead)
        )
        yield ContentStack(reader, loader, memory, fakes, clients, asked, queue)

"""Opens the upstream portals of a portal, and puts them behind what it stores itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from skymount.content.cache.block_store import BlockStore
from skymount.content.cache.disk_cache import DiskCache
from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.cache.write_behind import WriteBehindConfig, open_write_behind
from skymount.content.fetch.readahead import ReadaheadConfig
from skymount.content.fetch.reader import open_reader
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.content.model.skyfile import VerifyPolicy
from skymount.errors import CacheError, StorageError
from skymount.portal.failover.portals import Portals, open_portals
from skymount.server.config import PortalConfig
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.upstream.content import UpstreamContent
from skymount.server.upstream.entries import UpstreamEntries
from skymount.server.upstream.loops import HEADER, Loops
from skymount.server.upstream.names import UpstreamNames
from skymount.server.upstream.remote_skyfile import RemoteSkyfiles
from skymount.server.upstream.sectors import SectorCache
from skymount.server.upstream.waiting_threads import WaitingThreads

DIRECTORY = Path("v1") / "upstream"

_SILENCE = 10.0  # seconds that an upstream may be silent
_MEMORY = 128 << 20  # bytes of payloads in memory
_WINDOW = 16 << 20  # bytes that are fetched ahead of one reader
_FINISH = 5.0  # seconds for what is still to be written at the end
_QUEUE = 128 << 20
"""Bytes that may wait for the disk. Fetching pauses long before, so nothing is dropped."""


@asynccontextmanager
async def open_upstream(
    config: PortalConfig, storage: PortalStorage
) -> AsyncIterator[tuple[PortalStorage, Loops]]:
    """Open the portals that the configuration names, and what is kept of them; StorageError.

    Yields what the portal is to serve, and which requests it causes itself.
    """
    store = await trio.to_thread.run_sync(_open_store, config)
    settings = WriteBehindConfig(queue_limit=_QUEUE, finish_timeout=_FINISH)
    memory = MemoryCache(_MEMORY)
    async with (
        open_portals(config.upstream, _SILENCE) as portals,
        open_write_behind(store, settings) as queue,
        trio.open_nursery() as nursery,
    ):
        loader = SkyfileLoader(portals, VerifyPolicy.REQUIRE)
        disk = DiskCache(queue, (), VerifyPolicy.REQUIRE)
        reading = ReadaheadConfig(max_window=_WINDOW)
        async with open_reader(portals, loader, memory, disk, reading) as reader:
            sectors = SectorCache(portals, loader, queue, nursery)
            remote = RemoteSkyfiles(sectors, reader, WaitingThreads())
            loops = Loops(partial(_announce, portals, config))
            both = replace(
                storage,
                content=UpstreamContent(storage.content, remote),
                entries=UpstreamEntries(portals, storage.entries),
                names=UpstreamNames(portals, storage.names),
            )
            yield both, loops
            nursery.cancel_scope.cancel()


def _open_store(config: PortalConfig) -> BlockStore:
    try:
        return BlockStore.open(config.data / DIRECTORY, config.upstream_cache)
    except CacheError as error:
        raise StorageError(str(error)) from None


def _announce(portals: Portals, config: PortalConfig, downstream: str) -> None:
    """Let the requests to upstream say which portals depend on them."""
    for client in portals.clients:
        given = config.upstream[client.url]
        client.set_credentials(replace(given, headers=(*given.headers, (HEADER, downstream))))

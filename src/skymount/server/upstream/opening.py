"""Opens the upstream portals of a portal, and puts them behind what it stores itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from skymount.content.cache.write_behind import WriteBehindConfig
from skymount.content.fetch.readahead import ReadaheadConfig
from skymount.content.opening import ContentSettings, DiskSettings, open_content
from skymount.errors import CacheError, StorageError
from skymount.policies import VerifyPolicy
from skymount.portal.failover.portals import Portals
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
_QUEUE = WriteBehindConfig(queue_limit=128 << 20, finish_timeout=5.0)
"""What may wait for the disk. Fetching pauses long before, so nothing is dropped."""


@asynccontextmanager
async def open_upstream(
    config: PortalConfig, storage: PortalStorage
) -> AsyncIterator[tuple[PortalStorage, Loops]]:
    """Open the portals that the configuration names, and what is kept of them; StorageError.

    Yields what the portal is to serve, and which requests it causes itself.
    """
    settings = ContentSettings(
        portals=config.upstream,
        silence=_SILENCE,
        verify=VerifyPolicy.REQUIRE,
        memory=_MEMORY,
        disk=DiskSettings(config.upstream_cache, config.data / DIRECTORY, _QUEUE),
        readahead=ReadaheadConfig(max_window=_WINDOW),
    )
    try:
        async with open_content(settings) as content:
            portals, queue = content.portals, content.queue
            assert queue is not None  # as the directory is named
            sectors = SectorCache(portals, content.reader.loader, queue, content.nursery)
            remote = RemoteSkyfiles(sectors, content.reader, WaitingThreads())
            both = replace(
                storage,
                content=UpstreamContent(storage.content, remote),
                entries=UpstreamEntries(portals, storage.entries),
                names=UpstreamNames(portals, storage.names),
            )
            yield both, Loops(partial(_announce, portals, config))
    except CacheError as error:
        raise StorageError(str(error)) from None


def _announce(portals: Portals, config: PortalConfig, downstream: str) -> None:
    """Let the requests to upstream say which portals depend on them."""
    for client in portals.clients:
        given = config.upstream[client.url]
        client.set_credentials(replace(given, headers=(*given.headers, (HEADER, downstream))))

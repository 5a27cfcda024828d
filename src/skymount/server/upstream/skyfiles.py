"""Skyfiles of upstream portals, as the portal's endpoints read stored ones.

The base sector says where everything else is. The payload is read by `content.fetch`, as a mount
reads it: chunk by chunk, each proved before any of it is served, with read-ahead. Spilled metadata
and encrypted content are read sector by sector.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio
from cachetools import LRUCache

from skymount.content.cache.block_format import BlockKey
from skymount.content.fetch.reader import ContentFile, ContentReader
from skymount.content.model.listing import unpack
from skymount.content.model.listing_builder import tabulate
from skymount.content.model.skyfile import Skyfile, Verified
from skymount.errors import BadContentError, MalformedError
from skymount.server.http_error import HttpError
from skymount.server.storage.stored_range import OpenBytes, StoredRange
from skymount.server.upstream.failures import upstream_errors
from skymount.server.upstream.sectors import SectorCache, base_key, sector_key
from skymount.wire.base_sector import (
    Layout,
    check_fanout,
    parse_base_sector,
    spilled_level_sizes,
)
from skymount.wire.metadata import Metadata, encode_metadata
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

WAITING = 256
"""Threads that may wait for upstream; each download has one while it waits."""

_ABSENT = "failed to fetch skylink: root not found"
_ABSENT_ROOT = "failed to fetch root: root not found"
_TABLES = 64 << 20  # bytes of Merkle roots of payloads in memory
_OVERHEAD = 2 << 10  # bytes

T = TypeVar("T")


class UpstreamSkyfiles:
    """The skyfiles of upstream portals."""

    def __init__(self, sectors: SectorCache, reader: ContentReader) -> None:
        self._sectors = sectors
        self._reader = reader
        self._token = trio.lowlevel.current_trio_token()
        self._slots = trio.CapacityLimiter(WAITING)
        self._skyfiles: LRUCache[Skylink, Skyfile] = LRUCache(
            _TABLES, getsizeof=lambda skyfile: len(skyfile.fanout) + _OVERHEAD
        )

    async def base(self, skylink: Skylink) -> StoredRange:
        """Return the base sector of a v1 skylink; HttpError if it cannot be had."""
        with upstream_errors(_ABSENT):
            data = await self._sectors.base(skylink)
        return StoredRange(_Sector(self, partial(self._sectors.base, skylink)), 0, len(data))

    async def sector(self, root: bytes) -> StoredRange:
        """Return the sector of a Merkle root; HttpError if it cannot be had."""
        with upstream_errors(_ABSENT_ROOT):
            await self._sectors.sector(root)
        return StoredRange(self.sectors(root), 0, SECTOR_SIZE)

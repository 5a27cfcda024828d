"""Base sectors and other sectors of upstream portals: proved, shared, and kept on disk.

A base sector is kept as its used bytes, under its skylink; any other sector as a whole, under its
Merkle root. They are proved when they arrive. The disk is trusted but for damage, which its
checksums find: then they are fetched again.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio
from cachetools import LRUCache

from skymount.concurrency import off_loop
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.memory_cache import Data
from skymount.content.cache.write_behind import WriteBehindQueue
from skymount.content.fetch.fetch_job import Pending
from skymount.content.fetch.skyfile_loader import SkyfileLoader
from skymount.errors import (
    BadContentError,
    DisprovedError,
    MalformedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.wire import base_sector, merkle
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_MEMORY = 64 << 20  # bytes of sectors in memory
_FETCHES = 16  # sectors that are fetched at once
_TOUCH_SECONDS = 30.0  # the use of a sector is noted on disk at most this often
_REMEMBERED = 4096  # sectors whose use was noted

QUEUED = 32 << 20
"""Bytes that wait for the disk; nothing more is fetched until there are fewer."""

_QUEUE_POLL = 0.02  # seconds between two looks

_log = logging.getLogger(__name__)


def base_key(skylink: Skylink) -> BlockKey:
    """Return the key of a base sector; `DiskCache` touches it when the payload is used."""
    return BlockKey(str(skylink), 0, 0, 0)


def sector_key(root: bytes) -> BlockKey:
    """Return the key of any other sector."""
    return BlockKey(root.hex(), SECTOR_SIZE, SECTOR_SIZE, 0)


class SectorCache:
    """The sectors that were fetched, and the ones that are being fetched."""

    def __init__(
        self,
        portals: Portals,
        loader: SkyfileLoader,
        queue: WriteBehindQueue,
        nursery: trio.Nursery,
    ) -> None:
        """`loader` proves content of portals that hand out no base sectors."""
        self._portals = portals
        self._loader = loader
        self._queue = queue
        self._nursery = nursery
        self._memory: LRUCache[BlockKey, Data] = LRUCache(_MEMORY, getsizeof=len)
        self._pending: dict[BlockKey, Pending] = {}
        self._fetches = trio.CapacityLimiter(_FETCHES)
        self._touched: LRUCache[BlockKey, float] = LRUCache(_REMEMBERED)

    async def base(self, skylink: Skylink) -> Data:
        """Return the base sector of a v1 skylink: the used bytes, or all if it is encrypted.

        PortalError if no portal has it, or can prove it.
        """
        return await self._get(base_key(skylink), partial(self._fetch_base, skylink))

    async def sector(self, root: bytes) -> Data:
        """Return the sector of a Merkle root; PortalError if no portal has it."""
        return await self._get(sector_key(root), partial(self._fetch_sector, root))

    def fetch_ahead(self, roots: Iterable[bytes]) -> None:
        """Begin to fetch sectors by their Merkle roots, unless they are in memory."""
        for root in roots:
            key = sector_key(root)
            if key not in self._memory and key not in self._pending:
                self._start(key, partial(self._fetch_sector, root))

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note the use of sectors, so that what goes with them on disk is not useless."""
        now = time.monotonic()
        for key in keys:
            if now >= self._touched.get(key, 0.0):
                self._touched[key] = now + _TOUCH_SECONDS
                self._queue.touch(key)

    async def wait_for_disk(self) -> None:
        """Wait until the disk has caught up with what was fetched."""
        while True:
            if self._queue.queued_bytes <= QUEUED:
                break
            await trio.sleep(_QUEUE_POLL)

    async def _get(self, key: BlockKey, fetch: Callable[[], Awaitable[Data]]) -> Data:
        """Return a sector from memory or disk, or fetch it. All who want it share one fetch. Once
        begun it outlasts readers that give up.
        """
        found = self._memory.get(key)
        if found is not None:
            self.touch([key])
            return found
        pending = self._pending.get(key) or self._start(key, fetch)
        pending.waiting += 1
        try:
            return await pending.wait()
        finally:
            pending.waiting -= 1

    def _start(self, key: BlockKey, fetch: Callable[[], Awaitable[Data]]) -> Pending:
        pending = self._pending[key] = Pending()
        self._nursery.start_soon(self._run, key, pending, fetch)
        return pending

    async def _run(
        self, key: BlockKey, pending: Pending, fetch: Callable[[], Awaitable[Data]]
    ) -> None:
        data: Data | None = None
        error: PortalError | None = None
        try:
            (data,) = await self._queue.read([key])  # waits for no fetch, as all may hang
            if data is None:
                data = await self._fetch(pending, fetch)
                self._queue.offer(key, data)
            self._memory[key] = data
        except PortalError as problem:
            error = problem
        except MalformedError as problem:
            error = BadContentError(str(problem))
        except Exception as problem:  # noqa: BLE001  # a bug must not end the portal
            error = PortalError(f"fetching failed: {problem!r}")
            _log.exception("%s: fetching failed", key.skylink)
        finally:
            del self._pending[key]
            pending.settle(data, error)

    async def _fetch(self, pending: Pending, fetch: Callable[[], Awaitable[Data]]) -> Data:
        """Fetch a sector when it is its turn, unless nobody waits for it any more then."""
        has_to_wait = not self._fetches.available_tokens
        async with self._fetches:
            if has_to_wait and not pending.waiting:
                raise PortalError("nobody waits for it any more")
            await self.wait_for_disk()
            return await fetch()

    async def _fetch_sector(self, root: bytes) -> bytes:
        return await self._portals.first(lambda client: client.sector(root, SECTOR_SIZE))

    async def _fetch_base(self, skylink: Skylink) -> bytes:
        try:
            if skylink.offset:  # a packed sector: only all of it can be proved
                whole = await self._fetch_sector(skylink.root)
                return whole[skylink.offset : skylink.offset + skylink.fetch_size]
            return await self._portals.first(partial(_base_from, skylink=skylink))
        except (NotFoundError, RequestRefusedError):
            return await self._rebuilt(skylink)

    async def _rebuilt(self, skylink: Skylink) -> bytes:
        """Make the base sector of small content of portals that hand out none."""
        loaded = await self._loader.load(skylink)
        if loaded.payload is None:
            raise BadContentError(f"{skylink}: nothing proves that it is the content")
        async with self._loader.open_metadata(loaded.skyfile) as (file, start):
            raw = file.get(start, len(file) - start)
        for cipher in (base_sector.CIPHER_PLAIN, base_sector.CIPHER_LEGACY_PLAIN):
            made = base_sector.build_inline(raw, bytes(loaded.payload), cipher)
            if await off_loop(partial(merkle.sector_root, made), len(made)) == skylink.root:
                return made
        raise DisprovedError(f"{skylink}: it is not the content")


async def _base_from(client: PortalReader, skylink: Skylink) -> bytes:
    """Return the base sector that a portal sends, or all of the sector if that alone proves it."""
    data = await client.base_sector(skylink)
    try:
        is_plain = base_sector.Layout.parse(data).is_plain
    except MalformedError as error:
        raise BadContentError(f"{skylink}: {error}", url=client.url) from None
    if await off_loop(partial(merkle.sector_root, data), len(data)) == skylink.root:
        return data
    if is_plain:
        raise DisprovedError(f"{skylink}: the base sector is not the content", url=client.url)
    try:  # an encrypted sector is used up to its end
        return await client.sector(skylink.root, SECTOR_SIZE)
    except (NotFoundError, RequestRefusedError) as error:
        text = f"{skylink}: nothing proves that it is the content: {error.message}"
        raise BadContentError(text, url=client.url) from None

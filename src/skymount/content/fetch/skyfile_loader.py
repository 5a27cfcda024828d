"""Finds out what a skylink is: from its base sector, else from what a portal says of it.

The base sector (docs/wire.md 2.1, 4.7) answers everything in one request: it hashes to the skylink
and holds layout, metadata and, for small content, the payload. Without it the metadata comes from
the headers or the metadata endpoint, and small content is verified by rebuilding the base sector.
"""

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import NamedTuple

import trio
from cachetools import LRUCache

from skymount.concurrency import in_thread, off_loop, run_all
from skymount.content.fetch.range_request import receive
from skymount.content.model.listing import Listing, Packed, unpack
from skymount.content.model.listing_builder import tabulate
from skymount.content.model.skyfile import (
    BLOCK_SIZE,
    LoadedSkyfile,
    Skyfile,
    Verified,
    VerifyPolicy,
)
from skymount.content.worker.shared_memory import FileReceiver, MemoryFile, open_memory_file
from skymount.content.worker.worker_process import tabulate_in_worker
from skymount.errors import (
    BadContentError,
    DisprovedError,
    MalformedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
)
from skymount.portal.client.base import ContentHead, PortalReader
from skymount.portal.failover.portals import Portals
from skymount.portal.http.connection_pool import is_in_background
from skymount.wire import base_sector as sector
from skymount.wire import merkle
from skymount.wire.skylink import SECTOR_SIZE, Skylink

log = logging.getLogger(__name__)

_PROVISIONAL_LOGGED = 1024  # skylinks that were logged as provisional

_PARALLEL_SECTORS = 4

_SMALL_METADATA = 96 << 10
"""Bytes of metadata that are parsed in a thread. The parser holds the GIL, for up to 5 ms then.
Longer metadata go to a worker process, whose start takes 0.1 s.
"""


class SkyfileLoader:
    """Finds out what a skylink is. Keeps no results: callers do."""

    def __init__(
        self, portals: Portals, policy: VerifyPolicy, block_size: int = BLOCK_SIZE
    ) -> None:
        self._portals = portals
        self._policy = policy
        self._block_size = block_size
        self._with_base_sectors: set[PortalReader] = set()
        self._worker_slot = trio.CapacityLimiter(1)  # a worker may take a gigabyte
        self._logged: LRUCache[Skylink, bool] = LRUCache(_PROVISIONAL_LOGGED)
        self._provisional = count(1)
        self.fetched = 0
        """Bytes from portals: descriptions, and small content that comes with them."""

    async def load(self, skylink: Skylink) -> LoadedSkyfile:
        """Describe a v1 skylink; PortalError when no portal can.

        What could not be verified is only a portal's word: all other portals are asked for a proof
        before it is believed. It is provisional if one of them failed.
        """

        async def ask(client: PortalReader) -> LoadedSkyfile:
            return await self._portals.budget.run(partial(self._describe, client, skylink))

        async def probe(client: PortalReader) -> None:
            await client.sample(skylink)

        if not self._is_provable(skylink):
            return await self._portals.first(ask, probe=probe)
        found, failed = await self._portals.best(ask, _is_proven, probe=probe)
        self._log_provisional(found.skyfile, failed)
        if not failed:
            return found
        number = next(self._provisional)
        return replace(found, skyfile=replace(found.skyfile, provisional=number))

    def _is_provable(self, skylink: Skylink) -> bool:
        """Whether a proof is wanted and possible; none is for skylinks into a packed sector."""
        return self._policy is not VerifyPolicy.OFF and not skylink.offset

    def _log_provisional(self, skyfile: Skyfile, failed: Collection[PortalReader]) -> None:
        """Log once that a description is provisional, and once that it no longer is."""
        skylink = skyfile.skylink
        if not failed:
            if self._logged.pop(skylink, None):
                text = "%s: no longer provisional: described by %s, verified: %s"
                log.warning(text, skylink, skyfile.portal, skyfile.verified.value)
        elif skylink not in self._logged:
            self._logged[skylink] = True
            text = "%s: provisional: %s sends no proof, and failed to answer: %s; asking again"
            urls = ", ".join(sorted(client.url for client in failed))
            log.warning(text, skylink, skyfile.portal, urls)

    def is_enough(self, skyfile: Skyfile) -> bool:
        """Whether a description from disk is used without asking the portals for a proof again."""
        return skyfile.verified is not Verified.NO or not self._is_provable(skyfile.skylink)

    async def payload(self, skyfile: Skyfile) -> bytes | memoryview:
        """Fetch and verify the payload of an inline skyfile again."""
        loaded = await self.load(skyfile.skylink)
        if loaded.payload is None:
            raise BadContentError("the portals no longer agree on what this skylink is")
        return loaded.payload

    @asynccontextmanager
    async def open_metadata(self, skyfile: Skyfile) -> AsyncIterator[tuple[MemoryFile, int]]:
        """Fetch the metadata of verified content as they are stored; yield a file, and where in it
        they begin.

        They come from a portal that proves them again, as the description has a part of them only.
        """
        async with open_memory_file() as file:

            async def ask(client: PortalReader) -> int:
                await in_thread(partial(file.truncate, 0))
                fetch = partial(self._fetch_metadata, client, skyfile, file)
                try:
                    return await self._portals.budget.run(fetch)
                except MalformedError as error:
                    raise BadContentError(str(error), url=client.url) from error

            yield file, await self._portals.first(ask, hedged=False)

    async def _fetch_metadata(
        self, client: PortalReader, skyfile: Skyfile, file: MemoryFile
    ) -> int:
        found = await self._base_sector(client, skyfile.skylink)
        if found is None:
            receiver = FileReceiver(file)
            await client.metadata_into(skyfile.skylink, receiver)
            receiver.finish()
            raw = file.get(0, receiver.size) if receiver.size <= SECTOR_SIZE else None
            if raw is None or await self._verified_payload(client, skyfile, raw) is None:
                raise BadContentError("its metadata cannot be verified", url=client.url)
            return 0
        base = found.sector
        if base is None:
            raise DisprovedError(f"{skyfile.skylink}: it is not encrypted", url=client.url)
        if base.layout.is_extended:
            await self._fetch_spilled(client, base.layout, base.roots, file)
            return base.layout.fanout_size
        await in_thread(partial(file.put, base.metadata))
        return 0

    async def _describe(self, client: PortalReader, skylink: Skylink) -> LoadedSkyfile:
        try:
            base: _Base | None = None
            head: ContentHead | None = None
            if self._is_provable(skylink):
                base, head = await self._fetch_base_and_head(client, skylink)
            if base is not None and base.sector is not None:
                return await self._from_base_sector(client, skylink, base.sector)
            if head is None:
                head = await client.head(skylink)
            loaded = await self._from_head(client, skylink, head, is_encrypted=base is not None)
            return loaded if base is None else replace(loaded, is_final=base.is_authentic)
        except MalformedError as error:
            raise BadContentError(str(error), url=client.url) from error

    # With the base sector

    async def _fetch_base_and_head(
        self, client: PortalReader, skylink: Skylink
    ) -> "tuple[_Base | None, ContentHead | None]":
        """Fetch the base sector and, from a portal that never sent one, the headers at the same
        time, to save a round trip that somebody waits for.
        """
        base: _Base | None = None
        head: ContentHead | None = None

        async def fetch_head() -> None:
            nonlocal head
            with suppress(PortalError):  # it is requested again if it is needed
                head = await client.head(skylink)

        async def fetch_base() -> None:
            nonlocal base
            base = await self._base_sector(client, skylink)
            if base is not None:
                scope.cancel()

        if client in self._with_base_sectors or is_in_background():
            return await self._base_sector(client, skylink), None
        with trio.CancelScope() as scope:
            await run_all(fetch_head, fetch_base)
        return base, head

    async def _base_sector(self, client: PortalReader, skylink: Skylink) -> "_Base | None":
        """Fetch and check the base sector; None when the portal does not hand it out."""
        try:
            data = await client.base_sector(skylink)
        except (NotFoundError, RequestRefusedError):
            return None
        self.fetched += len(data)
        layout = sector.Layout.parse(data)
        root = await off_loop(partial(merkle.sector_root, data), len(data))
        is_authentic = root == skylink.root
        if not is_authentic:
            if layout.is_plain:
                raise DisprovedError(
                    f"{skylink}: the base sector is not the content", url=client.url
                )
            is_authentic = await self._is_encrypted(client, skylink, data)
        self._with_base_sectors.add(client)
        # of an encrypted one even the sizes in its layout are encrypted
        return _Base(sector.parse_base_sector(data) if layout.is_plain else None, is_authentic)

    async def _is_encrypted(self, client: PortalReader, skylink: Skylink, data: bytes) -> bool:
        """Whether `data` is the start of a sector that is encrypted up to its end, so that the used
        bytes alone do not hash to the skylink. DisprovedError when it is not.

        False for a portal that does not hand out whole sectors. It is believed: encrypted content
        cannot be verified anyway.
        """
        try:
            whole = await client.sector(skylink.root, SECTOR_SIZE)
        except (NotFoundError, RequestRefusedError):
            return False
        self.fetched += len(whole)
        if not whole.startswith(data):
            raise DisprovedError(f"{skylink}: the base sector is not the content", url=client.url)
        return True

    async def _from_base_sector(
        self, client: PortalReader, skylink: Skylink, base: sector.BaseSector
    ) -> LoadedSkyfile:
        layout = base.layout
        if not layout.is_verifiable and self._policy is VerifyPolicy.REQUIRE:
            raise MalformedError(f"{skylink}: its chunks are too large to verify")
        fanout: Packed = base.fanout
        if layout.is_extended:
            async with open_memory_file() as body:
                await self._fetch_spilled(client, layout, base.roots, body)
                listing = await self._listing_in(body, layout.fanout_size, layout.filesize, None)
                await in_thread(partial(body.truncate, layout.fanout_size))
                fanout = body.content()
        else:
            listing = await self._listing(base.metadata, layout.filesize, None)
        if not layout.is_inline:
            sector.check_fanout(layout, fanout)
        skyfile = Skyfile(
            skylink=skylink,
            listing=listing,
            size=layout.filesize,
            portal=client.url,
            verified=Verified.YES if layout.is_verifiable else Verified.PARTLY,
            fanout=fanout if layout.is_verifiable else b"",
            layout=layout if layout.is_verifiable else None,
            inline=layout.is_inline,
            block_size=self._block_size,
        )
        return LoadedSkyfile(skyfile, base.payload)

    async def _fetch_spilled(
        self, client: PortalReader, layout: sector.Layout, roots: bytes, body: MemoryFile
    ) -> None:
        *above, last = sector.spilled_level_sizes(layout)
        for size in above:
            async with open_memory_file() as file:
                await self._fetch_level(client, roots, size, file)
                roots = await in_thread(partial(file.get, 0, size))
        await self._fetch_level(client, roots, last, body)

    async def _fetch_level(
        self, client: PortalReader, roots: bytes, size: int, file: MemoryFile
    ) -> None:
        limiter = trio.CapacityLimiter(_PARALLEL_SECTORS)

        async def fetch(offset: int, root: bytes, length: int) -> None:
            async with limiter:
                data = await client.sector(root, length)
                self.fetched += len(data)
                await in_thread(partial(file.put, data, offset))

        await run_all(*(partial(fetch, *each) for each in sector.sectors_of_level(roots, size)))

    # Without it

    async def _from_head(
        self, client: PortalReader, skylink: Skylink, head: ContentHead, *, is_encrypted: bool
    ) -> LoadedSkyfile:
        """Describe a skylink by a portal's word; small content is verified unless encrypted."""
        raw = head.metadata
        if raw is not None:
            self.fetched += len(raw)
            listing = await self._listing(raw, None, head.size)
        else:
            raw, listing = await self._from_endpoint(client, skylink, head)
        skyfile = Skyfile(skylink, listing, listing.size, client.url, Verified.NO)
        skyfile = replace(skyfile, block_size=self._block_size)
        payload = None
        if raw and self._is_provable(skylink) and not is_encrypted:
            payload = await self._verified_payload(client, skyfile, raw)
        if payload is not None:
            skyfile = replace(skyfile, verified=Verified.YES, inline=True)
        elif self._policy is VerifyPolicy.REQUIRE:
            raise MalformedError(f"{skylink}: it cannot be verified, and verify is require")
        return LoadedSkyfile(skyfile, payload)

    async def _from_endpoint(
        self, client: PortalReader, skylink: Skylink, head: ContentHead
    ) -> tuple[bytes | None, Listing]:
        """Return metadata (None if they do not fit a base sector) and their listing."""
        async with open_memory_file() as file:
            receiver = FileReceiver(file)
            try:
                await client.metadata_into(skylink, receiver)
            except NotFoundError:
                if head.failure is not None:  # then it is not known that there is none
                    raise head.failure from None
                raise
            receiver.finish()
            self.fetched += receiver.size
            listing = await self._listing_in(file, 0, None, head.size)
            return file.get(0, receiver.size) if receiver.size <= SECTOR_SIZE else None, listing

    async def _verified_payload(
        self, client: PortalReader, skyfile: Skyfile, raw: bytes
    ) -> bytes | None:
        """Fetch and verify a small payload; None for one that does not fit a base sector."""
        skylink = skyfile.skylink
        used = sector.LAYOUT_SIZE + len(raw) + skyfile.size
        if used > SECTOR_SIZE:
            return None
        if Skylink.v1(skylink.root, used).bitfield != skylink.bitfield:
            raise MalformedError(f"{skylink}: it is not of that size")
        received = bytearray(skyfile.size)
        if received:
            async with aclosing(receive(client, skyfile, 0, [memoryview(received)], set())) as each:
                async for _ in each:
                    pass
        self.fetched += len(received)
        payload = bytes(received)
        if not await off_loop(partial(sector.is_inline, skylink.root, raw, payload)):
            raise DisprovedError(f"{skylink}: it is not the content", url=client.url)
        return payload

    # Metadata

    async def _listing(
        self, raw: bytes | memoryview, size: int | None, default_size: int | None
    ) -> Listing:
        """Make the listing of metadata; the sizes are those of `tabulate`."""
        if len(raw) <= _SMALL_METADATA:
            work = partial(_tabulated, bytes(raw), size, default_size)
            return await off_loop(work, len(raw))
        async with open_memory_file() as file:
            await in_thread(partial(file.put, raw))
            return await self._listing_in(file, 0, size, default_size)

    async def _listing_in(
        self, file: MemoryFile, start: int, size: int | None, default_size: int | None
    ) -> Listing:
        length = len(file) - start
        if length <= _SMALL_METADATA:
            return await self._listing(file.get(start, length), size, default_size)
        async with self._worker_slot:
            packed = await tabulate_in_worker(file, start, size, default_size)
        return await off_loop(partial(unpack, packed, is_checked=True))


class _Base(NamedTuple):
    """What a portal sent as the base sector."""

    sector: sector.BaseSector | None  # None if it is encrypted
    is_authentic: bool  # it, or the encrypted sector that it begins, hashes to the skylink


def _is_proven(loaded: LoadedSkyfile) -> bool:
    return loaded.is_final or loaded.skyfile.verified is not Verified.NO


def _tabulated(raw: bytes, size: int | None, default_size: int | None) -> Listing:
    return unpack(tabulate(raw, size, default_size))

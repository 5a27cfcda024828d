"""Owns finding out what a skylink is: from its base sector where a portal hands that out, else
from a portal's word, checked as far as it can be.

The base sector (wire notes 2.1, 4.7) answers everything in one request: it hashes to the skylink
and holds layout, metadata and, for small content, the payload. Without it the metadata comes by
header or by its endpoint, and small content is checked by putting the base sector together again.
"""

import logging
from collections.abc import Collection
from contextlib import aclosing, suppress
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
from skymount.content.worker.worker_process import tabulate_file_in_worker, tabulate_in_worker
from skymount.errors import (
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
)
from skymount.portal.client.base import ContentHead, PortalReader
from skymount.portal.failover import Portals
from skymount.wire import base_sector as sector
from skymount.wire import merkle
from skymount.wire.skylink import SECTOR_SIZE, Skylink

log = logging.getLogger(__name__)

_DOUBTED = 1024
"""Skylinks of which it is remembered that the log has a line on their being provisional."""

_PARALLEL_SECTORS = 4

_SMALL_METADATA = 96 << 10
"""Bytes of metadata that a thread reads; the loop waits up to 5 ms for that, as parsers let no
other thread run meanwhile. More is for a worker process, whose start costs 0.1 s. What only the
lenient parser takes cannot be told before; of so many bytes it takes no longer.
"""


class SkyfileLoader:
    """Finds out what a skylink is. Holds no results: callers keep them."""

    def __init__(
        self, portals: Portals, policy: VerifyPolicy, block_size: int = BLOCK_SIZE
    ) -> None:
        self._portals = portals
        self._policy = policy
        self._block_size = block_size
        self._with_base_sectors: set[PortalReader] = set()
        self._worker = trio.CapacityLimiter(1)  # one such process takes a gigabyte
        self._doubted: LRUCache[Skylink, bool] = LRUCache(_DOUBTED)
        self._provisional = count(1)
        self.fetched = 0
        """Bytes that came from portals: descriptions, and small content along with them."""

    async def load(self, skylink: Skylink) -> LoadedSkyfile:
        """Describe a v1 skylink; PortalError when no portal can.

        A description that could not be checked is a portal's mere word: every other portal is asked
        for a better one before it is believed. It is provisional if one of them failed.
        """
        ask = partial(self._load_from, skylink=skylink)
        if self._policy is VerifyPolicy.OFF or skylink.offset:  # no portal can prove a packed one
            return await self._portals.first(ask)
        found, failed = await self._portals.best(ask, _is_checked)
        self._log_doubt(found.skyfile, failed)
        if not failed:
            return found
        number = next(self._provisional)
        return replace(found, skyfile=replace(found.skyfile, provisional=number))

    def _log_doubt(self, skyfile: Skyfile, failed: Collection[PortalReader]) -> None:
        """Log that a description is provisional, and that it no longer is; once each."""
        skylink = skyfile.skylink
        if not failed:
            if self._doubted.pop(skylink, None):
                log.warning(
                    "%s: no longer provisional: described by %s, verified: %s",
                    skylink,
                    skyfile.portal,
                    skyfile.verified.value,
                )
        elif skylink not in self._doubted:
            self._doubted[skylink] = True
            log.warning(
                "%s: provisional: %s sends no proof, and failed to answer: %s; asking again",
                skylink,
                skyfile.portal,
                ", ".join(sorted(client.url for client in failed)),
            )

    def is_enough(self, skyfile: Skyfile) -> bool:
        """Whether a description that was kept on disk is used without asking portals for a better
        one. That there was none when it was kept does not say that there is none now.
        """
        is_hopeless = self._policy is VerifyPolicy.OFF or skyfile.skylink.offset != 0
        return is_hopeless or skyfile.verified is not Verified.NO

    async def payload(self, skyfile: Skyfile) -> bytes | memoryview:
        """Fetch the payload of an inline skyfile again, checked as it was at first."""
        loaded = await self.load(skyfile.skylink)
        if loaded.payload is None:
            raise BadContentError("the portals no longer agree on what this skylink is")
        return loaded.payload

    async def _load_from(self, client: PortalReader, skylink: Skylink) -> LoadedSkyfile:
        return await self._portals.budget.run(partial(self._described_by, client, skylink))

    async def _described_by(self, client: PortalReader, skylink: Skylink) -> LoadedSkyfile:
        try:
            base: _Base | None = None
            head: ContentHead | None = None
            if self._policy is not VerifyPolicy.OFF and not skylink.offset:
                # the root of a packed one (offset) proves nothing
                base, head = await self._ask(client, skylink)
            if base is not None and base.sector is not None:
                return await self._from_base_sector(client, skylink, base.sector)
            if head is None:
                head = await client.head(skylink)
            loaded = await self._from_head(client, skylink, head, encrypted=base is not None)
            return loaded if base is None else replace(loaded, is_final=base.is_authentic)
        except MalformedError as error:
            raise BadContentError(str(error), url=client.url) from error

    async def _ask(
        self, client: PortalReader, skylink: Skylink
    ) -> "tuple[_Base | None, ContentHead | None]":
        """Ask for the base sector, and of a portal that never gave one for the headers as well.

        Both at once: one after the other would cost the first read a round trip more.
        """
        if client in self._with_base_sectors:
            return await self._base_sector(client, skylink), None
        head: ContentHead | None = None
        base: _Base | None = None
        failure: PortalError | MalformedError | None = None

        async def ask_head() -> None:
            nonlocal head
            with suppress(PortalError):  # it is asked for again, if it is needed at all
                head = await client.head(skylink)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_head)
            try:
                base = await self._base_sector(client, skylink)
            except (PortalError, MalformedError) as error:
                failure = error
            if base is not None or failure is not None:
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return base, head

    async def _base_sector(self, client: PortalReader, skylink: Skylink) -> "_Base | None":
        """Fetch the base sector and check it; None when the portal does not give that out."""
        try:
            data = await client.base_sector(skylink)
        except (NotFoundError, RequestRefusedError):
            return None
        self.fetched += len(data)
        layout = sector.Layout.parse(data)
        is_authentic = await off_loop(partial(merkle.sector_root, data), len(data)) == skylink.root
        if not is_authentic:
            if layout.is_plain:
                text = f"{skylink}: the base sector is not the content"
                raise BadContentError(text, url=client.url)
            is_authentic = await self._is_encrypted(client, skylink, data)
        self._with_base_sectors.add(client)
        if not layout.is_plain:  # all that could be parsed is encrypted, its own sizes too
            return _Base(None, is_authentic)
        return _Base(sector.parse_base_sector(data), is_authentic)

    async def _is_encrypted(self, client: PortalReader, skylink: Skylink, data: bytes) -> bool:
        """Whether `data` is the start of the sector, which is encrypted up to its end, so that the
        used bytes alone do not hash to the skylink; BadContentError when it is not.

        False for a portal that does not hand out the rest. It is believed: nothing of such content
        can be verified anyway.
        """
        try:
            whole = await client.sector(skylink.root, SECTOR_SIZE)
        except (NotFoundError, RequestRefusedError):
            return False
        self.fetched += len(whole)
        if not whole.startswith(data):
            raise BadContentError(f"{skylink}: the base sector is not the content", url=client.url)
        return True

    async def _from_base_sector(
        self, client: PortalReader, skylink: Skylink, base: sector.BaseSector
    ) -> LoadedSkyfile:
        """Describe it from its base sector, which is authentic."""
        layout = base.layout
        fanout: Packed = base.fanout
        if layout.is_extended:
            async with open_memory_file() as body:
                await self._spilled_body(client, layout, base.roots, body)
                listing = await self._listing_in(body, layout.fanout_size, layout.filesize, None)
                await in_thread(partial(body.truncate, layout.fanout_size))
                fanout = body.content()
                _check_usable(client, skylink, layout, fanout, self._policy)
        else:
            _check_usable(client, skylink, layout, fanout, self._policy)
            listing = await self._listing(base.metadata, layout.filesize, None)
        checkable = layout.is_verifiable
        skyfile = Skyfile(
            skylink=skylink,
            listing=listing,
            size=layout.filesize,
            portal=client.url,
            verified=Verified.YES if checkable else Verified.PARTLY,
            fanout=fanout if checkable else b"",
            layout=layout if checkable else None,
            inline=layout.is_inline,
            block_size=self._block_size,
        )
        return LoadedSkyfile(skyfile, base.payload)

    async def _listing(
        self, raw: bytes | memoryview, size: int | None, answered: int | None
    ) -> Listing:
        """Make the listing of metadata; the sizes are those of `tabulate`."""
        if len(raw) <= _SMALL_METADATA:
            return await off_loop(partial(_tabulated, bytes(raw), size, answered), len(raw))
        async with self._worker:
            packed = await tabulate_in_worker(raw, size, answered)
        return await off_loop(partial(unpack, packed, is_checked=True))

    async def _listing_in(
        self, file: MemoryFile, start: int, size: int | None, answered: int | None
    ) -> Listing:
        """The same of metadata that lie in a file, from an offset on."""
        length = len(file) - start
        if length <= _SMALL_METADATA:
            return await self._listing(file.get(start, length), size, answered)
        async with self._worker:
            packed = await tabulate_file_in_worker(file, start, size, answered)
        return await off_loop(partial(unpack, packed, is_checked=True))

    async def _spilled_body(
        self, client: PortalReader, layout: sector.Layout, roots: bytes, body: MemoryFile
    ) -> None:
        """Fetch what did not fit the base sector, level by level."""
        *above, last = sector.spilled_level_sizes(layout)
        for size in above:
            async with open_memory_file() as file:
                await self._fetch_level(client, roots, size, file)
                roots = await in_thread(partial(file.get, 0, size))
        await self._fetch_level(client, roots, last, body)

    async def _fetch_level(
        self, client: PortalReader, roots: bytes, size: int, file: MemoryFile
    ) -> None:
        """Fetch the sectors with these joined roots, a few at a time, into a file outside the
        mount's own memory, which they could fill.
        """
        limiter = trio.CapacityLimiter(_PARALLEL_SECTORS)

        async def fetch(offset: int, root: bytes, length: int) -> None:
            async with limiter:
                data = await client.sector(root, length)
                self.fetched += len(data)
                await in_thread(partial(file.put, data, offset))

        sectors = sector.sectors_of_level(roots, size)
        await run_all(*(partial(fetch, *each) for each in sectors))

    async def _from_head(
        self,
        client: PortalReader,
        skylink: Skylink,
        head: ContentHead,
        *,
        encrypted: bool = False,
    ) -> LoadedSkyfile:
        """Describe it by the portal's word, checked where the content is small.

        What the portal decrypts cannot be checked against the hash.
        """
        raw = head.metadata
        if raw is not None:
            self.fetched += len(raw)
            listing = await self._listing(raw, None, head.size)
        else:
            raw, listing = await self._from_endpoint(client, skylink, head)
        skyfile = Skyfile(
            skylink=skylink,
            listing=listing,
            size=listing.size,
            portal=client.url,
            verified=Verified.NO,
            block_size=self._block_size,
        )
        payload = None
        if raw and self._policy is not VerifyPolicy.OFF and skylink.offset == 0 and not encrypted:
            payload = await self._checked_payload(client, skyfile, raw)
        if payload is not None:
            skyfile = replace(skyfile, verified=Verified.YES, inline=True)
        elif self._policy is VerifyPolicy.REQUIRE:
            raise BadContentError(
                f"{skylink}: it cannot be verified, and verify is require", url=client.url
            )
        return LoadedSkyfile(skyfile, payload)

    async def _from_endpoint(
        self, client: PortalReader, skylink: Skylink, head: ContentHead
    ) -> tuple[bytes | None, Listing]:
        """Return metadata and their listing; None for what no base sector has room for."""
        async with open_memory_file() as file:
            inflow = FileReceiver(file)
            try:
                await client.metadata_into(skylink, inflow)
            except NotFoundError:
                if head.failure is not None:  # so it is not known that there is none
                    raise head.failure from None
                raise
            inflow.finish()
            self.fetched += inflow.size
            listing = await self._listing_in(file, 0, None, head.size)
            return file.get(0, inflow.size) if inflow.size <= SECTOR_SIZE else None, listing

    async def _checked_payload(
        self, client: PortalReader, skyfile: Skyfile, raw: bytes
    ) -> bytes | None:
        """Fetch small content whole and check it; None when it is not of that kind."""
        skylink = skyfile.skylink
        used = sector.LAYOUT_SIZE + len(raw) + skyfile.size
        if used > SECTOR_SIZE:
            return None
        if Skylink.v1(skylink.root, used).bitfield != skylink.bitfield:
            raise BadContentError(f"{skylink}: it is not of that size", url=client.url)
        received = bytearray(skyfile.size)
        if received:
            views = [memoryview(received)]
            async with aclosing(receive(client, skyfile, 0, views, set())) as units:
                async for _ in units:
                    pass
        self.fetched += len(received)
        payload = bytes(received)
        if not await off_loop(partial(sector.is_inline, skylink.root, raw, payload)):
            raise BadContentError(f"{skylink}: it is not the content", url=client.url)
        return payload


class _Base(NamedTuple):
    """What a portal says is the base sector."""

    sector: sector.BaseSector | None
    """None if it is encrypted."""
    is_authentic: bool
    """Whether it hashes to the skylink."""


def _is_checked(loaded: LoadedSkyfile) -> bool:
    return loaded.is_final or loaded.skyfile.verified is not Verified.NO


def _check_usable(
    client: PortalReader,
    skylink: Skylink,
    layout: sector.Layout,
    fanout: Packed,
    policy: VerifyPolicy,
) -> None:
    """Raise what is wrong with content for which the fan-out stands."""
    if not layout.is_inline:
        sector.check_fanout(layout, fanout)
    if policy is VerifyPolicy.REQUIRE and not layout.is_verifiable:
        raise BadContentError(f"{skylink}: its chunks are too large to verify", url=client.url)


def _tabulated(raw: bytes, size: int | None, answered: int | None) -> Listing:
    return unpack(tabulate(raw, size, answered))

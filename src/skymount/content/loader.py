"""Owns finding out what a skylink is: from its base sector where a portal hands that out, else
from a portal's word, checked as far as it can be.

The base sector (wire notes 2.1, 4.7) answers everything in one request: it hashes to the skylink
and holds layout, metadata and, for small content, the payload. Without it the metadata comes by
header or by its endpoint, and small content is checked by putting the base sector together again.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from skymount.content.skyfile import Policy, Skyfile, Verified
from skymount.errors import (
    BadContentError,
    MalformedError,
    NotFoundError,
    PortalError,
    RequestRefusedError,
)
from skymount.portal.failover import Portals
from skymount.portal.reading import Head, PortalReader
from skymount.wire import merkle, sector
from skymount.wire.metadata import METADATA_LIMIT, Metadata, parse_metadata
from skymount.wire.ranges import ByteRange
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

T = TypeVar("T")

_MISSING_LIMIT = 3
"""Times that a portal refuses base sectors of content it has, until it is not asked for a while."""

_PROOF_WAIT = 5.0
"""Seconds that each other portal has to prove what the first one could only say."""

_MISSING_WHILE = 300.0
"""Seconds of that while: the reason may have been a passing one."""

_HASHING_THREADS = os.cpu_count() or 1
"""Of their own: trio's are shared with name look-ups, which can hang for long."""

_FANOUT_LIMIT = 64 << 20
"""Bytes of fan-out; the roots of 8 TiB of content."""

_PARALLEL_SECTORS = 4

_UNIT_LIMIT = 64 << 20
"""Bytes that must be held to check any of them; real portals need 40 MiB (wire notes 2.3)."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A skyfile, and its payload when that came along with it."""

    skyfile: Skyfile
    payload: bytes | None = None


async def off_loop(work: "partial[T]") -> T:
    """Run CPU-bound work in a thread; a caller that is cancelled does not wait for it."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_limiter())


_run_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("off_loop")


def _limiter() -> trio.CapacityLimiter:
    """Return the limiter of this run of trio."""
    try:
        return _run_limiter.get()
    except LookupError:
        _run_limiter.set(trio.CapacityLimiter(_HASHING_THREADS))
        return _run_limiter.get()


class Loader:
    """Finds out what a skylink is. Holds no results: callers keep them."""

    def __init__(self, portals: Portals, policy: Policy) -> None:
        self._portals = portals
        self._policy = policy
        self._without_base_sectors: dict[PortalReader, tuple[int, float]] = {}

    async def load(self, skylink: Skylink) -> Loaded:
        """Describe a v1 skylink; PortalError when no portal can.

        A description that could not be checked is a portal's mere word: every other portal is asked
        for a better one before it is believed.
        """
        found = await self._portals.first(partial(self._load_from, skylink=skylink))
        if self._policy is Policy.OFF or found.skyfile.verified is not Verified.NO:
            return found
        for client in self._portals.ranked():
            if client.url != found.skyfile.portal:
                with trio.move_on_after(_PROOF_WAIT), suppress(PortalError):
                    other = await self._load_from(client, skylink)
                    if other.skyfile.verified is not Verified.NO:
                        return other
        return found

    async def payload(self, skyfile: Skyfile) -> bytes:
        """Fetch the payload of an inline skyfile again, checked as it was at first."""
        loaded = await self.load(skyfile.skylink)
        if loaded.payload is None:
            raise BadContentError("the portals no longer agree on what this skylink is")
        return loaded.payload

    async def _load_from(self, client: PortalReader, skylink: Skylink) -> Loaded:
        try:
            if not self._wants_base_sector(client, skylink):
                return await self._from_head(client, skylink)
            base = await self._base_sector(client, skylink)
            if base is not None and base.layout.is_plain:
                return await self._from_base_sector(client, skylink, base)
            loaded = await self._from_head(client, skylink, encrypted=base is not None)
            if base is None:  # the portal has the content, so it was the endpoint that it lacks
                missing, _ = self._without_base_sectors.get(client, (0, 0.0))
                self._without_base_sectors[client] = (missing + 1, trio.current_time())
            return loaded
        except MalformedError as error:
            raise BadContentError(str(error), url=client.url) from error

    def _wants_base_sector(self, client: PortalReader, skylink: Skylink) -> bool:
        if self._policy is Policy.OFF or skylink.offset:  # a packed one's root proves nothing
            return False
        missing, last = self._without_base_sectors.get(client, (0, 0.0))
        given_up = missing >= _MISSING_LIMIT and trio.current_time() < last + _MISSING_WHILE
        return self._policy is Policy.REQUIRE or not given_up

    async def _base_sector(
        self, client: PortalReader, skylink: Skylink
    ) -> sector.BaseSector | None:
        """Fetch the base sector and check it; None when the portal does not give that out."""
        try:
            data = await client.base_sector(skylink)
        except (NotFoundError, RequestRefusedError):
            return None
        layout = sector.Layout.parse(data)
        root = await off_loop(partial(merkle.sector_root, data))
        if root != skylink.root and (
            layout.is_plain or await self._differs_encrypted(client, skylink, data)
        ):
            raise BadContentError(f"{skylink}: the base sector is not the content", url=client.url)
        self._without_base_sectors.pop(client, None)
        if not layout.is_plain:  # all that could be parsed is encrypted, its own sizes too
            return sector.BaseSector(layout, b"", b"", b"", None)
        return sector.parse_base_sector(data)

    async def _differs_encrypted(self, client: PortalReader, skylink: Skylink, data: bytes) -> bool:
        """Whether `data` is not the start of the sector, which is encrypted up to its end.

        So the used bytes alone do not hash to the skylink. A portal that does not hand out the
        rest is believed: nothing of such content can be verified anyway.
        """
        try:
            whole = await client.sector(skylink.root, SECTOR_SIZE)
        except (NotFoundError, RequestRefusedError):
            return False
        root = await off_loop(partial(merkle.sector_root, whole))
        return root != skylink.root or not whole.startswith(data)

    async def _from_base_sector(
        self, client: PortalReader, skylink: Skylink, base: sector.BaseSector
    ) -> Loaded:
        """Describe it from its base sector, which is authentic."""
        layout, fanout, raw = base.layout, base.fanout, base.metadata
        if layout.is_extended:
            body = await self._spilled_body(client, layout, base.roots)
            fanout, raw = sector.split_body(layout, body)
        if not layout.is_inline:
            sector.check_fanout(layout, fanout)
        checkable = layout.is_inline or layout.chunk_size <= _UNIT_LIMIT
        if not checkable and self._policy is Policy.REQUIRE:
            raise BadContentError(f"{skylink}: its chunks are too large to verify", url=client.url)
        metadata = await off_loop(partial(parse_metadata, raw))
        skyfile = Skyfile(
            skylink=skylink,
            metadata=metadata,
            size=layout.filesize,
            portal=client.url,
            verified=Verified.YES if checkable else Verified.PARTLY,
            fanout=fanout if checkable else b"",
            layout=layout if checkable else None,
            inline=layout.is_inline,
        )
        return Loaded(skyfile, base.payload)

    async def _spilled_body(
        self, client: PortalReader, layout: sector.Layout, roots: bytes
    ) -> bytes:
        """Fetch what did not fit the base sector, level by level, each sector checked."""
        if layout.metadata_size > METADATA_LIMIT or layout.fanout_size > _FANOUT_LIMIT:
            raise MalformedError("the metadata or the fan-out is over its limit")
        level = roots
        for size in sector.spill_sizes(layout.body_size)[1:]:
            level = await self._sectors(client, level, size)
        return level

    async def _sectors(self, client: PortalReader, roots: bytes, size: int) -> bytes:
        """Fetch the sectors with these joined roots, `size` bytes in all, a few at a time."""
        count = len(roots) // ROOT_SIZE
        found: list[bytes] = [b""] * count
        failures: list[PortalError] = []
        limiter = trio.CapacityLimiter(_PARALLEL_SECTORS)

        async def fetch(index: int) -> None:
            root = roots[index * ROOT_SIZE : (index + 1) * ROOT_SIZE]
            length = min(SECTOR_SIZE, size - index * SECTOR_SIZE)
            try:
                async with limiter:
                    data = await client.sector(root, length)
                    if await off_loop(partial(merkle.sector_root, data)) != root:
                        raise BadContentError("a sector is not the content", url=client.url)
                    found[index] = data
            except PortalError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for index in range(count):
                nursery.start_soon(fetch, index)
        if failures:
            raise failures[0]
        return b"".join(found)

    async def _from_head(
        self, client: PortalReader, skylink: Skylink, *, encrypted: bool = False
    ) -> Loaded:
        """Describe it by the portal's word, checked where the content is small.

        What the portal decrypts cannot be checked against the hash.
        """
        head = await client.head(skylink)
        raw = head.metadata if head.metadata is not None else await client.raw_metadata(skylink)
        metadata = await off_loop(partial(parse_metadata, raw))
        size = _size(metadata, head)
        payload = None
        if self._policy is not Policy.OFF and skylink.offset == 0 and not encrypted:
            payload = await self._checked_payload(client, skylink, raw, size)
        if payload is None and self._policy is Policy.REQUIRE:
            raise BadContentError(f"{skylink}: it cannot be verified", url=client.url)
        skyfile = Skyfile(
            skylink=skylink,
            metadata=metadata,
            size=size,
            portal=client.url,
            verified=Verified.NO if payload is None else Verified.YES,
            inline=payload is not None,
        )
        return Loaded(skyfile, payload)

    async def _checked_payload(
        self, client: PortalReader, skylink: Skylink, raw: bytes, size: int
    ) -> bytes | None:
        """Fetch small content whole and check it; None when it is not of that kind."""
        used = sector.LAYOUT_SIZE + len(raw) + size
        if used > SECTOR_SIZE:
            return None
        if Skylink.v1(skylink.root, used).bitfield != skylink.bitfield:
            raise BadContentError(f"{skylink}: it is not of that size", url=client.url)
        payload = b""
        if size:
            async with client.stream(skylink, "", ByteRange(0, size), size) as pieces:
                payload = b"".join([piece async for piece in pieces])
        if not await off_loop(partial(_is_authentic, skylink, raw, payload)):
            raise BadContentError(f"{skylink}: it is not the content", url=client.url)
        return payload


def _size(metadata: Metadata, head: Head) -> int:
    """Return the payload's size, by the metadata or else by the length of the answer."""
    size = metadata.payload_size if metadata.payload_size is not None else head.size
    if size is None:
        raise MalformedError("neither the metadata nor the answer tells the size")
    return size


def _is_authentic(skylink: Skylink, raw: bytes, payload: bytes) -> bool:
    """Whether metadata and payload make the base sector that the skylink names."""
    return any(
        merkle.sector_root(sector.build_inline(raw, payload, cipher)) == skylink.root
        for cipher in (sector.CIPHER_PLAIN, sector.CIPHER_LEGACY_PLAIN)
    )

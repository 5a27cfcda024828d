"""A skyfile of upstream portals, by the parts that a store has of its own skyfiles.

Its base sector says where everything else is. The payload is read by `content.fetch`, as a mount
reads it: chunk by chunk, each proved before any of it is served, with read-ahead. Spilled metadata
and encrypted content are read sector by sector.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cachetools import LRUCache

from skymount.concurrency import off_loop
from skymount.content.cache.block_format import BlockKey
from skymount.content.fetch.reader import ContentFile, ContentReader
from skymount.content.model.listing import unpack
from skymount.content.model.listing_builder import tabulate
from skymount.content.model.skyfile import Skyfile, Verified
from skymount.errors import BadContentError, MalformedError
from skymount.server.storage.stored_range import StoredBytes, StoredRange, read_range
from skymount.server.upstream.remote_bytes import JoinedSectors, PayloadBytes, SectorBytes
from skymount.server.upstream.sectors import SectorCache, base_key, sector_key
from skymount.server.upstream.waiting_threads import WaitingThreads
from skymount.wire.base_sector import (
    BaseSector,
    Layout,
    check_fanout,
    parse_base_sector,
    spilled_level_sizes,
)
from skymount.wire.metadata import Metadata, encode_metadata
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

_ABSENT = "failed to fetch skylink: root not found"
_FANOUTS = 64 << 20  # bytes of Merkle roots in memory
_OVERHEAD = 4 << 10  # bytes that a skyfile takes besides


@dataclass(frozen=True, slots=True)
class _Readable:
    """A skyfile whose payload can be read."""

    skyfile: Skyfile
    sectors: tuple[BlockKey, ...]
    """What was needed to know it."""


@dataclass(frozen=True, slots=True)
class RemoteSkyfiles:
    """The skyfiles of upstream portals."""

    sectors: SectorCache
    reader: ContentReader
    threads: WaitingThreads
    _readable: LRUCache[Skylink, _Readable] = field(
        default_factory=lambda: LRUCache(
            _FANOUTS, getsizeof=lambda each: len(each.skyfile.fanout) + _OVERHEAD
        )
    )

    async def open_payload(self, skylink: Skylink) -> ContentFile:
        """Open the payload of plain content that is not in its base sector; PortalError."""
        found = self._readable.get(skylink)
        if found is None:
            found = await self._describe(skylink)
            if len(found.skyfile.fanout) + _OVERHEAD <= _FANOUTS:
                self._readable[skylink] = found
        self.sectors.touch(found.sectors)
        return self.reader.open(found.skyfile, 0, found.skyfile.size)

    async def body_roots(self, skylink: Skylink) -> bytes:
        """Return the Merkle roots of the sectors that fan-out and metadata were spilled to."""
        data = await self.sectors.base(skylink)
        try:
            base = await off_loop(partial(parse_base_sector, bytes(data)), len(data))
            return await self._body_roots(base, [])
        except MalformedError as error:
            raise BadContentError(f"{skylink}: {error}") from None

    async def _describe(self, skylink: Skylink) -> _Readable:
        data = await self.sectors.base(skylink)
        used = [base_key(skylink)]
        try:
            base = await off_loop(partial(parse_base_sector, bytes(data)), len(data))
            layout, fanout = base.layout, base.fanout
            if layout.is_extended:
                fanout = await self._spilled(await self._body_roots(base, used), used, layout)
            check_fanout(layout, fanout)
            if not layout.is_verifiable:
                raise MalformedError(f"{skylink}: its chunks are too large to prove")
            return _Readable(_skyfile(skylink, layout, fanout), tuple(used))
        except MalformedError as error:
            raise BadContentError(f"{skylink}: {error}") from None

    async def _body_roots(self, base: BaseSector, used: list[BlockKey]) -> bytes:
        roots = base.roots
        for size in spilled_level_sizes(base.layout)[:-1]:
            roots = (await self._joined(roots, used))[:size]
        return roots

    async def _spilled(self, roots: bytes, used: list[BlockKey], layout: Layout) -> bytes:
        """Return the fan-out, with which the body begins."""
        count = -(-layout.fanout_size // SECTOR_SIZE)
        joined = await self._joined(roots[: count * ROOT_SIZE], used)
        used += map(sector_key, _split(roots)[count:])
        return joined[: layout.fanout_size]

    async def _joined(self, roots: bytes, used: list[BlockKey]) -> bytes:
        wanted = _split(roots)
        used += map(sector_key, wanted)
        found = []
        for at, root in enumerate(wanted):
            self.sectors.fetch_ahead(wanted[at + 1 : at + 3])
            found.append(await self.sectors.sector(root))
        return b"".join(found)


@dataclass(frozen=True, slots=True)
class RemoteSkyfile:
    """The parts of one skyfile."""

    _all: RemoteSkyfiles
    _skylink: Skylink

    @property
    def base(self) -> StoredBytes:
        get = partial(self._all.sectors.base, self._skylink)
        return SectorBytes(str(self._skylink), self._all.threads, get)

    @property
    def payload(self) -> StoredBytes:
        get = partial(self._all.open_payload, self._skylink)
        wait = self._all.sectors.wait_for_disk
        return PayloadBytes(str(self._skylink), self._all.threads, get, wait)

    @property
    def extension(self) -> StoredBytes:
        get = partial(self._all.body_roots, self._skylink)
        return self._sectors(partial(self._all.threads.run, get, _ABSENT))

    def encrypted_payload(self, fanout: StoredRange, layout: Layout) -> StoredBytes:
        """Return the sectors of an encrypted payload, by its decrypted fan-out."""

        def roots() -> bytes:
            step = layout.roots_per_chunk * ROOT_SIZE
            joined = read_range(fanout)
            return b"".join(joined[at : at + ROOT_SIZE] for at in range(0, len(joined), step))

        return self._sectors(roots)

    def encrypted_roots(self) -> bytes:
        """Return nothing: the sectors are not listed, but found at upstream."""
        return b""

    def _sectors(self, roots: Callable[[], bytes]) -> StoredBytes:
        return JoinedSectors(str(self._skylink), self._all.threads, self._all.sectors, roots)


def _split(roots: bytes) -> list[bytes]:
    return [roots[at : at + ROOT_SIZE] for at in range(0, len(roots), ROOT_SIZE)]


def _skyfile(skylink: Skylink, layout: Layout, fanout: bytes) -> Skyfile:
    """Return what the reader needs. It reads the payload as a whole, so its files do not matter."""
    size = layout.filesize
    listing = unpack(tabulate(encode_metadata(Metadata(str(skylink), size)), size))
    return Skyfile(skylink, listing, size, "", Verified.YES, fanout, layout)

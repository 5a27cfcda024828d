"""The endpoint that pins (docs/wire.md 4.7). What only upstream has is brought here first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import trio

from skymount.server.http.messages import Request, Response
from skymount.server.http_error import HttpError
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.catalogue_reading import describe_metadata
from skymount.server.storage.catalogue_rows import NewSkyfile
from skymount.server.storage.disk_errors import DiskFullError
from skymount.server.storage.interfaces import Catalogue, ContentStore
from skymount.server.storage.retention.retention import Retention
from skymount.server.storage.skyfile_index import ParsedSkyfile, SkyfileIndex
from skymount.server.storage.stored_range import StoredRange, read_chunks, read_range
from skymount.server.storage.stored_skyfile import BuiltSkyfile, StoredSkyfile
from skymount.server.upload.quota import Quota, Reservation
from skymount.wire.base_sector import LAYOUT_SIZE, build_fanned_out
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

_AT_ONCE = 4  # skyfiles that are brought
_FAILED = "failed to pin: "


def _limiter() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(_AT_ONCE)


@dataclass(frozen=True, slots=True)
class PinEndpoint:
    """The pins of one portal."""

    resolver: SkylinkResolver
    retention: Retention
    index: SkyfileIndex
    store: ContentStore
    catalogue: Catalogue
    quota: Quota
    has_upstream: bool
    _threads: trio.CapacityLimiter = field(default_factory=_limiter)

    async def post(self, request: Request) -> Response:
        resolved = await self.resolver.resolve(request.variables["link"])
        skylink = resolved.skylink
        is_here = await self.retention.pin(skylink)
        if not is_here and self.has_upstream:
            await self._bring(skylink)
            is_here = await self.retention.pin(skylink)
        if not is_here:
            raise HttpError(404, "failed to fetch skylink: root not found")
        return Response(204, resolved.fields, skylink=str(skylink))

    async def _bring(self, skylink: Skylink) -> None:
        """Store a skyfile of upstream here; HttpError."""
        parsed = await self.index.load(skylink)
        stored = parsed.stored
        if skylink.offset:
            raise HttpError(400, f"{_FAILED}it lies in a packed sector")
        try:
            with self.quota.reserving() as room:
                bring = partial(self._store, parsed, room)
                await trio.to_thread.run_sync(bring, limiter=self._threads)
                name, files = describe_metadata(parsed.raw)
                length, is_small = stored.layout.filesize, stored.layout.is_inline
                new = NewSkyfile(skylink, name, files, length, stored.is_encrypted, is_small)
                with trio.CancelScope(shield=True):  # what is published is recorded, too
                    self.retention.changed(skylink)
                    await self.catalogue.add(new)
        except DiskFullError as error:
            raise HttpError(507, f"{_FAILED}{error}") from None

    def _store(self, parsed: ParsedSkyfile, room: Reservation) -> None:
        """Blocks. The sectors are proved when they are read."""
        stored = parsed.stored
        built = _built(parsed)
        trio.from_thread.run_sync(room.take, built.disk_size(stored.layout.filesize))
        upload = self.store.begin()
        try:
            if not stored.layout.is_inline:
                size = stored.layout.filesize
                if stored.is_encrypted:  # its sectors are stored whole, as they are
                    size = len(built.roots) // ROOT_SIZE * SECTOR_SIZE
                chunks = read_chunks(StoredRange(stored.payload.source, 0, size))
                for index, sector in enumerate(_sectors(chunks)):
                    root = built.roots[index * ROOT_SIZE : (index + 1) * ROOT_SIZE]
                    upload.put_sector(index, root, sector)
            upload.publish(stored.skylink, built)
        finally:
            upload.close()


def _sectors(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Join chunks; the last sector may be shorter."""
    joined = bytearray()
    for chunk in chunks:
        joined += chunk
        while len(joined) >= SECTOR_SIZE:
            yield bytes(joined[:SECTOR_SIZE])
            del joined[:SECTOR_SIZE]
    if joined:
        yield bytes(joined)


def _built(parsed: ParsedSkyfile) -> BuiltSkyfile:
    """Return all but the payload; HttpError if uploads here are not stored so."""
    stored, layout = parsed.stored, parsed.stored.layout
    base = read_range(stored.base)
    if stored.is_encrypted:
        return BuiltSkyfile(base, roots=_first_roots(stored))
    if layout.is_inline:
        return BuiltSkyfile(base[: LAYOUT_SIZE + layout.body_size + layout.filesize])
    fanout = read_range(stored.fanout)
    made, spilled = build_fanned_out(layout.filesize, fanout, parsed.raw)
    if base.rstrip(b"\0") != made.rstrip(b"\0"):
        raise HttpError(400, f"{_FAILED}it is stored in another layout than this portal uses")
    return BuiltSkyfile(made, tuple(spilled), fanout)


def _first_roots(stored: StoredSkyfile) -> bytes:
    """Return the roots of the data pieces; those of parity stand between them."""
    fanout, step = read_range(stored.fanout), stored.layout.roots_per_chunk * ROOT_SIZE
    return b"".join(fanout[at : at + ROOT_SIZE] for at in range(0, len(fanout), step or 1))

"""Owns finding what is stored: skyfiles with their metadata read once, and sectors by Merkle root.

The only place that decides which skylinks this portal can serve. Bytes on disk are `store`'s.
"""

import logging
from dataclasses import dataclass

import trio
from cachetools import LRUCache

from skymount.errors import MalformedError, StorageError
from skymount.server.refusal import Refusal
from skymount.server.store import SectorPlace, Skyfile, Store, read, sectors
from skymount.wire.metadata import Metadata, fits_header, parse_metadata
from skymount.wire.skylink import Skylink

_log = logging.getLogger(__name__)

_CACHE_SIZE = 16 << 20  # bytes of metadata JSON kept parsed; about five times that in memory
_ENTRY_OVERHEAD = 2 << 10


@dataclass(frozen=True, slots=True)
class Stored:
    """A skyfile with its metadata, read and parsed."""

    skyfile: Skyfile
    raw: bytes
    metadata: Metadata
    header: bytes | None
    """The metadata as a header value, None when it does not fit one."""


class Catalog:
    """What one portal has."""

    def __init__(self, store: Store, header_limit: int) -> None:
        self._store = store
        self._header_limit = header_limit
        self._cache: LRUCache[Skylink, Stored] = LRUCache(
            _CACHE_SIZE, getsizeof=lambda stored: len(stored.raw) + _ENTRY_OVERHEAD
        )
        self._roots: dict[bytes, SectorPlace] | None = None
        self._indexing = trio.Lock()

    def parse(self, link: str) -> Skylink:
        """Read the skylink of a URL; Refusal when it is none, or one that needs the registry."""
        try:
            skylink = Skylink.parse(link)
        except MalformedError as error:
            raise Refusal(400, f"error parsing skylink: {error}") from None
        if skylink.version != 1:  # resolving needs the registry, which this portal has not yet
            raise Refusal(404, "failed to resolve skylink: registry entry not found")
        return skylink

    async def find(self, link: str) -> Skyfile:
        """Return where a skyfile lies; Refusal 404 when it is not here."""
        skylink = self.parse(link)
        found = await trio.to_thread.run_sync(self._store.find, skylink)
        if found is None:
            raise Refusal(404, "failed to fetch skylink: root not found")
        return found

    async def load(self, link: str) -> Stored:
        """Return a skyfile with its metadata; Refusal 404 when it is not here."""
        skylink = self.parse(link)
        cached = self._cache.get(skylink)
        if cached is not None:
            return cached
        skyfile = await self.find(link)
        stored = await trio.to_thread.run_sync(self._read, skyfile)
        if len(stored.raw) + _ENTRY_OVERHEAD <= self._cache.maxsize:
            self._cache[skylink] = stored
        return stored

    def _read(self, skyfile: Skyfile) -> Stored:
        raw = read(skyfile.metadata)
        try:
            metadata = parse_metadata(raw)
        except MalformedError as error:
            raise StorageError(f"stored skyfile {skyfile.skylink} is damaged: {error}") from None
        header = raw if fits_header(raw, self._header_limit) else None
        return Stored(skyfile, raw, metadata, header)

    async def sector(self, root: bytes) -> SectorPlace:
        """Return where the sector with that Merkle root lies; Refusal 404 when it is not here."""
        async with self._indexing:
            if self._roots is None:
                self._roots = await trio.to_thread.run_sync(self._index)
        found = self._roots.get(root)
        if found is None:
            raise Refusal(404, "failed to fetch root: root not found")
        return found

    def _index(self) -> dict[bytes, SectorPlace]:
        found: dict[bytes, SectorPlace] = {}
        for skylink in self._store.skylinks():
            try:
                found.update({place.root: place for place in self._sectors_of(skylink)})
            except StorageError as error:  # one damaged skyfile must not hide the others
                _log.warning("skyfile %s is left out of the index: %s", skylink, error)
        return found

    async def added(self, skylink: Skylink) -> None:
        """Take note of a new skyfile."""
        async with self._indexing:
            if self._roots is not None:
                places = await trio.to_thread.run_sync(self._sectors_of, skylink)
                self._roots.update({place.root: place for place in places})

    def _sectors_of(self, skylink: Skylink) -> list[SectorPlace]:
        skyfile = self._store.find(skylink)
        return list(sectors(skyfile)) if skyfile is not None else []

"""Owns finding what is stored: skyfiles with their metadata read once, and sectors by Merkle root.

The only place that decides which skylinks this portal can serve. Bytes on disk are `store`'s.
"""

import logging
from dataclasses import dataclass

import trio
from cachetools import LRUCache

from skymount.errors import MalformedError, StorageError
from skymount.server.http_error import HttpError
from skymount.server.storage.skyfile_store import (
    SectorLocation,
    SkyfileStore,
    StoredSkyfile,
    opened,
    read,
    sectors,
)
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.wire.metadata import Metadata, fits_header, parse_metadata
from skymount.wire.skyfile_encryption import pick_key
from skymount.wire.skykey import Skykey
from skymount.wire.skylink import Skylink

_log = logging.getLogger(__name__)

_CACHE_SIZE = 16 << 20  # bytes of metadata JSON kept parsed; about five times that in memory
_ENTRY_OVERHEAD = 2 << 10
_NO_SKYKEY = (
    "failed to fetch skylink: unable to decrypt skyfile base sector: unable to find associated"
    " skykey"
)


@dataclass(frozen=True, slots=True)
class ParsedSkyfile:
    """A skyfile with its metadata, read and parsed."""

    skyfile: StoredSkyfile
    raw: bytes
    metadata: Metadata
    header: bytes | None
    """The metadata as a header value, None when it does not fit one."""

    @property
    def is_encrypted(self) -> bool:
        """Whether it was decrypted with a skykey."""
        return self.skyfile.is_encrypted


class SkyfileIndex:
    """What one portal has."""

    def __init__(self, store: SkyfileStore, skykeys: SkykeyStore, header_limit: int) -> None:
        self._store = store
        self._skykeys = skykeys
        self._keys: tuple[Skykey, ...] = ()
        self._header_limit = header_limit
        self._cache: LRUCache[Skylink, ParsedSkyfile] = LRUCache(
            _CACHE_SIZE, getsizeof=lambda stored: len(stored.raw) + _ENTRY_OVERHEAD
        )
        self._roots: dict[bytes, SectorLocation] | None = None
        self._indexing = trio.Lock()
        self._totals: tuple[int, int] | None = None
        self._counting = trio.Lock()

    async def find(self, skylink: Skylink) -> StoredSkyfile:
        """Return where the skyfile of a v1 skylink lies, encrypted or not.

        HttpError 404 when it is not here.
        """
        found = await trio.to_thread.run_sync(self._store.find, skylink)
        if found is None:
            raise HttpError(404, "failed to fetch skylink: root not found")
        return found

    async def load(self, skylink: Skylink) -> ParsedSkyfile:
        """Return the skyfile of a v1 skylink with its metadata, decrypted if need be.

        HttpError 404 when it is not here, 500 when it is encrypted and its skykey is not.
        """
        keys = await self._skykeys.all()
        if keys is not self._keys:
            self._forget_encrypted()
            self._keys = keys
        cached = self._cache.get(skylink)
        if cached is not None:
            return cached
        skyfile = await self.find(skylink)
        stored = await trio.to_thread.run_sync(self._read, skyfile, keys)
        if len(stored.raw) + _ENTRY_OVERHEAD <= self._cache.maxsize and keys is self._keys:
            self._cache[skylink] = stored
        return stored

    def _forget_encrypted(self) -> None:
        """Drop what was decrypted: the skykey of it may be gone."""
        for skylink in [link for link, stored in self._cache.items() if stored.is_encrypted]:
            del self._cache[skylink]

    def _read(self, skyfile: StoredSkyfile, keys: tuple[Skykey, ...]) -> ParsedSkyfile:
        if skyfile.is_encrypted:
            key = pick_key(skyfile.layout, keys)
            if key is None:
                raise HttpError(500, _NO_SKYKEY)
            skyfile = opened(skyfile, key)
        raw = read(skyfile.metadata)
        try:
            metadata = parse_metadata(raw)
        except MalformedError as error:
            raise StorageError(f"stored skyfile {skyfile.skylink} is damaged: {error}") from None
        header = raw if fits_header(raw, self._header_limit) else None
        return ParsedSkyfile(skyfile, raw, metadata, header)

    async def sector(self, root: bytes) -> SectorLocation:
        """Return where the sector with that Merkle root lies; HttpError 404 when it is not here."""
        async with self._indexing:
            if self._roots is None:
                self._roots = await trio.to_thread.run_sync(self._index)
        found = self._roots.get(root)
        if found is None:
            raise HttpError(404, "failed to fetch root: root not found")
        return found

    def _index(self) -> dict[bytes, SectorLocation]:
        found: dict[bytes, SectorLocation] = {}
        for skylink in self._store.skylinks():
            try:
                found.update({place.root: place for place in self._sectors_of(skylink)})
            except StorageError as error:  # one damaged skyfile must not hide the others
                _log.warning("skyfile %s is left out of the index: %s", skylink, error)
        return found

    async def totals(self) -> tuple[int, int]:
        """Return how many skyfiles there are, and their bytes on disk."""
        async with self._counting:
            if self._totals is None:
                self._totals = await trio.to_thread.run_sync(self._store.totals)
            return self._totals

    async def added(self, skylink: Skylink) -> None:
        """Take note of a new skyfile."""
        async with self._counting:
            self._totals = None
        async with self._indexing:
            if self._roots is not None:
                places = await trio.to_thread.run_sync(self._sectors_of, skylink)
                self._roots.update({place.root: place for place in places})

    def _sectors_of(self, skylink: Skylink) -> list[SectorLocation]:
        skyfile = self._store.find(skylink)
        return list(sectors(skyfile)) if skyfile is not None else []

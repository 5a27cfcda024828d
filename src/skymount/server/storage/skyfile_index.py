"""Finds what is stored: skyfiles by skylink, with their metadata cached, and sectors by root."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import trio
from cachetools import LRUCache

from skymount.errors import MalformedError, StorageError
from skymount.server.http_error import HttpError
from skymount.server.storage.interfaces import ContentStore, Skykeys
from skymount.server.storage.stored_range import StoredRange, read_range
from skymount.server.storage.stored_skyfile import (
    Sector,
    StoredSkyfile,
    decrypt_layout,
    list_sectors,
)
from skymount.wire.metadata import Metadata, fits_header, parse_metadata
from skymount.wire.skyfile_encryption import pick_key
from skymount.wire.skykey import Skykey
from skymount.wire.skylink import Skylink

_log = logging.getLogger(__name__)

_CACHE_SIZE = 16 << 20  # bytes of JSON that is kept parsed; about five times that in memory
_SMALL_CACHE_SIZE = 16 << 20  # bytes of small skyfiles that are kept whole
_CACHE_ENTRY_OVERHEAD = 2 << 10  # bytes
_NO_SKYKEY = (
    "failed to fetch skylink: unable to decrypt skyfile base sector: unable to find associated"
    " skykey"
)


@dataclass(frozen=True, slots=True)
class ParsedSkyfile:
    """A stored skyfile with its metadata, decrypted if need be."""

    stored: StoredSkyfile
    raw: bytes
    metadata: Metadata
    header: bytes | None  # the metadata, if it fits a header


class SkyfileIndex:
    """The index of one portal."""

    def __init__(self, store: ContentStore, skykeys: Skykeys, header_limit: int) -> None:
        self._store = store
        self._skykeys = skykeys
        self._keys: Sequence[Skykey] = ()
        self._header_limit = header_limit
        self._cache: LRUCache[Skylink, ParsedSkyfile] = LRUCache(
            _CACHE_SIZE, getsizeof=lambda parsed: len(parsed.raw) + _CACHE_ENTRY_OVERHEAD
        )
        self._small: LRUCache[Skylink, StoredSkyfile] = LRUCache(
            _SMALL_CACHE_SIZE, getsizeof=lambda stored: stored.base.length + _CACHE_ENTRY_OVERHEAD
        )
        self._roots: dict[bytes, StoredRange] | None = None
        self._indexing = trio.Lock()
        self._totals: tuple[int, int] | None = None
        self._counting = trio.Lock()

    async def find(self, skylink: Skylink) -> StoredSkyfile:
        """Return where the skyfile of a v1 skylink is stored; HttpError 404 when it is not here."""
        found = self._small.get(skylink)
        if found is None:
            found = await trio.to_thread.run_sync(self._store.find, skylink)
            if found is None:
                raise HttpError(404, "failed to fetch skylink: root not found")
            if found.base.is_in_memory:
                self._small[skylink] = found
        return found

    async def load(self, skylink: Skylink) -> ParsedSkyfile:
        """Return a skyfile with its metadata; HttpError 404, or 500 when its skykey is missing."""
        cached = self._cache.get(skylink)
        stored = await self.find(skylink) if cached is None else cached.stored
        if stored.is_encrypted:  # another portal may have deleted its skykey just now
            await self._refresh_keys()
            cached = self._cache.get(skylink)
        if cached is not None:
            return cached
        stored, keys = await self.find(skylink), self._keys
        if stored.metadata.is_in_memory:
            parsed = self._read(stored, keys)
        else:
            parsed = await trio.to_thread.run_sync(self._read, stored, keys)
        if len(parsed.raw) + _CACHE_ENTRY_OVERHEAD <= self._cache.maxsize and keys is self._keys:
            self._cache[skylink] = parsed
        return parsed

    async def _refresh_keys(self) -> None:
        """Drop decrypted metadata from the cache if a skykey may have been deleted."""
        keys = await self._skykeys.all()
        if keys is not self._keys:
            for skylink in [link for link, item in self._cache.items() if item.stored.is_encrypted]:
                del self._cache[skylink]
            self._keys = keys

    def _read(self, stored: StoredSkyfile, keys: Sequence[Skykey]) -> ParsedSkyfile:
        if stored.is_encrypted:
            key = pick_key(stored.layout, keys)
            if key is None:
                raise HttpError(500, _NO_SKYKEY)
            stored = decrypt_layout(stored, key)
        raw = read_range(stored.metadata)
        try:
            metadata = parse_metadata(raw)
        except MalformedError as error:
            raise StorageError(f"stored skyfile {stored.skylink} is damaged: {error}") from None
        header = raw if fits_header(raw, self._header_limit) else None
        return ParsedSkyfile(stored, raw, metadata, header)

    async def sector(self, root: bytes) -> StoredRange:
        """Return where the sector of a Merkle root is stored; HttpError 404 when it is not here."""
        async with self._indexing:
            if self._roots is None:
                self._roots = await trio.to_thread.run_sync(self._index)
        found = self._roots.get(root)
        if found is None:
            raise HttpError(404, "failed to fetch root: root not found")
        return found

    def _index(self) -> dict[bytes, StoredRange]:
        found: dict[bytes, StoredRange] = {}
        for skylink in self._store.skylinks():
            try:
                found.update(self._sectors_of(skylink))
            except StorageError as error:  # the others can still be served
                _log.warning("skyfile %s is left out of the index: %s", skylink, error)
        return found

    async def totals(self) -> tuple[int, int]:
        async with self._counting:
            if self._totals is None:
                self._totals = await trio.to_thread.run_sync(self._store.totals)
            return self._totals

    async def add(self, skylink: Skylink) -> None:
        async with self._counting:
            self._totals = None
        async with self._indexing:
            if self._roots is not None:
                self._roots.update(await trio.to_thread.run_sync(self._sectors_of, skylink))

    def _sectors_of(self, skylink: Skylink) -> list[Sector]:
        skyfile = self._store.find(skylink)
        return list(list_sectors(skyfile)) if skyfile is not None else []

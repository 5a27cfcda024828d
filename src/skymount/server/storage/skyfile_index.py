"""Finds what is stored: skyfiles by skylink, with their metadata cached, and sectors by root."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import trio
from cachetools import Cache, LRUCache, TTLCache

from skymount.errors import MalformedError, StorageError
from skymount.server.http_error import HttpError
from skymount.server.storage.interfaces import Catalogue, ContentStore, Skykeys
from skymount.server.storage.stored_range import StoredRange, read_range
from skymount.server.storage.stored_skyfile import (
    StoredSkyfile,
    decrypt_layout,
    list_sectors,
)
from skymount.wire.metadata import Metadata, fits_header, parse_metadata
from skymount.wire.skyfile_encryption import pick_key
from skymount.wire.skykey import Skykey
from skymount.wire.skylink import Skylink

T = TypeVar("T")

_CACHE_SIZE = 16 << 20  # bytes of JSON that is kept parsed; about five times that in memory
_SMALL_CACHE_SIZE = 16 << 20  # bytes of small skyfiles that are kept whole
_CACHE_ENTRY_OVERHEAD = 2 << 10  # bytes
_REPAIR_WAIT = 20.0  # seconds to wait for a catalogue that is not complete
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


def _cache(size: int, seconds: float, bytes_of: Callable[[T], int]) -> Cache[Skylink, T]:
    """Return a cache that keeps a value for that time at most."""

    def measure(value: T) -> int:
        return bytes_of(value) + _CACHE_ENTRY_OVERHEAD

    if math.isinf(seconds):
        return LRUCache(size, measure)
    return TTLCache(size, seconds, getsizeof=measure)


class SkyfileIndex:
    """The index of one portal."""

    def __init__(
        self, store: ContentStore, catalogue: Catalogue, skykeys: Skykeys, header_limit: int
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._skykeys = skykeys
        self._changes = [0] * 256
        """How often skyfiles were stored or removed, by the first byte of their root."""
        self._keys: Sequence[Skykey] = ()
        self._header_limit = header_limit
        self._cache: Cache[Skylink, ParsedSkyfile] = _cache(
            _CACHE_SIZE, store.memory_time, lambda parsed: len(parsed.raw)
        )
        self._small: Cache[Skylink, StoredSkyfile] = _cache(
            _SMALL_CACHE_SIZE, store.memory_time, lambda stored: stored.base.length
        )

    async def find(self, skylink: Skylink) -> StoredSkyfile:
        """Return where the skyfile of a v1 skylink is stored; HttpError 404 when it is not here."""
        found = self._small.get(skylink)
        if found is None:
            shard = skylink.root[0]
            changes = self._changes[shard]
            found = await trio.to_thread.run_sync(self._store.find, skylink)
            if found is None:
                raise HttpError(404, "failed to fetch skylink: root not found")
            if found.base.is_in_memory and changes == self._changes[shard]:
                self._small[skylink] = found
        return found

    def forget(self, skylink: Skylink) -> None:
        """Drop from memory a skyfile that was stored or removed just now."""
        self._changes[skylink.root[0]] += 1
        self._small.pop(skylink, None)
        self._cache.pop(skylink, None)

    async def load(self, skylink: Skylink) -> ParsedSkyfile:
        """Return a skyfile with its metadata; HttpError 404, or 500 when its skykey is missing."""
        cached = self._cache.get(skylink)
        if cached is not None and cached.stored.is_encrypted:
            await self._refresh_keys()  # another portal may have deleted its skykey just now
            cached = self._cache.get(skylink)
        if cached is not None:
            return cached
        shard = skylink.root[0]
        changes = self._changes[shard]
        stored = await self.find(skylink)
        if stored.is_encrypted:
            await self._refresh_keys()
        keys = self._keys
        if stored.metadata.is_in_memory:
            parsed = self._read(stored, keys)
        else:
            parsed = await trio.to_thread.run_sync(self._read, stored, keys)
        if len(parsed.raw) + _CACHE_ENTRY_OVERHEAD <= self._cache.maxsize and (
            keys is self._keys and changes == self._changes[shard]
        ):
            self._cache[skylink] = parsed
        return parsed

    async def _refresh_keys(self) -> None:
        """Drop decrypted metadata from the cache if a skykey may have been deleted."""
        keys = await self._skykeys.all()
        if keys is not self._keys:
            for skylink in list(self._cache):
                parsed = self._cache.get(skylink)
                if parsed is not None and parsed.stored.is_encrypted:
                    self._cache.pop(skylink, None)
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
        """Return where the sector of a Merkle root is stored.

        HttpError 404 when it is not here, 503 while the catalogue does not know yet.
        """
        found = await self._sector(root)
        if found is None and not self._catalogue.is_complete:
            with trio.move_on_after(_REPAIR_WAIT):
                await self._catalogue.wait_complete()
            found = await self._sector(root)
            if found is None and not self._catalogue.is_complete:
                raise HttpError(
                    503,
                    "failed to fetch root: the catalogue of this portal is being repaired",
                    (("Retry-After", str(round(_REPAIR_WAIT))),),
                )
        if found is None:
            found = await trio.to_thread.run_sync(self._store.find_sector, root)
        if found is None:
            raise HttpError(404, "failed to fetch root: root not found")
        return found

    async def _sector(self, root: bytes) -> StoredRange | None:
        try:
            skylinks = await self._catalogue.skylinks_with(root)
        except StorageError:
            if self._catalogue.is_complete:
                raise
            return None
        return await trio.to_thread.run_sync(self._find_sector, root, skylinks)

    def _find_sector(self, root: bytes, skylinks: list[Skylink]) -> StoredRange | None:
        failure: StorageError | None = None
        for skylink in skylinks:
            try:
                skyfile = self._store.find(skylink)
                for known, stored in list_sectors(skyfile) if skyfile else ():
                    if known == root:
                        return stored
            except StorageError as error:  # another skyfile may have the same sector
                failure = error
        if failure is not None:
            raise failure
        return None

    def totals(self) -> tuple[int, int]:
        """Return the number of skyfiles, and their bytes on disk."""
        return self._catalogue.totals()

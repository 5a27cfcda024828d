"""The skyfiles of portals that share an object store.

    sectors/<Merkle root in hex>      a sector of a payload or of spilled metadata
    skyfiles/<skylink>                `skyfile_object`; put last: what is there is whole

A sector is put again rather than skipped: the sweeper may be about to remove the one that is there.
Before the skyfile is put, its row in the database protects its sectors from the sweeper.
Everything blocks.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from cachetools import TTLCache

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.catalogue_rows import CatalogueRow
from skymount.server.storage.cluster import skyfile_removal, skyfile_rows
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.cluster.sector_reader import (
    Fetching,
    SectorReader,
    sector_name,
    without_padding,
)
from skymount.server.storage.cluster.skyfile_object import SKYFILES, SkyfileObject, skyfile_name
from skymount.server.storage.cluster.skyfile_rows import describe
from skymount.server.storage.disk_errors import DiskFullError, StorageUnavailableError
from skymount.server.storage.stored_range import InMemory, OpenBytes, StoredBytes, StoredRange
from skymount.server.storage.stored_skyfile import SMALL_SIZE, BuiltSkyfile, StoredSkyfile
from skymount.wire import merkle
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import SECTOR_SIZE, Skylink

SECTORS = "sectors"

_UPLOAD_SECTORS = 6  # of one upload that are put at once
_SECTORS = 16  # of all uploads
_ROOM_WAIT = 30.0  # seconds until one of them is stored
_READS = 32
_PUBLISHING = 4  # times that an upload stores what is removed meanwhile
_CACHE_SIZE = 64 << 20  # bytes of skyfile objects in memory


def _memory(found: SkyfileObject) -> int:
    return len(found.base) + 4096 + 128 * len(found.roots)


class SharedContent:
    """The skyfiles. Use `close`."""

    small = None
    memory_time = 60.0

    def __init__(self, objects: Objects, database: Database) -> None:
        self.objects = objects
        self.database = database
        self.writers = ThreadPoolExecutor(_SECTORS, "put")
        self.room = threading.BoundedSemaphore(_SECTORS)
        self._fetching = Fetching(objects, _READS)
        self._cache: TTLCache[Skylink, SkyfileObject] = TTLCache(
            _CACHE_SIZE, self.memory_time, getsizeof=_memory
        )
        self._cache_lock = threading.Lock()

    def close(self) -> None:
        self.writers.shutdown(wait=False, cancel_futures=True)
        self._fetching.close()

    def begin(self) -> "SharedUpload":
        return SharedUpload(self)

    def begin_in_parts(self) -> None:
        """Return nothing: the name of a sector is its root."""

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        found = self.load(skylink)
        if found is None:
            return None
        start = found.base[:SMALL_SIZE]  # a larger one does not stay in memory with the skyfile
        return StoredSkyfile.of(skylink, start, len(found.base), _Parts(self, skylink))

    def load(self, skylink: Skylink) -> SkyfileObject | None:
        """Return the object of a skyfile, None when there is none."""
        with self._cache_lock:
            cached = self._cache.get(skylink)
        if cached is not None:
            return cached
        raw = self.objects.get(skyfile_name(skylink))
        if raw is None:
            return None
        try:
            found = SkyfileObject.parse(raw)
        except MalformedError as error:
            raise StorageError(f"stored skyfile {skylink} is damaged: {error}") from None
        with self._cache_lock, suppress(ValueError):  # larger than the cache
            self._cache[skylink] = found
        return found

    def load_known(self, skylink: Skylink) -> SkyfileObject:
        """Return the object of a skyfile that was found before."""
        found = self.load(skylink)
        if found is None:
            raise StorageError(f"stored skyfile {skylink} is gone")
        return found

    def open_sectors(self, roots: tuple[bytes, ...]) -> OpenBytes:
        return SectorReader(self._fetching, roots)

    def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        """Remove a skyfile that is not pinned. The sweeper removes its sectors."""
        is_removed = skyfile_removal.remove(self.database, self.objects, skylink, stored_before)
        with self._cache_lock:
            self._cache.pop(skylink, None)
        return is_removed

    def skylinks(self) -> Iterator[Skylink]:
        for found in self.objects.list(SKYFILES):
            with suppress(MalformedError):
                yield Skylink(found.name)

    def find_sector(self, root: bytes) -> StoredRange | None:
        """Return nothing: the database has them all."""
        return None


class SharedUpload:
    """An upload in progress. Its sectors are put in threads while further ones arrive."""

    def __init__(self, content: SharedContent) -> None:
        self._content = content
        self._room = threading.BoundedSemaphore(_UPLOAD_SECTORS)
        self._putting: list[Future[None]] = []
        self._began: datetime | None = None
        self._lock = threading.Lock()

    def put_sector(
        self,
        index: int,
        root: bytes,
        sector: bytes | bytearray,
        stored: Callable[[], None] | None = None,
    ) -> None:
        with self._lock:
            if self._began is None:
                self._began = skyfile_rows.now(self._content.database)
            for done in [each for each in self._putting if each.done()]:
                self._putting.remove(done)
                done.result()
        self._wait_for_room()
        putting = self._content.writers.submit(
            self._content.objects.put, sector_name(root), without_padding(sector)
        )
        putting.add_done_callback(lambda _: self._release(stored))
        with self._lock:
            self._putting.append(putting)

    def _wait_for_room(self) -> None:
        if self._room.acquire(timeout=_ROOM_WAIT):
            if self._content.room.acquire(timeout=_ROOM_WAIT):
                return
            self._room.release()
        raise StorageUnavailableError("the object store does not answer")

    def _release(self, stored: Callable[[], None] | None) -> None:
        self._content.room.release()
        self._room.release()
        if stored is not None:
            stored()

    def publish(self, skylink: Skylink, built: BuiltSkyfile) -> None:
        spilled = [(merkle.sector_root(sector), sector) for sector in built.spilled]
        for index, (root, sector) in enumerate(spilled):
            self.put_sector(index, root, sector)
        for putting in self._putting:
            putting.result()
        roots = [built.roots[at : at + 32] for at in range(0, len(built.roots), 32)]
        found = SkyfileObject(built.base, tuple(roots), tuple(root for root, _ in spilled))
        extension = b"".join(sector.ljust(SECTOR_SIZE, b"\0") for sector in built.spilled)
        row = describe(skylink, built.base, extension, 0.0, len(roots))
        for _ in range(_PUBLISHING):
            self._publish(row, found)
            # A removal between the two steps takes the row, and what was there of the object.
            if skyfile_rows.find(self._content.database, skylink) is not None:
                return
        raise StorageError("it is removed again and again: upload it later")

    def _publish(self, row: CatalogueRow, found: SkyfileObject) -> None:
        database = self._content.database
        stored = skyfile_rows.put(database, row, found.roots, self._began)
        try:
            self._content.objects.put(skyfile_name(row.skylink), bytes(found))
        except DiskFullError:  # it was not stored; after other errors it may be there
            if stored:
                with suppress(StorageError):  # the sweeper removes the row then
                    skyfile_rows.withdraw(database, row.skylink, stored)
            raise

    def close(self) -> None:
        """Wait for what is being put: the sweeper removes it if nothing was published."""
        for putting in self._putting:
            putting.cancel()
        for putting in self._putting:
            if not putting.cancelled():
                putting.exception()


@dataclass(frozen=True, slots=True)
class _Base:
    """The base sector, read again when the cache has forgotten it."""

    content: SharedContent
    skylink: Skylink

    @property
    def name(self) -> str:
        return str(self.skylink)

    def open(self) -> OpenBytes:
        return InMemory(self.name, self.content.load_known(self.skylink).base)


@dataclass(frozen=True, slots=True)
class _Sectors:
    """The payload, or the spilled sectors."""

    content: SharedContent
    skylink: Skylink
    is_payload: bool

    @property
    def name(self) -> str:
        return str(self.skylink)

    def open(self) -> OpenBytes:
        found = self.content.load_known(self.skylink)
        return self.content.open_sectors(
            found.payload_roots if self.is_payload else found.spilled_roots
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    content: SharedContent
    skylink: Skylink

    @property
    def base(self) -> StoredBytes:
        return _Base(self.content, self.skylink)

    @property
    def payload(self) -> StoredBytes:
        return _Sectors(self.content, self.skylink, True)

    @property
    def extension(self) -> StoredBytes:
        return _Sectors(self.content, self.skylink, False)

    def encrypted_payload(self, fanout: StoredRange, layout: Layout) -> StoredBytes:
        return self.payload

    def encrypted_roots(self) -> bytes:
        return b"".join(self.content.load_known(self.skylink).payload_roots)

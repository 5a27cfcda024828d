"""The catalogue of what is stored: what there is, how much it takes, and which sectors it has.

    <data>/v1/catalogue.sqlite3       with ``-wal`` and ``-shm`` beside it while a portal runs

It is derived from the skyfiles. After a clean end it is complete, and a start looks only at the
times of directories. After any other end it is checked and repaired in the background, one shard
(a directory of skyfiles) after the other. Where it cannot be opened, the portal runs without it,
and tries again. Names of encrypted skyfiles are not in it: they would be readable on disk.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from skymount.errors import StorageError
from skymount.server.storage import catalogue_database, catalogue_mark
from skymount.server.storage.catalogue_database import CatalogueDatabase
from skymount.server.storage.catalogue_reading import of_disk, of_upload
from skymount.server.storage.catalogue_rows import CatalogueRow, ListPage, NewSkyfile
from skymount.server.storage.local.skylink_keys import from_key
from skymount.server.storage.skyfile_store import FORMAT, SHARDS, SkyfileStore
from skymount.storage.group_commit import GroupCommit
from skymount.wire.skylink import Skylink

CATALOGUE_FILE = "catalogue.sqlite3"

T = TypeVar("T")

_log = logging.getLogger(__name__)

_PAUSE = 600.0  # seconds after which a repair that failed is tried again
_BATCH = 50  # skyfiles that are read and written down together


def catalogue_path(root: Path) -> Path:
    """Return where the catalogue of a data directory is."""
    return root / FORMAT / CATALOGUE_FILE


class LocalCatalogue:
    """The catalogue of one portal. Use `open` and `close`."""

    def __init__(self, path: Path, store: SkyfileStore) -> None:
        self._path = path
        self._mark = path.with_name(catalogue_mark.MARK_FILE)
        self._store = store
        self._database: CatalogueDatabase | None = None
        self._stale: set[int] = set(SHARDS)  # shards to compare with the disk
        self._noted: set[int] = set()  # further ones, since the repair that runs began
        self._is_checked = False
        self._missing: dict[int, int] = {}  # shard -> skyfiles without a row
        self._complete, self._incomplete = trio.Event(), trio.Event()
        self._writing = trio.Lock()
        self._added = GroupCommit(self._add_all, self._writing)

    @classmethod
    def open(cls, root: Path, store: SkyfileStore) -> "LocalCatalogue":
        """Open the catalogue in a locked data directory. Never fails. Blocks."""
        catalogue = cls(catalogue_path(root), store)
        try:
            catalogue._reopen()
        except StorageError as error:
            _log.warning("the portal runs without its catalogue: %s", error)
        return catalogue

    def _reopen(self) -> None:
        """Open the database, and note what has to be compared; StorageError."""
        with ExitStack() as undone:
            # Skyfiles that are removed while there is no catalogue keep their rows.
            undone.callback(catalogue_mark.remove, self._mark)
            database = undone.enter_context(closing(self._open_database()))
            totals = database.totals
            changed = catalogue_mark.take(
                self._mark, totals, self._store.shard_times(), self._store.newest_small()
            )
            undone.pop_all()
        self._stale = set(SHARDS) if changed is None else changed
        self._is_checked = changed is not None or totals == (0, 0)
        self._database = database
        if not self._stale:
            self._complete.set()

    def _open_database(self) -> CatalogueDatabase:
        """Open it, or make it anew if it is damaged."""
        try:
            return CatalogueDatabase.open(self._path)
        except StorageError as error:
            if not catalogue_database.is_damage(error):
                raise
            _log.warning("%s; it is made anew", error)
        catalogue_mark.remove(self._mark)
        catalogue_database.discard(self._path)
        return CatalogueDatabase.open(self._path)

    def close(self) -> None:
        """Close it, and leave the mark of a clean end if it is complete. Blocks."""
        database = self._database
        if database is None:
            return
        database.close()
        if self._stale or self._noted:
            return
        try:
            catalogue_mark.write(
                self._mark, database.totals, self._store.shard_times(), self._store.newest_small()
            )
        except (OSError, StorageError) as error:
            _log.warning("the next start compares the catalogue with the disk: %s", error)

    @property
    def is_complete(self) -> bool:
        return not (self._stale or self._noted or self._database is None)

    async def wait_complete(self) -> None:
        """Wait until it has all that is on disk."""
        while not self.is_complete:
            await self._complete.wait()

    def note_missing(self, shard: int) -> None:
        """Have a shard compared with the disk, where something may be stored without a row."""
        self._noted.add(shard)
        self._complete = trio.Event() if self._complete.is_set() else self._complete
        self._incomplete.set()

    def note_stored(self, skylink: Skylink) -> None:
        self.note_missing(skylink.root[0])

    def _opened(self) -> CatalogueDatabase:
        if self._database is None:
            raise StorageError(f"cannot use {self._path}")
        return self._database

    async def _ask(self, question: Callable[[CatalogueDatabase], T]) -> T:
        return await trio.to_thread.run_sync(question, self._opened())

    async def add(self, new: NewSkyfile) -> None:
        """Record a skyfile that was stored just now. Those that come meanwhile share the next
        transaction. A failure is logged, and repaired later: the skyfile is stored.
        """
        await self._added.put(new)

    async def _add_all(self, skyfiles: list[NewSkyfile]) -> None:
        try:
            await trio.to_thread.run_sync(self._add, skyfiles, time.time())
        except Exception as error:  # noqa: BLE001  # what counts is that it is stored
            _log_failure(f"{skyfiles[0].skylink} is missing in the catalogue", error)
            for skyfile in skyfiles:
                self.note_missing(skyfile.skylink.root[0])

    def _add(self, skyfiles: list[NewSkyfile], now: float) -> None:
        found = (of_upload(self._store, new, now) for new in skyfiles)
        self._opened().put([recorded for recorded in found if recorded is not None])

    async def find(self, skylink: Skylink) -> CatalogueRow | None:
        return await self._ask(lambda database: database.find(skylink))

    async def skylinks_with(self, root: bytes) -> list[Skylink]:
        """Return skyfiles that have the sector of a Merkle root; StorageError."""
        return await self._ask(lambda database: database.skylinks_with(root))

    async def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        """Remove a skyfile from the disk, and its row; StorageError."""

        def remove() -> bool:
            is_removed = self._store.remove(skylink, stored_before)
            if is_removed or stored_before is None:
                self._opened().remove([skylink])
            return is_removed

        try:
            return await self._changing(remove)
        except StorageError:
            self.note_missing(skylink.root[0])
            raise

    async def clock_ahead(self) -> float:
        await trio.lowlevel.checkpoint()
        return 0.0

    async def older(
        self, before: float, after: tuple[float, Skylink] | None, count: int
    ) -> list[CatalogueRow]:
        """Return the next rows stored before a time, the oldest first: those after a row."""
        return await self._ask(lambda database: database.older(before, after, count))

    def totals(self) -> tuple[int, int]:
        """Return the number of skyfiles, and their bytes on disk; StorageError. Does not block."""
        return self._opened().totals

    async def refresh_totals(self) -> None:
        """Do nothing: they are always those of now."""
        await trio.lowlevel.checkpoint()

    async def page(self, search: str, start: int, count: int) -> ListPage:
        """Return rows from `start` on, newest first, whose name contains a text, or whose skylink
        it is; StorageError.
        """
        rows, total = await self._ask(lambda database: database.page(search, start, count))
        return ListPage(rows, total, self.is_complete, sum(self._missing.values()))

    async def maintain(self) -> None:
        """Keep it complete. What failed is tried again."""
        while True:
            if await self.repair():
                await self._incomplete.wait()
                await trio.sleep(1)  # what failed just now would fail again
            else:
                await trio.sleep(_PAUSE)

    async def repair(self) -> bool:
        """Make it what is on disk. A failure is logged: then False."""
        self._incomplete = trio.Event()
        try:
            if self._database is None:
                await trio.to_thread.run_sync(self._reopen)
            if not self._is_checked:
                await self._check()
            self._stale |= self._noted
            self._noted.clear()
            for shard in sorted(self._stale):
                missing = await self._changing(partial(self._compare, shard))
                if missing:
                    self._missing[shard] = len(missing)
                else:
                    self._stale.discard(shard)
            for shard in sorted(self._stale):
                await self._fill(shard)
        except Exception as error:  # noqa: BLE001  # the portal goes on without it
            _log_failure("the catalogue is not complete", error)
            return False
        if self.is_complete:
            self._complete.set()
        return True

    async def _check(self) -> None:
        """Make the database anew if it is damaged."""
        problem = await self._ask(CatalogueDatabase.problem)
        if problem:
            _log.warning("%s is damaged: %s; it is made anew", self._path, problem)
            await self._changing(self._make_anew)
        self._is_checked = True

    def _make_anew(self) -> None:
        database, self._database = self._opened(), None
        database.close()
        catalogue_database.discard(self._path)
        self._reopen()

    async def _fill(self, shard: int) -> None:
        missing = await self._changing(partial(self._compare, shard))
        while missing:
            batch = missing[:_BATCH]
            await self._changing(partial(self._read, batch))
            del missing[: len(batch)]
            self._missing[shard] = len(missing)
        self._missing.pop(shard, None)
        self._stale.discard(shard)

    async def _changing(self, work: Callable[[], T]) -> T:
        """Run what changes rows in a thread, one at a time."""
        async with self._writing:
            return await trio.to_thread.run_sync(work)

    def _compare(self, shard: int) -> list[Skylink]:
        """Drop rows of skyfiles of a shard that are gone; return the skyfiles without a row."""
        database = self._opened()
        listed, stored = database.keys(shard), self._store.keys(shard)
        gone = listed - stored
        if gone:
            database.remove(map(from_key, gone))
        return [from_key(key) for key in stored - listed]

    def _read(self, skylinks: list[Skylink]) -> None:
        found = (of_disk(self._store, skylink) for skylink in skylinks)
        self._opened().put([recorded for recorded in found if recorded is not None])


def _log_failure(message: str, error: Exception) -> None:
    """Log a failure; with a traceback if nobody foresaw it."""
    is_bug = not isinstance(error, StorageError)
    _log.warning("%s: %s", message, error, exc_info=error if is_bug else None)

"""The list of what is stored, newest first, as pages show it: in a SQLite database.

    <data>/v1/list.sqlite3            with ``-wal`` and ``-shm`` beside it while a portal runs

It is made from the skyfiles, and repaired from them after a start: what it lacks is read, what is
gone is dropped. Names of encrypted skyfiles are not in it, as they would be readable on disk.
"""

import logging
import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.interfaces import ContentStore
from skymount.server.storage.skyfile_store import FORMAT
from skymount.server.storage.stored_range import read_range
from skymount.storage.sqlite import Database, Format
from skymount.wire.metadata import INTEGER_LIMIT, parse_metadata
from skymount.wire.skylink import Skylink

LIST_FILE = "list.sqlite3"

_log = logging.getLogger(__name__)

_NAME_LIMIT = 256  # characters; one more than pages show, so that they show that it goes on
_PAUSE = 600.0  # seconds after which a repair that failed is tried again
_BATCH = 50  # skyfiles that are read and written down together
_FORMAT = Format(
    application=0x736B6C73,
    version=1,
    schema="""
CREATE TABLE skyfiles (
    skylink TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    folded TEXT NOT NULL,
    size INTEGER NOT NULL,
    files INTEGER NOT NULL,
    is_encrypted INTEGER NOT NULL,
    stored REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_time ON skyfiles (stored DESC, skylink)
""",
)
_REPLACE = "INSERT OR REPLACE INTO skyfiles VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = (
    f"SELECT skylink, substr(name, 1, {_NAME_LIMIT}), size, files, is_encrypted, stored"
    " FROM skyfiles"
)
_MATCHES = " WHERE folded LIKE ? ESCAPE '\\' OR skylink = ?"
_NEWEST = " ORDER BY stored DESC, skylink LIMIT ? OFFSET ?"


@dataclass(frozen=True, slots=True)
class ListedSkyfile:
    """A row of the list."""

    skylink: str
    name: str  # its beginning if it is long; empty when it is not known
    size: int
    files: int  # 0 for a single file that is no directory
    is_encrypted: bool
    stored: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class ListPage:
    """Rows of the list, and how many match in all."""

    rows: tuple[ListedSkyfile, ...]
    total: int
    unread: int
    """Skyfiles on disk that are not in the list yet."""


class _Names(msgspec.Struct, gc=False):
    filename: str = ""
    subfiles: dict[str, msgspec.Raw] | None = None


_decode_names = msgspec.json.Decoder(_Names).decode


class SkyfileList:
    """The list of one portal. Use `open` and `close`."""

    def __init__(self, store: ContentStore, database: Database) -> None:
        self._store = store
        self._database = database
        self._missing: list[Skylink] | None = None  # None: not known yet
        self._comparing = trio.Lock()

    @classmethod
    def open(cls, root: Path, store: ContentStore) -> "SkyfileList":
        """Open the list in a locked data directory; one that is damaged is made anew. Blocks."""
        path = root / FORMAT / LIST_FILE
        try:
            return cls(store, _open_checked(path))
        except StorageError as error:
            _log.warning("%s; it is made anew", error)
            for name in (path, *(Path(f"{path}-{end}") for end in ("wal", "shm", "journal"))):
                with suppress(OSError):
                    name.unlink()
            return cls(store, Database.open(path, _FORMAT))

    def close(self) -> None:
        self._database.close()

    async def add(self, skylink: Skylink) -> None:
        """Put a skyfile that was stored just now on top. A failure is logged: it can be repaired
        at the next start.
        """
        try:
            await trio.to_thread.run_sync(self._add, [skylink], time.time())
        except Exception as error:  # noqa: BLE001  # the skyfile is stored, and that is what counts
            _log_failure(f"{skylink} is missing in the list of skyfiles", error)

    async def repair(self, pause: float = _PAUSE) -> None:
        """Make the list what is on disk. A failure is logged, and what is left is tried again."""
        while True:
            if await self._repair():
                return
            await trio.sleep(pause)

    async def _repair(self) -> bool:
        try:
            missing = await self._compare()
            while missing:
                batch = missing[:_BATCH]
                await trio.to_thread.run_sync(self._add, batch, None)
                del missing[: len(batch)]
        except Exception as error:  # noqa: BLE001  # the portal goes on without it
            _log_failure("the list of skyfiles is not complete", error)
            return False
        return True

    async def _compare(self) -> list[Skylink]:
        """Return the skyfiles that the list lacks of those that were there at the start."""
        async with self._comparing:
            if self._missing is None:
                self._missing = await trio.to_thread.run_sync(self._find_missing)
            return self._missing

    def _find_missing(self) -> list[Skylink]:
        """Drop rows of skyfiles that are gone; return the skyfiles without a row."""

        def names(database: sqlite3.Connection) -> set[str]:
            return {name for (name,) in database.execute("SELECT skylink FROM skyfiles")}

        listed = self._database.read(names)
        stored = {str(skylink): skylink for skylink in self._store.skylinks()}
        gone = [(name,) for name in listed - stored.keys()]
        try:
            if gone:
                self._database.write(
                    lambda database: database.executemany(
                        "DELETE FROM skyfiles WHERE skylink = ?", gone
                    ),
                    durable=False,
                )
        except StorageError as error:  # a full disk, for example
            _log_failure("the list of skyfiles has some that are gone", error)
        return [skylink for name, skylink in stored.items() if name not in listed]

    def _add(self, skylinks: Iterable[Skylink], now: float | None) -> None:
        rows = [row for skylink in skylinks if (row := self._row(skylink, now)) is not None]
        self._database.write(lambda database: database.executemany(_REPLACE, rows), durable=False)

    def _row(self, skylink: Skylink, now: float | None) -> tuple[object, ...] | None:
        name, size, files, stored = "", 0, 0, now or 0.0
        is_encrypted = False
        try:
            found = self._store.find(skylink)
            if found is None:
                return None
            stored = now or found.parts.stored_at()
            is_encrypted = found.is_encrypted
            if is_encrypted:
                size = min(found.parts.size(), INTEGER_LIMIT - 1)
            else:
                size = found.layout.filesize
                name, files = _describe(read_range(found.metadata))
        except (StorageError, MalformedError, OSError) as error:
            _log.warning("skyfile %s has no name in the list: %s", skylink, error)
        return str(skylink), name, name.casefold(), size, files, is_encrypted, stored

    async def page(self, search: str, start: int, count: int) -> ListPage:
        """Return rows from `start` on, newest first, whose name contains a text, or whose skylink
        it is; StorageError.
        """
        missing = await self._compare()
        where, values = "", tuple[str, ...]()
        if search:
            escaped = search.casefold()
            for special in "\\%_":
                escaped = escaped.replace(special, f"\\{special}")
            where, values = _MATCHES, (f"%{escaped}%", search)

        def read(database: sqlite3.Connection) -> ListPage:
            counted = database.execute(f"SELECT count(*) FROM skyfiles{where}", values)
            rows = database.execute(_SELECT + where + _NEWEST, (*values, count, start))
            found = tuple(
                ListedSkyfile(
                    str(skylink),
                    str(name),
                    int(size),
                    int(files),
                    bool(is_encrypted),
                    float(stored),
                )
                for skylink, name, size, files, is_encrypted, stored in rows
            )
            return ListPage(found, int(counted.fetchone()[0]), len(missing))

        return await trio.to_thread.run_sync(self._database.read, read)


def _open_checked(path: Path) -> Database:
    """Open the list; StorageError if a part of it is damaged. 300,000 rows take 0.2 s."""
    database = Database.open(path, _FORMAT)
    try:
        found = database.read(
            lambda opened: str(opened.execute("PRAGMA quick_check(1)").fetchone()[0])
        )
        if found != "ok":
            raise StorageError(f"{path} is damaged: {' '.join(found.split())}")
    except BaseException:
        database.close()
        raise
    return database


def _log_failure(message: str, error: Exception) -> None:
    """Log a failure; with a traceback if nobody foresaw it."""
    is_bug = not isinstance(error, StorageError)
    _log.warning("%s: %s", message, error, exc_info=error if is_bug else None)


def _describe(raw: bytes) -> tuple[str, int]:
    """Return the name in metadata, and the number of its files; 0 if it is no directory."""
    try:
        names = _decode_names(raw)
        found, files = names.filename, [*(names.subfiles or ())]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        metadata = parse_metadata(raw)
        found, files = metadata.filename, [*metadata.subfiles]
    count = 0 if files == [found] else len(files)
    return found[:_NAME_LIMIT].encode(errors="replace").decode(), count

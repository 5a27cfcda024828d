"""The tables of the catalogue, and every statement on them. Everything blocks."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.catalogue_rows import CatalogueRow, Recorded
from skymount.server.storage.local.skylink_keys import from_key, read_keys, to_key
from skymount.storage.sqlite import Database, Format
from skymount.wire.skylink import Skylink

NAME_LIMIT = 4096
"""Characters of a name that are kept and searched."""

_SHOWN = 256  # characters of a name in a page; one more than are shown, so that it goes on
_FORMAT = Format(
    application=0x736B6361,
    version=1,
    schema="""
CREATE TABLE skyfiles (
    number INTEGER PRIMARY KEY,
    skylink BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL,
    folded TEXT NOT NULL,
    size INTEGER NOT NULL,
    disk INTEGER NOT NULL,
    files INTEGER NOT NULL,
    is_encrypted INTEGER NOT NULL,
    stored REAL NOT NULL
);
CREATE INDEX by_time ON skyfiles (stored DESC, skylink);
CREATE TABLE sectors (
    root BLOB NOT NULL,
    skylink BLOB NOT NULL,
    PRIMARY KEY (root, skylink)
) WITHOUT ROWID;
CREATE INDEX by_skyfile ON sectors (skylink);
CREATE TABLE totals (skyfiles INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER added AFTER INSERT ON skyfiles BEGIN
    UPDATE totals SET skyfiles = skyfiles + 1, bytes = bytes + new.disk;
END;
CREATE TRIGGER changed AFTER UPDATE OF disk ON skyfiles BEGIN
    UPDATE totals SET bytes = bytes - old.disk + new.disk;
END;
CREATE TRIGGER removed AFTER DELETE ON skyfiles BEGIN
    UPDATE totals SET skyfiles = skyfiles - 1, bytes = bytes - old.disk;
END
""",
)
_PUT = """
INSERT INTO skyfiles (skylink, name, folded, size, disk, files, is_encrypted, stored)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (skylink) DO UPDATE SET
    name = excluded.name, folded = excluded.folded, size = excluded.size, disk = excluded.disk,
    files = excluded.files, is_encrypted = excluded.is_encrypted, stored = excluded.stored
"""
_PUT_SECTOR = "INSERT OR IGNORE INTO sectors VALUES (?, ?)"
_SELECT = (
    f"SELECT skylink, substr(name, 1, {_SHOWN}), size, disk, files, is_encrypted, stored"
    " FROM skyfiles"
)
_MATCHES = " WHERE instr(folded, ?) OR skylink = ?"
_NEWEST = " ORDER BY stored DESC, skylink LIMIT ? OFFSET ?"
_OLDEST = (
    " WHERE stored < ? AND (stored, skylink) > (?, ?) ORDER BY stored, skylink LIMIT ?"  # a step
)
_COMPANIONS = ("", "-wal", "-shm", "-journal")


def is_damage(error: StorageError) -> bool:
    """Whether an error of SQLite means a damaged file, not for example a full disk."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.OperationalError):
        return False
    return isinstance(cause, sqlite3.DatabaseError | TypeError | ValueError)


def discard(path: Path) -> None:
    """Remove a database with the files that belong to it."""
    for end in _COMPANIONS:
        with suppress(OSError):
            Path(f"{path}{end}").unlink()


class CatalogueDatabase:
    """The database of one catalogue. Every method may raise StorageError."""

    def __init__(self, database: Database, searches: Database) -> None:
        self._database = database
        self._searches = searches  # whose reader may be busy for long
        self.totals = database.read(_totals)
        """The number of skyfiles, and their bytes on disk."""

    @classmethod
    def open(cls, path: Path) -> Self:
        database = Database.open(path, _FORMAT)
        with ExitStack() as opened:
            opened.callback(database.close)
            searches = Database.open(path, _FORMAT)
            opened.callback(searches.close)
            found = cls(database, searches)
            opened.pop_all()
        return found

    def close(self) -> None:
        self._searches.close()
        self._database.close()

    def problem(self) -> str:
        """Return what is damaged in the file, or "". Reads all of it: a second for a million."""

        def check(database: sqlite3.Connection) -> str:
            for table in ("skyfiles", "sectors", "totals"):
                database.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
            # In one statement: uploads go on meanwhile.
            asked = "SELECT (SELECT count(*) FROM skyfiles) = skyfiles FROM totals"
            if database.execute(asked).fetchone() != (1,):
                return "its totals are wrong"
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            return "" if found == "ok" else " ".join(str(found).split())

        try:
            return self._searches.read(check)
        except StorageError as error:
            return str(error)

    def put(self, recorded: Iterable[Recorded]) -> None:
        """Write rows, in place of those of the same skylinks. All in one transaction."""

        def write(database: sqlite3.Connection) -> None:
            for one in recorded:
                row = one.row
                key = to_key(row.skylink)
                name = row.name[:NAME_LIMIT].encode(errors="replace").decode()
                values = (row.size, row.disk, row.files, row.is_encrypted, row.stored)
                database.execute(_PUT, (key, name, name.casefold(), *values))
                database.executemany(_PUT_SECTOR, ((root, key) for root in one.roots))

        self._write(write)

    def remove(self, skylinks: Iterable[Skylink]) -> None:
        keys = [(to_key(skylink),) for skylink in skylinks]

        def write(database: sqlite3.Connection) -> None:
            database.executemany("DELETE FROM skyfiles WHERE skylink = ?", keys)
            database.executemany("DELETE FROM sectors WHERE skylink = ?", keys)

        self._write(write)

    def _write(self, action: Callable[[sqlite3.Connection], None]) -> None:
        def write(database: sqlite3.Connection) -> tuple[int, int]:
            action(database)
            return _totals(database)

        self.totals = self._database.write(write, durable=False)

    def find(self, skylink: Skylink) -> CatalogueRow | None:
        return self._database.read(lambda database: _find(database, skylink))

    def skylinks_with(self, root: bytes) -> list[Skylink]:
        """Return the skyfiles that have a sector, by its Merkle root."""

        def read(database: sqlite3.Connection) -> list[Skylink]:
            asked = (
                "SELECT skylink FROM skyfiles WHERE skylink >= ? AND skylink <= ?"
                " UNION SELECT skylink FROM sectors WHERE root = ? LIMIT 16"
            )
            rows = database.execute(asked, (root, root + b"\xff\xff", root))
            return [from_key(key) for (key,) in rows]

        return self._database.read(read)

    def keys(self, shard: int) -> set[bytes]:
        """Return the keys of skylinks whose Merkle root begins with this byte."""
        return self._database.read(lambda database: read_keys(database, shard))

    def page(self, search: str, start: int, count: int) -> tuple[tuple[CatalogueRow, ...], int]:
        """Return rows from `start` on, newest first, and how many match in all."""
        return self._searches.read(lambda database: _page(database, search, start, count))

    def older(
        self, before: float, after: tuple[float, Skylink] | None, count: int
    ) -> list[CatalogueRow]:
        """Return the next rows stored before a time, the oldest first."""
        since, key = (after[0], to_key(after[1])) if after else (-1e18, b"")

        def read(database: sqlite3.Connection) -> list[CatalogueRow]:
            values = (before, since, key, count)
            return [_row(found) for found in database.execute(_SELECT + _OLDEST, values)]

        return self._database.read(read)


def peek_page(
    path: Path, search: str, start: int, count: int
) -> tuple[tuple[CatalogueRow, ...], int] | None:
    """Read rows as `CatalogueDatabase.page` does, beside a portal that writes; None without one."""
    return Database.peek(path, _FORMAT, lambda database: _page(database, search, start, count))


def peek_row(path: Path, skylink: Skylink) -> CatalogueRow | None:
    """Read the row of a skyfile, beside a portal that writes."""
    return Database.peek(path, _FORMAT, lambda database: _find(database, skylink))


def _find(database: sqlite3.Connection, skylink: Skylink) -> CatalogueRow | None:
    found = database.execute(f"{_SELECT} WHERE skylink = ?", (to_key(skylink),)).fetchone()
    return None if found is None else _row(found)


def _page(
    database: sqlite3.Connection, search: str, start: int, count: int
) -> tuple[tuple[CatalogueRow, ...], int]:
    where, values = "", tuple[str | bytes, ...]()
    total = _totals(database)[0]
    if search:
        text = search.encode(errors="replace").decode().casefold()
        where, values = _MATCHES, (text, _searched_key(search))
        asked = database.execute(f"SELECT count(*) FROM skyfiles{where}", values)
        total = int(asked.fetchone()[0])
    rows = database.execute(_SELECT + where + _NEWEST, (*values, count, start))
    return tuple(map(_row, rows)), total


def _searched_key(search: str) -> bytes:
    try:
        return to_key(Skylink(search))
    except MalformedError:
        return b""


def _totals(database: sqlite3.Connection) -> tuple[int, int]:
    skyfiles, size = database.execute("SELECT skyfiles, bytes FROM totals").fetchone()
    return int(skyfiles), int(size)


def _row(found: tuple[bytes, str, int, int, int, int, float]) -> CatalogueRow:
    key, name, size, disk, files, is_encrypted, stored = found
    return CatalogueRow(
        from_key(key), str(name), int(size), int(disk), int(files), bool(is_encrypted), stored
    )

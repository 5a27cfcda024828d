"""Small skyfiles, which are all in their base sector: rows of one database, not files.

    <data>/v1/small.sqlite3           with ``-wal`` and ``-shm`` beside it while a portal runs

Many are stored in one transaction, which is synced once. Everything blocks; StorageError.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from skymount.errors import StorageError
from skymount.server.storage.disk_errors import DiskFullError, disk_errors
from skymount.server.storage.local.skylink_keys import read_keys, to_key
from skymount.storage.sqlite import Database, Format, ReadOnlyDatabase
from skymount.storage.write_check import free_space
from skymount.wire.skylink import Skylink

_log = logging.getLogger(__name__)

SMALL_FILE = "small.sqlite3"

_T = TypeVar("_T")

_RESERVE = 8 << 20  # bytes that stay free: to remove rows, SQLite has to write

# Rows are added at the end. Pages that are not needed any more are given back to the disk.
FORMAT = Format(
    application=0x736B736D,
    version=1,
    schema="""
CREATE TABLE skyfiles (
    number INTEGER PRIMARY KEY,
    skylink BLOB NOT NULL UNIQUE,
    base BLOB NOT NULL,
    stored REAL NOT NULL
)
""",
    settings={"auto_vacuum": "FULL"},
    if_damaged="restore it from a backup, or move it away and import one",
)
_PUT = """
INSERT INTO skyfiles (skylink, base, stored) VALUES (?, ?, ?)
ON CONFLICT (skylink) DO UPDATE SET base = excluded.base, stored = excluded.stored
"""


class SmallSkyfiles:
    """The small skyfiles of one portal. Call `open` or `open_beside`, and `close`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / SMALL_FILE
        self._database: Database | ReadOnlyDatabase | None = None

    def open(self) -> None:
        """Open the database in a locked data directory, and make it if it is not there."""
        self._database = Database.open(self.path, FORMAT)

    def open_beside(self) -> None:
        """Open it to read, beside a portal that may write. Without a database there are none."""
        self._database = ReadOnlyDatabase.open(self.path, FORMAT)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def put(self, skyfiles: Iterable[tuple[Skylink, bytes]]) -> None:
        """Store base sectors, all or none, durable once this returns; DiskFullError."""
        now = time.time()
        rows = [(to_key(skylink), base, now) for skylink, base in skyfiles]
        if not rows:
            return
        self.check_room(2 * sum(len(base) for _, base, _ in rows))  # in the log, too
        self._write(lambda database: database.executemany(_PUT, rows), "store an upload")

    def check_room(self, size: int) -> None:
        """DiskFullError if there is no room for so many bytes."""
        with disk_errors("store an upload"):
            free = free_space(self.path.parent)
        if free < _RESERVE + size:
            raise DiskFullError(
                f"cannot store an upload: {_RESERVE >> 20} MiB of the disk are kept free"
            )

    def find(self, skylink: Skylink) -> bytes | None:
        """Return a base sector."""
        asked = "SELECT CAST(base AS BLOB) FROM skyfiles WHERE skylink = ?"
        found = self._row(asked, skylink)
        return None if found is None else bytes(found[0])

    def has(self, skylink: Skylink) -> bool:
        """Whether there is a row, damaged or not."""
        return self._row("SELECT 1 FROM skyfiles WHERE skylink = ?", skylink) is not None

    def sizes(self, skylink: Skylink) -> tuple[int, float] | None:
        """Return the bytes of a base sector, and when it was stored."""
        asked = "SELECT length(base), stored FROM skyfiles WHERE skylink = ?"
        found = self._row(asked, skylink)
        return None if found is None else (int(found[0]), float(found[1]))

    def _row(self, asked: str, skylink: Skylink) -> tuple[Any, ...] | None:
        key = to_key(skylink)

        def read(database: sqlite3.Connection) -> tuple[Any, ...] | None:
            found: tuple[Any, ...] | None = database.execute(asked, (key,)).fetchone()
            return found

        return self._read(read, None)

    def keys(self, shard: int) -> set[bytes]:
        """Return the keys of those whose Merkle root begins with this byte."""
        return self._read(lambda database: read_keys(database, shard), set())

    def newest(self) -> int:
        """Return the number of the newest row, 0 if there is none."""

        def read(database: sqlite3.Connection) -> int:
            (number,) = database.execute("SELECT max(number) FROM skyfiles").fetchone()
            return int(number or 0)

        return self._read(read, 0)

    def remove(self, skylink: Skylink, stored_before: float | None) -> bool:
        """Return whether one was here; with a time only if it was stored before."""
        key, before = to_key(skylink), float("inf") if stored_before is None else stored_before

        def write(database: sqlite3.Connection) -> bool:
            asked = "DELETE FROM skyfiles WHERE skylink = ? AND stored < ?"
            return database.execute(asked, (key, before)).rowcount > 0

        return self._write(write, "remove stored content")

    def _read(self, action: Callable[[sqlite3.Connection], _T], absent: _T) -> _T:
        if self._database is None:
            return absent
        if isinstance(self._database, ReadOnlyDatabase):  # for a command: errors name the file
            return self._database.read(action)
        with _translated("read stored content"):
            return self._database.read(action)

    def _write(self, action: Callable[[sqlite3.Connection], _T], doing: str) -> _T:
        assert isinstance(self._database, Database)
        with _translated(doing):
            return self._database.write(action)


@contextmanager
def _translated(action: str) -> Iterator[None]:
    """Say what failed without the path, as the message goes to clients; DiskFullError if full."""
    try:
        yield
    except StorageError as error:
        cause = error.__cause__
        if type(cause) is sqlite3.DatabaseError:  # damage
            _log.error("%s", error)
        if isinstance(cause, OSError | sqlite3.Error):
            with disk_errors(action):
                raise cause from None
        raise StorageError(f"cannot {action}: the database of small skyfiles is damaged") from error

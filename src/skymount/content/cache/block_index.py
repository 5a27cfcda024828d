"""Which blocks are on disk, their sizes, and when they were used: a SQLite database beside them.

    <cache>/content/v1.sqlite3

It saves listing hundreds of thousands of files to count blocks or to find the least recently used
ones. It only has to be nearly right:

- A block is entered before its file is written, so a crash leaves no file that is not counted.
- The time of a file's last use is its mtime, so reading a block writes nothing here. `used` is a
  lower bound of that time; whoever evicts looks at the file.
- It is never synced. After a power cut it may be damaged; then it is made again, and so is one of
  another version.

Everything is synchronous, and one thread at a time may call. OSError says that it cannot be used.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from skymount import file_permissions

if TYPE_CHECKING:  # a mount starts without it
    import sqlite3

_SETTINGS = {
    "journal_mode": "WAL",
    "synchronous": "OFF",
    "wal_autocheckpoint": 250,  # pages of 4 KiB
    "journal_size_limit": 1 << 20,
}
_VERSION = 1
"""SQLite's user_version; an index with another one is made again."""
_BLOCKS = """
CREATE TABLE blocks (
    identity BLOB PRIMARY KEY,
    size INTEGER NOT NULL,
    used REAL NOT NULL
) WITHOUT ROWID
"""
_SCHEMA = (
    _BLOCKS,
    "CREATE INDEX blocks_by_use ON blocks (used, size)",
    "CREATE TABLE complete (stamp TEXT NOT NULL)",
    f"PRAGMA user_version = {_VERSION}",
)

_ADD = "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)"


class IndexedBlock(NamedTuple):
    """A block that was stored; its file may be gone."""

    used: float
    """Seconds since 1970; the file may have been used later."""
    size: int
    """Bytes on disk."""
    identity: bytes


class BlockIndex:
    """The index of the blocks below a directory, shared by all processes that use it.

    `lock` is a file there that nobody writes to. Its inode and mtime tell whether the directory is
    still the one that the index was made for. `busy_time` is the seconds to wait for others.
    """

    def __init__(self, lock: Path, busy_time: float = 10.0) -> None:
        self.path = lock.parent.with_name(f"{lock.parent.name}.sqlite3")
        self._lock = lock
        self._busy_time = busy_time
        self._database: sqlite3.Connection | None = None
        self._opened_file = (0, 0)
        self._complete_for = ""
        """Stamp of the directory whose blocks are all in the index."""

    def close(self) -> None:
        if self._database is not None:
            with suppress(Exception):  # not sqlite3.Error: when Python ends nothing can be imported
                self._database.close()
            self._database = None

    def __del__(self) -> None:
        self.close()

    def is_complete(self) -> bool:
        """Whether all blocks are in it: not before `rebuild`, nor if the directory was replaced."""
        with suppress(FileNotFoundError):
            if self._was_replaced():
                self.close()
            stamp = self._stamp()
            with self._opened() as database:
                if self._complete_for != stamp:  # another process may have made it
                    self._complete_for = _complete_for(database)
                return self._complete_for == stamp
        return False

    def totals(self) -> tuple[int, int]:
        """Return (blocks, bytes on disk)."""
        with self._opened() as database:
            query = "SELECT count(*), coalesce(sum(size), 0) FROM blocks"
            count, size = database.execute(query).fetchone()
            return count, size

    def rebuild(self, blocks: Iterable[IndexedBlock]) -> None:
        """Put these blocks in place of everything that is in it. The caller holds the lock.

        To list them may take long, so other processes can add blocks meanwhile; those stay.
        """
        os.utime(self._lock)
        with self._transaction() as database:
            database.execute("DELETE FROM complete")
            database.execute("DELETE FROM blocks")
        rows = [(each.identity, each.size, each.used) for each in blocks]
        with self._transaction() as database:
            database.executemany(_ADD, rows)
            database.execute("INSERT INTO complete VALUES (?)", (self._stamp(),))

    def add(self, block: IndexedBlock) -> None:
        with self._opened() as database:  # one statement: each one gives the interpreter up
            database.execute(_ADD, (block.identity, block.size, block.used))

    def add_all(self, blocks: Iterable[IndexedBlock]) -> None:
        rows = ((each.identity, each.size, each.used) for each in blocks)
        with self._transaction() as database:
            database.executemany(_ADD, rows)

    def discard(self, identities: Iterable[bytes]) -> None:
        rows = ((identity,) for identity in identities)
        with self._transaction() as database:
            database.executemany("DELETE FROM blocks WHERE identity = ?", rows)

    def forget_times_after(self, latest: float) -> None:
        """Let blocks whose time is later than that be the least recently used ones."""
        with self._opened() as database:
            database.execute("UPDATE blocks SET used = 0 WHERE used > ?", (latest,))

    def least_recently_used(self, count: int) -> list[IndexedBlock]:
        """Return the blocks with the lowest times, lowest first."""
        query = "SELECT used, size, identity FROM blocks ORDER BY used LIMIT ?"
        with self._opened() as database:
            return list(map(IndexedBlock._make, database.execute(query, (count,))))

    def in_directory(self, first_byte: int) -> dict[bytes, float]:
        """Return when the blocks were used whose identities begin with that byte."""
        query = "SELECT identity, used FROM blocks WHERE identity >= ? AND identity < ?"
        above = bytes([first_byte + 1]) if first_byte < 255 else b"\xff" * 33
        with self._opened() as database:
            return dict(database.execute(query, (bytes([first_byte]), above)))

    def update(
        self,
        gone: Iterable[tuple[bytes, float]],
        used_later: Iterable[tuple[float, bytes, float]] = (),
    ) -> None:
        """Remove blocks (identity, time), and change times (new time, identity, time).

        A block whose time is another one by now was stored again meanwhile, and is left alone.
        """
        with self._transaction() as database:
            database.executemany("DELETE FROM blocks WHERE identity = ? AND used = ?", gone)
            change = "UPDATE blocks SET used = ? WHERE identity = ? AND used = ?"
            database.executemany(change, used_later)

    def _was_replaced(self) -> bool:
        """Whether another file than the opened one is there, or none."""
        try:
            return _file_id(self.path) != self._opened_file
        except FileNotFoundError:
            return True

    def _stamp(self) -> str:
        found = self._lock.stat()
        return f"{found.st_ino} {found.st_mtime_ns}"

    # --- the file ------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> "Iterator[sqlite3.Connection]":
        from skymount.storage import sqlite

        with self._opened() as database, sqlite.transaction(database):
            yield database

    @contextmanager
    def _opened(self) -> "Iterator[sqlite3.Connection]":
        """Give the database, opened if need be; OSError for what SQLite raises."""
        import sqlite3

        try:
            yield self._open()
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            is_unusual = code in {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA}  # as: no such column
            if is_unusual or not isinstance(error, sqlite3.OperationalError):
                self._remove()  # damaged: made again when needed
            if code == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise OSError(errno.EIO, f"{self.path}: {error}") from error

    def _open(self) -> "sqlite3.Connection":
        if self._database is not None:
            return self._database
        from skymount.storage import sqlite

        self._complete_for = ""
        try:
            os.close(file_permissions.open_or_create_file(self.path))
        except OSError as error:  # a directory or a link is there
            raise OSError(error.errno, f"{self.path}: {error.strerror}") from error
        self._opened_file = _file_id(self.path)
        with ExitStack() as opened:
            database = sqlite.connect(self.path, timeout=self._busy_time, settings=_SETTINGS)
            opened.enter_context(closing(database))
            if _version(database) != _VERSION:
                with sqlite.transaction(database):
                    _create(database)
            opened.pop_all()
        self._database = database
        return database

    def _remove(self) -> None:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)


def _version(database: "sqlite3.Connection") -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _create(database: "sqlite3.Connection") -> None:
    """Make the tables, unless another process did it; DatabaseError where there are others."""
    import sqlite3

    if (version := _version(database)) == _VERSION:
        return
    if version or database.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise sqlite3.DatabaseError("another version of skymount made it")
    for statement in _SCHEMA:
        database.execute(statement)


def _complete_for(database: "sqlite3.Connection") -> str:
    row = database.execute("SELECT stamp FROM complete").fetchone()
    return "" if row is None else str(row[0])


def _file_id(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino

"""Small skyfiles as commands read them: beside a portal that may write, and with what is damaged.

Where the index of the database is damaged, its rows are read by their numbers. Everything blocks.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from skymount.errors import StorageError
from skymount.server.storage.local.skylink_keys import from_key, read_keys, to_key
from skymount.server.storage.local.small_skyfiles import FORMAT, SmallSkyfiles
from skymount.storage.sqlite import ReadOnlyDatabase
from skymount.wire.skylink import Skylink

_T = TypeVar("_T")

_TOGETHER = 1024  # numbers of rows that are tried in one query
_GIVE_UP = 1 << 14  # numbers one after the other without a row that can be read
_ROWS = "SELECT skylink, number FROM skyfiles NOT INDEXED WHERE number BETWEEN ? AND ?"
_NEXT = "SELECT min(number) FROM skyfiles NOT INDEXED WHERE number >= ?"


class SmallSkyfilesBeside(SmallSkyfiles):
    """The small skyfiles of a data directory that may be in use. Without a database there are none.

    StorageError for a skyfile that cannot be read. What lists them may be damaged: see `problem`.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._numbers: dict[bytes, int] | None = None  # of rows that the index does not lead to
        self._salvaging = threading.Lock()

    def open(self) -> None:
        try:
            self._database = ReadOnlyDatabase.open(self._path, FORMAT)
        except StorageError as error:
            self._note(error)

    def find(self, skylink: Skylink) -> bytes | None:
        try:
            return super().find(skylink)
        except StorageError as error:
            number = self._salvaged().get(to_key(skylink))
            if number is None:
                raise
            self._note(error)
        return self._read(lambda database: _base(database, number), None)

    def has(self, skylink: Skylink) -> bool:
        """Whether there is a row, or may have been one."""
        try:
            return super().has(skylink)
        except StorageError:
            return True

    def keys(self, shard: int) -> set[bytes]:
        """Return those that can be found in any way."""
        try:
            found = super().keys(shard)
            if all(map(_is_key, found)):
                return found
            self._note(StorageError(f"{self._path} is damaged: it has keys that are none"))
        except StorageError as error:
            self._note(error)
            found = set()
        salvaged = {key for key in self._salvaged() if key[0] == shard}
        return salvaged | {key for key in found if _is_key(key)}

    def _read(self, action: Callable[[sqlite3.Connection], _T], absent: _T) -> _T:
        """Read; errors name the database, as the user of a command may know where it is."""
        if self._database is None and self.problem:
            raise StorageError(self.problem)
        return absent if self._database is None else self._database.read(action)

    def _note(self, error: StorageError) -> None:
        """Note damage; raise any other error again."""
        cause = error.__cause__
        is_damage = not isinstance(cause, OSError | sqlite3.OperationalError)
        code = getattr(cause, "sqlite_errorcode", 0)  # which has details in its upper bits
        if not is_damage and code & 0xFF != sqlite3.SQLITE_IOERR:
            raise error
        self.problem = self.problem or str(error)

    def _salvaged(self) -> dict[bytes, int]:
        """Return the numbers of rows in shards where the index cannot be read."""
        with self._salvaging:
            if self._numbers is None:
                absent: dict[bytes, int] = {}
                self._numbers = absent if self._database is None else self._read(_salvage, absent)
            return self._numbers


def _salvage(database: sqlite3.Connection) -> dict[bytes, int]:
    broken = {shard for shard in range(256) if not _is_readable(database, shard)}
    rows = _readable_rows(database) if broken else ()
    return {key: number for key, number in rows if _is_key(key) and key[0] in broken}


def _is_readable(database: sqlite3.Connection, shard: int) -> bool:
    try:
        return all(map(_is_key, read_keys(database, shard)))
    except sqlite3.DatabaseError:
        return False


def _is_key(key: object) -> bool:
    try:
        return isinstance(key, bytes) and bool(from_key(key))
    except ValueError:
        return False


def _base(database: sqlite3.Connection, number: int) -> bytes | None:
    asked = "SELECT CAST(base AS BLOB) FROM skyfiles WHERE number = ?"
    found = database.execute(asked, (number,)).fetchone()
    return None if found is None else bytes(found[0])


def _readable_rows(database: sqlite3.Connection) -> Iterator[tuple[bytes, int]]:
    """Yield keys and numbers of the rows, without those in damaged pages."""
    number, unreadable = 1, 0
    while unreadable < _GIVE_UP:
        rows = list[tuple[bytes, int]]()
        lost = _collect(database, number, number + _TOGETHER - 1, rows)
        yield from rows
        unreadable = unreadable + lost if lost and not rows else 0
        number += _TOGETHER
        try:
            (following,) = database.execute(_NEXT, (number,)).fetchone()
        except sqlite3.DatabaseError:
            continue
        if following is None:
            return
        number = following


def _collect(
    database: sqlite3.Connection, first: int, last: int, rows: list[tuple[bytes, int]]
) -> int:
    """Add the rows of these numbers; return how many numbers cannot be read. Where a query fails,
    both halves are tried.
    """
    try:
        rows += database.execute(_ROWS, (first, last)).fetchall()
    except sqlite3.DatabaseError:
        if first == last:
            return 1
        middle = (first + last) // 2
        left = _collect(database, first, middle, rows)
        return left + _collect(database, middle + 1, last, rows)
    return 0

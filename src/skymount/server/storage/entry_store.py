"""The registry entries of the portal: the latest one of each id, in a SQLite database.

    <data>/entries.sqlite3            with ``-wal`` and ``-shm`` beside it while a portal runs

`skyfile_store` locks the data directory. `wire.registry_entry` decides which entry replaces which.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
from cachetools import LRUCache

from skymount import file_permissions
from skymount.errors import MalformedError, RevisionError, StorageError
from skymount.server.storage.disk_errors import disk_errors
from skymount.storage import atomic_file, sqlite
from skymount.storage.group_commit import GroupCommit
from skymount.wire.registry_entry import Entry, SignedEntry, check_update, entry_id

ENTRIES_FILE = "entries.sqlite3"

_FORMAT = 2  # the database's user_version
_BUSY_TIMEOUT = 5.0  # seconds to wait for another program that has the file open
_CACHED = 8192  # entries in memory
_WAL_LIMIT = 16 << 20  # bytes of the log that stay on disk after a burst

_SCHEMA = """
CREATE TABLE entries (
    id BLOB PRIMARY KEY,
    public_key BLOB NOT NULL,
    tweak BLOB NOT NULL,
    data BLOB NOT NULL,
    revision BLOB NOT NULL,
    kind INTEGER NOT NULL,
    signature BLOB NOT NULL
) WITHOUT ROWID
"""
# An unsigned 64-bit revision does not fit SQLite's signed integers, so it is stored as 8 bytes.
_SELECT = "SELECT public_key, tweak, data, revision, kind, signature FROM entries WHERE id = ?"
_INDEX = "CREATE INDEX by_key ON entries (public_key, tweak)"
_SELECT_OF_KEY = f"""{_SELECT.partition(" WHERE ")[0]}
WHERE public_key = ? AND tweak > ? ORDER BY tweak LIMIT ?"""
# Each step is a search in the index; DISTINCT would read all of it.
_SELECT_KEYS = """
WITH RECURSIVE keys (public_key) AS (
    SELECT min(public_key) FROM entries WHERE public_key > ?
    UNION ALL
    SELECT (SELECT min(public_key) FROM entries WHERE public_key > keys.public_key)
    FROM keys WHERE keys.public_key IS NOT NULL
    LIMIT ?
)
SELECT public_key FROM keys WHERE public_key IS NOT NULL
"""
_REPLACE = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"


def _connect(path: Path) -> sqlite3.Connection:
    settings = {"journal_mode": "WAL", "synchronous": "FULL", "journal_size_limit": _WAL_LIMIT}
    return sqlite.connect(path, timeout=_BUSY_TIMEOUT, settings=settings)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the table in a new database; StorageError for one of another format."""
    with sqlite.transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _FORMAT):
            raise StorageError(
                f"cannot use the registry {path}: it is of version {version}; this skymount knows "
                f"version {_FORMAT}: export with the one that made it, and import with this one"
            )
        if version == 0:
            connection.execute(_SCHEMA)
            connection.execute(_INDEX)
            connection.execute(f"PRAGMA user_version = {_FORMAT}")


def _read(connection: sqlite3.Connection, entry: bytes) -> SignedEntry | None:
    row = connection.execute(_SELECT, (entry,)).fetchone()
    return None if row is None else _parse(row)


def _parse(row: tuple[Any, ...]) -> SignedEntry:
    public_key, tweak, data, revision, kind, signature = row
    try:
        found = Entry(tweak, data, int.from_bytes(revision, "big"), kind)
        return SignedEntry(public_key, found, signature)
    except (MalformedError, TypeError) as error:
        raise StorageError(f"stored registry entry is damaged: {error}") from None


def _write(connection: sqlite3.Connection, signed: SignedEntry) -> bool:
    """Store an entry if it may replace what is there; return whether it is a new id."""
    entry = signed.entry
    stored = _read(connection, signed.id)
    check_update(stored.entry if stored else None, entry)
    revision = entry.revision.to_bytes(8, "big")
    row = (signed.public_key, entry.tweak, entry.data, revision, entry.kind, signed.signature)
    connection.execute(_REPLACE, (signed.id, *row))
    return stored is None


def peek_entries(root: Path) -> Iterator[SignedEntry]:
    """Yield all entries, read beside a portal that writes; StorageError."""
    form = sqlite.Format(0, _FORMAT, "")
    after = b""
    while True:
        asked = partial(_page, after=after)
        found = sqlite.Database.peek(root / ENTRIES_FILE, form, asked)
        if not found:
            return
        yield from found
        after = found[-1].id


def _page(connection: sqlite3.Connection, after: bytes) -> list[SignedEntry]:
    asked = f"{_SELECT.partition(' WHERE ')[0]} WHERE id > ? ORDER BY id LIMIT 1000"
    return [_parse(row) for row in connection.execute(asked, (after,))]


@dataclass(slots=True)
class _Update:
    signed: SignedEntry
    error: RevisionError | StorageError | None = None


class EntryStore:
    """The registry of one portal. Use `open` and `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with ExitStack() as opened:
            self._writer = opened.enter_context(closing(_connect(path)))
            _prepare(self._writer, path)
            self._reader = opened.enter_context(closing(_connect(path)))
            atomic_file.sync_directory(path.parent)
            opened.pop_all()
        self._reader_thread = trio.CapacityLimiter(1)
        self._writer_thread = trio.CapacityLimiter(1)
        self._commit_lock = trio.Lock()
        self._updates = GroupCommit(self._commit, self._commit_lock)
        self._count: int | None = None
        self._cache: LRUCache[bytes, SignedEntry] = LRUCache(_CACHED)
        self._commits = 0

    @classmethod
    def open(cls, root: Path) -> "EntryStore":
        """Open or create the database in a locked data directory; StorageError. Blocks."""
        path = root / ENTRIES_FILE
        with disk_errors(f"use the registry {path}"):
            fd = file_permissions.open_or_create_file(path)  # -wal and -shm get the same mode
            try:
                os.fchmod(fd, 0o600)
            finally:
                os.close(fd)
            return cls(path)

    def close(self) -> None:
        """Write the log back into the database, and close it. Blocks."""
        for connection in (self._reader, self._writer):
            with suppress(sqlite3.Error):  # then the log stays, and nothing is lost
                connection.close()

    def check_reading(self) -> None:
        """StorageError if nothing can be read. Blocks."""
        with disk_errors("read the registry"):
            self._reader.execute("SELECT 1 FROM entries LIMIT 1").fetchone()

    async def find(self, entry: bytes) -> SignedEntry | None:
        """Return the entry of a 32-byte id, as in a v2 skylink; None when there is none."""

        def find() -> SignedEntry | None:
            with disk_errors("read the registry"):
                return _read(self._reader, entry)

        found = self._cache.get(entry)
        if found is None:
            commits = self._commits
            found = await trio.to_thread.run_sync(find, limiter=self._reader_thread)
            if found is not None and commits == self._commits:  # else it may be replaced by now
                self._cache[entry] = found
        return found

    async def read(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        """Return the entry of a public key and a hashed data key; None when there is none."""
        return await self.find(entry_id(public_key, tweak))

    async def keys(self, after: bytes, count: int) -> list[bytes]:
        """Return the next public keys that have entries, in order."""

        def read() -> list[bytes]:
            with disk_errors("read the registry"):
                return [key for (key,) in self._reader.execute(_SELECT_KEYS, (after, count))]

        return await trio.to_thread.run_sync(read, limiter=self._reader_thread)

    async def entries_of(self, public_key: bytes, after: bytes, count: int) -> list[SignedEntry]:
        """Return the next entries of a public key, by their tweak."""

        def read() -> list[SignedEntry]:
            with disk_errors("read the registry"):
                values = (public_key, after, count)
                return [_parse(row) for row in self._reader.execute(_SELECT_OF_KEY, values)]

        return await trio.to_thread.run_sync(read, limiter=self._reader_thread)

    async def update(self, signed: SignedEntry) -> None:
        """Store an entry; once this returns, it survives a crash.

        BadSignatureError, MalformedError, RevisionError when it must not replace the stored one, or
        StorageError: then nothing was stored. Updates that arrive during a commit share the next.
        """
        signed.verify()
        update = _Update(signed)
        await self._updates.put(update)
        if update.error is not None:
            raise update.error

    async def _commit(self, updates: list[_Update]) -> None:
        try:
            await trio.to_thread.run_sync(self._write_all, updates, limiter=self._writer_thread)
        finally:
            self._commits += 1
            for update in updates:
                self._cache.pop(update.signed.id, None)

    def _write_all(self, updates: list[_Update]) -> None:
        """Store updates in order and in one transaction, and note why one is refused."""
        added = 0
        with disk_errors("write to the registry"), sqlite.transaction(self._writer):
            for update in updates:
                try:
                    added += _write(self._writer, update.signed)
                except (RevisionError, StorageError) as error:
                    update.error = error
        if self._count is not None:
            self._count += added

    async def count(self) -> int:
        async with self._commit_lock:
            if self._count is None:
                self._count = await trio.to_thread.run_sync(self._count_all)
            return self._count

    def _count_all(self) -> int:
        """Read the whole table, over a connection of its own: nobody waits for it in `find`."""
        with disk_errors("read the registry"), closing(_connect(self._path)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
            return int(count)

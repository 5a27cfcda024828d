"""Owns the registry entries that the portal keeps: the latest one of each id, in a SQLite database.

    <data>/entries.sqlite3            with ``-wal`` and ``-shm`` beside it while a portal runs

The data directory is locked by `store`. Which entry replaces which is the wire codec's matter, and
what an answer says is `registering`'s.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import trio

from skymount import file_permissions
from skymount.errors import MalformedError, RevisionError, StorageError
from skymount.storage import atomic_file, sqlite
from skymount.wire.registry_entry import Entry, SignedEntry, check_update, entry_id

FILE = "entries.sqlite3"

_FORMAT = 1  # the database's user_version
_READERS = 2  # connections that read at once; one read takes tens of microseconds
_BUSY_TIME = 5.0  # seconds to wait for another program that looks into the file
_WAL_LIMIT = 16 << 20  # bytes that the log keeps on disk after a burst

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
# a revision has 64 bits without a sign, which is one more than SQLite's integers: 8 bytes
_SELECT = "SELECT public_key, tweak, data, revision, kind, signature FROM entries WHERE id = ?"
_REPLACE = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"

_T = TypeVar("_T")


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turn what SQLite or the disk raises into a StorageError that says what was being done."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageError(f"cannot {doing}: {reason or error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    settings = {"journal_mode": "WAL", "synchronous": "FULL", "journal_size_limit": _WAL_LIMIT}
    return sqlite.connect(path, timeout=_BUSY_TIME, settings=settings)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the table in a new database; StorageError for one of another format."""
    with sqlite.transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _FORMAT):
            raise StorageError(f"cannot use the registry {path}: unknown format {version}")
        if version == 0:
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_FORMAT}")


def _read(connection: sqlite3.Connection, entry: bytes) -> SignedEntry | None:
    """Return the entry of that id."""
    row = connection.execute(_SELECT, (entry,)).fetchone()
    if row is None:
        return None
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


class _Batch:
    """Updates that are committed together."""

    def __init__(self) -> None:
        self.updates: list[SignedEntry] = []
        self.outcomes: list[RevisionError | StorageError | None] = []
        """For each update why it was not stored, or None; filled in when it is done."""
        self.done = trio.Event()


class EntryStore:
    """The registry of one portal. Use `open`, and `close` it when nothing uses it any more."""

    def __init__(self, path: Path) -> None:
        with ExitStack() as opened:
            self._writer = opened.enter_context(closing(_connect(path)))
            _prepare(self._writer, path)
            self._idle = [opened.enter_context(closing(_connect(path))) for _ in range(_READERS)]
            atomic_file.sync_directory(path.parent)
            opened.pop_all()
        self._reading = trio.CapacityLimiter(_READERS)
        self._write_thread = trio.CapacityLimiter(1)
        self._writing = trio.Lock()
        self._gathering = _Batch()
        self._count: int | None = None

    @classmethod
    def open(cls, root: Path) -> "EntryStore":
        """Open the database in a data directory that is locked already, or create it. Blocks.

        StorageError when it cannot be used.
        """
        path = root / FILE
        with _translated(f"use the registry {path}"):
            fd = file_permissions.open_or_create_file(
                path
            )  # SQLite gives its other files the same mode
            try:
                os.fchmod(fd, 0o600)
            finally:
                os.close(fd)
            return cls(path)

    def close(self) -> None:
        """Write the log back into the database. Blocks."""
        for connection in (*self._idle, self._writer):
            with suppress(sqlite3.Error):  # what was answered is in the log, which stays then
                connection.close()

    async def get(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        """Return the entry of an owner's key and hashed data key, None when there is none."""
        return await self.find(entry_id(public_key, tweak))

    async def find(self, entry: bytes) -> SignedEntry | None:
        """Return the entry of a 32-byte id, which a v2 skylink holds; None when there is none."""
        return await self._in_reader(lambda connection: _read(connection, entry))

    async def update(self, signed: SignedEntry) -> None:
        """Store an entry; once this returns, it survives a crash.

        BadSignatureError or MalformedError for an entry that is none, RevisionError when it must
        not replace the stored one, StorageError when the disk fails: then nothing was stored. Those
        that wait for the disk together are committed together, by the first of them.
        """
        signed.verify()
        batch, index = self._gathering, len(self._gathering.updates)
        batch.updates.append(signed)
        if index:
            await batch.done.wait()
        else:
            with trio.CancelScope(shield=True):  # others wait for it
                await self._commit(batch)
        if not batch.outcomes:
            raise StorageError("cannot write to the registry")
        outcome = batch.outcomes[index]
        if outcome is not None:
            raise outcome

    async def _commit(self, batch: _Batch) -> None:
        try:
            async with self._writing:
                self._gathering = _Batch()
                batch.outcomes = await trio.to_thread.run_sync(
                    self._write_all, batch.updates, limiter=self._write_thread
                )
        finally:
            batch.done.set()

    def _write_all(self, updates: list[SignedEntry]) -> list[RevisionError | StorageError | None]:
        """Store what may be stored, in order and in one transaction; return what may not."""
        outcomes: list[RevisionError | StorageError | None] = []
        added = 0
        try:
            with _translated("write to the registry"), sqlite.transaction(self._writer):
                for signed in updates:
                    try:
                        added += _write(self._writer, signed)
                        outcomes.append(None)
                    except (RevisionError, StorageError) as error:
                        outcomes.append(error)
        except StorageError as error:
            return [StorageError(str(error)) for _ in updates]
        if self._count is not None:
            self._count += added
        return outcomes

    async def count(self) -> int:
        """Return how many entries there are, deleted ones included."""
        async with self._writing:
            if self._count is None:
                query = "SELECT count(*) FROM entries"
                self._count = await self._in_reader(lambda db: int(db.execute(query).fetchone()[0]))
            return self._count

    async def _in_reader(self, read: Callable[[sqlite3.Connection], _T]) -> _T:
        """Call a function in a thread with a connection of its own."""

        def run() -> _T:
            connection = self._idle.pop()
            try:
                with _translated("read the registry"):
                    return read(connection)
            finally:
                self._idle.append(connection)

        return await trio.to_thread.run_sync(run, limiter=self._reading)

"""The registry entries of portals that share a database."""

from typing import Any

import trio

from skymount.errors import MalformedError, RevisionError, StorageError
from skymount.server.storage.cluster.database import Connection, Database, RowCount
from skymount.wire.registry_entry import Entry, SignedEntry, check_update, entry_id

_SELECT = "SELECT public_key, tweak, data, revision, kind, signature FROM entries"
# The rule of `check_update`. Revisions are 8 bytes, which are ordered like the numbers.
_UPDATE = """
INSERT INTO entries AS e (id, public_key, tweak, data, revision, kind, signature, work)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (id) DO UPDATE SET
    data = excluded.data, revision = excluded.revision, kind = excluded.kind,
    signature = excluded.signature, work = excluded.work
WHERE excluded.revision > e.revision
    OR (excluded.revision = e.revision AND excluded.work < e.work
        AND e.revision < '\\xffffffffffffffff'::bytea)
RETURNING true
"""
_KEYS = """
WITH RECURSIVE keys (public_key) AS (
    (SELECT public_key FROM entries WHERE public_key > %s ORDER BY public_key LIMIT 1)
    UNION ALL
    SELECT (SELECT e.public_key FROM entries e WHERE e.public_key > keys.public_key
            ORDER BY e.public_key LIMIT 1)
    FROM keys WHERE keys.public_key IS NOT NULL
)
SELECT public_key FROM keys WHERE public_key IS NOT NULL LIMIT %s
"""


class SharedEntries:
    """The registry of portals that share a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads = database.threads
        self._count = RowCount(database, "count registry entries", "count(*)", "entries")

    async def find(self, entry: bytes) -> SignedEntry | None:
        rows = await self._rows(f"{_SELECT} WHERE id = %s", entry)
        return _parse(rows[0]) if rows else None

    async def read(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        return await self.find(entry_id(public_key, tweak))

    async def keys(self, after: bytes, count: int) -> list[bytes]:
        return [key for (key,) in await self._rows(_KEYS, after, count)]

    async def entries_of(self, public_key: bytes, after: bytes, count: int) -> list[SignedEntry]:
        query = f"{_SELECT} WHERE public_key = %s AND tweak > %s ORDER BY tweak LIMIT %s"
        return [_parse(row) for row in await self._rows(query, public_key, after, count)]

    async def count(self) -> int:
        """Return a count that may be some seconds old."""
        (count,) = await trio.to_thread.run_sync(self._count.read, limiter=self._threads)
        return count

    async def _rows(self, query: Any, *values: object) -> list[Any]:
        return await trio.to_thread.run_sync(
            self._database.rows, "read the registry", query, values, limiter=self._threads
        )

    async def update(self, signed: SignedEntry) -> None:
        """Store an entry if it may replace what is there, by one statement."""
        signed.verify()
        stored = await trio.to_thread.run_sync(self._update, signed, limiter=self._threads)
        if not stored:
            # What refused it is read by itself: within the statement it may not be seen.
            found = await self.find(signed.id)
            if found is None:
                raise StorageError("cannot write to the registry")
            check_update(found.entry, signed.entry)
            raise RevisionError("provided revision number is invalid")

    def _update(self, signed: SignedEntry) -> bool:
        entry = signed.entry
        row = (
            signed.id,
            signed.public_key,
            entry.tweak,
            entry.data,
            entry.revision.to_bytes(8, "big"),
            entry.kind,
            signed.signature,
            entry.work,
        )

        def update(connection: Connection) -> bool:
            return connection.execute(_UPDATE, row).fetchone() is not None

        return self._database.write("write to the registry", update)


def _parse(row: tuple[Any, ...]) -> SignedEntry:
    public_key, tweak, data, revision, kind, signature = row
    try:
        found = Entry(tweak, data, int.from_bytes(revision, "big"), kind)
        return SignedEntry(public_key, found, signature)
    except (MalformedError, TypeError) as error:
        raise StorageError(f"stored registry entry is damaged: {error}") from None

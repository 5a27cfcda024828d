"""The registry entries of portals that share a database."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, LiteralString

import trio

from skymount.errors import MalformedError, RevisionError, StorageError
from skymount.server.storage.cluster.database import Connection, Database, RowCount
from skymount.storage.group_commit import GroupCommit
from skymount.wire.registry_entry import Entry, SignedEntry, check_update, entry_id

_GROUPS = 4  # of reads that are under way, and of updates

_SELECT: LiteralString = "SELECT public_key, tweak, data, revision, kind, signature FROM entries"
_SELECT_ONE = f"{_SELECT} WHERE id = %s"
_SELECT_MANY = "SELECT id, public_key, tweak, data, revision, kind, signature FROM entries"
_SELECT_MANY += " WHERE id = ANY(%s)"
# The rule of `check_update`. Revisions are 8 bytes, which are ordered like the numbers.
UPDATE = """
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


@dataclass(slots=True)
class _Lookup:
    entry: bytes
    row: tuple[Any, ...] | None = None


@dataclass(slots=True)
class _Update:
    signed: SignedEntry
    is_stored: bool = False


class SharedEntries:
    """The registry of portals that share a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lookups = GroupCommit(self._look_up, trio.Semaphore(_GROUPS))
        self._updates = GroupCommit(self._write, trio.Semaphore(_GROUPS))
        self._count = RowCount(database, "count registry entries", "count(*)", "entries")

    async def find(self, entry: bytes) -> SignedEntry | None:
        lookup = _Lookup(entry)
        await self._lookups.put(lookup)
        return _parse(lookup.row) if lookup.row else None

    async def _look_up(self, lookups: list[_Lookup]) -> None:
        if len(lookups) == 1:  # PostgreSQL plans the other query each time
            (lookup,) = lookups
            lookup.row = next(iter(await self._rows(_SELECT_ONE, lookup.entry)), None)
            return
        rows = await self._rows(_SELECT_MANY, [lookup.entry for lookup in lookups])
        found = {entry: tuple(row) for entry, *row in rows}
        for lookup in lookups:
            lookup.row = found.get(lookup.entry)

    async def read(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        return await self.find(entry_id(public_key, tweak))

    async def keys(self, after: bytes, count: int) -> list[bytes]:
        return [key for (key,) in await self._rows(_KEYS, after, count)]

    async def entries_of(self, public_key: bytes, after: bytes, count: int) -> list[SignedEntry]:
        query = f"{_SELECT} WHERE public_key = %s AND tweak > %s ORDER BY tweak LIMIT %s"
        return [_parse(row) for row in await self._rows(query, public_key, after, count)]

    async def count(self) -> int:
        """Return a count that may be some seconds old."""
        (count,) = await self._database.run(self._count.read)
        return count

    async def _rows(self, query: Any, *values: object) -> list[Any]:
        return await self._database.run(self._database.rows, "read the registry", query, values)

    async def update(self, signed: SignedEntry) -> None:
        """Store an entry if it may replace what is there, by one statement. Updates at the same
        time share a transaction.
        """
        signed.verify()
        update = _Update(signed)
        await self._updates.put(update)
        if not update.is_stored:
            # What refused it is read by itself: within the statement it may not be seen.
            found = await self.find(signed.id)
            if found is None:
                raise StorageError("cannot write to the registry")
            check_update(found.entry, signed.entry)
            raise RevisionError("provided revision number is invalid")

    async def _write(self, updates: list[_Update]) -> None:
        # In one order everywhere: else transactions could wait for each other in a circle.
        updates = sorted(updates, key=lambda update: update.signed.id)
        rows = [_row(update.signed) for update in updates]

        def write(connection: Connection) -> list[bool]:
            if len(rows) == 1:
                return [connection.execute(UPDATE, rows[0]).fetchone() is not None]
            with connection.cursor() as cursor:
                cursor.executemany(UPDATE, rows, returning=True)  # in one transaction
                return [result.fetchone() is not None for result in cursor.results()]

        stored = await self._database.run(self._database.write, "write to the registry", write)
        for update, is_stored in zip(updates, stored, strict=True):
            update.is_stored = is_stored


def _row(signed: SignedEntry) -> tuple[Any, ...]:
    entry = signed.entry
    return (
        signed.id,
        signed.public_key,
        entry.tweak,
        entry.data,
        entry.revision.to_bytes(8, "big"),
        entry.kind,
        signed.signature,
        entry.work,
    )


def read_entries(database: Database) -> Iterator[SignedEntry]:
    """Yield all entries; StorageError. Blocks."""
    after = b""
    query: LiteralString = f"{_SELECT} WHERE id > %s ORDER BY id LIMIT 1000"
    while rows := database.rows("read the registry", query, (after,)):
        found = [_parse(row) for row in rows]
        yield from found
        after = found[-1].id


def _parse(row: tuple[Any, ...]) -> SignedEntry:
    public_key, tweak, data, revision, kind, signature = row
    try:
        found = Entry(tweak, data, int.from_bytes(revision, "big"), kind)
        return SignedEntry(public_key, found, signature)
    except (MalformedError, TypeError) as error:
        raise StorageError(f"stored registry entry is damaged: {error}") from None

"""What the shared database has of skyfiles: their rows, and which sectors they have.

Everything blocks; StorageError.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, LiteralString

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.catalogue_reading import describe_metadata
from skymount.server.storage.catalogue_rows import CatalogueRow
from skymount.server.storage.cluster.database import (
    PUBLISH_LOCK,
    Connection,
    Database,
)
from skymount.wire.base_sector import LAYOUT_SIZE, Layout
from skymount.wire.metadata import INTEGER_LIMIT
from skymount.wire.skyfile_encryption import is_encrypted
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_NAME_LIMIT = 256  # characters
_COLUMNS = "skylink, name, size, kept, files, is_encrypted, stored"
_PUT = """
INSERT INTO skyfiles (skylink, root, name, folded, size, kept, files, is_encrypted, stored)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s,
    coalesce(nullif(%s, 0), extract(epoch FROM clock_timestamp())::float8))
ON CONFLICT (skylink) DO UPDATE SET stored = greatest(skyfiles.stored, excluded.stored)
RETURNING CASE WHEN xmax = 0 THEN stored ELSE 0 END
"""
_PUT_SECTORS = """
INSERT INTO sectors (root, skylink) SELECT unnest(%s::bytea[]), %s ON CONFLICT DO NOTHING
"""
_SWEPT = """
SELECT count(*) FROM swept WHERE root = ANY(%s) AND removed > %s
"""
_MATCHES = " WHERE folded LIKE %s OR skylink = %s"


def describe(
    skylink: Skylink, base: bytes, extension: bytes, stored: float, sectors: int
) -> CatalogueRow:
    """Return the row of a skyfile whose payload has so many sectors. Names of encrypted ones
    are not known. A time of 0 is that at which it will be put. No IO.
    """
    layout = Layout.parse(base)
    kept = len(base) + len(extension) + sectors * SECTOR_SIZE
    if not (is_encrypted(layout) or layout.is_inline):
        kept = len(base) + len(extension) + layout.filesize
    kept = min(kept, INTEGER_LIMIT - 1)
    row = CatalogueRow(skylink, "", kept, kept, 0, True, stored)
    if is_encrypted(layout):
        return row
    body = extension if layout.is_extended else base[LAYOUT_SIZE:]
    raw = body[layout.fanout_size : layout.body_size]
    name, files = "", 0
    with suppress(MalformedError):
        name, files = describe_metadata(raw)
    shown = name[:_NAME_LIMIT].replace("\0", "\ufffd").encode(errors="replace").decode()
    size = min(layout.filesize, INTEGER_LIMIT - 1)
    return replace(row, name=shown, files=files, size=size, is_encrypted=False)


def now(database: Database) -> datetime:
    """Return the time of the database."""
    ((found,),) = database.rows("begin an upload", "SELECT clock_timestamp()")
    assert isinstance(found, datetime)
    return found


def put(
    database: Database, row: CatalogueRow, roots: Sequence[bytes], began: datetime | None
) -> float:
    """Record a skyfile, and protect its sectors from the sweeper; return when it was stored, by
    the clock of the database, or 0 if it is not new.

    StorageError if the sweeper has removed one of the sectors since the upload began, or may be
    about to.
    """
    skylink = str(row.skylink)
    values = (
        *(skylink, row.skylink.root, row.name, row.name.casefold(), row.size, row.disk),
        *(row.files, row.is_encrypted, row.stored),
    )

    def work(connection: Connection) -> float:
        if not roots:
            return _time(connection.execute(_PUT, values).fetchone())
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (PUBLISH_LOCK,))
            swept = connection.execute(_SWEPT, (list(roots), began)).fetchone()
            if began is not None and swept and swept[0]:
                raise StorageError("sectors of the upload were removed meanwhile: upload it again")
            stored = _time(connection.execute(_PUT, values).fetchone())
            connection.execute(_PUT_SECTORS, (list(roots), skylink))
            return stored

    return database.write("store an upload", work)


def _time(returned: tuple[Any, ...] | None) -> float:
    return float(returned[0]) if returned else 0.0


def withdraw(database: Database, skylink: Skylink, stored: float) -> None:
    """Remove the row of an upload that failed, unless another one has recorded the same since."""

    def work(connection: Connection) -> None:
        query = "DELETE FROM skyfiles WHERE skylink = %s AND stored = %s"
        connection.execute(query, (str(skylink), stored))

    database.write("withdraw an upload", work)


def remove(database: Database, skylinks: list[str], stored_before: float = math.inf) -> None:
    """Remove rows of skyfiles that were stored before a time, and what they say of sectors."""

    def work(connection: Connection) -> None:
        query = "DELETE FROM skyfiles WHERE skylink = ANY(%s) AND stored < %s"
        connection.execute(query, (skylinks, stored_before))

    database.write("remove stored content", work)


def find(database: Database, skylink: Skylink) -> CatalogueRow | None:
    """Return the row of a skyfile."""
    query = f"SELECT {_COLUMNS} FROM skyfiles WHERE skylink = %s"
    rows = database.rows("read the list of skyfiles", query, (str(skylink),))
    return _row(rows[0]) if rows else None


def _row(found: tuple[Any, ...]) -> CatalogueRow:
    skylink, *others = found
    return CatalogueRow(Skylink(skylink), *others)


def with_sector(database: Database, root: bytes) -> list[Skylink]:
    """Return skyfiles that have the sector of a Merkle root."""
    query = "SELECT skylink FROM skyfiles WHERE root = %s UNION SELECT skylink FROM sectors"
    query += " WHERE root = %s LIMIT 4"
    rows = database.rows("read the list of skyfiles", query, (root, root))
    return [Skylink(skylink) for (skylink,) in rows]


def totals(database: Database) -> tuple[int, int]:
    """Return the number of skyfiles, and their bytes in the store. Triggers maintain both."""
    query = "SELECT sum(skyfiles), sum(bytes) FROM totals"
    ((count, size),) = database.rows("count stored content", query)
    return int(count), int(size)


def page(database: Database, search: str, start: int, count: int) -> tuple[list[CatalogueRow], int]:
    """Return rows from `start` on, newest first, and how many match in all."""

    def read(connection: Connection) -> tuple[list[CatalogueRow], int]:
        if search:
            return _search(connection, search, start, count)
        (found,) = connection.execute("SELECT sum(skyfiles) FROM totals").fetchall()
        total = int(found[0])
        return _all(connection, start, min(count, total - start), total), total

    return database.read("read the list of skyfiles", read)


def _all(connection: Connection, start: int, count: int, total: int) -> list[CatalogueRow]:
    """Return rows without a search, counted from the nearer end by the index alone."""
    if count <= 0:
        return []
    order: LiteralString = "stored DESC, skylink"
    if start > total // 2:
        start, order = total - start - count, "stored, skylink DESC"
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM"
        f" (SELECT skylink FROM skyfiles ORDER BY {order} LIMIT %s OFFSET %s) AS chosen"
        " JOIN skyfiles USING (skylink) ORDER BY stored DESC, skylink",
        (count, start),
    )
    return [_row(row) for row in rows]


def _search(
    connection: Connection, search: str, start: int, count: int
) -> tuple[list[CatalogueRow], int]:
    escaped = search.replace("\0", "").encode(errors="replace").decode().casefold()
    for special in "\\%_":
        escaped = escaped.replace(special, f"\\{special}")
    values = (f"%{escaped}%", escaped and search.replace("\0", ""))
    (counted,) = connection.execute(f"SELECT count(*) FROM skyfiles{_MATCHES}", values).fetchall()
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM skyfiles{_MATCHES}"
        " ORDER BY stored DESC, skylink LIMIT %s OFFSET %s",
        (*values, count, start),
    )
    return [_row(row) for row in rows], int(counted[0])


def older(
    database: Database, before: float, after: tuple[float, str] | None, count: int
) -> list[CatalogueRow]:
    """Return the next rows that are not pinned and were stored before a time, the oldest first."""
    since, skylink = after or (-math.inf, "~")  # ~ follows each skylink
    query: LiteralString = (
        f"SELECT {_COLUMNS} FROM skyfiles WHERE stored < %s AND stored >= %s"
        " AND (stored > %s OR skylink < %s)"
        " AND NOT EXISTS (SELECT FROM pins WHERE pins.skylink = skyfiles.skylink)"
        " ORDER BY stored, skylink DESC LIMIT %s"  # backwards by the index
    )
    values = (before, since, since, skylink, count)
    return [_row(row) for row in database.rows("read the list of skyfiles", query, values)]


def known(database: Database, skylinks: Iterable[str]) -> set[str]:
    """Return which of these skyfiles have rows."""
    query = "SELECT skylink FROM skyfiles WHERE skylink = ANY(%s)"
    return {name for (name,) in database.rows("compare skyfiles", query, (list(skylinks),))}


def older_than(database: Database, limit: float, after: str, until: str, count: int) -> list[str]:
    """Return the next skyfiles that were stored before a time, between two in their order."""
    query = "SELECT skylink FROM skyfiles WHERE skylink > %s AND skylink <= %s AND stored < %s"
    query += " ORDER BY skylink LIMIT %s"
    values = (after, until, limit, count)
    return [name for (name,) in database.rows("compare skyfiles", query, values)]

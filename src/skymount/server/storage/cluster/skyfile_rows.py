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
    RowCount,
)
from skymount.wire.base_sector import LAYOUT_SIZE, Layout
from skymount.wire.metadata import INTEGER_LIMIT
from skymount.wire.skyfile_encryption import is_encrypted
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_NAME_LIMIT = 256  # characters
_COLUMNS = "skylink, name, size, kept, files, is_encrypted, stored"
_PUT = """
INSERT INTO skyfiles (skylink, root, name, folded, size, kept, files, is_encrypted, stored)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (skylink) DO UPDATE SET stored = excluded.stored
RETURNING xmax = 0
"""
_PUT_SECTORS = """
INSERT INTO sectors (root, skylink) SELECT unnest(%s::bytea[]), %s ON CONFLICT DO NOTHING
"""
_SWEPT = """
SELECT count(*) FROM swept WHERE root = ANY(%s) AND removed > %s
"""
_MATCHES = " WHERE folded LIKE %s OR skylink = %s"


def describe(
    skylink: Skylink, base: bytes, extension: bytes, now: float, sectors: int
) -> CatalogueRow:
    """Return the row of a skyfile whose payload has so many sectors. Names of encrypted ones
    are not known. No IO.
    """
    layout = Layout.parse(base)
    kept = len(base) + len(extension) + sectors * SECTOR_SIZE
    if not (is_encrypted(layout) or layout.is_inline):
        kept = len(base) + len(extension) + layout.filesize
    kept = min(kept, INTEGER_LIMIT - 1)
    row = CatalogueRow(skylink, "", kept, kept, 0, True, now)
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
) -> bool:
    """Record a skyfile, and protect its sectors from the sweeper; return whether it is new.

    StorageError if the sweeper has removed one of the sectors since the upload began, or may be
    about to.
    """
    skylink = str(row.skylink)
    values = (
        *(skylink, row.skylink.root, row.name, row.name.casefold(), row.size, row.disk),
        *(row.files, row.is_encrypted, row.stored),
    )

    def work(connection: Connection) -> bool:
        if not roots:
            return _is_new(connection.execute(_PUT, values).fetchone())
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (PUBLISH_LOCK,))
            swept = connection.execute(_SWEPT, (list(roots), began)).fetchone()
            if began is not None and swept and swept[0]:
                raise StorageError("sectors of the upload were removed meanwhile: upload it again")
            is_new = _is_new(connection.execute(_PUT, values).fetchone())
            connection.execute(_PUT_SECTORS, (list(roots), skylink))
            return is_new

    return database.write("store an upload", work)


def _is_new(returned: tuple[Any, ...] | None) -> bool:
    return bool(returned and returned[0])


def withdraw(database: Database, row: CatalogueRow) -> None:
    """Remove the row of an upload that failed, unless another one has recorded the same since."""

    def work(connection: Connection) -> None:
        query = "DELETE FROM skyfiles WHERE skylink = %s AND stored = %s"
        connection.execute(query, (str(row.skylink), row.stored))

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
    return CatalogueRow(Skylink.parse(skylink), *others)


def with_sector(database: Database, root: bytes) -> list[Skylink]:
    """Return skyfiles that have the sector of a Merkle root."""
    query = "SELECT skylink FROM skyfiles WHERE root = %s UNION SELECT skylink FROM sectors"
    query += " WHERE root = %s LIMIT 4"
    rows = database.rows("read the list of skyfiles", query, (root, root))
    return [Skylink.parse(skylink) for (skylink,) in rows]


def totals(database: Database) -> RowCount:
    """Return what counts the skyfiles, and their bytes in the store."""
    numbers: LiteralString = "count(*), coalesce(sum(kept), 0)"
    return RowCount(database, "count stored content", numbers, "skyfiles")


def page(
    database: Database, search: str, start: int, count: int
) -> tuple[list[CatalogueRow], int | None]:
    """Return rows from `start` on, newest first, and how many match in all if it is a search."""
    where, values = "", tuple[Any, ...]()
    if search:
        escaped = search.replace("\0", "").encode(errors="replace").decode().casefold()
        for special in "\\%_":
            escaped = escaped.replace(special, f"\\{special}")
        where, values = _MATCHES, (f"%{escaped}%", escaped and search.replace("\0", ""))

    def read(connection: Connection) -> tuple[list[CatalogueRow], int | None]:
        counted = None
        if search:
            counted = connection.execute(f"SELECT count(*) FROM skyfiles{where}", values).fetchone()
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM skyfiles{where}"
            " ORDER BY stored DESC, skylink LIMIT %s OFFSET %s",
            (*values, count, start),
        )
        return [_row(row) for row in rows], counted[0] if counted else None

    return database.read("read the list of skyfiles", read)


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

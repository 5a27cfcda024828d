"""What the shared database has of skyfiles: their rows, and which sectors they have.

Everything blocks; StorageError.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.catalogue_reading import describe_metadata
from skymount.server.storage.catalogue_rows import CatalogueRow
from skymount.server.storage.cluster.database import PUBLISH_LOCK, Connection, Database
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
"""
_PUT_SECTORS = """
INSERT INTO sectors (root, skylink) SELECT unnest(%s::bytea[]), %s ON CONFLICT DO NOTHING
"""
_SWEPT = """
SELECT count(*) FROM swept WHERE root = ANY(%s) AND (removed IS NULL OR removed > %s)
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
    row = CatalogueRow(skylink, "", min(kept, INTEGER_LIMIT - 1), kept, 0, True, now)
    if is_encrypted(layout):
        return row
    body = extension if layout.is_extended else base[LAYOUT_SIZE:]
    raw = body[layout.fanout_size : layout.body_size]
    name, files = "", 0
    with suppress(MalformedError):
        name, files = describe_metadata(raw)
    shown = name[:_NAME_LIMIT].replace("\0", "\ufffd").encode(errors="replace").decode()
    return replace(row, name=shown, files=files, size=layout.filesize, is_encrypted=False)


def now(database: Database) -> datetime:
    """Return the time of the database."""
    ((found,),) = database.rows("begin an upload", "SELECT clock_timestamp()")
    assert isinstance(found, datetime)
    return found


def put(
    database: Database, row: CatalogueRow, roots: Sequence[bytes], began: datetime | None
) -> None:
    """Record a skyfile, and protect its sectors from the sweeper; StorageError if that removed one
    of them since the upload began.
    """
    skylink = str(row.skylink)
    values = (
        *(skylink, row.skylink.root, row.name, row.name.casefold(), row.size, row.disk),
        *(row.files, row.is_encrypted, row.stored),
    )

    def work(connection: Connection) -> None:
        if not roots:
            connection.execute(_PUT, values)
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (PUBLISH_LOCK,))
            swept = connection.execute(_SWEPT, (list(roots), began)).fetchone()
            if began is not None and swept and swept[0]:
                raise StorageError("sectors of the upload were removed meanwhile: upload it again")
            connection.execute(_PUT, values)
            connection.execute(_PUT_SECTORS, (list(roots), skylink))

    database.write("store an upload", work)


def remove(database: Database, skylinks: list[str]) -> None:
    """Remove rows of skyfiles, and what they say of sectors."""

    def work(connection: Connection) -> None:
        connection.execute("DELETE FROM skyfiles WHERE skylink = ANY(%s)", (skylinks,))

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


def totals(database: Database) -> tuple[int, int]:
    """Return the number of skyfiles, and their bytes in the store."""
    query = "SELECT count(*), coalesce(sum(kept), 0)::bigint FROM skyfiles"
    ((count, size),) = database.rows("count stored content", query)
    return int(count), int(size)


def page(database: Database, search: str, start: int, count: int) -> tuple[list[CatalogueRow], int]:
    """Return rows from `start` on, newest first, and how many match in all."""
    where, values = "", tuple[Any, ...]()
    if search:
        escaped = search.replace("\0", "").encode(errors="replace").decode().casefold()
        for special in "\\%_":
            escaped = escaped.replace(special, f"\\{special}")
        where, values = _MATCHES, (f"%{escaped}%", escaped and search.replace("\0", ""))

    def read(connection: Connection) -> tuple[list[CatalogueRow], int]:
        counted = connection.execute(f"SELECT count(*) FROM skyfiles{where}", values).fetchone()
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM skyfiles{where}"
            " ORDER BY stored DESC, skylink LIMIT %s OFFSET %s",
            (*values, count, start),
        )
        return [_row(row) for row in rows], counted[0] if counted else 0

    return database.read("read the list of skyfiles", read)


def known(database: Database, skylinks: Iterable[str]) -> set[str]:
    """Return which of these skyfiles have rows."""
    query = "SELECT skylink FROM skyfiles WHERE skylink = ANY(%s)"
    return {name for (name,) in database.rows("compare skyfiles", query, (list(skylinks),))}


def older_than(database: Database, limit: float) -> list[str]:
    """Return the skyfiles that were stored before a time."""
    query = "SELECT skylink FROM skyfiles WHERE stored < %s"
    return [name for (name,) in database.rows("compare skyfiles", query, (limit,))]

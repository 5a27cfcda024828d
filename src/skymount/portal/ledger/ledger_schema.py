"""The tables of the ledger: their SQL, and how values are stored in columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from skymount.errors import MalformedError
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite
from skymount.portal.ledger.rollback import RevisionMark
from skymount.wire.hashing import encode_text
from skymount.wire.registry_entry import Entry, SignedEntry

if TYPE_CHECKING:
    import sqlite3

    from skymount.storage.sqlite import Format

Key = tuple[bytes, bytes]  # public key and tweak of an entry
_REASON_LIMIT = 500  # characters of a reason that are kept
_APPLICATION = 0x736B796C  # "skyl"
_VERSION = 5

# Data keys are stored as UTF-8 blobs, because SQLite's text ends at a NUL. Revisions are stored as
# 8 bytes, because they have one bit more than SQLite's integers; blobs compare as the numbers do.
_SCHEMA = """
CREATE TABLE entries (
    public_key BLOB NOT NULL,
    tweak BLOB NOT NULL,
    data_key BLOB,
    named INTEGER NOT NULL DEFAULT 0,
    seen BLOB,
    digest BLOB,
    at REAL,
    claimed BLOB,
    data BLOB,
    kind INTEGER,
    signature BLOB,
    PRIMARY KEY (public_key, tweak)
) WITHOUT ROWID;
CREATE TABLE spool (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    public_key BLOB NOT NULL,
    tweak BLOB NOT NULL,
    data_key BLOB,
    data BLOB NOT NULL,
    base BLOB,
    revision BLOB,
    kind INTEGER,
    signature BLOB,
    reason TEXT NOT NULL,
    created REAL NOT NULL,
    poster TEXT,
    portals TEXT NOT NULL DEFAULT '',
    fate TEXT NOT NULL DEFAULT 'failed',
    lacking TEXT NOT NULL DEFAULT ''
);
CREATE INDEX spool_of ON spool (public_key, tweak);
CREATE TABLE owed (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    portal TEXT NOT NULL,
    public_key BLOB NOT NULL,
    tweak BLOB NOT NULL,
    data_key BLOB,
    revision BLOB NOT NULL,
    kind INTEGER NOT NULL,
    data BLOB NOT NULL,
    signature BLOB NOT NULL,
    with_content INTEGER NOT NULL,
    since REAL NOT NULL,
    attempts INTEGER NOT NULL,
    next_at REAL NOT NULL,
    reason TEXT NOT NULL,
    poster TEXT,
    own INTEGER NOT NULL DEFAULT 0,
    UNIQUE (public_key, tweak, portal)
);
CREATE INDEX owed_to ON owed (portal, since);
CREATE TABLE name_versions (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    target TEXT NOT NULL,
    since INTEGER NOT NULL
)
"""

OF_KEY = "public_key = ? AND tweak = ?"
ENSURE_ENTRY = "INSERT OR IGNORE INTO entries (public_key, tweak) VALUES (?, ?)"
ALL_KEYS = "SELECT public_key, tweak FROM entries"
RAISE_MARK = (
    "UPDATE entries SET seen = ?, digest = ?, at = ?, data = ?, kind = ?, signature = ?"
    f" WHERE {OF_KEY}"
)
FORGET_MARK = (
    "UPDATE entries SET claimed = max(coalesce(claimed, seen), seen), seen = NULL,"
    " digest = NULL, at = NULL, data = NULL, kind = NULL, signature = NULL"
    f" WHERE {OF_KEY} AND seen IS NOT NULL"
)
CLAIM = f"UPDATE entries SET claimed = ? WHERE {OF_KEY}"
LIST_ENTRY = f"UPDATE entries SET named = ?, data_key = coalesce(?, data_key) WHERE {OF_KEY}"
UNLIST_ENTRY = f"UPDATE entries SET named = 0 WHERE {OF_KEY} AND named"
LISTING_OF = f"SELECT named, data_key FROM entries WHERE {OF_KEY}"
LISTED_ENTRIES = "SELECT data_key, tweak FROM entries WHERE public_key = ? AND named"
LISTED_PUBLIC_KEYS = """
WITH RECURSIVE keys(key) AS (
    SELECT min(public_key) FROM entries
    UNION ALL
    SELECT (SELECT min(public_key) FROM entries WHERE public_key > key) FROM keys
    WHERE key IS NOT NULL
)
SELECT key FROM keys
WHERE key IS NOT NULL AND EXISTS (SELECT 1 FROM entries WHERE public_key = key AND named)
"""
PENDING = (
    "SELECT id, public_key, tweak, data_key, data, base, revision, kind, signature, reason,"
    " created, poster, portals, lacking, fate FROM spool"
)
NEXT_NUMBER = "(SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence)"  # of spool and owed
SPOOL = (
    "INSERT INTO spool (id, public_key, tweak, data_key, data, base, revision, kind, signature,"
    " reason, created, poster, portals, lacking, fate)"
    f" VALUES ({NEXT_NUMBER}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
REPLACE_PENDING = (
    "UPDATE spool SET data = ?, base = NULL, revision = ?, kind = ?, signature = ?, reason = ?,"
    " poster = ? WHERE id = ?"
)
HAS_PENDING = (
    f"SELECT 1 FROM spool WHERE {OF_KEY} AND fate != '{PendingStatus.CONFLICT.value}' LIMIT 1"
)
REMOVE_PENDING = "DELETE FROM spool WHERE id = ?"
NAME_VERSION = "SELECT target, since FROM name_versions WHERE name = ?"
SET_NAME_VERSION = "INSERT OR REPLACE INTO name_versions (name, target, since) VALUES (?, ?, ?)"
LIMIT_NAME_VERSIONS = (
    "DELETE FROM name_versions WHERE id <= (SELECT max(id) FROM name_versions) - ?"
)


def ledger_format() -> Format:
    """Return the format of the database file."""
    from skymount.storage.sqlite import Format

    return Format(
        _APPLICATION,
        _VERSION,
        _SCHEMA,
        if_damaged="restore it from a backup, as entries could be signed twice without it",
        if_other_version="send what is pending with the one that made it"
        " (`skymount registry retry`), then move this file away",
    )


@contextmanager
def stored_row() -> Iterator[None]:
    """Turn MalformedError into ValueError: the row is damaged, not what a caller gave."""
    try:
        yield
    except MalformedError as error:
        raise ValueError(str(error)) from None


def read_mark(db: sqlite3.Connection, key: Key) -> RevisionMark | None:
    """Return the mark of an entry. ValueError when the row is damaged."""
    row = db.execute(f"SELECT seen, digest, at FROM entries WHERE {OF_KEY}", key).fetchone()
    if row is None or row[0] is None:
        return None
    revision, work, seen_at = row
    if len(revision) != 8 or not isinstance(work, bytes) or not isinstance(seen_at, float):
        raise ValueError("a revision mark has the wrong form")
    return RevisionMark(int.from_bytes(revision, "big"), work, seen_at)


def read_newest(db: sqlite3.Connection, key: Key) -> SignedEntry | None:
    """Return the entry of the mark; None if it is not known. ValueError when it is damaged."""
    mark = read_mark(db, key)
    if mark is None:
        return None
    public_key, tweak = key
    query = f"SELECT data, kind, signature FROM entries WHERE {OF_KEY}"
    data, kind, signature = db.execute(query, key).fetchone()
    with stored_row():
        return SignedEntry(public_key, Entry(tweak, data, mark.revision, kind), signature).verify()


def read_highest(db: sqlite3.Connection, key: Key) -> int | None:
    """Return the highest revision seen or claimed."""
    row = db.execute(f"SELECT seen, claimed FROM entries WHERE {OF_KEY}", key).fetchone()
    found = [number for value in row or () if (number := decode_revision(value)) is not None]
    return max(found, default=None)


def parse_pending(row: tuple[Any, ...], *, is_posting: bool) -> PendingWrite:
    """Read a row of `PENDING`. MalformedError, TypeError or ValueError when it is damaged."""
    number, public_key, tweak, data_key, data, base, revision, kind, signature, *rest = row
    reason, created, _, portals, lacking, status = rest
    signed = None
    if signature is not None:
        entry = Entry(tweak, data, int.from_bytes(revision, "big"), kind)
        signed = SignedEntry(public_key, entry, signature).verify()
    return PendingWrite(
        id=number,
        public_key=public_key,
        tweak=tweak,
        data_key=decode_data_key(data_key),
        data=data,
        signed=signed,
        base=decode_revision(base),
        reason=reason,
        created=created,
        is_posting=is_posting,
        portals=tuple(portals.split()),  # addresses have no blanks
        lacking=tuple(lacking.split()),
        status=PendingStatus(status),
    )


def encode_revision(revision: int) -> bytes:
    """Write a revision as 8 bytes, -1 as none."""
    return b"" if revision < 0 else revision.to_bytes(8, "big")


def decode_revision(value: bytes | None) -> int | None:
    """Read a revision; None when there is none."""
    if value is None:
        return None
    return int.from_bytes(value, "big") if value else -1


def encode_data_key(data_key: str | None) -> bytes | None:
    """Write a data key; MalformedError when it is not valid Unicode."""
    return None if data_key is None else encode_text(data_key, "a data key")


def decode_data_key(data_key: bytes | None) -> str | None:
    """Read a data key."""
    return None if data_key is None else data_key.decode()


def one_line(reason: str) -> str:
    """Return a reason as it is stored: printable, and not too long."""
    text = "".join(c if c.isprintable() else " " for c in reason[:_REASON_LIMIT])
    return text or "unknown"

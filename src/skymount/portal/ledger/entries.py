"""What is known of a registry entry: the revisions seen and claimed, and when an entry counts as
rolled back. Functions of one transaction on the ledger's table `entries`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from skymount.errors import FrozenEntryError, MalformedError
from skymount.wire.hashing import encode_text
from skymount.wire.registry_entry import MAX_REVISION, Entry, SignedEntry

if TYPE_CHECKING:
    import sqlite3

Key = tuple[bytes, bytes]  # public key and tweak of an entry
_REASON_LIMIT = 500  # characters of a reason that are kept

# Data keys are stored as UTF-8 blobs, because SQLite's text ends at a NUL. Revisions are stored as
# 8 bytes, because they have one bit more than SQLite's integers; blobs compare as the numbers do.
SCHEMA = """
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
) WITHOUT ROWID
"""
OF_KEY = "public_key = ? AND tweak = ?"
_ENSURE = "INSERT OR IGNORE INTO entries (public_key, tweak) VALUES (?, ?)"
_RAISE = (
    "UPDATE entries SET seen = ?, digest = ?, at = ?, data = ?, kind = ?, signature = ?"
    f" WHERE {OF_KEY}"
)
_FORGET = (
    "UPDATE entries SET claimed = max(coalesce(claimed, seen), seen), seen = NULL,"
    " digest = NULL, at = NULL, data = NULL, kind = NULL, signature = NULL"
    f" WHERE {OF_KEY} AND seen IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class EntryId:
    """Names an entry."""

    public_key: bytes
    tweak: bytes
    data_key: str | None = field(default=None, compare=False)  # None when only its hash is known

    @property
    def key(self) -> Key:
        return self.public_key, self.tweak

    def __str__(self) -> str:
        name = self.tweak.hex() if self.data_key is None else ascii(self.data_key)
        return f"{self.public_key.hex()}/{name}"


@dataclass(frozen=True, slots=True)
class RevisionMark:
    """The highest revision seen of an entry: nothing below it is believed any more."""

    revision: int
    work: bytes  # `Entry.work`, 32 bytes. Of two entries of one revision the lower work wins
    seen_at: float  # when this machine first saw it, in seconds since 1970


def is_rolled_back(mark: RevisionMark | None, entry: Entry) -> bool:
    """Whether an entry is older than the mark (docs/wire.md 6.3): a portal must not show it."""
    if mark is None or entry.revision != mark.revision:
        return mark is not None and entry.revision < mark.revision
    if mark.revision == MAX_REVISION:
        return entry.work != mark.work
    return entry.work > mark.work


def is_older(entry: Entry, than: Entry) -> bool:
    """The same of an entry and another one."""
    return is_rolled_back(raised(None, than, 0.0), entry)


def raised(mark: RevisionMark | None, entry: Entry, now: float) -> RevisionMark:
    """Return the mark after that entry was seen; the same object if it does not change."""
    if mark is not None and (is_rolled_back(mark, entry) or entry.work == mark.work):
        return mark
    return RevisionMark(entry.revision, entry.work, now)


def later(one: RevisionMark | None, other: RevisionMark) -> RevisionMark:
    """Return the higher one of two marks of one entry."""
    if one is None:
        return other
    return one if (one.revision, other.work) >= (other.revision, one.work) else other


def rollback_reason(mark: RevisionMark | None, entry: Entry) -> str:
    """Return a text that says how an entry is behind a mark."""
    known = "another" if mark is None else mark.revision
    return f"revision {entry.revision} is behind revision {known}, which was seen before"


def check_not_frozen(revision: int) -> None:
    """FrozenEntryError if nothing can follow a revision."""
    if revision >= MAX_REVISION:
        raise FrozenEntryError("the entry has the last revision there is, and cannot be changed")


# --- the table


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


def raise_mark(db: sqlite3.Connection, signed: SignedEntry, now: float) -> bool:
    """Raise the mark to an entry; return whether it is another one now."""
    entry, key = signed.entry, (signed.public_key, signed.entry.tweak)
    before = read_mark(db, key)
    mark = raised(before, entry, now)
    if entry.revision == mark.revision and entry.work == mark.work:
        db.execute(_ENSURE, key)
        values = (encode_revision(mark.revision), mark.work, mark.seen_at)
        db.execute(_RAISE, (*values, entry.data, entry.kind, signed.signature, *key))
    return mark is not before


def forget_mark(db: sqlite3.Connection, key: Key) -> bool:
    """Forget what was seen; return whether anything was. No revision of it is signed again."""
    return db.execute(_FORGET, key).rowcount > 0


def claim_next(db: sqlite3.Connection, key: Key, current: int) -> int:
    """Claim a revision above `current` and all that were seen or claimed; FrozenEntryError."""
    highest = max(current, -1 if (known := read_highest(db, key)) is None else known)
    check_not_frozen(highest)
    db.execute(_ENSURE, key)
    values = (encode_revision(highest + 1), *key)
    db.execute(f"UPDATE entries SET claimed = ? WHERE {OF_KEY}", values)
    return highest + 1


def list_entry(
    db: sqlite3.Connection, key: Key, data_key: bytes | None, *, is_listed: bool
) -> None:
    """List an entry by its name, or no longer."""
    db.execute(_ENSURE, key)
    query = f"UPDATE entries SET named = ?, data_key = coalesce(?, data_key) WHERE {OF_KEY}"
    db.execute(query, (int(is_listed), data_key, *key))


# --- how values are stored


@contextmanager
def stored_row() -> Iterator[None]:
    """Turn MalformedError into ValueError: the row is damaged, not what a caller gave."""
    try:
        yield
    except MalformedError as error:
        raise ValueError(str(error)) from None


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


def name_of(process: int) -> str:
    """Return a name that no other process has until the next boot."""
    return f"{process} {_start_of(process)}"


def is_running(process: str | None) -> bool:
    """Whether the process of a name still runs."""
    if not process:
        return False
    number, _, start = process.partition(" ")
    return bool(start) and start == _start_of(int(number))


def _start_of(process: int) -> str:
    """Return when a process started, as ids are used again; empty if it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return ""

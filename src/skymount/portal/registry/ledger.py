"""Owns what this machine knows of registry entries, on disk: the highest revision seen of each, the
names of those used here, which revisions were signed, and what could not be posted (the spool).

    $XDG_STATE_HOME/skymount/ledger.sqlite3      shared by all mounts and commands of a user

Everything here is synchronous; async callers use threads, and any thread may call. What is asked,
believed and posted is `entries`' matter.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from skymount.errors import MalformedError, RevisionError, StorageError
from skymount.wire.registry_entry import MAX_REVISION, Entry, SignedEntry, entry_link

if TYPE_CHECKING:
    import sqlite3

    from skymount.storage.sqlite import Database, Format
    from skymount.wire.skylink import Skylink

T = TypeVar("T")

_REASON_LIMIT = 500  # characters of a reason that are kept
_INTERRUPTED = "interrupted while it was posted"

# Data keys are kept as UTF-8, since SQLite's text ends at a NUL; revisions as 8 bytes, since they
# have one bit more than its integers, and so that they compare as numbers do.
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
    fate TEXT NOT NULL DEFAULT 'failed'
);
CREATE INDEX spool_of ON spool (public_key, tweak);
"""

_APPLICATION = 0x736B796C  # "skyl"
_VERSION = 2
_UPGRADES = {
    1: "ALTER TABLE spool ADD COLUMN portals TEXT NOT NULL DEFAULT '';"
    " ALTER TABLE spool ADD COLUMN fate TEXT NOT NULL DEFAULT 'failed'"
}

_KEYS = """
WITH RECURSIVE keys(key) AS (
    SELECT min(public_key) FROM entries
    UNION ALL
    SELECT (SELECT min(public_key) FROM entries WHERE public_key > key) FROM keys
    WHERE key IS NOT NULL
)
SELECT key FROM keys
WHERE key IS NOT NULL AND EXISTS (SELECT 1 FROM entries WHERE public_key = key AND named)
"""
_OF = "public_key = ? AND tweak = ?"
_ENSURE = "INSERT OR IGNORE INTO entries (public_key, tweak) VALUES (?, ?)"
_MARK = f"SELECT seen, digest, at FROM entries WHERE {_OF}"
_RAISE = f"UPDATE entries SET seen = ?, digest = ?, at = ? WHERE {_OF}"
_NAME = f"UPDATE entries SET named = ?, data_key = coalesce(?, data_key) WHERE {_OF}"
_NAMED = f"SELECT named, data_key FROM entries WHERE {_OF}"
_PENDING = (
    "SELECT id, public_key, tweak, data_key, data, base, revision, kind, signature, reason,"
    " created, poster, portals, fate FROM spool"
)
_SPOOL = (
    "INSERT INTO spool (public_key, tweak, data_key, data, base, revision, kind, signature, reason,"
    " created, poster, portals, fate) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_RETRY = (
    "UPDATE spool SET data = ?, base = NULL, revision = ?, kind = ?, signature = ?, reason = ?,"
    " poster = ? WHERE id = ?"
)


@dataclass(frozen=True, slots=True)
class RevisionMark:
    """The high-water mark of an entry: nothing below it is believed any more."""

    revision: int
    digest: bytes
    """The entry's work, 32 bytes: of two entries of one revision the lower one is the later."""
    at: float
    """When this machine first saw it, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Name:
    """An entry that was used here."""

    data_key: str | None
    """None when it is known by its hash alone."""
    tweak: bytes


class PendingStatus(Enum):
    """What becomes of content that is not posted."""

    WAITING = "waiting"
    """It is sent by itself once a portal answers."""
    FAILED = "failed"
    """It is sent when somebody says so."""
    CONFLICT = "conflict"
    """The same: it was made from what somebody else had changed."""


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """Content of an entry that is not known to be posted."""

    id: int
    public_key: bytes
    tweak: bytes
    data_key: str | None
    data: bytes
    signed: SignedEntry | None
    """None when no revision was taken for it."""
    base: int | None
    """The revision that it was made from; -1: the entry was absent; None when it is signed."""
    reason: str
    created: float
    """Seconds since 1970."""
    posting: bool
    """Whether a process that is alive is posting it now."""
    portals: tuple[str, ...] = ()
    """The addresses of those that it was written for; empty when that is not known."""
    fate: PendingStatus = PendingStatus.FAILED


def is_rolled_back(mark: RevisionMark | None, entry: Entry) -> bool:
    """Whether an entry is older than the mark (wire notes 6.3): a portal must not show it."""
    if mark is None or entry.revision != mark.revision:
        return mark is not None and entry.revision < mark.revision
    if mark.revision == MAX_REVISION:
        return entry.work != mark.digest
    return entry.work > mark.digest


def raised(mark: RevisionMark | None, entry: Entry, now: float) -> RevisionMark:
    """Return the mark once that entry was seen; the very same one when it stays."""
    if mark is not None and (is_rolled_back(mark, entry) or entry.work == mark.digest):
        return mark
    return RevisionMark(entry.revision, entry.work, now)


def default_path() -> Path:
    """Return where a user's ledger is; $XDG_STATE_HOME is honoured."""
    import platformdirs

    return platformdirs.user_state_path("skymount") / "ledger.sqlite3"


class Ledger:
    """A ledger. Every method raises StorageError, which names the file, when it fails.

    One that is damaged is refused, not replaced: what it knows keeps a revision from being signed
    for two contents, and portals from rolling entries back.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Select a ledger, which its first use opens. `clock` gives the time of day."""
        self.path = path
        self._clock = clock
        self._poster = _this_process()
        self._opening = threading.Lock()
        self._opened: Database | None = None

    @classmethod
    def of_user(cls) -> Self:
        """Select the ledger that the mounts and commands of this user share."""
        return cls(default_path())

    @classmethod
    def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Self:
        """Open a ledger now, made when absent with its directory."""
        ledger = cls(path, clock)
        ledger.prepare()
        return ledger

    @property
    def _database(self) -> Database:
        with self._opening:
            if self._opened is None:
                from skymount.storage.sqlite import Database

                self._opened = Database.open(self.path, _form())
            return self._opened

    def _read(self, action: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Call a function that reads; `nothing` is what there is without a ledger.

        Reading needs no write: not even where the disk is full, or nothing can be written to.
        """
        try:
            database = self._database
        except StorageError:
            from skymount.storage.sqlite import Database

            found = Database.peek(self.path, _form(), action)
            return nothing if found is None else found
        return database.read(action)

    def prepare(self) -> None:
        """Open it now; StorageError when it cannot be written to."""
        assert self._database.path == self.path

    def close(self) -> None:
        """Close it; what was done stays done."""
        if self._opened is not None:
            self._opened.close()

    # --- what was seen

    def seen(self, public_key: bytes, tweak: bytes) -> RevisionMark | None:
        """Return the mark of an entry."""
        return self._read(lambda db: _mark(db, (public_key, tweak)), None)

    def highest(self, public_key: bytes, tweak: bytes) -> int | None:
        """Return the highest revision that was seen or signed, and must not be signed again."""
        return self._database.read(lambda db: _highest(db, (public_key, tweak)))

    def note(
        self, signed: SignedEntry, data_key: str | None, *, named: bool = True
    ) -> RevisionMark:
        """Raise the mark to an entry whose signature was verified; return the mark then.

        It is never lowered: `is_rolled_back` tells whether the entry is behind it. The entry is
        listed from now on, unless `named` is False, and not any more when it is deleted. What
        was being posted and turns up here leaves the spool.
        """
        key = (signed.public_key, signed.entry.tweak)
        encoded = _encode_key(data_key)

        def is_known(db: sqlite3.Connection) -> RevisionMark | None:
            mark = _mark(db, key)
            if mark is None or raised(mark, signed.entry, 0.0) is not mark:
                return None
            if named and not is_rolled_back(mark, signed.entry):
                found = db.execute(_NAMED, key).fetchone()
                want = (int(not signed.entry.is_deleted), encoded)
                if found[0] != want[0] or (encoded is not None and found[1] != encoded):
                    return None
            return mark

        known = self._database.read(is_known)
        if known is not None:  # as a rule: nothing is written
            return known
        # Not synced: a mark that a power cut takes away is seen again.
        return self._database.write(
            lambda db: self._note(db, signed, encoded, named), durable=False
        )

    def _note(
        self, db: sqlite3.Connection, signed: SignedEntry, data_key: bytes | None, named: bool
    ) -> RevisionMark:
        entry = signed.entry
        key = (signed.public_key, entry.tweak)
        db.execute(_ENSURE, key)
        before = _mark(db, key)
        mark = raised(before, entry, self._clock())
        if mark is not before:
            db.execute(_RAISE, (_number(mark.revision), mark.digest, mark.at, *key))
            db.execute(f"DELETE FROM spool WHERE {_OF} AND signature = ?", (*key, signed.signature))
        if named and not is_rolled_back(before, entry):
            db.execute(_NAME, (int(not entry.is_deleted), data_key, *key))
        return mark

    # --- names

    def public_keys(self) -> list[bytes]:
        """Return the keys with entries that are listed, sorted."""
        return self._read(lambda db: [key for (key,) in db.execute(_KEYS)], [])

    def names(self, public_key: bytes) -> list[Name]:
        """Return the entries of a key that are listed."""
        query = "SELECT data_key, tweak FROM entries WHERE public_key = ? AND named"
        rows: list[tuple[Any, ...]] = self._read(
            lambda db: db.execute(query, (public_key,)).fetchall(), []
        )
        return [Name(_decode_key(data_key), tweak) for data_key, tweak in rows]

    def remember(self, public_key: bytes, tweak: bytes, data_key: str | None) -> None:
        """List an entry from now on."""
        key, encoded = (public_key, tweak), _encode_key(data_key)

        def act(db: sqlite3.Connection) -> None:
            db.execute(_ENSURE, key)
            db.execute(_NAME, (1, encoded, *key))

        self._database.write(act, durable=False)

    def key_of(self, link: Skylink) -> tuple[bytes, bytes] | None:
        """Return the public key and tweak of the entry that a v2 skylink names, if it is known."""

        def find(db: sqlite3.Connection) -> tuple[bytes, bytes] | None:
            for public_key, tweak in db.execute("SELECT public_key, tweak FROM entries"):
                if entry_link(public_key, tweak) == link:
                    return public_key, tweak
            return None

        return self._read(find, None)

    def forget(self, public_key: bytes, tweak: bytes, *, seen: bool = False) -> bool:
        """No longer list an entry; return whether there was something to forget.

        Its mark stays, unless what was `seen` is to be forgotten too: then an older entry is
        believed again. No revision up to the mark is ever signed here even so.
        """
        key = (public_key, tweak)
        query = f"UPDATE entries SET named = 0 WHERE {_OF} AND named"
        lower = (
            "UPDATE entries SET claimed = max(coalesce(claimed, seen), seen), seen = NULL,"
            f" digest = NULL, at = NULL WHERE {_OF} AND seen IS NOT NULL"
        )

        def act(db: sqlite3.Connection) -> bool:
            was_listed = db.execute(query, key).rowcount > 0
            return (seen and db.execute(lower, key).rowcount > 0) or was_listed

        return self._database.write(act)

    # --- the spool

    def claim(
        self,
        signed: SignedEntry,
        data_key: str | None,
        replaces: int | None = None,
        portals: Sequence[str] = (),
    ) -> int:
        """Take the entry's revision for its content, before it is posted; return its id.

        It is on disk when this returns, waiting for the `portals`. RevisionError when that
        revision, or a higher one, was seen or taken. It takes the place of what it `replaces`; the
        same content that failed before leaves the spool.
        """
        entry = signed.entry
        key = (signed.public_key, entry.tweak)
        number = _number(entry.revision)

        def act(db: sqlite3.Connection) -> int:
            taken = _highest(db, key)
            if taken is not None and entry.revision <= taken:
                raise RevisionError(f"revision {entry.revision} is taken: {taken} was used")
            db.execute(_ENSURE, key)
            db.execute(f"UPDATE entries SET claimed = ? WHERE {_OF}", (number, *key))
            self._remove_same(db, key, entry.data, replaces)
            again = (entry.data, number, entry.kind, signed.signature, _INTERRUPTED, self._poster)
            if replaces is not None and db.execute(_RETRY, (*again, replaces)).rowcount:
                return replaces
            row = (
                *(*key, _encode_key(data_key), entry.data, None, number, entry.kind),
                *(signed.signature, _INTERRUPTED, self._clock(), self._poster),
                *(_list(portals), PendingStatus.WAITING.value),
            )
            return _added(db.execute(_SPOOL, row))

        return self._database.write(act)

    def hold(
        self,
        public_key: bytes,
        tweak: bytes,
        data_key: str | None,
        data: bytes,
        reason: str,
        base: int | None = None,
        portals: Sequence[str] = (),
        fate: PendingStatus = PendingStatus.FAILED,
    ) -> int:
        """Keep content for which no revision was taken; return an id.

        `base` is the revision that it was made from, by default the highest that was seen. The same
        content is kept once.
        """
        key, encoded = (public_key, tweak), _encode_key(data_key)

        def act(db: sqlite3.Connection) -> int:
            mark = _mark(db, key)
            known = -1 if mark is None else mark.revision
            made_from = _number(known if base is None else base)
            self._remove_same(db, key, data)
            row = (*key, encoded, data, made_from, None, None, None, _line(reason), self._clock())
            return _added(db.execute(_SPOOL, (*row, None, _list(portals), fate.value)))

        return self._database.write(act)

    def resume(self, number: int) -> bool:
        """Take on what is in the spool, to post it again.

        False when it is gone, or another process that is alive has taken it on, or is posting what
        was written to the entry later.
        """
        posters = f"SELECT poster FROM spool WHERE {_OF} AND id >= ?"
        query = "UPDATE spool SET poster = ?, reason = ? WHERE id = ?"

        def act(db: sqlite3.Connection) -> bool:
            of = "SELECT public_key, tweak FROM spool WHERE id = ?"
            row = db.execute(of, (number,)).fetchone()
            if row is None:
                return False
            found = db.execute(posters, (*row, number)).fetchall()
            if any(poster != self._poster and _is_running(poster) for (poster,) in found):
                return False
            db.execute(query, (self._poster, _INTERRUPTED, number))
            return True

        return self._database.write(act)

    def settle(self, number: int) -> RevisionMark | None:
        """Take what was posted out of the spool, and raise the mark to it; return the mark.

        None when it is not in the spool any more: `note` it then.
        """

        def act(db: sqlite3.Connection) -> RevisionMark | None:
            row = db.execute(f"{_PENDING} WHERE id = ?", (number,)).fetchone()
            found = self._pending(row) if row else None
            if found is None or found.signed is None:
                return None
            self._remove_same(db, (found.public_key, found.tweak), found.data)
            _remove(db, number)
            return self._note(db, found.signed, _encode_key(found.data_key), named=True)

        return self._database.write(act)

    def fail(self, number: int, reason: str, fate: PendingStatus = PendingStatus.FAILED) -> None:
        """Say why something could not be posted; it stays in the spool."""
        query = "UPDATE spool SET reason = ?, poster = NULL, fate = ? WHERE id = ?"
        values = (_line(reason), fate.value, number)
        self._database.write(lambda db: db.execute(query, values))

    def supersede(self, public_key: bytes, tweak: bytes, number: int) -> list[PendingWrite]:
        """Take out what was written to an entry before what has that id; return it.

        What was made from what somebody else had changed stays, and what is being posted.
        """
        query = f"{_PENDING} WHERE {_OF} AND id < ? AND fate != ?"
        values = (public_key, tweak, number, PendingStatus.CONFLICT.value)
        if not self._read(lambda db: db.execute(query, values).fetchall(), []):
            return []

        def act(db: sqlite3.Connection) -> list[PendingWrite]:
            found = [self._pending(row) for row in db.execute(query, values).fetchall()]
            return [each for each in found if not each.posting and _remove(db, each.id)]

        return self._database.write(act)

    def has_pending(self, public_key: bytes, tweak: bytes) -> bool:
        """Whether something written to an entry is in the spool that a post would supersede."""
        query = f"SELECT 1 FROM spool WHERE {_OF} AND fate != ? LIMIT 1"
        values = (public_key, tweak, PendingStatus.CONFLICT.value)
        return self._read(lambda db: db.execute(query, values).fetchone() is not None, False)

    def pending(self) -> list[PendingWrite]:
        """Return what is in the spool, the oldest first."""
        rows: list[tuple[Any, ...]] = self._read(
            lambda db: db.execute(f"{_PENDING} ORDER BY id").fetchall(), []
        )
        return [self._pending(row) for row in rows]

    def get(self, number: int) -> PendingWrite | None:
        """Return what is in the spool under that id."""
        query = f"{_PENDING} WHERE id = ?"
        rows: list[tuple[Any, ...]] = self._read(
            lambda db: db.execute(query, (number,)).fetchall(), []
        )
        return self._pending(rows[0]) if rows else None

    def drop(self, number: int) -> bool:
        """Take something out of the spool, whose revision stays taken; False when it is gone."""
        return self._database.write(lambda db: _remove(db, number))

    def _remove_same(
        self,
        db: sqlite3.Connection,
        key: tuple[bytes, bytes],
        data: bytes,
        but: int | None = None,
    ) -> None:
        """Remove the same content from the spool, except one, and what is being posted."""
        query = f"SELECT id, poster FROM spool WHERE {_OF} AND data = ?"
        for number, poster in db.execute(query, (*key, data)).fetchall():
            if number != but and not _is_running(poster):
                _remove(db, number)

    def _pending(self, row: tuple[Any, ...]) -> PendingWrite:
        number, public_key, tweak, data_key, data, base, revision, kind, signature, *rest = row
        reason, created, poster, portals, fate = rest
        try:
            signed = None
            if signature is not None:
                entry = Entry(tweak, data, int.from_bytes(revision, "big"), kind)
                signed = SignedEntry(public_key, entry, signature).verify()
            return PendingWrite(
                *(number, public_key, tweak, _decode_key(data_key), data, signed, _from(base)),
                *(
                    reason,
                    created,
                    _is_running(poster),
                    tuple(portals.split()),
                    PendingStatus(fate),
                ),
            )
        except (MalformedError, TypeError, ValueError) as error:
            raise StorageError(
                f"the ledger {self.path} is damaged: pending {number}: {error}"
            ) from None


def _form() -> Format:
    from skymount.storage.sqlite import Format

    return Format(_APPLICATION, _VERSION, _SCHEMA, _UPGRADES)


def _mark(db: sqlite3.Connection, key: tuple[bytes, bytes]) -> RevisionMark | None:
    row = db.execute(_MARK, key).fetchone()
    if row is None or row[0] is None:
        return None
    revision, digest, at = row
    if len(revision) != 8 or not isinstance(digest, bytes) or not isinstance(at, float):
        raise ValueError("a mark is of no known form")
    return RevisionMark(int.from_bytes(revision, "big"), digest, at)


def _highest(db: sqlite3.Connection, key: tuple[bytes, bytes]) -> int | None:
    row = db.execute(f"SELECT seen, claimed FROM entries WHERE {_OF}", key).fetchone()
    found = [number for value in row or () if (number := _from(value)) is not None]
    return max(found, default=None)


def _list(portals: Sequence[str]) -> str:
    """Write addresses, which have no blanks."""
    return " ".join(portals)


def _remove(db: sqlite3.Connection, number: int | None) -> bool:
    return db.execute("DELETE FROM spool WHERE id = ?", (number,)).rowcount > 0


def _added(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _number(revision: int) -> bytes:
    """Write a revision as 8 bytes, none for -1."""
    return b"" if revision < 0 else revision.to_bytes(8, "big")


def _from(value: bytes | None) -> int | None:
    if value is None:
        return None
    return int.from_bytes(value, "big") if value else -1


def _encode_key(data_key: str | None) -> bytes | None:
    try:
        return None if data_key is None else data_key.encode()
    except UnicodeEncodeError:
        raise MalformedError("a data key must be valid Unicode text") from None


def _decode_key(data_key: bytes | None) -> str | None:
    return None if data_key is None else data_key.decode()


def _line(reason: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in reason[:_REASON_LIMIT])
    return text or "unknown"


def _this_process() -> str:
    return f"{os.getpid()} {_start_of(os.getpid())}"


def _start_of(process: int) -> str:
    """Return when a process began, which tells it from a later one of the same number.

    Empty when there is none, or one that has ended and whose parent has not noticed.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        return ""


def _is_running(poster: str | None) -> bool:
    if not poster:
        return False
    process, _, start = poster.partition(" ")
    return bool(start) and start == _start_of(int(process))

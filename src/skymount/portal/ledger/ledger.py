"""What this machine knows of registry entries, on disk: the revisions seen and claimed, and the
outbox, which is what is still to be sent to portals.

All mounts and commands of a user share it. Everything here is synchronous, and any thread may call.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from skymount.errors import StaleEntryError, StorageError
from skymount.portal.ledger import entries, outbox
from skymount.portal.ledger.entries import OF_KEY, EntryId, RevisionMark
from skymount.portal.ledger.entries import encode_data_key as encode
from skymount.portal.ledger.outbox import OwedTotal, Pending, Stamp, Status
from skymount.user_directories import user_directory
from skymount.wire.registry_entry import Entry, SignedEntry, entry_link

if TYPE_CHECKING:
    import sqlite3

    from skymount.storage.sqlite import Database, Format
    from skymount.wire.key_pair import SigningKeyPair
    from skymount.wire.skylink import Skylink

_APPLICATION = 0x736B796C  # "skyl"
_VERSION = 6
_NAMES_LIMIT = 10_000  # changes of names that are remembered, whatever the clock said then

_SCHEMA = f"""
{entries.SCHEMA};
{outbox.SCHEMA};
CREATE TABLE name_versions (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    target TEXT NOT NULL,
    since INTEGER NOT NULL
)
"""
_LISTED_KEYS = """
WITH RECURSIVE keys(key) AS (
    SELECT min(public_key) FROM entries
    UNION ALL
    SELECT (SELECT min(public_key) FROM entries WHERE public_key > key) FROM keys
    WHERE key IS NOT NULL
)
SELECT key FROM keys
WHERE key IS NOT NULL AND EXISTS (SELECT 1 FROM entries WHERE public_key = key AND named)
"""
_NAME_VERSION = "SELECT target, since FROM name_versions WHERE name = ?"

T = TypeVar("T")


def default_path() -> Path:
    """Return the path of a user's ledger; StorageError without a home."""
    return user_directory("state", StorageError) / "ledger.sqlite3"


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry that was used here."""

    data_key: str | None  # None when only its hash is known
    tweak: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """A write that this process posts, and holds a revision for."""

    id: int
    signed: SignedEntry
    superseded: Sequence[Pending] = ()
    """Writes that were never posted, and whose place it took."""


class Ledger:
    """A ledger. Every method raises StorageError, which names the file, when it fails.

    A damaged ledger is refused, not replaced: what it knows prevents that a revision is signed for
    two contents, and that portals roll entries back.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, process: int | None = None
    ) -> None:
        """Select a ledger; its first use opens it. `process` posts, by default this one."""
        self.path = path
        self.clock = clock
        self._process = entries.name_of(process or os.getpid())
        self._opening = threading.Lock()
        self._opened: Database | None = None

    @classmethod
    def of_user(cls) -> Self:
        return cls(default_path())

    @classmethod
    def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Self:
        """Open a ledger now, creating it and its directory if they are missing."""
        ledger = cls(path, clock)
        ledger.prepare()
        return ledger

    def prepare(self) -> None:
        """Open it now; StorageError when it cannot be written to."""
        assert self.database.path == self.path

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # --- revisions

    def mark_of(self, public_key: bytes, tweak: bytes) -> RevisionMark | None:
        return self._read(lambda db: entries.read_mark(db, (public_key, tweak)), None)

    def highest_revision(self, public_key: bytes, tweak: bytes) -> int | None:
        """Return the highest revision that was seen or claimed, and must not be signed again."""
        return self.database.read(lambda db: entries.read_highest(db, (public_key, tweak)))

    def newest_entry(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        """Return the entry of the highest revision that was seen, verified; None if it is unknown,
        or was forgotten.
        """
        return self._read(lambda db: entries.read_newest(db, (public_key, tweak)), None)

    def record_seen(
        self, signed: SignedEntry, data_key: str | None, *, named: bool = True, portal: str = ""
    ) -> RevisionMark:
        """Raise the mark to an entry whose signature was verified; return the mark then.

        The mark is never lowered: `is_rolled_back` tells whether the entry is behind it. If `named`
        the entry is listed, or no longer if it is deleted. `portal` is where the entry was seen: a
        write of this machine that is older, and that this portal did not get, is a CONFLICT then.
        """
        key, encoded = (signed.public_key, signed.entry.tweak), encode(data_key)

        def known_mark(db: sqlite3.Connection) -> RevisionMark | None:
            mark = entries.read_mark(db, key)
            if mark is None or entries.raised(mark, signed.entry, 0.0) is not mark:
                return None
            if not entries.is_rolled_back(mark, signed.entry):
                query = f"SELECT named, data_key FROM entries WHERE {OF_KEY}"
                is_named, stored = db.execute(query, key).fetchone()
                is_other_key = encoded is not None and stored != encoded
                if named and (is_named == signed.entry.is_deleted or is_other_key):
                    return None
            return mark

        known = self.database.read(known_mark)
        if known is not None:
            return known
        saw = partial(self._saw, signed=signed, data_key=encoded, portal=portal, named=named)
        # Not synced: a mark that is lost in a power failure is seen again.
        return self.database.write(saw, durable=False)

    def _saw(
        self,
        db: sqlite3.Connection,
        signed: SignedEntry,
        data_key: bytes | None,
        portal: str = "",
        *,
        named: bool = True,
        is_own: bool = False,
    ) -> RevisionMark:
        key, stamp = (signed.public_key, signed.entry.tweak), self._stamp()
        before = entries.read_mark(db, key)
        if entries.raise_mark(db, signed, stamp.now):
            outbox.saw(db, signed, portal, stamp, is_own=is_own)
        if named and not entries.is_rolled_back(before, signed.entry):
            entries.list_entry(db, key, data_key, is_listed=not signed.entry.is_deleted)
        mark = entries.read_mark(db, key)
        assert mark is not None
        return mark

    def forget(self, public_key: bytes, tweak: bytes, *, seen: bool = False) -> bool:
        """No longer list an entry; return whether there was something to forget.

        With `seen` the mark goes too, and an older entry is believed again; no portal is owed the
        newer one any more. No revision up to the mark is ever signed here.
        """
        key = (public_key, tweak)

        def write(db: sqlite3.Connection) -> bool:
            unlist = f"UPDATE entries SET named = 0 WHERE {OF_KEY} AND named"
            was_listed = db.execute(unlist, key).rowcount > 0
            if seen:
                db.execute(f"DELETE FROM outbox WHERE {OF_KEY} AND accepted", key)
            return (seen and entries.forget_mark(db, key)) or was_listed

        return self.database.write(write)

    # --- names

    def name_since(self, name: str, target: str) -> int:
        """Note that a name leads to a skylink; return since when this machine knows that.

        In whole seconds of Unix time, rounded up, and at least one after what the name led to
        before, also if the clock was set back.
        """

        def known(db: sqlite3.Connection) -> int | None:
            row = db.execute(_NAME_VERSION, (name,)).fetchone()
            return row[1] if row is not None and row[0] == target else None

        def write(db: sqlite3.Connection) -> int:
            if (since := known(db)) is not None:  # another process was first
                return since
            row = db.execute(_NAME_VERSION, (name,)).fetchone()
            since = math.ceil(self.clock())
            if row is not None:
                since = max(since, row[1] + 1)
            add = "INSERT OR REPLACE INTO name_versions (name, target, since) VALUES (?, ?, ?)"
            db.execute(add, (name, target, since))
            last = "(SELECT max(id) FROM name_versions)"
            db.execute(f"DELETE FROM name_versions WHERE id <= {last} - ?", (_NAMES_LIMIT,))
            return since

        found = self._read(known, None)
        # Not synced: what is lost in a power failure is seen again, later.
        return self.database.write(write, durable=False) if found is None else found

    def name_target(self, name: str) -> str | None:
        """Return what a name led to when that was last noted."""
        rows = self._rows(_NAME_VERSION, (name,))
        return rows[0][0] if rows else None

    def public_keys(self) -> list[bytes]:
        return [key for (key,) in self._rows(_LISTED_KEYS)]

    def listed_entries(self, public_key: bytes) -> list[ListedEntry]:
        query = "SELECT data_key, tweak FROM entries WHERE public_key = ? AND named"
        rows = self._rows(query, (public_key,))
        return [ListedEntry(entries.decode_data_key(key), tweak) for key, tweak in rows]

    def find_entry(self, link: Skylink) -> tuple[bytes, bytes] | None:
        def find(db: sqlite3.Connection) -> tuple[bytes, bytes] | None:
            keys = db.execute("SELECT public_key, tweak FROM entries")
            return next((key for key in keys if entry_link(*key) == link), None)

        return self._read(find, None)

    # --- writes

    def claim(
        self,
        ref: EntryId,
        pair: SigningKeyPair,
        data: bytes,
        current: int,
        portals: Collection[str] = (),
        lacking: Collection[str] = (),
        *,
        number: int | None = None,
        limit: int | None = None,
        is_edit: bool = False,
    ) -> Write:
        """Sign content with a revision above `current` and all that were seen or claimed, for the
        `portals` and those `lacking` the content behind it.

        When this returns it is on disk, and takes the place of what was pending, or of the pending
        write of this `number` alone. If it `is_edit`, what was pending becomes a conflict: it is
        not part of the content. FrozenEntryError when there is no such revision,
        StaleEntryError when one above the `limit` was claimed before: something else was written.
        """
        data_key = encode(ref.data_key)

        def write(db: sqlite3.Connection) -> Write:
            highest = entries.read_highest(db, ref.key)
            if limit is not None and highest is not None and highest > limit:
                raise StaleEntryError("the entry was changed since: something was written later")
            revision = entries.claim_next(db, ref.key, current)
            signed = Entry(ref.tweak, data, revision).sign(pair.private_key)
            gone = outbox.replace(db, ref.key, data, number, is_edit=is_edit)
            stamp = self._stamp()
            put = outbox.put(db, signed, data_key, current, portals, lacking, stamp, number)
            return Write(put, signed, gone)

        return self.database.write(write)

    def keep(
        self,
        ref: EntryId,
        data: bytes,
        reason: str,
        base: int | None = None,
        portals: Collection[str] = (),
        lacking: Collection[str] = (),
        status: Status = Status.FAILED,
    ) -> list[Pending]:
        """Keep content for which no revision was claimed; return what was never posted, and whose
        place it took.

        `base` is the revision that it was made from, by default the highest seen. A CONFLICT takes
        the place of nothing but the same content.
        """
        data_key = encode(ref.data_key)

        def write(db: sqlite3.Connection) -> list[Pending]:
            is_conflict = status is Status.CONFLICT
            is_edit = base is not None and base >= 0
            gone = outbox.replace(db, ref.key, data, only_same=is_conflict, is_edit=is_edit)
            stamp, made_from = self._stamp(), base
            if made_from is None:
                mark = entries.read_mark(db, ref.key)
                made_from = -1 if mark is None else mark.revision
            outbox.add(
                *(db, ref.key, data_key, made_from, portals, lacking, stamp),
                data=data,
                reason=entries.one_line(reason),
                status=status.value,
                next_at=stamp.now + 1.0,
            )
            return gone

        return self.database.write(write)

    def begin(self, number: int, *, only_last: bool = False) -> bool:
        """Mark a write as being posted by this process.

        False when it is gone, another process is posting it or a later write to the entry, or a
        later one waits. If `only_last`, a later conflict counts too.
        """
        begin = partial(outbox.begin, number=number, stamp=self._stamp(), only_last=only_last)
        return self.database.write(begin)

    def took(
        self,
        write: Write,
        data_key: str | None,
        taken_by: Collection[str],
        left: Mapping[str, str],
        late: Mapping[str, str],
    ) -> RevisionMark:
        """Record that enough portals took a write, and raise the mark to it; return the mark then.

        In the same transaction the others are owed it: those `left`, for these reasons, those that
        are `late` and being posted it, those that lack the content behind it, and those that it was
        written for but not sent to now.
        """
        signed, encoded = write.signed, encode(data_key)

        def record(db: sqlite3.Connection) -> RevisionMark:
            others = outbox.accept(db, write.id, signed)
            mark = self._saw(db, signed, encoded, is_own=True)
            outbox.mark_paid(db, signed, taken_by)
            owe = partial(outbox.owe, db, signed, encoded, stamp=self._stamp(), is_own=True)
            for portal in dict.fromkeys([*left, *late, *others]):
                if portal not in taken_by:
                    lacks = others.get(portal, False)
                    reason = left.get(portal) or late.get(portal) or outbox.UNASKED
                    reason = outbox.LACKS_CONTENT if lacks else reason
                    owe(portal, reason=reason, needs_content=lacks, is_posting=portal in late)
            return mark

        return self.database.write(record)

    def fail(self, number: int, reason: str, status: Status = Status.FAILED) -> bool:
        """Record why a write could not be posted; it stays pending, and is due again after a pause
        that grows with each failure. False if it is gone.

        Nothing is recorded while another process is posting it: that one records how it ends.
        """
        fail = partial(outbox.fail, number=number, reason=reason, status=status)
        return self.database.write(partial(fail, stamp=self._stamp()))

    def is_pending(self, ref: EntryId) -> bool:
        """Whether there is a write to an entry that a later one would take the place of."""
        return self._read(lambda db: outbox.is_pending(db, ref.key), default=False)

    def pending(self) -> list[Pending]:
        """Return all that is still to be sent, the oldest first."""
        return self._read(outbox.select, [])

    def count_unsent(self) -> int:
        """Return how many writes could not be posted."""
        return self._read(outbox.count_unsent, 0)

    def get(self, number: int) -> Pending | None:
        found: list[Pending] = []
        found = self._read(lambda db: outbox.select(db, "WHERE id = ?", (number,)), found)
        return found[0] if found else None

    def drop(self, number: int) -> bool:
        """Remove what is pending; its revision stays claimed. False when it is gone."""
        return self.database.write(lambda db: outbox.drop(db, number))

    # --- what portals are owed

    def owe(
        self,
        signed: SignedEntry,
        data_key: str | None,
        portals: Collection[str],
        reason: str,
        *,
        needs_content: bool = False,
        is_own: bool = False,
    ) -> int:
        """Record that portals lack an entry; return how many of them were not known to.

        The entry was verified. A portal is owed only the newest revision of an entry, and nothing
        below the mark. If it `needs_content`, the content behind the entry goes there first.
        """
        encoded = encode(data_key)

        def owe(db: sqlite3.Connection) -> int:
            owed = partial(outbox.owe, db, signed, encoded, stamp=self._stamp(), reason=reason)
            return sum([owed(p, needs_content=needs_content, is_own=is_own) for p in portals])

        return self.database.write(owe)

    def begin_owed(self, signed: SignedEntry, portal: str) -> bool:
        """Mark what a portal is owed as being posted by this process.

        False when it is not owed any more, or another process is posting it.
        """
        stamp = self._stamp()
        return self.database.write(lambda db: outbox.begin_debt(db, signed, portal, stamp))

    def mark_paid(self, signed: SignedEntry, portals: Collection[str]) -> None:
        """Record that portals have an entry now; a newer one that they are owed stays owed."""
        self.database.write(lambda db: outbox.mark_paid(db, signed, portals))

    def put_off(self, signed: SignedEntry, portal: str, reason: str, pause: float) -> None:
        """Record why an entry could not be sent to a portal, and for how long it is not again."""
        until = self.clock() + pause
        self.database.write(lambda db: outbox.put_off(db, signed, portal, reason, until))

    def end_pauses(self, portal: str) -> None:
        """Make due what a portal was to get later: it works again."""
        self.database.write(lambda db: outbox.end_pauses(db, portal), durable=False)

    def due(self, portal: str, limit: int, *, with_content: bool) -> list[Pending]:
        """Return some of what may be sent to a portal now, with its content or without."""
        due = partial(outbox.due, portal=portal, now=self.clock(), with_content=with_content)
        return self._read(partial(due, limit=limit), [])

    def next_at(self, portal: str, *, with_content: bool) -> float | None:
        """Return in how many seconds the first of it is due; None if there is nothing."""
        now = self.clock()
        find = partial(outbox.next_at, portal=portal, now=now, with_content=with_content)
        found = self._read(find, None)
        return None if found is None else found - now

    def release(self) -> int:
        """Make due what processes were posting that died; return how many processes."""
        dead: list[tuple[str]] = self._read(outbox.dead_processes, [])
        query = "UPDATE outbox SET process = NULL, next_at = 0 WHERE process = ?"
        if dead:
            self.database.write(lambda db: db.executemany(query, dead))
        return len(dead)

    def totals(self) -> list[OwedTotal]:
        """Return how much each portal is owed."""
        return self._read(outbox.totals, [])

    # --- the file

    @property
    def database(self) -> Database:
        with self._opening:
            if self._opened is None:
                from skymount.storage.sqlite import Database

                _take_over(self.path)
                self._opened = Database.open(self.path, _format())
            return self._opened

    def _read(self, action: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Return `default` if there is no ledger. Works where the disk is full or read-only."""
        try:
            database = self.database
        except StorageError as error:
            from skymount.storage.sqlite import Database

            try:
                found = Database.peek(self.path, _format(), action)
            except StorageError:
                raise error from None
            return default if found is None else found
        return database.read(action)

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._read(lambda db: db.execute(query, values).fetchall(), [])

    def _stamp(self) -> Stamp:
        return Stamp(self._process, self.clock())


def _format() -> Format:
    from skymount.storage.sqlite import Format

    return Format(
        _APPLICATION,
        _VERSION,
        _SCHEMA,
        if_damaged="restore it from a backup, as entries could be signed twice without it",
        if_other_version="send what is pending with the one that made it"
        " (`skymount registry retry`), then move this file away",
    )


# --- what the version before wrote

_BEFORE = 5
_WAIT = 1.0  # seconds, for others who only look which version it is

_OF_SPOOL = (
    "INSERT INTO outbox (id, portal, public_key, tweak, data_key, data, base, revision, kind,"
    " signature, accepted, needs_content, status, next_at, reason, created)"
    " SELECT id, ?, public_key, tweak, data_key, data, coalesce(base, x''), revision, kind,"
    " signature, 0, ?, ?, 0, reason, created FROM spool WHERE id = ?"
)
_OF_OWED = (
    "INSERT INTO outbox (id, portal, public_key, tweak, data_key, data, base, revision, kind,"
    " signature, accepted, needs_content, status, attempts, next_at, reason, created)"
    " SELECT id, portal, public_key, tweak, data_key, data, CASE WHEN own THEN x'' END, revision,"
    " kind, signature, 1, with_content, 'waiting', attempts, 0, reason, since FROM owed"
)


def _take_over(path: Path) -> None:
    """Make a ledger that the version before wrote one of this version, in one transaction, while no
    other process has it open: two versions could sign two contents under one revision.

    What is no such ledger is left alone.
    """
    import sqlite3

    from skymount.storage import sqlite

    tried_until = time.monotonic() + _WAIT
    try:
        while path.exists():
            with closing(sqlite.connect(path)) as database:
                if not _is_of_before(database):
                    return
            try:
                alone = {"locking_mode": "EXCLUSIVE"}
                opened = closing(sqlite.connect(path, timeout=0.0, settings=alone))
                with opened as database, sqlite.transaction(database):
                    if _is_of_before(database):
                        _make_outbox(database)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY":
                    raise StorageError(f"cannot take over {path}: {error}") from error
                if time.monotonic() > tried_until:
                    text = f"{_user_of(path)} has {path} open, in the version before"
                    raise StorageError(f"{text}; end it, and try again") from None
            time.sleep(0.05)
    except sqlite3.Error:  # whoever opens it says what is wrong with it
        return


def _is_of_before(database: sqlite3.Connection) -> bool:
    found = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in _MADE_BY]
    return found == [_APPLICATION, _BEFORE]


_MADE_BY = "application_id", "user_version"


def _make_outbox(db: sqlite3.Connection) -> None:
    """Put what is in the spool, and what portals are owed, into the outbox. Numbers stay.

    Of several writes of an entry that could not be posted only the last is sent by itself, as
    before; the others become conflicts, which are kept until somebody overwrites or drops them.
    """
    for statement in outbox.SCHEMA.split(";"):
        db.execute(statement)
    last = "INSERT INTO sqlite_sequence (name, seq) SELECT 'outbox', max(seq) FROM sqlite_sequence"
    db.execute(f"{last} HAVING max(seq) IS NOT NULL")
    spool = "SELECT id, public_key, tweak, portals, lacking, fate FROM spool ORDER BY id DESC"
    has_write = set[tuple[bytes, bytes]]()
    for number, public_key, tweak, portals, lacking, fate in db.execute(spool).fetchall():
        key = public_key, tweak
        status = Status.CONFLICT.value if key in has_write else fate
        if status != Status.CONFLICT.value:
            has_write.add(key)
        targets = dict.fromkeys(portals.split(), 0) | dict.fromkeys(lacking.split(), 1) or {"": 0}
        for portal, needs_content in targets.items():
            db.execute(_OF_SPOOL, (portal, needs_content, status, number))
    db.execute(_OF_OWED)
    db.execute("DROP TABLE spool")
    db.execute("DROP TABLE owed")
    db.execute(f"PRAGMA user_version = {_VERSION}")


def _user_of(path: Path) -> str:
    """Return which process has a database open, for a message."""
    inode = str(path.stat().st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[-3].rpartition(":")[2] == inode and fields[-4] != str(os.getpid()):
            with suppress(OSError):
                words = Path(f"/proc/{fields[-4]}/cmdline").read_bytes().split(b"\0")
                command = b" ".join(words).decode(errors="replace").strip()
                return f"process {fields[-4]} ({entries.one_line(command)})"
    return "another process"

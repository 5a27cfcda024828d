"""The ledger's outbox: what is still to be sent to portals. Functions of one transaction.

A row is what one portal is to get. A write that too few portals took has a row for each portal, of
one number, and whoever sends it asks first. Once enough took it, it is *accepted*: each other
portal is owed the entry, or what is newer by then, under a number of its own. An entry has at most
one write that is not accepted, besides conflicts: what somebody else's newer entry won over, only
its owner overwrites or drops.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from skymount.errors import MalformedError
from skymount.portal.ledger.entries import (
    OF_KEY,
    Key,
    decode_data_key,
    decode_revision,
    encode_data_key,
    encode_revision,
    is_older,
    is_rolled_back,
    is_running,
    one_line,
    read_mark,
)
from skymount.wire.registry_entry import Entry, SignedEntry

if TYPE_CHECKING:
    import sqlite3

LIMIT = 10_000  # entries that are owed to one portal
LONGEST_PAUSE = 300.0
"""Seconds until a row is due again, at most. One that is due later than that was put off by a clock
that was wrong, and is due."""
WRITE_PAUSE = 30.0  # seconds until a write that could not be posted is sent again, at most
POSTING_TIME = 40.0  # seconds after which what this process posts now is due again
INTERRUPTED = "interrupted while it was posted"
LACKS_CONTENT = "the content behind the entry could not be sent there"

UNASKED = "it was sent when this portal was not in use"
NOT_PART = "a later edit was made without it"
_DROPPED_AT_ONCE = LIMIT // 10  # of the oldest, beyond the limit

# Accepted rows of an older revision and a write that is not accepted go to one portal side by side:
# the write may be dropped, and the portal is owed the other one all the same.
SCHEMA = """
CREATE TABLE outbox (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id INTEGER NOT NULL,
    portal TEXT NOT NULL,
    public_key BLOB NOT NULL,
    tweak BLOB NOT NULL,
    data_key BLOB,
    data BLOB NOT NULL,
    base BLOB,
    revision BLOB,
    kind INTEGER,
    signature BLOB,
    accepted INTEGER NOT NULL,
    needs_content INTEGER NOT NULL,
    status TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL,
    reason TEXT NOT NULL,
    process TEXT,
    created REAL NOT NULL
);
CREATE UNIQUE INDEX outbox_of ON outbox (public_key, tweak, portal, accepted)
    WHERE status != 'conflict';
CREATE INDEX outbox_entry ON outbox (public_key, tweak);
CREATE INDEX outbox_number ON outbox (id);
CREATE INDEX outbox_due ON outbox (portal, needs_content, next_at)
"""
_COLUMNS = (
    "id, portal, public_key, tweak, data_key, data, base, revision, kind, signature, accepted,"
    " needs_content, status, attempts, next_at, reason, process, created"
)
_OF_DEBT = f"{OF_KEY} AND portal = ? AND accepted"
_SENDABLE = (
    "portal = :portal AND needs_content = :with_content AND status = 'waiting' AND (accepted OR"
    " (process IS NULL AND NOT needs_content AND NOT EXISTS (SELECT 1 FROM outbox later WHERE"
    " later.public_key = outbox.public_key AND later.tweak = outbox.tweak"
    " AND NOT later.accepted AND later.id > outbox.id)))"
)

log = logging.getLogger(__name__)


class Status(Enum):
    """Who sends a write."""

    WAITING = "waiting"  # it is sent automatically once a portal answers
    FAILED = "failed"  # it was refused, and is sent on request only
    CONFLICT = "conflict"  # as FAILED: somebody else had changed the entry that it was made from


@dataclass(frozen=True, slots=True)
class Pending:
    """A write that is still to be sent, or an entry that one portal is owed."""

    id: int
    public_key: bytes
    tweak: bytes
    data_key: str | None
    data: bytes
    signed: SignedEntry | None
    """None when no revision was claimed for it. Verified, unless it is accepted."""
    base: int | None
    """The revision that it was made from, -1 of an absent entry; None if it was not written here,
    but a portal turned out to be behind."""
    accepted: bool
    status: Status
    attempts: int
    next_at: float
    """When it is to be sent again, in seconds since 1970."""
    reason: str
    created: float
    """In seconds since 1970; of what is owed, since when the portal is behind."""
    is_posting: bool
    """Whether a running process is posting it now."""
    portals: tuple[str, ...]
    """The addresses that it is for; none when they are unknown. Of what is accepted, one."""
    lacking: tuple[str, ...]
    """The addresses that lack the content behind it, which goes first."""

    @property
    def entry(self) -> Entry:
        assert self.signed is not None
        return self.signed.entry

    @property
    def is_own(self) -> bool:
        """Whether it was written by this machine."""
        return self.base is not None


@dataclass(frozen=True, slots=True)
class OwedTotal:
    """What one portal is owed."""

    portal: str
    count: int
    since: float
    """Of the oldest."""
    reason: str
    """Why the last attempt failed."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which process records something, and when."""

    process: str
    now: float


def summary(count: int) -> str:
    """Return one line that says how many writes could not be posted; empty when none is left."""
    changes = "1 change" if count == 1 else f"{count} changes"
    text = "of registry entries could not be posted: see `skymount registry pending`"
    return f"{changes} {text}" if count else ""


def owed_summary(totals: Sequence[OwedTotal]) -> str:
    """Return one line that says what portals are owed; empty when nothing is."""
    found = ", ".join(f"{each.portal} {each.count}" for each in totals)
    text = f"registry entries still to be sent to portals that lack them: {found}"
    return text if totals else ""


# --- writes


def replace(
    db: sqlite3.Connection,
    key: Key,
    data: bytes,
    keep: int | None = None,
    *,
    only_same: bool = False,
    is_edit: bool = False,
) -> list[Pending]:
    """Remove what a new write of an entry takes the place of, but for the write `keep`; return what
    of it was never posted. If `only_same`, that is what has the same content. An edit takes the
    place of that only: the rest becomes a conflict.
    """
    gone = []
    for old in _of_entry(db, key):
        is_same = old.data == data
        is_kept = old.status is Status.CONFLICT or only_same
        if old.accepted or old.id == keep or (is_kept and not is_same):
            continue
        if is_edit and not is_same:
            query = "UPDATE outbox SET status = ?, reason = ? WHERE id = ?"
            db.execute(query, (Status.CONFLICT.value, NOT_PART, old.id))
            continue
        drop(db, old.id)
        if not (is_same or old.is_posting):
            gone.append(old)
    return gone


def put(
    db: sqlite3.Connection,
    signed: SignedEntry,
    data_key: bytes | None,
    base: int,
    portals: Collection[str],
    lacking: Collection[str],
    stamp: Stamp,
    number: int | None = None,
) -> int:
    """Add a write that this process posts now, or sign a pending one anew; return its number."""
    posting = {
        **_of_signed(signed),
        "status": Status.WAITING.value,
        "next_at": stamp.now + POSTING_TIME,
        "reason": INTERRUPTED,
        "process": stamp.process,
    }
    changed = ", ".join(f"{name} = ?" for name in posting)
    query = f"UPDATE outbox SET {changed} WHERE id = ?"
    if number is not None and db.execute(query, (*posting.values(), number)).rowcount:
        return number
    key = (signed.public_key, signed.entry.tweak)
    return add(db, key, data_key, base, portals, lacking, stamp, **posting)


def add(
    db: sqlite3.Connection,
    key: Key,
    data_key: bytes | None,
    base: int | None,
    portals: Collection[str],
    lacking: Collection[str],
    stamp: Stamp,
    **state: object,
) -> int:
    """Add the rows of a write, one for each portal; one without an address if there is none."""
    number: int
    query = "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'outbox'"
    (number,) = db.execute(query).fetchone()
    targets = dict.fromkeys(portals, 0) | dict.fromkeys(lacking, 1) or {"": 0}
    for portal, needs_content in targets.items():
        row = {
            "id": number,
            "portal": portal,
            "public_key": key[0],
            "tweak": key[1],
            "data_key": data_key,
            "base": None if base is None else encode_revision(base),
            "accepted": 0,
            "needs_content": needs_content,
            "created": stamp.now,
            **state,
        }
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        db.execute(f"INSERT INTO outbox ({names}) VALUES ({marks})", tuple(row.values()))
    return number


def begin(db: sqlite3.Connection, number: int, stamp: Stamp, *, only_last: bool) -> bool:
    """Record that this process posts a write; False when it is gone, another process is posting it
    or a later one to the entry, or a later one waits. If `only_last`, a later conflict counts too.
    """
    of = "SELECT public_key, tweak FROM outbox WHERE id = ?"
    key = db.execute(of, (number,)).fetchone()
    if key is None:
        return False
    query = f"SELECT id, status, process FROM outbox WHERE {OF_KEY} AND NOT accepted AND id >= ?"
    for each, status, process in db.execute(query, (*key, number)).fetchall():
        if each > number and (only_last or status != Status.CONFLICT.value):
            return False
        if process != stamp.process and is_running(process):
            return False
    query = "UPDATE outbox SET process = ?, reason = ? WHERE id = ?"
    db.execute(query, (stamp.process, INTERRUPTED, number))
    return True


def fail(db: sqlite3.Connection, number: int, reason: str, status: Status, stamp: Stamp) -> bool:
    """Record why a write could not be posted, to be sent again after a pause that grows; False if
    it is gone. Nothing is recorded while another process posts it: that one records how it ends.
    """
    query = (
        "UPDATE outbox SET reason = ?, process = NULL, status = ?, attempts = attempts + 1,"
        " next_at = ? + min(?, 1 << min(attempts, 9)) WHERE id = ?"
        " AND (process IS NULL OR process = ?)"
    )
    values = (one_line(reason), status.value, stamp.now, WRITE_PAUSE, number, stamp.process)
    db.execute(query, values)
    return db.execute("SELECT 1 FROM outbox WHERE id = ?", (number,)).fetchone() is not None


def accept(db: sqlite3.Connection, number: int, signed: SignedEntry) -> dict[str, bool]:
    """Take a write out that enough portals took, and whatever else is pending of its content.

    Return the portals that it was for, and whether each lacks the content.
    """
    left: dict[str, bool] = {}
    key = (signed.public_key, signed.entry.tweak)
    for each in _of_entry(db, key):
        if each.accepted:
            continue
        if each.id == number:
            left = dict.fromkeys(each.portals, False) | dict.fromkeys(each.lacking, True)
        if each.id == number or (each.data == signed.entry.data and not each.is_posting):
            drop(db, each.id)
    return left


# --- what portals are owed


def owe(
    db: sqlite3.Connection,
    signed: SignedEntry,
    data_key: bytes | None,
    portal: str,
    stamp: Stamp,
    *,
    reason: str,
    needs_content: bool = False,
    is_own: bool = False,
    is_posting: bool = False,
) -> bool:
    """Owe a portal an entry; return whether anything changed.

    What it is owed of an older entry becomes this one; what it is owed of a newer one stays, and so
    does that it lacks the content. `is_posting`: this process is posting it.
    """
    entry, key = signed.entry, (signed.public_key, signed.entry.tweak)
    if is_rolled_back(read_mark(db, key), entry):
        return False
    state = {
        "next_at": stamp.now + POSTING_TIME if is_posting else 0.0,
        "reason": one_line(reason),
        "process": stamp.process if is_posting else None,
    }
    found = select(db, f"WHERE {_OF_DEBT}", (*key, portal))
    if not found:
        more = dict[str, object](accepted=1, status=Status.WAITING.value, **state)
        base = -1 if is_own else None
        portals, lacking = ([], [portal]) if needs_content else ([portal], [])
        what = {**_of_signed(signed), **more}
        add(db, key, data_key, base, portals, lacking, stamp, **what)
        _keep_limit(db, portal)
        return True
    (old,) = found
    if is_older(entry, old.entry):
        return False
    is_same = old.entry == entry
    needs_content = needs_content or (is_same and bool(old.lacking))
    is_own = is_own or (is_same and old.is_own)
    if is_same and not is_posting and (needs_content, is_own) == (bool(old.lacking), old.is_own):
        return False
    _owe_newer(db, old, signed, data_key, is_own=is_own, needs_content=needs_content, **state)
    return True


def mark_paid(db: sqlite3.Connection, signed: SignedEntry, portals: Iterable[str]) -> None:
    """Owe portals an entry no more, as they have it; a newer one that they are owed stays."""
    query = f"DELETE FROM outbox WHERE {_OF_DEBT} AND signature = ?"
    for portal in portals:
        db.execute(query, (signed.public_key, signed.entry.tweak, portal, signed.signature))


def begin_debt(db: sqlite3.Connection, signed: SignedEntry, portal: str, stamp: Stamp) -> bool:
    """Record that this process posts it; False if it is not owed any more or another one does."""
    where = f"WHERE {_OF_DEBT} AND signature = ?"
    values = (signed.public_key, signed.entry.tweak, portal, signed.signature)
    row = db.execute(f"SELECT process FROM outbox {where}", values).fetchone()
    if row is None or (row[0] != stamp.process and is_running(row[0])):
        return False
    query = f"UPDATE outbox SET process = ?, next_at = ? {where}"
    db.execute(query, (stamp.process, stamp.now + POSTING_TIME, *values))
    return True


def put_off(
    db: sqlite3.Connection, signed: SignedEntry, portal: str, reason: str, next_at: float
) -> None:
    """Record why an entry could not be sent to a portal, and when that is tried again."""
    query = "UPDATE outbox SET attempts = attempts + 1, reason = ?, next_at = ?, process = NULL"
    values = (signed.public_key, signed.entry.tweak, portal, signed.signature)
    where = f"WHERE {_OF_DEBT} AND signature = ?"
    db.execute(f"{query} {where}", (one_line(reason), next_at, *values))


def end_pauses(db: sqlite3.Connection, portal: str) -> None:
    """Make due what a portal was to get later, but for content: that may take long in vain."""
    query = "UPDATE outbox SET next_at = 0 WHERE portal = ? AND process IS NULL"
    db.execute(f"{query} AND NOT needs_content AND next_at > 0", (portal,))


def saw(
    db: sqlite3.Connection, signed: SignedEntry, portal: str, stamp: Stamp, *, is_own: bool
) -> None:
    """Take note of an entry that is newer than all that were seen, and that `portal` has.

    Whoever is owed an older one is owed this one; a write that turns out to be posted is accepted.
    """
    has_pending = is_pending(db, (signed.public_key, signed.entry.tweak))
    for each in _of_entry(db, (signed.public_key, signed.entry.tweak)):
        if each.accepted and is_older(each.entry, signed.entry):
            if portal in each.portals:
                _overtake(db, each, signed, portal, has_pending=has_pending)
            else:
                lacks = bool(each.lacking)
                _owe_newer(db, each, signed, None, is_own=is_own, needs_content=lacks)
        elif not each.accepted and each.signed == signed:
            drop(db, each.id)
            targets = {*each.portals, *each.lacking}
            for other in sorted(targets - {portal}) if portal or len(targets) > 1 else ():
                key, lacks = encode_data_key(each.data_key), other in each.lacking
                reason = LACKS_CONTENT if lacks else INTERRUPTED
                owe(
                    *(db, signed, key, other, stamp),
                    reason=reason,
                    needs_content=lacks,
                    is_own=True,
                )


def _overtake(
    db: sqlite3.Connection, lost: Pending, signed: SignedEntry, portal: str, *, has_pending: bool
) -> None:
    """Owe a portal nothing older than what it has. A write of this machine of other content becomes
    a conflict, unless a later write to the entry is pending: that is sent or kept instead.
    """
    entry = lost.entry
    of_debt = (lost.public_key, lost.tweak, portal)
    if not lost.is_own or entry.data == signed.entry.data or has_pending:
        db.execute(f"DELETE FROM outbox WHERE {_OF_DEBT}", of_debt)
        return
    name = lost.tweak.hex() if lost.data_key is None else ascii(lost.data_key)
    what = "the deletion" if entry.is_deleted else "the write"
    reason = (
        f"revision {signed.entry.revision} won, which {portal} has: {what} of revision"
        f" {entry.revision} was made while that portal could not be asked"
    )
    kept = "" if entry.is_deleted else "; it is kept, see `skymount registry pending`"
    log.warning("registry entry %s/%s: %s%s", lost.public_key.hex(), name, reason, kept)
    if entry.is_deleted:
        db.execute(f"DELETE FROM outbox WHERE {_OF_DEBT}", of_debt)
        return
    query = "UPDATE outbox SET accepted = 0, status = ?, reason = ?, process = NULL"
    values = (Status.CONFLICT.value, one_line(reason), *of_debt)
    db.execute(f"{query} WHERE {_OF_DEBT}", values)


def _owe_newer(
    db: sqlite3.Connection,
    old: Pending,
    signed: SignedEntry,
    data_key: bytes | None,
    *,
    is_own: bool,
    needs_content: bool,
    **state: object,
) -> None:
    what: dict[str, object] = {
        **_of_signed(signed),
        "base": encode_revision(-1) if is_own else None,
        "needs_content": int(needs_content),
        "attempts": 0,
        "next_at": 0.0,
        "process": None,
        **state,
    }
    changed = ", ".join(f"{name} = ?" for name in what)
    query = f"UPDATE outbox SET {changed}, data_key = coalesce(?, data_key) WHERE {_OF_DEBT}"
    db.execute(query, (*what.values(), data_key, old.public_key, old.tweak, *old.portals))


# --- reading


def select(db: sqlite3.Connection, where: str = "", values: Sequence[object] = ()) -> list[Pending]:
    """Return what is pending, the oldest first; rows of one write that is not accepted are one."""
    query = f"SELECT {_COLUMNS} FROM outbox {where} ORDER BY id, row"
    rows = db.execute(query, values).fetchall()
    return [_parse(list(group)) for _, group in groupby(rows, itemgetter(0))]


def count_unsent(db: sqlite3.Connection) -> int:
    """Return how many writes there are that are not accepted."""
    query = "SELECT count(DISTINCT id) FROM outbox WHERE NOT accepted"
    return int(db.execute(query).fetchone()[0])


def is_pending(db: sqlite3.Connection, key: Key) -> bool:
    """Whether there is a write to an entry that a later one would take the place of."""
    query = f"SELECT 1 FROM outbox WHERE {OF_KEY} AND NOT accepted AND status != 'conflict'"
    return db.execute(query, key).fetchone() is not None


def due(
    db: sqlite3.Connection, portal: str, now: float, limit: int, *, with_content: bool
) -> list[Pending]:
    """Return what may be sent to a portal now; that first which failed least often, so that no
    entry keeps others back.
    """
    is_due = f"{_SENDABLE} AND (next_at <= :now OR next_at > :now + :longest)"
    query = f"SELECT id FROM outbox WHERE {is_due} ORDER BY attempts, created, row LIMIT :limit"
    values = {**_asked(portal, now, with_content), "limit": limit}
    numbers = db.execute(query, values).fetchall()
    return [found for number in numbers for found in select(db, "WHERE id = ?", number)]


def next_at(db: sqlite3.Connection, portal: str, now: float, *, with_content: bool) -> float | None:
    """Return when the first row of a portal is due; None if there is none."""
    at = "CASE WHEN next_at > :now + :longest THEN 0 ELSE next_at END"
    query = f"SELECT min({at}) FROM outbox WHERE {_SENDABLE}"
    found: float | None = db.execute(query, _asked(portal, now, with_content)).fetchone()[0]
    return found


def totals(db: sqlite3.Connection) -> list[OwedTotal]:
    """Return how much each portal is owed, and why it was not sent."""
    counts = (
        "SELECT portal, count(*), min(created) FROM outbox WHERE accepted"
        " GROUP BY portal ORDER BY portal"
    )
    last = "SELECT reason FROM outbox WHERE portal = ? AND accepted ORDER BY next_at DESC, row DESC"
    return [
        OwedTotal(portal, count, since, *db.execute(last, (portal,)).fetchone())
        for portal, count, since in db.execute(counts).fetchall()
    ]


def dead_processes(db: sqlite3.Connection) -> list[tuple[str]]:
    """Return the processes that ended while they posted something."""
    found = db.execute("SELECT DISTINCT process FROM outbox WHERE process IS NOT NULL").fetchall()
    return [each for each in found if not is_running(each[0])]


def drop(db: sqlite3.Connection, number: int) -> bool:
    """Remove what has this number; return whether it was there."""
    return db.execute("DELETE FROM outbox WHERE id = ?", (number,)).rowcount > 0


def _asked(portal: str, now: float, with_content: bool) -> dict[str, object]:
    return {"portal": portal, "with_content": with_content, "now": now, "longest": LONGEST_PAUSE}


def _of_entry(db: sqlite3.Connection, key: Key) -> list[Pending]:
    return select(db, f"WHERE {OF_KEY}", key)


def _parse(rows: list[tuple[Any, ...]]) -> Pending:
    """Read the rows of one write. ValueError when they are damaged."""
    number, _, public_key, tweak, data_key, data, base, revision, kind, signature, *rest = rows[0]
    accepted, _, status, attempts, next_at, reason, process, created = rest
    signed = None
    try:
        if signature is not None:
            entry = Entry(tweak, data, int.from_bytes(revision, "big"), kind)
            signed = SignedEntry(public_key, entry, signature)
            if not accepted:
                signed.verify()
        return Pending(
            id=number,
            public_key=public_key,
            tweak=tweak,
            data_key=decode_data_key(data_key),
            data=data,
            signed=signed,
            base=decode_revision(base),
            accepted=bool(accepted),
            status=Status(status),
            attempts=attempts,
            next_at=next_at,
            reason=reason,
            created=created,
            is_posting=is_running(process),
            portals=tuple(row[1] for row in rows if row[1] and (accepted or not row[11])),
            lacking=tuple(row[1] for row in rows if row[11]),
        )
    except (MalformedError, TypeError, ValueError) as error:
        raise ValueError(f"pending {number}: {error}") from None


# --- rows


def _of_signed(signed: SignedEntry) -> dict[str, object]:
    entry = signed.entry
    revision = encode_revision(entry.revision)
    what = {"data": entry.data, "revision": revision, "kind": entry.kind}
    return {**what, "signature": signed.signature}


def _keep_limit(db: sqlite3.Connection, portal: str) -> None:
    where = "WHERE portal = ? AND accepted"
    (count,) = db.execute(f"SELECT count(*) FROM outbox {where}", (portal,)).fetchone()
    if count <= LIMIT:
        return
    oldest = f"SELECT row FROM outbox {where} ORDER BY created, row LIMIT ?"
    db.execute(f"DELETE FROM outbox WHERE row IN ({oldest})", (portal, _DROPPED_AT_ONCE))
    log.warning(
        "%s is owed more than %d registry entries: the oldest %d are given up",
        *(portal, LIMIT, _DROPPED_AT_ONCE),
    )

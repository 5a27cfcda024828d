"""The ledger's table of owed entries: what each portal is to get. Functions of one transaction."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from skymount.portal.ledger.ledger_schema import (
    NEXT_NUMBER,
    OF_KEY,
    Key,
    decode_data_key,
    encode_revision,
    one_line,
    read_mark,
    stored_row,
)
from skymount.portal.ledger.owed_entry import Debt, OwedEntry, OwedTotal
from skymount.portal.ledger.posting_process import Stamp, is_running
from skymount.portal.ledger.rollback import is_rolled_back, raised
from skymount.wire.registry_entry import Entry, SignedEntry

if TYPE_CHECKING:
    import sqlite3

LIMIT = 10_000  # entries that are owed to one portal
_POSTING_TIME = 40.0  # seconds after which what this process posts now is due again
_DROPPED_AT_ONCE = LIMIT // 10  # of the oldest, beyond that

OWED = (
    "SELECT id, portal, public_key, tweak, data_key, revision, kind, data, signature,"
    " with_content, own, since, attempts, next_at, reason, poster FROM owed"
)
_INSERT = (
    "INSERT INTO owed (id, portal, public_key, tweak, data_key, revision, kind, data, signature,"
    " with_content, own, since, attempts, next_at, reason, poster)"
    f" VALUES ({NEXT_NUMBER}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)"
)
_REPLACE = (
    "UPDATE owed SET data_key = coalesce(?, data_key), revision = ?, kind = ?, data = ?,"
    " signature = ?, with_content = ?, own = ?, attempts = 0, next_at = ?, reason = ?,"
    " poster = ?"
    " WHERE id = ?"
)
_SUPERSEDE = (
    "UPDATE owed SET revision = ?, kind = ?, data = ?, signature = ?, own = ?, attempts = 0,"
    f" next_at = 0, poster = NULL WHERE {OF_KEY} AND revision <= ? AND signature != ?"
)
_OF_DEBT = f"{OF_KEY} AND portal = ? AND signature = ?"

log = logging.getLogger(__name__)


def owe_all(
    db: sqlite3.Connection,
    signed: SignedEntry,
    data_key: bytes | None,
    debts: Iterable[Debt],
    stamp: Stamp,
) -> int:
    """Record debts of an entry; return how many were made or changed."""
    return sum([owe(db, signed, data_key, each, stamp) for each in debts])


def owe(
    db: sqlite3.Connection,
    signed: SignedEntry,
    data_key: bytes | None,
    debt: Debt,
    stamp: Stamp,
) -> bool:
    """Record a debt; return whether one was made or changed.

    A debt of an older entry becomes one of this entry; one of a newer entry stays.
    """
    entry, key = signed.entry, (signed.public_key, signed.entry.tweak)
    if is_rolled_back(read_mark(db, key), entry):
        return False
    posting = (stamp.now + _POSTING_TIME, one_line(debt.reason), stamp.poster)
    state = posting if debt.is_posting else (0.0, one_line(debt.reason), None)
    what = (encode_revision(entry.revision), entry.kind, entry.data, signed.signature)
    old = db.execute(f"{OWED} WHERE {OF_KEY} AND portal = ?", (*key, debt.portal)).fetchone()
    if old is None:
        values = (debt.portal, *key, data_key, *what, int(debt.with_content), int(debt.is_own))
        db.execute(_INSERT, (*values, stamp.now, *state))
        _keep_limit(db, debt.portal)
        return True
    known = parse_owed(old)
    if is_rolled_back(raised(None, known.signed.entry, 0.0), entry):
        return False
    is_same = known.signed.entry == entry
    is_known = known.with_content >= debt.with_content and known.is_own >= debt.is_own
    if is_same and is_known and not debt.is_posting:
        return False
    with_content = debt.with_content or (is_same and known.with_content)
    is_own = debt.is_own or (is_same and known.is_own)
    changed = (data_key, *what, int(with_content), int(is_own), *state)
    db.execute(_REPLACE, (*changed, known.id))
    return True


def is_owed(db: sqlite3.Connection, signed: SignedEntry, debt: Debt) -> bool:
    """Whether that debt, or one of a later revision, is recorded."""
    query = (
        f"SELECT 1 FROM owed WHERE {OF_KEY} AND portal = ? AND"
        " (revision > ? OR signature = ? AND with_content >= ? AND own >= ?)"
    )
    revision = encode_revision(signed.entry.revision)
    values = (debt.portal, revision, signed.signature, int(debt.with_content), int(debt.is_own))
    key = (signed.public_key, signed.entry.tweak)
    return db.execute(query, (*key, *values)).fetchone() is not None


def overtaken(db: sqlite3.Connection, signed: SignedEntry, portal: str) -> OwedEntry | None:
    """Return this machine's own write of other content that a portal is owed, but which is older
    than an entry that it has.
    """
    query = f"{OWED} WHERE {OF_KEY} AND portal = ? AND own AND signature != ? AND data != ?"
    values = (signed.public_key, signed.entry.tweak, portal, signed.signature, signed.entry.data)
    row = db.execute(query, values).fetchone()
    found = parse_owed(row) if row else None
    newest = raised(None, signed.entry, 0.0)
    return found if found and is_rolled_back(newest, found.signed.entry) else None


def supersede(db: sqlite3.Connection, signed: SignedEntry, *, is_own: bool) -> None:
    """Let portals be owed this entry where they were owed an older one."""
    entry = signed.entry
    revision = encode_revision(entry.revision)
    what = (revision, entry.kind, entry.data, signed.signature, int(is_own))
    values = (signed.public_key, entry.tweak, revision, signed.signature)
    db.execute(_SUPERSEDE, (*what, *values))


def begin(db: sqlite3.Connection, signed: SignedEntry, portal: str, stamp: Stamp) -> bool:
    """Record that a process posts it; False if it is not owed any more or another one does."""
    values = (signed.public_key, signed.entry.tweak, portal, signed.signature)
    row = db.execute(f"SELECT id, poster FROM owed WHERE {_OF_DEBT}", values).fetchone()
    if row is None or (row[1] != stamp.poster and is_running(row[1])):
        return False
    query = "UPDATE owed SET poster = ?, next_at = ? WHERE id = ?"
    db.execute(query, (stamp.poster, stamp.now + _POSTING_TIME, row[0]))
    return True


def dead_posters(db: sqlite3.Connection) -> list[str]:
    """Return the processes that ended while they posted something."""
    found = db.execute("SELECT DISTINCT poster FROM owed WHERE poster IS NOT NULL").fetchall()
    return [poster for (poster,) in found if not is_running(poster)]


def fail(
    db: sqlite3.Connection, signed: SignedEntry, portal: str, reason: str, next_at: float
) -> None:
    """Record an attempt that failed, and when the next one is due."""
    values = (signed.public_key, signed.entry.tweak, portal, signed.signature)
    query = "UPDATE owed SET attempts = attempts + 1, reason = ?, next_at = ?, poster = NULL"
    db.execute(f"{query} WHERE {_OF_DEBT}", (one_line(reason), next_at, *values))


def remove(db: sqlite3.Connection, signed: SignedEntry, portals: Iterable[str]) -> None:
    """Remove the debts of an entry to portals that have it."""
    for portal in portals:
        values = (signed.public_key, signed.entry.tweak, portal, signed.signature)
        db.execute(f"DELETE FROM owed WHERE {_OF_DEBT}", values)


def remove_all(db: sqlite3.Connection, key: Key) -> None:
    """Remove the debts of all revisions of an entry."""
    db.execute(f"DELETE FROM owed WHERE {OF_KEY}", key)


def select(db: sqlite3.Connection, portals: Collection[str] | None) -> list[OwedEntry]:
    """Return what these portals are owed, or all; the oldest first."""
    where = "" if portals is None else f"WHERE portal IN ({', '.join('?' * len(portals))})"
    rows = db.execute(f"{OWED} {where} ORDER BY since, id", tuple(portals or ())).fetchall()
    return [parse_owed(row) for row in rows]


def due(
    db: sqlite3.Connection, portal: str, now: float, with_content: bool, limit: int
) -> list[OwedEntry]:
    """Return what is due; that first which failed least often, so that no entry keeps others
    back.
    """
    where = "portal = ? AND next_at <= ? AND with_content = ?"
    query = f"{OWED} WHERE {where} ORDER BY attempts, since, id LIMIT ?"
    rows = db.execute(query, (portal, now, int(with_content), limit)).fetchall()
    return [parse_owed(row) for row in rows]


def totals(db: sqlite3.Connection) -> list[OwedTotal]:
    """Return how much each portal is owed, and why it was not sent."""
    counts = "SELECT portal, count(*), min(since) FROM owed GROUP BY portal ORDER BY portal"
    last = "SELECT reason FROM owed WHERE portal = ? ORDER BY next_at DESC, id DESC LIMIT 1"
    found = []
    for portal, count, since in db.execute(counts).fetchall():
        (reason,) = db.execute(last, (portal,)).fetchone()
        found.append(OwedTotal(portal, count, since, reason))
    return found


def parse_owed(row: tuple[Any, ...]) -> OwedEntry:
    """Read a row of `OWED`. TypeError or ValueError when it is damaged."""
    number, portal, public_key, tweak, data_key, revision, kind, data, signature, *rest = row
    with_content, own, since, attempts, next_at, reason, poster = rest
    with stored_row():
        entry = Entry(tweak, data, int.from_bytes(revision, "big"), kind)
        signed = SignedEntry(public_key, entry, signature)
    return OwedEntry(
        id=number,
        portal=portal,
        signed=signed,
        data_key=decode_data_key(data_key),
        with_content=bool(with_content),
        since=since,
        attempts=attempts,
        next_at=next_at,
        reason=reason,
        is_posting=is_running(poster),
        is_own=bool(own),
    )


def _keep_limit(db: sqlite3.Connection, portal: str) -> None:
    (count,) = db.execute("SELECT count(*) FROM owed WHERE portal = ?", (portal,)).fetchone()
    if count <= LIMIT:
        return
    oldest = "SELECT id FROM owed WHERE portal = ? ORDER BY since, id LIMIT ?"
    db.execute(f"DELETE FROM owed WHERE id IN ({oldest})", (portal, _DROPPED_AT_ONCE))
    log.warning(
        "%s is owed more than %d registry entries: the oldest %d are given up",
        *(portal, LIMIT, _DROPPED_AT_ONCE),
    )

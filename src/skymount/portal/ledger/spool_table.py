"""The ledger's table of pending writes, the spool. Functions of one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from skymount.errors import MalformedError
from skymount.portal.ledger import ledger_schema as schema
from skymount.portal.ledger import posting_process
from skymount.portal.ledger.ledger_schema import OF_KEY
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite

if TYPE_CHECKING:
    import sqlite3

INTERRUPTED = "interrupted while it was posted"


def insert(
    db: sqlite3.Connection,
    row: Sequence[object],
    portals: Sequence[str],
    status: PendingStatus,
    lacking: Collection[str] = (),
) -> int:
    """Add a write; return its id."""
    values = (*row, " ".join(portals), " ".join(lacking), status.value)
    number = db.execute(schema.SPOOL, values).lastrowid
    assert number is not None
    return number


def remove(db: sqlite3.Connection, number: int) -> bool:
    """Remove a write; return whether it was there."""
    return db.execute(schema.REMOVE_PENDING, (number,)).rowcount > 0


def remove_same(
    db: sqlite3.Connection, key: schema.Key, data: bytes, keep: int | None = None
) -> None:
    """Remove pending writes of the same content, except `keep` and those being posted."""
    query = f"SELECT id, poster FROM spool WHERE {OF_KEY} AND data = ?"
    for number, poster in db.execute(query, (*key, data)).fetchall():
        if number != keep and not posting_process.is_running(poster):
            remove(db, number)


def begin(db: sqlite3.Connection, number: int, poster: str, *, only_last: bool) -> bool:
    """Record that a process posts a write; False when it is gone, or another process is posting it
    or a later one to the entry. If `only_last`, False too when there is any later one.
    """
    of = "SELECT public_key, tweak FROM spool WHERE id = ?"
    key = db.execute(of, (number,)).fetchone()
    if key is None:
        return False
    posters = f"SELECT poster FROM spool WHERE {OF_KEY} AND id >= ?"
    found = db.execute(posters, (*key, number)).fetchall()
    if only_last and len(found) > 1:
        return False
    if any(each != poster and posting_process.is_running(each) for (each,) in found):
        return False
    query = "UPDATE spool SET poster = ?, reason = ? WHERE id = ?"
    db.execute(query, (poster, INTERRUPTED, number))
    return True


def find(db: sqlite3.Connection, number: int) -> PendingWrite | None:
    """Return a write; None when it is gone."""
    row = db.execute(f"{schema.PENDING} WHERE id = ?", (number,)).fetchone()
    return parse(row) if row else None


def parse(row: tuple[Any, ...]) -> PendingWrite:
    """Read a row of `PENDING`. ValueError when it is damaged."""
    try:
        return schema.parse_pending(row, is_posting=posting_process.is_running(row[11]))
    except (MalformedError, TypeError, ValueError) as error:
        raise ValueError(f"pending {row[0]}: {error}") from None

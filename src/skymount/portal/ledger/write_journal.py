"""What changes in all tables of the ledger at once: an entry was seen, or a write was posted.
Functions of one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from skymount.portal.ledger import ledger_schema as schema
from skymount.portal.ledger import owed_table, spool_table
from skymount.portal.ledger.ledger_schema import OF_KEY, encode_data_key, encode_revision
from skymount.portal.ledger.owed_entry import Debt, OwedEntry, lacking_debts
from skymount.portal.ledger.pending_write import PendingStatus
from skymount.portal.ledger.posting_process import Stamp
from skymount.portal.ledger.rollback import RevisionMark, is_rolled_back, raised
from skymount.wire.registry_entry import SignedEntry

if TYPE_CHECKING:
    import sqlite3

_UNASKED = "it was sent when this portal was not in use"

log = logging.getLogger(__name__)


def record_seen(
    db: sqlite3.Connection,
    signed: SignedEntry,
    data_key: bytes | None,
    named: bool,
    stamp: Stamp,
    *,
    portal: str = "",
    is_own: bool = False,
) -> RevisionMark:
    """Raise the mark to an entry that `portal` has; return the mark then.

    Portals are owed this entry where they were owed an older one. A pending write that turns out
    to be posted leaves the spool; one that this portal did not get, and will not, goes back there.
    """
    entry = signed.entry
    key = (signed.public_key, entry.tweak)
    db.execute(schema.ENSURE_ENTRY, key)
    before = schema.read_mark(db, key)
    mark = raised(before, entry, stamp.now)
    if entry.revision == mark.revision and entry.work == mark.work:
        values = (encode_revision(mark.revision), mark.work, mark.seen_at)
        db.execute(schema.RAISE_MARK, (*values, entry.data, entry.kind, signed.signature, *key))
    if mark is not before:
        if lost := owed_table.overtaken(db, signed, portal):
            _keep_overtaken(db, lost, entry.revision, stamp.now)
        owed_table.supersede(db, signed, is_own=is_own)
        _remove_posted(db, signed, stamp)
    if named and not is_rolled_back(before, entry):
        db.execute(schema.LIST_ENTRY, (int(not entry.is_deleted), data_key, *key))
    return mark


def _keep_overtaken(db: sqlite3.Connection, lost: OwedEntry, revision: int, now: float) -> None:
    """Keep a write of this machine that a newer entry won over, as a CONFLICT.

    Not if a later write to the entry is pending: that is sent or kept instead.
    """
    signed = lost.signed
    entry, key = signed.entry, (signed.public_key, signed.entry.tweak)
    if db.execute(schema.HAS_PENDING, key).fetchone():
        return
    name = signed.entry.tweak.hex() if lost.data_key is None else ascii(lost.data_key)
    what = "the deletion" if entry.is_deleted else "the write"
    reason = (
        f"revision {revision} won, which {lost.portal} has: {what} of revision"
        f" {entry.revision} was made while that portal could not be asked"
    )
    kept = "" if entry.is_deleted else "; it is kept, see `skymount registry pending`"
    log.warning("registry entry %s/%s: %s%s", signed.public_key.hex(), name, reason, kept)
    if entry.is_deleted:
        return
    what_signed = (encode_revision(entry.revision), entry.kind, signed.signature)
    row = (*key, encode_data_key(lost.data_key), entry.data, None, *what_signed)
    lacking = [lost.portal] if lost.with_content else []
    state = (schema.one_line(reason), now, None)
    spool_table.insert(db, (*row, *state), [lost.portal], PendingStatus.CONFLICT, lacking)


def _remove_posted(db: sqlite3.Connection, signed: SignedEntry, stamp: Stamp) -> None:
    """Take a write that turns out to be posted out of the spool.

    Which portal has it is unknown: if it was for several, all of them are owed it.
    """
    query = f"SELECT id, data_key, portals, lacking FROM spool WHERE {OF_KEY} AND signature = ?"
    values = (signed.public_key, signed.entry.tweak, signed.signature)
    for number, data_key, portals, lacking in db.execute(query, values).fetchall():
        spool_table.remove(db, number)
        debts = lacking_debts(lacking.split())
        if len(urls := portals.split()) > 1:
            debts += [Debt(url, spool_table.INTERRUPTED, is_own=True) for url in urls]
        owed_table.owe_all(db, signed, data_key, debts, stamp)


def record_posted(
    db: sqlite3.Connection,
    number: int,
    taken_by: Collection[str],
    owed: Collection[Debt],
    stamp: Stamp,
) -> RevisionMark | None:
    """Take a posted write out of the spool, and raise the mark to it; return the mark then.

    The portals that took it are owed it no more, and others are `owed` it, as are those that lack
    the content behind it, and those that it was written for but not sent to now. None when it is
    no longer in the spool.
    """
    found = spool_table.find(db, number)
    if found is None or found.signed is None:
        return None
    signed, data_key = found.signed, encode_data_key(found.data_key)
    spool_table.remove_same(db, (found.public_key, found.tweak), found.data)
    spool_table.remove(db, number)
    mark = record_seen(db, signed, data_key, True, stamp, is_own=True)
    owed_table.remove(db, signed, taken_by)
    debts = [*owed, *lacking_debts(set(found.lacking).difference(taken_by))]
    known = {*taken_by, *(debt.portal for debt in debts)}
    unasked = [url for url in found.portals if taken_by and url not in known]
    debts += [Debt(url, _UNASKED, is_own=True) for url in unasked]
    owed_table.owe_all(db, signed, data_key, debts, stamp)
    return mark

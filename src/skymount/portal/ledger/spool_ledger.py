"""The part of a ledger that knows the revisions that were claimed, and the writes to be posted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from skymount.errors import RevisionError, StorageError
from skymount.portal.ledger import ledger_schema as schema
from skymount.portal.ledger import spool_table, write_journal
from skymount.portal.ledger.ledger_file import LedgerPart
from skymount.portal.ledger.ledger_schema import OF_KEY, encode_data_key, encode_revision
from skymount.portal.ledger.owed_entry import Debt
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite
from skymount.portal.ledger.rollback import RevisionMark
from skymount.wire.registry_entry import SignedEntry

if TYPE_CHECKING:
    import sqlite3


class SpoolLedger(LedgerPart):
    """A ledger's claimed revisions and pending writes."""

    def claim_revision(
        self,
        signed: SignedEntry,
        data_key: str | None,
        replaces: int | None = None,
        portals: Sequence[str] = (),
        lacking: Collection[str] = (),
    ) -> int:
        """Claim the entry's revision and spool it before it is posted; return the write's id.

        It is on disk when this returns, WAITING for the `portals`; those `lacking` the content
        behind it are owed both once it is posted. RevisionError when that
        revision, or a higher one, was seen or claimed. It takes the place of the pending write that
        it `replaces`; a pending write of the same content leaves the spool.
        """
        entry = signed.entry
        key = (signed.public_key, entry.tweak)
        revision = encode_revision(entry.revision)

        def write(db: sqlite3.Connection) -> int:
            stamp = self.stamp()
            highest = schema.read_highest(db, key)
            if highest is not None and entry.revision <= highest:
                raise RevisionError(f"revision {entry.revision} is taken: {highest} was used")
            db.execute(schema.ENSURE_ENTRY, key)
            db.execute(schema.CLAIM, (revision, *key))
            spool_table.remove_same(db, key, entry.data, replaces)
            signature = (revision, entry.kind, signed.signature, spool_table.INTERRUPTED)
            if replaces is not None:
                values = (entry.data, *signature, stamp.poster, replaces)
                if db.execute(schema.REPLACE_PENDING, values).rowcount:
                    return replaces
            row = (*key, encode_data_key(data_key), entry.data, None, *signature, stamp.now)
            return spool_table.insert(
                db, (*row, stamp.poster), portals, PendingStatus.WAITING, lacking
            )

        return self.file.database.write(write)

    def add_unsigned(
        self,
        public_key: bytes,
        tweak: bytes,
        data_key: str | None,
        data: bytes,
        reason: str,
        base: int | None = None,
        portals: Sequence[str] = (),
        status: PendingStatus = PendingStatus.FAILED,
        lacking: Collection[str] = (),
    ) -> int:
        """Spool content for which no revision was claimed; return the id of the pending write.

        `base` is the revision that it was made from, by default the highest seen. A pending write
        of the same content leaves the spool.
        """
        key, encoded = (public_key, tweak), encode_data_key(data_key)

        def write(db: sqlite3.Connection) -> int:
            mark = schema.read_mark(db, key)
            known = -1 if mark is None else mark.revision
            made_from = encode_revision(known if base is None else base)
            spool_table.remove_same(db, key, data)
            unsigned = (None, None, None, schema.one_line(reason))
            row = (*key, encoded, data, made_from, *unsigned, self.stamp().now, None)
            return spool_table.insert(db, row, portals, status, lacking)

        return self.file.database.write(write)

    def begin_retry(self, number: int, *, only_last: bool = False) -> bool:
        """Mark a pending write as being posted by this process.

        False when it is gone, or another process is posting it or a later write to the entry. If
        `only_last`, False too when any later write to the entry is in the spool.
        """
        poster = self.stamp().poster
        return self.file.database.write(
            lambda db: spool_table.begin(db, number, poster, only_last=only_last)
        )

    def mark_posted(
        self, number: int, taken_by: Collection[str] = (), owed: Collection[Debt] = ()
    ) -> RevisionMark | None:
        """Take a posted write out of the spool, and raise the mark to it; return the mark then.

        In the same transaction the portals that took it are owed it no more, and others are `owed`
        it, as are those that lack the content behind it, and those that it was written for but not
        sent to now. None when it is no longer in the spool: use `record_seen` and `owe` then.
        """
        return self.file.database.write(
            lambda db: write_journal.record_posted(db, number, taken_by, owed, self.stamp())
        )

    def mark_failed(
        self, number: int, reason: str, status: PendingStatus = PendingStatus.FAILED
    ) -> None:
        """Record why a write could not be posted; it stays in the spool.

        Nothing is recorded while another process is posting it: that one records how it ends.
        """
        query = (
            "UPDATE spool SET reason = ?, poster = NULL, fate = ?"
            " WHERE id = ? AND (poster IS NULL OR poster = ?)"
        )
        values = (schema.one_line(reason), status.value, number, self.stamp().poster)
        self.file.database.write(lambda db: db.execute(query, values))

    def remove_superseded(self, public_key: bytes, tweak: bytes, number: int) -> list[PendingWrite]:
        """Remove and return older writes to an entry, except a CONFLICT or one being posted."""
        query = f"{schema.PENDING} WHERE {OF_KEY} AND id < ? AND fate != ?"
        values = (public_key, tweak, number, PendingStatus.CONFLICT.value)
        if not self.file.rows(query, values):
            return []

        def write(db: sqlite3.Connection) -> list[PendingWrite]:
            found = [spool_table.parse(row) for row in db.execute(query, values).fetchall()]
            return [
                each for each in found if not each.is_posting and spool_table.remove(db, each.id)
            ]

        return self.file.database.write(write)

    def has_pending(self, public_key: bytes, tweak: bytes) -> bool:
        """Whether the spool has a write to an entry that a later one would supersede."""
        return bool(self.file.rows(schema.HAS_PENDING, (public_key, tweak)))

    def pending(self) -> list[PendingWrite]:
        return [self._parse(row) for row in self.file.rows(f"{schema.PENDING} ORDER BY id")]

    def get(self, number: int) -> PendingWrite | None:
        rows = self.file.rows(f"{schema.PENDING} WHERE id = ?", (number,))
        return self._parse(rows[0]) if rows else None

    def drop(self, number: int) -> bool:
        """Remove a pending write; its revision stays claimed. False when it is gone."""
        return self.file.database.write(lambda db: spool_table.remove(db, number))

    def _parse(self, row: tuple[Any, ...]) -> PendingWrite:
        try:
            return spool_table.parse(row)
        except ValueError as error:
            raise StorageError(f"the ledger {self.path} is damaged: {error}") from None

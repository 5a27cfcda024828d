"""What this machine knows of registry entries, on disk: revision marks, names, claimed revisions,
the spool of pending writes, and what portals are owed. All mounts and commands of a user share it.

Everything here is synchronous, and any thread may call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from skymount.errors import MalformedError, RevisionError, StorageError
from skymount.portal.ledger import ledger_schema as schema
from skymount.portal.ledger import owed_table, posting_process
from skymount.portal.ledger.ledger_schema import OF_KEY, encode_data_key, encode_revision
from skymount.portal.ledger.owed_entry import Debt, OwedEntry, lacking_debts
from skymount.portal.ledger.owed_ledger import OwedLedger
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite
from skymount.portal.ledger.rollback import RevisionMark, is_rolled_back, raised
from skymount.wire.registry_entry import SignedEntry, entry_link

if TYPE_CHECKING:
    import sqlite3

    from skymount.wire.skylink import Skylink

_INTERRUPTED = "interrupted while it was posted"
_UNASKED = "it was sent when this portal was not in use"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry that was used here."""

    data_key: str | None  # None when only its hash is known
    tweak: bytes


def default_path() -> Path:
    """Return the path of a user's ledger; $XDG_STATE_HOME is honoured."""
    import platformdirs

    return platformdirs.user_state_path("skymount") / "ledger.sqlite3"


class Ledger(OwedLedger):
    """A ledger. Every method raises StorageError, which names the file, when it fails.

    A damaged ledger is refused, not replaced: what it knows prevents that a revision is signed for
    two contents, and that portals roll entries back.
    """

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
        assert self.file.database.path == self.path

    def close(self) -> None:
        self.file.close()

    # --- revision marks

    def mark_of(self, public_key: bytes, tweak: bytes) -> RevisionMark | None:
        return self.file.read(lambda db: schema.read_mark(db, (public_key, tweak)), None)

    def highest_revision(self, public_key: bytes, tweak: bytes) -> int | None:
        """Return the highest revision that was seen or claimed, and must not be signed again."""
        return self.file.database.read(lambda db: schema.read_highest(db, (public_key, tweak)))

    def record_seen(
        self, signed: SignedEntry, data_key: str | None, *, named: bool = True, portal: str = ""
    ) -> RevisionMark:
        """Raise the mark to an entry whose signature was verified; return the mark then.

        The mark is never lowered: `is_rolled_back` tells whether the entry is behind it. If `named`
        the entry is listed, or no longer if it is deleted. A pending write that turns out to be
        posted leaves the spool. `portal` is where the entry was seen: a write of this machine that
        is older, and that this portal did not get, goes back to the spool as a CONFLICT.
        """
        key = (signed.public_key, signed.entry.tweak)
        encoded = encode_data_key(data_key)

        def known_mark(db: sqlite3.Connection) -> RevisionMark | None:
            mark = schema.read_mark(db, key)
            if mark is None or raised(mark, signed.entry, 0.0) is not mark:
                return None
            if not is_rolled_back(mark, signed.entry):
                is_named, stored, is_kept = db.execute(schema.LISTING_OF, key).fetchone()
                is_other_key = encoded is not None and stored != encoded
                is_unlisted = is_named == signed.entry.is_deleted or is_other_key
                if not is_kept or (named and is_unlisted):
                    return None
            return mark

        known = self.file.database.read(known_mark)
        if known is not None:
            return known
        # Not synced: a mark that is lost in a power failure is seen again.
        return self.file.database.write(
            lambda db: self._record_seen(db, signed, encoded, named, portal=portal), durable=False
        )

    def _record_seen(
        self,
        db: sqlite3.Connection,
        signed: SignedEntry,
        data_key: bytes | None,
        named: bool,
        *,
        portal: str = "",
        is_own: bool = False,
    ) -> RevisionMark:
        entry = signed.entry
        key = (signed.public_key, entry.tweak)
        db.execute(schema.ENSURE_ENTRY, key)
        before = schema.read_mark(db, key)
        mark = raised(before, entry, self._clock())
        if entry.revision == mark.revision and entry.work == mark.work:
            values = (encode_revision(mark.revision), mark.work, mark.seen_at)
            db.execute(schema.RAISE_MARK, (*values, entry.data, entry.kind, signed.signature, *key))
        if mark is not before:
            if lost := owed_table.overtaken(db, signed, portal):
                self._keep_overtaken(db, lost, entry.revision)
            owed_table.supersede(db, signed, is_own=is_own)
            self._remove_posted(db, signed)
        if named and not is_rolled_back(before, entry):
            db.execute(schema.LIST_ENTRY, (int(not entry.is_deleted), data_key, *key))
        return mark

    def _keep_overtaken(self, db: sqlite3.Connection, lost: OwedEntry, revision: int) -> None:
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
        state = (schema.one_line(reason), self._clock(), None)
        _spool(db, (*row, *state), [lost.portal], PendingStatus.CONFLICT, lacking)

    def _remove_posted(self, db: sqlite3.Connection, signed: SignedEntry) -> None:
        """Take a write that turns out to be posted out of the spool.

        Which portal has it is unknown: if it was for several, all of them are owed it.
        """
        query = f"SELECT id, data_key, portals, lacking FROM spool WHERE {OF_KEY} AND signature = ?"
        values = (signed.public_key, signed.entry.tweak, signed.signature)
        for number, data_key, portals, lacking in db.execute(query, values).fetchall():
            _remove(db, number)
            debts = lacking_debts(lacking.split())
            if len(urls := portals.split()) > 1:
                debts += [Debt(url, _INTERRUPTED, is_own=True) for url in urls]
            self._owe(db, signed, data_key, debts)

    # --- listed entries

    def public_keys(self) -> list[bytes]:
        return [key for (key,) in self.file.rows(schema.LISTED_PUBLIC_KEYS)]

    def listed_entries(self, public_key: bytes) -> list[ListedEntry]:
        rows = self.file.rows(schema.LISTED_ENTRIES, (public_key,))
        return [ListedEntry(schema.decode_data_key(key), tweak) for key, tweak in rows]

    def find_entry(self, link: Skylink) -> tuple[bytes, bytes] | None:
        def find(db: sqlite3.Connection) -> tuple[bytes, bytes] | None:
            keys = db.execute(schema.ALL_KEYS)
            return next((key for key in keys if entry_link(*key) == link), None)

        return self.file.read(find, None)

    def newest_entry(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        """Return the entry of the highest revision that was seen, verified; None if it is unknown,
        or was forgotten.
        """
        return self.file.read(lambda db: schema.read_newest(db, (public_key, tweak)), None)

    def forget(self, public_key: bytes, tweak: bytes, *, seen: bool = False) -> bool:
        """No longer list an entry; return whether there was something to forget.

        With `seen` the mark goes too, and an older entry is believed again; no portal is owed the
        newer one any more. No revision up to the mark is ever signed here.
        """
        key = (public_key, tweak)

        def write(db: sqlite3.Connection) -> bool:
            was_listed = db.execute(schema.UNLIST_ENTRY, key).rowcount > 0
            if seen:
                owed_table.remove_all(db, key)
            return (seen and db.execute(schema.FORGET_MARK, key).rowcount > 0) or was_listed

        return self.file.database.write(write)

    # --- the spool

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
            highest = schema.read_highest(db, key)
            if highest is not None and entry.revision <= highest:
                raise RevisionError(f"revision {entry.revision} is taken: {highest} was used")
            db.execute(schema.ENSURE_ENTRY, key)
            db.execute(schema.CLAIM, (revision, *key))
            self._remove_same(db, key, entry.data, replaces)
            signature = (revision, entry.kind, signed.signature, _INTERRUPTED)
            if replaces is not None:
                values = (entry.data, *signature, self._poster, replaces)
                if db.execute(schema.REPLACE_PENDING, values).rowcount:
                    return replaces
            row = (*key, encode_data_key(data_key), entry.data, None, *signature, self._clock())
            return _spool(db, (*row, self._poster), portals, PendingStatus.WAITING, lacking)

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
            self._remove_same(db, key, data)
            unsigned = (None, None, None, schema.one_line(reason))
            row = (*key, encoded, data, made_from, *unsigned, self._clock(), None)
            return _spool(db, row, portals, status, lacking)

        return self.file.database.write(write)

    def begin_retry(self, number: int, *, only_last: bool = False) -> bool:
        """Mark a pending write as being posted by this process.

        False when it is gone, or another process is posting it or a later write to the entry. If
        `only_last`, False too when any later write to the entry is in the spool.
        """
        posters = f"SELECT poster FROM spool WHERE {OF_KEY} AND id >= ?"
        query = "UPDATE spool SET poster = ?, reason = ? WHERE id = ?"

        def write(db: sqlite3.Connection) -> bool:
            of = "SELECT public_key, tweak FROM spool WHERE id = ?"
            key = db.execute(of, (number,)).fetchone()
            if key is None:
                return False
            found = db.execute(posters, (*key, number)).fetchall()
            if only_last and len(found) > 1:
                return False
            if any(
                poster != self._poster and posting_process.is_running(poster) for (poster,) in found
            ):
                return False
            db.execute(query, (self._poster, _INTERRUPTED, number))
            return True

        return self.file.database.write(write)

    def mark_posted(
        self, number: int, taken_by: Collection[str] = (), owed: Collection[Debt] = ()
    ) -> RevisionMark | None:
        """Take a posted write out of the spool, and raise the mark to it; return the mark then.

        In the same transaction the portals that took it are owed it no more, and others are `owed`
        it, as are those that lack the content behind it, and those that it was written for but not
        sent to now. None when it is no longer in the spool: use `record_seen` and `owe` then.
        """

        def write(db: sqlite3.Connection) -> RevisionMark | None:
            row = db.execute(f"{schema.PENDING} WHERE id = ?", (number,)).fetchone()
            found = self._parse(row) if row else None
            if found is None or found.signed is None:
                return None
            self._remove_same(db, (found.public_key, found.tweak), found.data)
            _remove(db, number)
            data_key = encode_data_key(found.data_key)
            mark = self._record_seen(db, found.signed, data_key, named=True, is_own=True)
            owed_table.remove(db, found.signed, taken_by)
            debts = [*owed, *lacking_debts(set(found.lacking).difference(taken_by))]
            known = {*taken_by, *(debt.portal for debt in debts)}
            unasked = [url for url in found.portals if taken_by and url not in known]
            self._owe(
                db,
                found.signed,
                data_key,
                [*debts, *(Debt(url, _UNASKED, is_own=True) for url in unasked)],
            )
            return mark

        return self.file.database.write(write)

    def mark_failed(
        self, number: int, reason: str, status: PendingStatus = PendingStatus.FAILED
    ) -> None:
        """Record why a write could not be posted; it stays in the spool."""
        query = "UPDATE spool SET reason = ?, poster = NULL, fate = ? WHERE id = ?"
        values = (schema.one_line(reason), status.value, number)
        self.file.database.write(lambda db: db.execute(query, values))

    def remove_superseded(self, public_key: bytes, tweak: bytes, number: int) -> list[PendingWrite]:
        """Remove and return older writes to an entry, except a CONFLICT or one being posted."""
        query = f"{schema.PENDING} WHERE {OF_KEY} AND id < ? AND fate != ?"
        values = (public_key, tweak, number, PendingStatus.CONFLICT.value)
        if not self.file.rows(query, values):
            return []

        def write(db: sqlite3.Connection) -> list[PendingWrite]:
            found = [self._parse(row) for row in db.execute(query, values).fetchall()]
            return [each for each in found if not each.is_posting and _remove(db, each.id)]

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
        return self.file.database.write(lambda db: _remove(db, number))

    def _remove_same(
        self, db: sqlite3.Connection, key: schema.Key, data: bytes, keep: int | None = None
    ) -> None:
        """Remove pending writes of the same content, except `keep` and those being posted."""
        query = f"SELECT id, poster FROM spool WHERE {OF_KEY} AND data = ?"
        for number, poster in db.execute(query, (*key, data)).fetchall():
            if number != keep and not posting_process.is_running(poster):
                _remove(db, number)

    def _parse(self, row: tuple[Any, ...]) -> PendingWrite:
        try:
            return schema.parse_pending(row, is_posting=posting_process.is_running(row[11]))
        except (MalformedError, TypeError, ValueError) as error:
            raise StorageError(
                f"the ledger {self.path} is damaged: pending {row[0]}: {error}"
            ) from None


def _spool(
    db: sqlite3.Connection,
    row: Sequence[object],
    portals: Sequence[str],
    status: PendingStatus,
    lacking: Collection[str] = (),
) -> int:
    values = (*row, " ".join(portals), " ".join(lacking), status.value)
    number = db.execute(schema.SPOOL, values).lastrowid
    assert number is not None
    return number


def _remove(db: sqlite3.Connection, number: int) -> bool:
    return db.execute(schema.REMOVE_PENDING, (number,)).rowcount > 0

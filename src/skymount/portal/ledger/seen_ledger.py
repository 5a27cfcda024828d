"""The part of a ledger that knows what was seen and used: revision marks of entries, their names,
and since when a v2 skylink or a domain leads where it does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skymount.portal.ledger import ledger_schema as schema
from skymount.portal.ledger import owed_table, write_journal
from skymount.portal.ledger.ledger_file import LedgerPart
from skymount.portal.ledger.ledger_schema import encode_data_key
from skymount.portal.ledger.rollback import RevisionMark, is_rolled_back, raised
from skymount.wire.registry_entry import SignedEntry, entry_link

if TYPE_CHECKING:
    import sqlite3

    from skymount.wire.skylink import Skylink


_NAMES_LIMIT = 10_000  # changes of names that are remembered, whatever the clock said then


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """An entry that was used here."""

    data_key: str | None  # None when only its hash is known
    tweak: bytes


class SeenLedger(LedgerPart):
    """A ledger's marks and names."""

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
                is_named, stored = db.execute(schema.LISTING_OF, key).fetchone()
                is_other_key = encoded is not None and stored != encoded
                is_unlisted = is_named == signed.entry.is_deleted or is_other_key
                if named and is_unlisted:
                    return None
            return mark

        known = self.file.database.read(known_mark)
        if known is not None:
            return known
        # Not synced: a mark that is lost in a power failure is seen again.
        return self.file.database.write(
            lambda db: write_journal.record_seen(
                db, signed, encoded, named, self.stamp(), portal=portal
            ),
            durable=False,
        )

    def name_since(self, name: str, target: str) -> int:
        """Note that a name leads to a skylink; return since when this machine knows that.

        In whole seconds of Unix time, rounded up, and at least one after what the name led to
        before, also if the clock was set back.
        """

        def known(db: sqlite3.Connection) -> int | None:
            row = db.execute(schema.NAME_VERSION, (name,)).fetchone()
            return row[1] if row is not None and row[0] == target else None

        def write(db: sqlite3.Connection) -> int:
            row = db.execute(schema.NAME_VERSION, (name,)).fetchone()
            if row is not None and row[0] == target:  # another process was first
                return int(row[1])
            since = math.ceil(self.stamp().now)
            if row is not None:
                since = max(since, row[1] + 1)
            db.execute(schema.SET_NAME_VERSION, (name, target, since))
            db.execute(schema.LIMIT_NAME_VERSIONS, (_NAMES_LIMIT,))
            return since

        found = self.file.read(known, None)
        # Not synced: what is lost in a power failure is seen again, later.
        return self.file.database.write(write, durable=False) if found is None else found

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

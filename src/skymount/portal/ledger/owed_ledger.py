"""The part of a ledger that knows what portals are owed."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from skymount.portal.ledger import owed_table
from skymount.portal.ledger.ledger_file import LedgerPart
from skymount.portal.ledger.ledger_schema import encode_data_key
from skymount.portal.ledger.owed_entry import Debt, OwedEntry, OwedTotal
from skymount.wire.registry_entry import SignedEntry

if TYPE_CHECKING:
    import sqlite3


class OwedLedger(LedgerPart):
    """A ledger's owed entries."""

    def owe(
        self,
        signed: SignedEntry,
        data_key: str | None,
        portals: Collection[str],
        reason: str,
        *,
        with_content: bool = False,
    ) -> int:
        """Record that portals lack an entry; return how many of them were not known to.

        The entry was verified. A portal is owed only the newest revision of an entry, and nothing
        below the mark. With `with_content` the content behind the entry goes there first.
        """
        debts = [Debt(portal, reason, with_content) for portal in portals]
        return self.owe_all(signed, data_key, debts)

    def owe_all(self, signed: SignedEntry, data_key: str | None, debts: Collection[Debt]) -> int:
        """Do the same for debts of several kinds."""
        encoded = encode_data_key(data_key)

        def known(db: sqlite3.Connection) -> bool:
            return all(
                owed_table.is_owed(db, signed, debt) and not debt.is_posting for debt in debts
            )

        if self.file.database.read(known):
            return 0
        return self.file.database.write(
            lambda db: owed_table.owe_all(db, signed, encoded, debts, self.stamp())
        )

    def owed(self, portals: Collection[str] | None = None) -> list[OwedEntry]:
        """Return what these portals are owed, by default all, the oldest first. Nothing of it is
        verified.
        """
        return self.file.read(lambda db: owed_table.select(db, portals), [])

    def due_owed(
        self, portal: str, now: float, limit: int, *, with_content: bool
    ) -> list[OwedEntry]:
        """Return some of what a portal is owed and is due, with its content or without."""
        return self.file.read(lambda db: owed_table.due(db, portal, now, with_content, limit), [])

    def next_owed_at(self, portal: str, *, with_content: bool) -> float | None:
        """Return when the first entry that a portal is owed, with its content or without, is due;
        None if it is owed nothing.
        """
        query = "SELECT min(next_at) FROM owed WHERE portal = ? AND with_content = ?"
        rows = self.file.rows(query, (portal, int(with_content)))
        return rows[0][0] if rows else None

    def owed_totals(self) -> list[OwedTotal]:
        return self.file.read(owed_table.totals, [])

    def begin_owed(self, signed: SignedEntry, portal: str) -> bool:
        """Mark an owed entry as being posted by this process.

        False when it is not owed any more, or another process is posting it.
        """
        return self.file.database.write(
            lambda db: owed_table.begin(db, signed, portal, self.stamp())
        )

    def release_owed(self) -> int:
        """Make due what processes were posting that died; return how many processes."""
        dead: list[str] = self.file.read(owed_table.dead_posters, [])
        query = "UPDATE owed SET poster = NULL, next_at = 0 WHERE poster = ?"
        if dead:
            self.file.database.write(lambda db: db.executemany(query, [(each,) for each in dead]))
        return len(dead)

    def mark_paid(self, signed: SignedEntry, portals: Collection[str]) -> None:
        """Record that portals have an entry now; a newer one that they are owed stays owed."""
        self.file.database.write(lambda db: owed_table.remove(db, signed, portals))

    def mark_owed_failed(
        self, signed: SignedEntry, portal: str, reason: str, next_at: float
    ) -> None:
        """Record why an owed entry could not be posted, and when that is tried again."""
        self.file.database.write(lambda db: owed_table.fail(db, signed, portal, reason, next_at))

    def drop_owed(self, number: int) -> bool:
        """Owe a portal nothing any more; False when that debt is gone."""
        query = "DELETE FROM owed WHERE id = ?"
        return self.file.database.write(lambda db: db.execute(query, (number,)).rowcount > 0)

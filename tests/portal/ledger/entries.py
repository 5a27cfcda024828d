"""Entries of one owner, for tests of the ledger and of what stands on it."""

from collections.abc import Collection

from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Pending
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, SignedEntry, hash_data_key

PAIR = SigningKeyPair.from_seed("ledger")
OTHER = SigningKeyPair.from_seed("another")
KEY = PAIR.public_key
TWEAK = hash_data_key("a")


def signed(
    data: bytes = b"data", revision: int = 0, *, tweak: bytes = TWEAK, kind: int = 1
) -> SignedEntry:
    return Entry(tweak, data, revision, kind).sign(PAIR.private_key)


def by_work(revision: int) -> list[SignedEntry]:
    """Entries of one revision, the one with the least work first: each replaces those before it."""
    found = [signed(bytes([n]), revision) for n in range(4)]
    return sorted(found, key=lambda each: each.entry.work, reverse=True)


def unsent(ledger: Ledger) -> list[Pending]:
    """Return the writes that too few portals took."""
    return [each for each in ledger.pending() if not each.accepted]


def owed(ledger: Ledger, portals: Collection[str] | None = None) -> list[Pending]:
    """Return what portals are owed, by default all."""
    found = [each for each in ledger.pending() if each.accepted]
    return [each for each in found if portals is None or {*portals}.intersection(each.portals)]

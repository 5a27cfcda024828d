"""Entries of one owner, and what of them is pending."""

from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.pending_write import PendingStatus
from skymount.portal.ledger.revision_marks import EntryId
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, SignedEntry, hash_data_key

PAIR = SigningKeyPair.from_seed("entries")
OTHER = SigningKeyPair.from_seed("another")


def ref(name: str = "a") -> EntryId:
    return EntryId(PAIR.public_key, hash_data_key(name), name)


def signed(data: bytes, revision: int, name: str = "a") -> SignedEntry:
    return Entry(hash_data_key(name), data, revision).sign(PAIR.private_key)


def by_work(revision: int) -> list[SignedEntry]:
    """Entries of one revision, each of which replaces the ones before it."""
    found = [signed(bytes([n]), revision) for n in range(4)]
    return sorted(found, key=lambda each: each.entry.work, reverse=True)


def pending(ledger: Ledger) -> list[tuple[bytes, int | None]]:
    """Return contents and revisions of what is in the spool; nothing of it is being posted."""
    found = ledger.pending()
    assert not any(each.is_posting for each in found)
    return [(each.data, each.signed.entry.revision if each.signed else None) for each in found]


def held(ledger: Ledger, data: bytes, name: str = "a", **more: object) -> int:
    """Keep content as if a portal had not answered."""
    given = {"portals": ["http://p1.invalid"], "status": PendingStatus.WAITING, **more}
    return ledger.add_unsigned(*(PAIR.public_key, hash_data_key(name), name, data, "down"), **given)  # type: ignore[arg-type]

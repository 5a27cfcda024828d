"""Entries of one owner, for tests of the ledger and of what stands on it."""

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

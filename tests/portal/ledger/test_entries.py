"""Which entries were seen and used: revision marks and names, and how they are stored."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.portal.ledger import entries
from skymount.portal.ledger.entries import EntryId, RevisionMark, is_rolled_back, raised
from skymount.portal.ledger.ledger import Ledger, ListedEntry
from skymount.wire.registry_entry import DELETED, MAX_REVISION, Entry
from tests.portal.ledger.entries import KEY, OTHER, PAIR, TWEAK, by_work, signed

REF = EntryId(KEY, TWEAK, "a")


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """A ledger whose clock stands still."""
    opened = Ledger.open(path, lambda: 1000.0)
    yield opened
    opened.close()


def test_nothing_is_known_at_first(ledger: Ledger):
    """A new ledger is empty."""
    assert ledger.mark_of(KEY, TWEAK) is None
    assert ledger.highest_revision(KEY, TWEAK) is None
    assert ledger.public_keys() == []
    assert ledger.listed_entries(KEY) == []
    assert ledger.pending() == []
    assert ledger.get(1) is None
    assert not ledger.drop(1)
    assert not ledger.begin(1)
    ledger.fail(1, "no such thing")
    assert not ledger.forget(KEY, TWEAK)


def test_mark_survives_a_restart(path: Path):
    """G4: the highest revision seen is kept on disk."""
    one = Ledger.open(path, lambda: 1000.0)
    mark = one.record_seen(signed(revision=7), "a")
    one.close()
    two = Ledger.open(path)
    assert two.mark_of(KEY, TWEAK) == mark == RevisionMark(7, signed(revision=7).entry.work, 1000.0)
    assert two.highest_revision(KEY, TWEAK) == 7
    assert two.record_seen(signed(b"old", 6), "a") == mark
    assert two.listed_entries(KEY) == [ListedEntry("a", TWEAK)]
    two.close()


def test_noting_the_same_writes_nothing(ledger: Ledger, path: Path):
    """Reading an entry again and again does not touch the disk."""
    ledger.record_seen(signed(), "a")
    before = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(path.parent.iterdir())
        if not file.name.endswith("-shm")
    ]
    for _ in range(10):
        ledger.record_seen(signed(), "a")
        ledger.record_seen(signed(), None)
    after = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(path.parent.iterdir())
        if not file.name.endswith("-shm")
    ]
    assert after == before


def test_names_are_listed_until_forgotten(ledger: Ledger):
    """G6: a listing shows what is known on this machine; forgetting keeps the mark."""
    ledger.record_seen(signed(), None)
    assert ledger.listed_entries(KEY) == [ListedEntry(None, TWEAK)]
    ledger.record_seen(signed(), "a")
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]
    ledger.record_seen(signed(revision=1), None)
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]
    ledger.record_seen(Entry(TWEAK, b"", 0).sign(OTHER.private_key), "a")
    assert ledger.public_keys() == sorted([KEY, OTHER.public_key])
    assert ledger.forget(KEY, TWEAK)
    assert not ledger.forget(KEY, TWEAK)
    assert ledger.public_keys() == [OTHER.public_key]
    assert ledger.listed_entries(KEY) == []
    assert ledger.mark_of(KEY, TWEAK) == RevisionMark(1, signed(revision=1).entry.work, 1000.0)
    ledger.record_seen(signed(revision=1), "a")
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]


def test_deleted_entries_are_not_listed(ledger: Ledger):
    """A deletion takes the name away, new content brings it back."""
    ledger.record_seen(signed(), "a")
    ledger.record_seen(signed(DELETED, 1), "a")
    assert ledger.listed_entries(KEY) == []
    assert ledger.public_keys() == []
    ledger.record_seen(signed(), "a")  # rolled back: it does not count
    assert ledger.listed_entries(KEY) == []
    ledger.record_seen(signed(revision=2), "a")
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]


def test_unnamed_entries_are_not_listed(ledger: Ledger):
    """What came in a proof raises the mark alone."""
    ledger.record_seen(signed(revision=3), None, named=False)
    assert ledger.listed_entries(KEY) == []
    assert ledger.highest_revision(KEY, TWEAK) == 3


def test_data_key_must_be_text(ledger: Ledger):
    """A name that cannot be UTF-8 is the caller's mistake."""
    with pytest.raises(MalformedError):
        ledger.record_seen(signed(), "\ud800")


def test_mark_is_forgotten_and_its_revision_stays_taken(ledger: Ledger):
    """G4: an older entry is believed again. G12: no revision up to the mark is signed."""
    ledger.claim(REF, PAIR, b"mine", 3)
    ledger.record_seen(signed(b"theirs", 6), "a")
    assert ledger.forget(KEY, TWEAK, seen=True)
    assert ledger.mark_of(KEY, TWEAK) is None
    assert ledger.highest_revision(KEY, TWEAK) == 6
    assert not ledger.forget(KEY, TWEAK, seen=True)
    ledger.record_seen(signed(b"old", 2), "a")
    ledger.forget(KEY, TWEAK, seen=True)
    assert ledger.highest_revision(KEY, TWEAK) == 6


def test_entry_of_a_link_is_found(ledger: Ledger):
    """Of every entry that was seen, listed or not."""
    ledger.record_seen(signed(), "a", named=False)
    assert ledger.find_entry(signed().link) == (KEY, TWEAK)
    assert ledger.find_entry(signed(tweak=bytes(32)).link) is None


@given(st.integers(0, MAX_REVISION), st.integers(0, MAX_REVISION))
def test_revisions(one: int, two: int):
    """All 64 bits come back, and are in the database's order as they are as numbers."""
    stored = [entries.encode_revision(each) for each in (-1, one, two)]
    assert [entries.decode_revision(each) for each in stored] == [-1, one, two]
    assert (stored[1] < stored[2]) == (one < two)
    assert stored[0] < stored[1]
    assert entries.decode_revision(None) is None


def test_data_keys():
    """Any text comes back, also with NUL in it; half a surrogate pair is none."""
    for text in ("", "a\0b", "ключ", None):
        assert entries.decode_data_key(entries.encode_data_key(text)) == text
    with pytest.raises(MalformedError, match="data key"):
        entries.encode_data_key("\ud800")


def test_mark_is_raised_and_never_lowered():
    """A higher revision, or more work of the same one, is later; nothing else is."""
    first, second, *_ = by_work(5)
    mark = raised(None, first.entry, 1.0)
    assert mark == RevisionMark(5, first.entry.work, 1.0)
    assert raised(mark, first.entry, 2.0) is mark
    later = raised(mark, second.entry, 2.0)
    assert later == RevisionMark(5, second.entry.work, 2.0)
    assert raised(later, first.entry, 3.0) is later
    assert raised(later, signed(b"", 4).entry, 3.0) is later
    assert raised(later, signed(b"", 6).entry, 3.0).revision == 6


def test_rolled_back_is_what_the_registry_would_not_accept_after_the_mark():
    """G4: lower revisions, and less work of the same one, are behind the mark."""
    first, second, *_ = by_work(5)
    mark = raised(None, second.entry, 1.0)
    assert is_rolled_back(mark, first.entry)
    assert is_rolled_back(mark, signed(b"", 4).entry)
    assert not is_rolled_back(mark, second.entry)
    assert not is_rolled_back(mark, signed(b"", 6).entry)
    assert not is_rolled_back(None, first.entry)


def test_frozen_entry_has_one_content():
    """G11: of the last revision nothing but what was seen is believed."""
    first, second, *_ = by_work(MAX_REVISION)
    mark = raised(None, first.entry, 1.0)
    assert is_rolled_back(mark, second.entry)
    assert not is_rolled_back(mark, first.entry)
    assert raised(mark, second.entry, 2.0) is mark

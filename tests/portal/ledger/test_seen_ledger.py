"""Which entries were seen and used: revision marks and names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.rollback import RevisionMark
from skymount.portal.ledger.seen_ledger import ListedEntry
from skymount.wire.registry_entry import DELETED, MAX_REVISION, Entry, hash_data_key
from tests.portal.ledger.entries import KEY, OTHER, TWEAK, signed


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
    assert not ledger.begin_retry(1)
    assert ledger.mark_posted(1) is None
    ledger.mark_failed(1, "no such thing")
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


@settings(max_examples=50, deadline=None)
@given(
    key=st.text(st.characters(exclude_categories=["Cs"])),
    data=st.binary(max_size=113),
    revision=st.integers(0, MAX_REVISION),
    kind=st.sampled_from([1, 2]),
    reason=st.text(),
)
def test_every_field_comes_back(
    key: str, data: bytes, revision: int, kind: int, reason: str, tmp_path_factory: object
):
    """Whatever an entry holds, it is the same after a restart."""
    assume(hash_data_key(key) != TWEAK)  # one entry has one place in the spool
    if kind == 2:
        data = data.ljust(20, b"h")
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    path = tmp_path_factory.mktemp("fields") / "l"
    made = signed(data, revision, tweak=hash_data_key(key), kind=kind)
    ledger = Ledger.open(path, lambda: 1000.0)
    number = ledger.claim_revision(made, key)
    ledger.mark_failed(number, reason)
    held = ledger.add_unsigned(KEY, TWEAK, None, data, reason, revision)
    ledger.close()
    ledger = Ledger.open(path, lambda: 1000.0)
    first, second = ledger.pending()
    assert (first.id, first.public_key, first.tweak) == (number, KEY, made.entry.tweak)
    assert (first.data_key, first.data, first.signed) == (key, data, made)
    assert (first.base, first.created, first.is_posting) == (None, 1000.0, False)
    assert first.reason == second.reason
    assert first.reason.isprintable()
    assert (second.id, second.tweak, second.data_key) == (held, TWEAK, None)
    assert (second.data, second.signed, second.base) == (data, None, revision)
    assert ledger.get(number) == first
    assert ledger.highest_revision(KEY, made.entry.tweak) == revision
    assert ledger.mark_posted(number) == RevisionMark(revision, made.entry.work, 1000.0)
    assert ledger.listed_entries(KEY) == (
        [] if data == DELETED else [ListedEntry(key, made.entry.tweak)]
    )
    ledger.close()


def test_data_key_must_be_text(ledger: Ledger):
    """A name that cannot be UTF-8 is the caller's mistake."""
    with pytest.raises(MalformedError):
        ledger.record_seen(signed(), "\ud800")


def test_mark_is_forgotten_and_its_revision_stays_taken(ledger: Ledger):
    """G4: an older entry is believed again. G12: no revision up to the mark is signed."""
    ledger.claim_revision(signed(b"mine", 4), "a")
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

"""When an entry counts as rolled back."""

from skymount.portal.ledger.rollback import RevisionMark, is_rolled_back, raised
from skymount.wire.registry_entry import MAX_REVISION
from tests.portal.ledger.entries import by_work, signed


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

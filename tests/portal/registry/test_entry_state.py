"""Decisions on what a registry holds, and on changing it."""

import pytest

from skymount.errors import (
    FrozenEntryError,
    StaleEntryError,
)
from skymount.portal.registry.entry_state import (
    EntryState,
    is_news,
    is_same,
    needs_post,
    next_revision,
)
from skymount.wire.registry_entry import DELETED, MAX_REVISION, SignedEntry
from tests.portal.ledger.entries import by_work
from tests.portal.registry.entries import signed


def state(entry: SignedEntry | None, asked: float = 0.0) -> EntryState:
    return EntryState(entry, asked, 0.0, asked)


def test_next_revision_is_above_everything():
    """G12: above the portal's and above what this machine ever signed."""
    assert next_revision(-1, None) == 0
    assert next_revision(5, None) == 6
    assert next_revision(5, 3) == 6
    assert next_revision(-1, 9) == 10
    assert next_revision(MAX_REVISION - 1, None) == MAX_REVISION
    for current, taken in [(MAX_REVISION, None), (0, MAX_REVISION)]:
        with pytest.raises(FrozenEntryError):
            next_revision(current, taken)


def test_same_entry_is_the_same_content_and_revision():
    """Absent is another state than deleted."""
    assert is_same(state(None), state(None, 5.0))
    assert not is_same(state(None), state(signed(DELETED, 0)))
    assert is_same(state(signed(b"x", 1)), state(signed(b"x", 1)))
    assert not is_same(state(signed(b"x", 1)), state(signed(b"x", 2)))
    assert not is_same(state(signed(b"x", 1)), state(signed(b"y", 1)))


def test_later_state_is_remembered_whatever_the_order_of_answers():
    """A later revision is never replaced by an earlier one; absence counts by time."""
    old, new = signed(b"old", 1), signed(b"new", 2)
    assert is_news(None, state(None))
    assert is_news(state(old, 5.0), state(new, 1.0))
    assert not is_news(state(new, 1.0), state(old, 5.0))
    assert is_news(state(old, 1.0), state(old, 5.0))
    assert not is_news(state(old, 5.0), state(old, 1.0))
    assert is_news(state(old, 1.0), state(None, 5.0))
    assert not is_news(state(old, 5.0), state(None, 1.0))
    assert is_news(state(None, 5.0), state(old, 1.0))
    assert is_news(state(None, 1.0), state(None, 5.0))
    assert not is_news(state(None, 5.0), state(None, 1.0))
    less, more, *_ = by_work(3)
    assert is_news(state(less, 5.0), state(more, 1.0))
    assert not is_news(state(more, 1.0), state(less, 5.0))


def test_partial_edit_needs_its_base():
    """G10: a rewrite goes over anything; an edit only over what it was made from."""
    base, other = state(signed(b"base", 1)), state(signed(b"other", 2))
    assert needs_post(None, other, b"x")
    assert needs_post(base, state(signed(b"base", 1), 9.0), b"x")
    assert needs_post(state(None), state(None), b"x")
    for current in (other, state(None), state(signed(b"base", 2)), state(signed(DELETED, 2))):
        with pytest.raises(StaleEntryError, match="changed by somebody else"):
            needs_post(base, current, b"x")
    with pytest.raises(StaleEntryError):
        needs_post(state(None), other, b"x")
    assert not needs_post(base, other, b"other")

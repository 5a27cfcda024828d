"""Decisions on what a registry holds, and on changing it."""

import pytest

from skymount.errors import (
    FrozenEntryError,
)
from skymount.portal.registry.entry_reader import (
    EntryState,
    is_news,
    next_revision,
)
from skymount.wire.registry_entry import MAX_REVISION, SignedEntry
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

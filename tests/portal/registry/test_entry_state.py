"""Decisions on what a registry holds, and on changing it."""

from skymount.portal.registry.entry_reader import (
    EntryState,
    is_news,
)
from skymount.wire.registry_entry import SignedEntry
from tests.portal.ledger.entries import by_work
from tests.portal.registry.entries import signed


def state(entry: SignedEntry | None, asked: float = 0.0) -> EntryState:
    return EntryState(entry, asked, 0.0, asked)


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

"""Which pending writes are retried, and what is said of them."""

from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.pending_write import PendingStatus, due, summary
from tests.portal.registry.entries import held, signed


def test_due_is_what_was_written_last(ledger: Ledger) -> None:
    """G12: of each entry only what was written last, if that waits for a portal."""
    held(ledger, b"older")
    last = held(ledger, b"last")
    held(ledger, b"waits", "b")
    held(ledger, b"denied", "b", status=PendingStatus.FAILED)
    held(ledger, b"edit", "c", status=PendingStatus.CONFLICT)
    ledger.claim_revision(signed(b"now", 1, "d"), "d")  # this process posts it
    assert [each.id for each in due(ledger.pending())] == [last]


def test_summary_is_one_line(ledger: Ledger) -> None:
    """G12: `umount` and the log say how much is pending."""
    assert summary(ledger.pending()) == ""
    held(ledger, b"x")
    assert summary(ledger.pending()).startswith("1 change of registry entries could not be posted")
    held(ledger, b"x", "b")
    assert summary(ledger.pending()).startswith("2 changes of")
    assert summary(ledger.pending()).endswith("see `skymount registry pending`")

"""What leaves the spool once it is seen or posted."""

from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.seen_ledger import ListedEntry
from tests.portal.ledger.entries import KEY, TWEAK, signed


def test_what_was_posted_leaves_the_spool(ledger: Ledger):
    """Settling raises the mark, names the entry and takes out the same content of earlier tries."""
    ledger.add_unsigned(KEY, TWEAK, "a", b"x", "no portal")
    failed = ledger.claim_revision(signed(b"x", 1), "a")
    assert [each.id for each in ledger.pending()] == [failed]
    ledger.mark_failed(failed, "down")
    other = ledger.add_unsigned(KEY, TWEAK, "a", b"y", "no portal")
    number = ledger.claim_revision(signed(b"x", 2), "a")
    assert [each.id for each in ledger.pending()] == [other, number]
    assert ledger.mark_posted(number) == ledger.mark_of(KEY, TWEAK)
    assert [each.id for each in ledger.pending()] == [other]
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]


def test_what_turns_up_at_a_portal_leaves_the_spool(ledger: Ledger):
    """The answer to a post was lost, and the entry is seen later: it is not pending any more."""
    number = ledger.claim_revision(signed(b"x", 1), "a")
    ledger.mark_failed(number, "no answer")
    ledger.record_seen(signed(b"y", 0), "a")
    assert len(ledger.pending()) == 1
    ledger.record_seen(signed(b"x", 1), "a")
    assert ledger.pending() == []

"""How much portals are owed, in words."""

from skymount.portal.ledger.owed_entry import OwedTotal, owed_summary


def test_summary():
    """Nothing owed is nothing to say; else it is one line that names each portal."""
    assert owed_summary([]) == ""
    totals = [OwedTotal("http://a", 2, 0.0, "down"), OwedTotal("http://b", 1, 0.0, "down")]
    text = owed_summary(totals)
    assert "http://a 2, http://b 1" in text
    assert "\n" not in text

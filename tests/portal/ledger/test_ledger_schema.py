"""How values are stored in the columns of the ledger."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.portal.ledger import ledger_schema
from skymount.portal.ledger.pending_write import PendingStatus
from skymount.portal.ledger.rollback import RevisionMark
from skymount.wire.registry_entry import MAX_REVISION
from tests.portal.ledger.entries import KEY, OTHER, TWEAK, signed

ROW = (1, KEY, TWEAK, b"a", b"data", None, None, None, None, "down", 5.0, None, "", "", "failed")


@given(st.integers(0, MAX_REVISION), st.integers(0, MAX_REVISION))
def test_revisions(one: int, two: int):
    """All 64 bits come back, and are in the database's order as they are as numbers."""
    stored = [ledger_schema.encode_revision(each) for each in (-1, one, two)]
    assert [ledger_schema.decode_revision(each) for each in stored] == [-1, one, two]
    assert (stored[1] < stored[2]) == (one < two)
    assert stored[0] < stored[1]
    assert ledger_schema.decode_revision(None) is None


def test_data_keys():
    """Any text comes back, also with NUL in it; half a surrogate pair is none."""
    for text in ("", "a\0b", "ключ", None):
        assert ledger_schema.decode_data_key(ledger_schema.encode_data_key(text)) == text
    with pytest.raises(MalformedError, match="data key"):
        ledger_schema.encode_data_key("\ud800")


@pytest.mark.parametrize(
    ("reason", "stored"),
    [("", "unknown"), ("it is\ndown\x1b", "it is down "), ("x" * 600, "x" * 500)],
)
def test_reason(reason: str, stored: str):
    """It is one short line, and never nothing."""
    assert ledger_schema.one_line(reason) == stored


def test_pending_write():
    """A row is a write; one that was signed is verified."""
    found = ledger_schema.parse_pending(ROW, is_posting=False)
    assert (found.id, found.data_key, found.data, found.signed) == (1, "a", b"data", None)
    assert (found.base, found.portals, found.status) == (None, (), PendingStatus.FAILED)
    made = signed(b"data", 7)
    revision = ledger_schema.encode_revision(7)
    portals = ("http://one http://two", "http://three")
    row = (*ROW[:6], revision, 1, made.signature, *ROW[9:12], *portals, "waiting")
    found = ledger_schema.parse_pending(row, is_posting=True)
    assert (found.signed, found.is_posting) == (made, True)
    assert found.portals == ("http://one", "http://two")
    assert found.lacking == ("http://three",)
    assert found.status is PendingStatus.WAITING
    for wrong in (
        (1, OTHER.public_key, *row[2:]),
        (*row[:4], b"other", *row[5:]),
        (*row[:14], "lost"),
    ):
        with pytest.raises(ValueError):
            ledger_schema.parse_pending(wrong, is_posting=False)


def test_tables():
    """The statements fit the tables: what is written is found."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(ledger_schema.ledger_format().schema)
        key = (KEY, TWEAK)
        assert ledger_schema.read_mark(db, key) is None
        assert ledger_schema.read_highest(db, key) is None
        db.execute(ledger_schema.ENSURE_ENTRY, key)
        five, six = map(ledger_schema.encode_revision, (5, 6))
        db.execute(ledger_schema.RAISE_MARK, (five, b"work", 1.5, b"x", 1, bytes(64), *key))
        assert ledger_schema.read_mark(db, key) == RevisionMark(5, b"work", 1.5)
        db.execute(ledger_schema.CLAIM, (six, *key))
        assert ledger_schema.read_highest(db, key) == 6
        db.execute(ledger_schema.FORGET_MARK, key)
        assert ledger_schema.read_mark(db, key) is None
        assert ledger_schema.read_highest(db, key) == 6
        db.execute(ledger_schema.LIST_ENTRY, (1, b"a", *key))
        assert db.execute(ledger_schema.LISTED_PUBLIC_KEYS).fetchall() == [(KEY,)]
        assert db.execute(ledger_schema.LISTED_ENTRIES, (KEY,)).fetchall() == [(b"a", TWEAK)]

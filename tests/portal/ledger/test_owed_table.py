"""What portals are owed, in the ledger (G19)."""

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skymount.errors import StorageError
from skymount.portal.ledger import owed_table
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.owed_entry import Debt, OwedEntry
from skymount.wire.registry_entry import SignedEntry, hash_data_key
from tests.portal.ledger.entries import KEY, TWEAK, by_work, signed

A, B = "http://a.invalid", "http://b.invalid"


class Clock:
    """Seconds that only a test lets pass."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.sqlite3", clock)
    yield opened
    opened.close()


def owed(ledger: Ledger) -> list[tuple[str, bytes, int]]:
    """Return what is owed: to whom, content and revision."""
    return [
        (each.portal, each.signed.entry.data, each.signed.entry.revision) for each in ledger.owed()
    ]


def test_every_field_comes_back(ledger: Ledger):
    """What is owed comes back as it was given, the oldest first."""
    assert ledger.owe(signed(b"x", 3), "a", [A, B], "down\n", with_content=True) == 2
    one, other = ledger.owed()
    assert (one.portal, other.portal) == (A, B)
    assert one.signed == signed(b"x", 3)
    assert (one.data_key, one.with_content, one.since) == ("a", True, 1000.0)
    assert (one.attempts, one.next_at, one.reason, one.is_posting) == (0, 0.0, "down ", False)
    assert [each.portal for each in ledger.owed([B])] == [B]
    assert ledger.owed([]) == []


def test_one_debt_for_each_entry_and_portal(ledger: Ledger):
    """A newer revision takes the place of an older one, and an older one never that of a newer."""
    assert ledger.owe(signed(b"one", 1), "a", [A], "down") == 1
    assert ledger.owe(signed(b"one", 1), "a", [A], "still down") == 0
    assert ledger.owe(signed(b"two", 2), "a", [A], "down") == 1
    assert ledger.owe(signed(b"one", 1), "a", [A], "down") == 0
    assert owed(ledger) == [(A, b"two", 2)]
    low, *_, high = by_work(5)
    assert ledger.owe(high, "a", [A], "down") == 1
    assert ledger.owe(low, "a", [A], "down") == 0
    assert owed(ledger) == [(A, high.entry.data, 5)]


def test_debt_with_content_stays_one(ledger: Ledger):
    """Who finds the entry missing does not know of its content."""
    ledger.owe(signed(b"x", 1), "a", [A], "down", with_content=True)
    assert ledger.owe(signed(b"x", 1), "a", [A], "behind") == 0
    assert ledger.owed()[0].with_content
    ledger.owe(signed(b"x", 1), "a", [B], "behind")
    assert ledger.owe(signed(b"x", 1), "a", [B], "down", with_content=True) == 1
    assert all(each.with_content for each in ledger.owed())


def test_seen_revision_supersedes_what_is_owed(ledger: Ledger):
    """When something newer is seen, the portal is owed that; nothing below the mark is owed."""
    ledger.owe(signed(b"old", 1), "a", [A], "down")
    ledger.mark_owed_failed(signed(b"old", 1), A, "down", 2000.0)
    ledger.owe(signed(b"else", 7, tweak=hash_data_key("b")), "b", [A], "down")
    ledger.record_seen(signed(b"new", 5), "a")
    assert owed(ledger) == [(A, b"new", 5), (A, b"else", 7)]
    assert (ledger.owed()[0].attempts, ledger.owed()[0].next_at) == (0, 0.0)
    assert ledger.owe(signed(b"old", 1), "a", [B], "down") == 0
    assert len(ledger.owed()) == 2


def test_debts_are_made_as_a_write_leaves_the_spool(ledger: Ledger):
    """One transaction: a crash leaves the write in the spool, or posted and owed."""
    ledger.owe(signed(b"old", 1), "a", [A, B], "down")
    number = ledger.claim_revision(signed(b"new", 2), "a", portals=[A, B])
    with closing(sqlite3.connect(ledger.path)) as other, other:
        other.execute("CREATE TRIGGER t BEFORE UPDATE ON owed BEGIN SELECT raise(ABORT, 'no'); END")
    with pytest.raises(StorageError):
        ledger.mark_posted(number, [A], [Debt(B, "down")])
    assert [each.id for each in ledger.pending()] == [number]
    assert ledger.mark_of(KEY, TWEAK) is None
    with closing(sqlite3.connect(ledger.path)) as other, other:
        other.execute("DROP TRIGGER t")
    ledger.mark_posted(number, [A], [Debt(B, "down")])
    assert ledger.pending() == []
    assert owed(ledger) == [(B, b"new", 2)]


def test_paid_debts_are_gone(ledger: Ledger):
    """A portal that has the entry is owed it no more; a newer one that it is owed stays."""
    ledger.owe(signed(b"one", 1), "a", [A, B], "down")
    ledger.owe(signed(b"two", 2), "a", [B], "down")
    ledger.mark_paid(signed(b"one", 1), [A, B])
    assert owed(ledger) == [(B, b"two", 2)]
    ledger.mark_paid(signed(b"two", 2), [B])
    assert ledger.owed() == []


def due(ledger: Ledger, now: float) -> list[OwedEntry]:
    return ledger.due_owed(A, now, 10, with_content=False)


def test_failed_attempts_are_counted(ledger: Ledger):
    """A debt is due again at the time that was said."""
    ledger.owe(signed(), "a", [A], "first")
    assert ledger.begin_owed(signed(), A)
    assert ledger.owed()[0].is_posting
    ledger.mark_owed_failed(signed(), A, "second", 1005.0)
    (left,) = ledger.owed()
    assert (left.attempts, left.next_at, left.reason) == (1, 1005.0, "second")
    assert not left.is_posting
    assert due(ledger, 1004.9) == []
    assert due(ledger, 1005.0) == [left]


def test_debt_that_is_gone_is_not_begun(ledger: Ledger):
    """Somebody paid it, or it was superseded."""
    assert not ledger.begin_owed(signed(), A)
    ledger.owe(signed(b"one", 1), "a", [A], "down")
    ledger.owe(signed(b"two", 2), "a", [A], "down")
    assert not ledger.begin_owed(signed(b"one", 1), A)
    assert ledger.begin_owed(signed(b"two", 2), A)


def test_one_process_sends_a_debt(ledger: Ledger):
    """What another process has taken on is left to it, until it dies."""
    ledger.owe(signed(), "a", [A], "down")
    code = (
        "import sys; from pathlib import Path; from skymount.portal.ledger.ledger import Ledger\n"
        "from tests.portal.ledger.entries import signed\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "print(ledger.begin_owed(signed(), sys.argv[2]), flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(ledger.path), A],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    assert ledger.owed()[0].is_posting
    assert not ledger.begin_owed(signed(), A)
    assert ledger.release_owed() == 0
    child.kill()
    child.communicate()
    assert due(ledger, 1000.0) == []
    assert ledger.release_owed() == 1
    assert len(due(ledger, 1000.0)) == 1
    assert ledger.begin_owed(signed(), A)


def test_numbers_are_unique(ledger: Ledger):
    """Pending writes and debts are numbered together, so that a number names one of them."""
    numbers = [ledger.add_unsigned(KEY, TWEAK, "a", b"x", "down")]
    ledger.owe(signed(b"1"), "a", [A, B], "down")
    numbers += [each.id for each in ledger.owed()]
    assert ledger.drop_owed(numbers[-1])
    assert not ledger.drop_owed(numbers[-1])
    numbers.append(ledger.add_unsigned(KEY, TWEAK, "a", b"y", "down"))
    ledger.owe(signed(b"2", 1), "a", [B], "down")
    numbers.append(ledger.owed([B])[0].id)
    assert numbers == sorted(set(numbers))


def test_totals(ledger: Ledger, clock: Clock):
    """For each portal: how much, since when, and why the last attempt failed."""
    assert ledger.owed_totals() == []
    ledger.owe(signed(b"x"), "a", [A, B], "silent")
    clock.now = 1010.0
    ledger.owe(signed(b"y", tweak=hash_data_key("b")), "b", [A], "down")
    ledger.mark_owed_failed(signed(b"x"), A, "refused", 1020.0)
    one, other = ledger.owed_totals()
    assert (one.portal, one.count, one.since, one.reason) == (A, 2, 1000.0, "refused")
    assert (other.portal, other.count, other.since, other.reason) == (B, 1, 1000.0, "silent")


def test_number_of_debts_is_bounded(ledger: Ledger, caplog: pytest.LogCaptureFixture):
    """The oldest go, with one line in the log; those of other portals stay."""
    caplog.set_level(logging.WARNING)
    ledger.owe(signed(), "a", [A, B], "down")
    with closing(sqlite3.connect(ledger.path)) as database, database:
        rows = ((A, KEY, n.to_bytes(32, "big"), b"x", bytes(64)) for n in range(owed_table.LIMIT))
        database.executemany(
            "INSERT INTO owed (portal, public_key, tweak, revision, kind, data, signature,"
            " with_content, since, attempts, next_at, reason)"
            " VALUES (?, ?, ?, x'0000000000000000', 1, ?, ?, 0, 2000, 0, 0, '')",
            rows,
        )
    for name in ("b", "c"):
        ledger.owe(signed(tweak=hash_data_key(name)), name, [A], "down")
    counts = {each.portal: each.count for each in ledger.owed_totals()}
    assert counts == {A: owed_table.LIMIT * 9 // 10 + 3, B: 1}
    assert ledger.owed([A])[0].signed != signed()
    assert [A in line.message for line in caplog.records] == [True]


# --- the last entry seen


def test_newest_entry_is_kept(ledger: Ledger):
    """So that a portal that lost it can get it back, also after a restart."""
    assert ledger.newest_entry(KEY, TWEAK) is None
    ledger.record_seen(signed(b"new", 5), "a")
    ledger.record_seen(signed(b"old", 4), "a")
    assert ledger.newest_entry(KEY, TWEAK) == signed(b"new", 5)
    other = Ledger.open(ledger.path)
    assert other.newest_entry(KEY, TWEAK) == signed(b"new", 5)
    other.close()
    number = ledger.claim_revision(signed(b"mine", 6), "a")
    assert ledger.newest_entry(KEY, TWEAK) == signed(b"new", 5)
    ledger.mark_posted(number)
    assert ledger.newest_entry(KEY, TWEAK) == signed(b"mine", 6)


def test_forgotten_entry_is_not_known_nor_owed(ledger: Ledger):
    """`forget --seen` is not undone by what the ledger has; `forget` alone changes nothing."""
    ledger.record_seen(signed(b"new", 5), "a")
    ledger.owe(signed(b"new", 5), "a", [A], "down")
    ledger.forget(KEY, TWEAK)
    assert ledger.newest_entry(KEY, TWEAK) == signed(b"new", 5)
    assert len(ledger.owed()) == 1
    ledger.forget(KEY, TWEAK, seen=True)
    assert ledger.newest_entry(KEY, TWEAK) is None
    assert ledger.owed() == []
    with closing(sqlite3.connect(ledger.path)) as database:
        assert database.execute("SELECT data, signature FROM entries").fetchone() == (None, None)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE owed SET signature = x'00'",
        "UPDATE owed SET revision = 'soon'",
        "UPDATE owed SET kind = 9",
    ],
)
def test_damaged_debt_is_refused(ledger: Ledger, statement: str):
    """The error names the file; the debt can be dropped."""
    ledger.owe(signed(), "a", [A], "down")
    with closing(sqlite3.connect(ledger.path)) as database, database:
        database.execute(statement)
    with pytest.raises(StorageError, match="damaged"):
        ledger.owed()
    assert ledger.drop_owed(1)
    assert ledger.owed() == []


def test_entry_of_the_mark_is_verified(ledger: Ledger):
    """What was changed in the file is not sent to anybody."""
    made: SignedEntry = signed(b"x", 5)
    ledger.record_seen(made, "a")
    with closing(sqlite3.connect(ledger.path)) as database, database:
        database.execute("UPDATE entries SET signature = ?", (bytes(64),))
    with pytest.raises(StorageError, match="damaged"):
        ledger.newest_entry(KEY, TWEAK)


# --- writes that turn out to be posted


def test_write_for_several_portals_that_turns_up_at_one_is_owed(ledger: Ledger):
    """The process died before it knew: the other portals may not have it."""
    ledger.claim_revision(signed(b"x", 1), "a", portals=[A, B])
    ledger.record_seen(signed(b"x", 1), "a")
    assert ledger.pending() == []
    assert owed(ledger) == [(A, b"x", 1), (B, b"x", 1)]
    ledger.mark_paid(signed(b"x", 1), [A, B])
    ledger.claim_revision(signed(b"y", 2), "a", portals=[A])
    ledger.record_seen(signed(b"y", 2), "a")
    assert ledger.owed() == []


def test_what_is_being_posted_is_due_later(ledger: Ledger, clock: Clock):
    """The process that posts it says how that ended; if it never does, it is sent again."""
    assert ledger.next_owed_at(A, with_content=False) is None
    ledger.owe_all(signed(), "a", [Debt(A, "late", is_posting=True)])
    assert ledger.owed()[0].is_posting
    assert due(ledger, clock.now) == []
    due_at = ledger.next_owed_at(A, with_content=False)
    assert due_at is not None
    assert clock.now < due_at < clock.now + 120
    ledger.mark_owed_failed(signed(), A, "down", clock.now)
    assert not due(ledger, clock.now)[0].is_posting

"""What is still to be sent to portals, and which revisions are claimed for it (G12, G19)."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skymount.errors import FrozenEntryError, StaleEntryError, StorageError
from skymount.portal.ledger import entries, outbox
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger, ListedEntry, Write
from skymount.portal.ledger.outbox import OwedTotal, Pending, Status, owed_summary, summary
from skymount.wire.registry_entry import DELETED, MAX_REVISION, SignedEntry, hash_data_key
from tests.portal.ledger.entries import KEY, OTHER, PAIR, TWEAK, by_work, owed, signed, unsent
from tests.portal.ledger.processes import start

A, B, C = "http://a.invalid", "http://b.invalid", "http://c.invalid"
REF = EntryId(KEY, TWEAK, "a")
INTERRUPTED = "interrupted while it was posted"


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


def ref(name: str) -> EntryId:
    return EntryId(KEY, hash_data_key(name), name)


def claim(
    ledger: Ledger, data: bytes = b"x", above: int = 0, portals: Sequence[str] = (A,)
) -> Write:
    return ledger.claim(REF, PAIR, data, above, portals)


def took(ledger: Ledger, write: Write, *portals: str, **left: str) -> None:
    ledger.took(write, "a", portals, left, {})


def debts(ledger: Ledger) -> set[tuple[str, bytes, int]]:
    """Return what is owed: to whom, content and revision."""
    return {(each.portals[0], each.data, each.entry.revision) for each in owed(ledger)}


def due(ledger: Ledger, portal: str = A, *, with_content: bool = False) -> list[Pending]:
    return ledger.due(portal, 10, with_content=with_content)


# --- writes


def test_revision_is_taken_once(ledger: Ledger):
    """G12: a revision that was claimed or seen is never claimed again, nor a lower one."""
    assert claim(ledger, b"one", 4).signed == signed(b"one", 5)
    assert claim(ledger, b"two", 2).signed == signed(b"two", 6)
    assert ledger.highest_revision(KEY, TWEAK) == 6
    assert ledger.mark_of(KEY, TWEAK) is None
    ledger.record_seen(signed(b"else", 9), "a")
    assert claim(ledger, b"three", 2).signed.entry.revision == 10
    with pytest.raises(StaleEntryError):
        ledger.claim(REF, PAIR, b"four", 9, limit=9)
    assert ledger.claim(REF, PAIR, b"four", 9, limit=10).signed.entry.revision == 11


def test_last_revision_is_the_last(ledger: Ledger):
    """G11: nothing is claimed, and what is pending stays."""
    claim(ledger, b"last", MAX_REVISION - 1)
    with pytest.raises(FrozenEntryError):
        claim(ledger, b"more")
    assert [each.data for each in unsent(ledger)] == [b"last"]


def test_dropped_revision_stays_taken(ledger: Ledger):
    """G12: what is dropped may have been posted all the same."""
    assert ledger.drop(claim(ledger, b"one", 4).id)
    assert ledger.pending() == []
    assert ledger.highest_revision(KEY, TWEAK) == 5


@settings(max_examples=50, deadline=None)
@given(
    key=st.text(st.characters(exclude_categories=["Cs"])),
    data=st.binary(max_size=113),
    revision=st.integers(0, MAX_REVISION),
    reason=st.text(),
)
def test_every_field_comes_back(
    key: str, data: bytes, revision: int, reason: str, tmp_path_factory: pytest.TempPathFactory
):
    """Whatever an entry holds, it is the same after a restart."""
    assume(hash_data_key(key) != TWEAK)
    path = tmp_path_factory.mktemp("fields") / "l"
    given = ref(key)
    with closing(Ledger.open(path, lambda: 1000.0)) as ledger:
        number = ledger.claim(given, PAIR, data, revision - 1, [A, B], [C]).id
        ledger.fail(number, reason, Status.WAITING)
        ledger.keep(EntryId(KEY, TWEAK), data, reason, revision, [], [B])
    with closing(Ledger.open(path, lambda: 1000.0)) as ledger:
        one, two = ledger.pending()
        made = signed(data, revision, tweak=given.tweak)
        assert (one.id, one.public_key, one.tweak, one.data_key) == (number, *given.key, key)
        assert (one.data, one.signed, one.base) == (data, made, revision - 1)
        assert (one.portals, one.lacking, one.accepted) == ((A, B), (C,), False)
        assert (one.status, one.next_at, one.attempts) == (Status.WAITING, 1001.0, 1)
        assert (one.created, one.is_posting) == (1000.0, False)
        assert one.reason == two.reason
        assert one.reason.isprintable()
        assert 0 < len(one.reason) <= 500
        assert (two.tweak, two.data_key, two.data, two.signed) == (TWEAK, None, data, None)
        assert (two.base, two.portals, two.lacking) == (revision, (), (B,))
        assert (two.status, ledger.get(number)) == (Status.FAILED, one)
        ledger.took(Write(number, made), key, [A, B, C], {}, {})
        assert [each.id for each in ledger.pending()] == [two.id]
        assert ledger.newest_entry(*given.key) == made
        listed = [] if data == DELETED else [ListedEntry(key, given.tweak)]
        assert ledger.listed_entries(KEY) == listed


def test_a_write_takes_the_place_of_what_is_pending(ledger: Ledger):
    """G12: of what waits or was refused, and that is told; of a conflict if it is the same."""
    ledger.keep(REF, b"edit", "changed", 4, [A], status=Status.CONFLICT)
    ledger.keep(REF, b"same", "changed", 4, [A], status=Status.CONFLICT)
    assert ledger.keep(REF, b"first", "down", 4, [A, B]) == []
    (gone,) = ledger.keep(REF, b"second", "refused", None, [A], status=Status.WAITING)
    assert (gone.data, gone.portals) == (b"first", (A, B))
    write = claim(ledger, b"same")
    assert [each.data for each in write.superseded] == [b"second"]
    assert [each.data for each in unsent(ledger)] == [b"edit", b"same"]
    ledger.fail(write.id, "down", Status.WAITING)
    assert claim(ledger, b"same").superseded == []
    assert [each.data for each in unsent(ledger)] == [b"edit", b"same"]


def test_an_edit_takes_the_place_of_nothing(ledger: Ledger):
    """G12: what is pending is no part of it, so that becomes a conflict."""
    ledger.keep(REF, b"first", "down", 4, [A], status=Status.WAITING)
    assert ledger.keep(REF, b"second", "down", 4, [A], status=Status.WAITING) == []
    write = ledger.claim(REF, PAIR, b"third", 4, [A], is_edit=True)
    assert write.superseded == []
    found = {each.data: each.status for each in unsent(ledger)}
    conflict = Status.CONFLICT
    assert found == {b"first": conflict, b"second": conflict, b"third": Status.WAITING}


def test_a_conflict_takes_the_place_of_nothing(ledger: Ledger):
    """A partial edit that was refused is kept beside what waits, once."""
    ledger.keep(REF, b"waits", "down", 4, [A], status=Status.WAITING)
    for _ in range(2):
        ledger.keep(REF, b"edit", "changed", 4, [A], status=Status.CONFLICT)
    assert [each.data for each in unsent(ledger)] == [b"waits", b"edit"]


def test_base_is_what_was_seen(ledger: Ledger):
    """Content of which no base is known was made from the highest revision seen."""
    ledger.keep(REF, b"x", "down")
    ledger.record_seen(signed(b"seen", 4), "a")
    assert unsent(ledger)[0].base == -1
    ledger.keep(REF, b"y", "down")
    assert unsent(ledger)[0].base == 4


def test_a_write_is_signed_anew(ledger: Ledger):
    """The next try of the same change takes the place of the one that was refused."""
    first = claim(ledger, b"x", 1, [A, B])
    again = ledger.claim(REF, PAIR, b"x", 7, [A], number=first.id)
    assert (again.id, again.signed) == (first.id, signed(b"x", 8))
    (left,) = unsent(ledger)
    assert (left.id, left.signed, left.portals) == (first.id, again.signed, (A, B))
    ledger.drop(first.id)
    ledger.claim(REF, PAIR, b"x", 8, [A], number=first.id)
    assert len(unsent(ledger)) == 1


def test_a_conflict_that_is_sent_takes_the_place_of_what_waits(ledger: Ledger):
    """The owner has said what is to count."""
    ledger.keep(REF, b"edit", "changed", 4, [A], status=Status.CONFLICT)
    (conflict,) = unsent(ledger)
    ledger.keep(REF, b"waits", "down", 4, [A], status=Status.WAITING)
    write = ledger.claim(REF, PAIR, b"edit", 4, [A], number=conflict.id)
    assert [each.data for each in write.superseded] == [b"waits"]
    assert [(each.id, each.status) for each in unsent(ledger)] == [(conflict.id, Status.WAITING)]


def test_damaged_write_is_refused(ledger: Ledger):
    """What does not fit its signature is not sent; it can be dropped."""
    write = claim(ledger)
    with closing(sqlite3.connect(ledger.path)) as database, database:
        database.execute("UPDATE outbox SET data = ?", (b"y",))
    with pytest.raises(StorageError, match=str(ledger.path)):
        ledger.pending()
    assert ledger.drop(write.id)


def test_summary_is_one_line(ledger: Ledger) -> None:
    """G12: `umount` and the log say how much is pending."""
    assert summary(ledger.count_unsent()) == ""
    ledger.keep(REF, b"x", "down", portals=[A, B])
    ledger.owe(signed(tweak=bytes(32)), None, [A], "down")
    assert summary(ledger.count_unsent()).startswith(
        "1 change of registry entries could not be posted"
    )
    ledger.keep(ref("b"), b"x", "down", portals=[A])
    assert summary(ledger.count_unsent()).startswith("2 changes of")
    assert summary(ledger.count_unsent()).endswith("see `skymount registry pending`")


# --- what becomes of a write


def test_what_enough_portals_took_is_owed_to_the_others(ledger: Ledger, clock: Clock):
    """In one transaction, for whichever reason; what it took the place of is gone."""
    ledger.owe(signed(b"old", 0), "a", [A, B], "down")
    ledger.keep(REF, b"x", "changed", status=Status.CONFLICT)
    write = ledger.claim(REF, PAIR, b"x", 0, [A, B, "http://late", "http://unused"], [C])
    left, late = {B: "down", C: "down"}, {"http://late": "no answer yet"}
    mark = ledger.took(write, "a", [A], left, late)
    assert ledger.mark_of(KEY, TWEAK) == mark
    assert ledger.listed_entries(KEY) == [ListedEntry("a", TWEAK)]
    assert unsent(ledger) == []
    found = {each.portals[0]: each for each in ledger.pending()}
    assert {each.signed for each in found.values()} == {write.signed}
    assert {each.is_own for each in found.values()} == {True}
    assert {portal: each.reason for portal, each in found.items()} == {
        B: "down",
        C: "the content behind the entry could not be sent there",
        "http://late": "no answer yet",
        "http://unused": "it was sent when this portal was not in use",
    }
    assert [each.portals for each in found.values() if each.lacking] == [(C,)]
    assert [each.portals for each in found.values() if each.is_posting] == [("http://late",)]
    assert len({each.id for each in found.values()}) == 4
    assert due(ledger, "http://late") == []
    clock.now += 100
    assert len(due(ledger, "http://late")) == 1


def test_it_is_owed_as_it_is_accepted(ledger: Ledger):
    """One transaction: a crash leaves the write pending, or accepted and owed."""
    write = claim(ledger, b"new", 1, [A, B])
    with closing(sqlite3.connect(ledger.path)) as other, other:
        other.execute(
            "CREATE TRIGGER t BEFORE INSERT ON outbox BEGIN SELECT raise(ABORT, 'no'); END"
        )
    with pytest.raises(StorageError):
        ledger.took(write, "a", [A], {B: "down"}, {})
    assert [each.id for each in unsent(ledger)] == [write.id]
    assert ledger.mark_of(KEY, TWEAK) is None


def test_what_was_dropped_meanwhile_is_owed_all_the_same(ledger: Ledger):
    """Somebody dropped it while it was posted, and a portal took it."""
    write = claim(ledger, b"new", 1, [A, B])
    ledger.drop(write.id)
    ledger.took(write, "a", [A], {B: "down"}, {})
    assert debts(ledger) == {(B, b"new", 2)}


def test_later_write_is_not_touched_by_what_becomes_of_an_earlier_one(ledger: Ledger):
    """Another process wrote while this one posted: its write is the one that is pending."""
    first = claim(ledger, b"first", 1, [A, B])
    second = claim(ledger, b"second", 2, [A, B])
    ledger.fail(first.id, "down")
    ledger.took(first, "a", [A], {B: "down"}, {})
    assert [(each.id, each.reason) for each in unsent(ledger)] == [(second.id, INTERRUPTED)]
    assert debts(ledger) == {(B, b"first", 2)}
    took(ledger, second, A, B)
    assert ledger.pending() == []


def test_what_turns_up_at_a_portal_is_accepted(ledger: Ledger):
    """The answer to a post was lost, and the entry is seen later: the others are owed it."""
    write = ledger.claim(REF, PAIR, b"x", 0, [A, B], [C])
    ledger.fail(write.id, "no answer")
    ledger.record_seen(signed(b"y", 0), "a")
    assert len(unsent(ledger)) == 1
    ledger.record_seen(write.signed, "a", portal=A)
    assert unsent(ledger) == []
    assert debts(ledger) == {(B, b"x", 1), (C, b"x", 1)}
    assert [each.lacking for each in owed(ledger, [B, C])] == [(), (C,)]
    ledger.mark_paid(write.signed, [B, C])
    ledger.record_seen(claim(ledger, b"z", 1, [A]).signed, "a")
    assert ledger.pending() == []


def test_failures_are_recorded(ledger: Ledger, clock: Clock):
    """A write is due again after a pause that grows, once it is not being posted."""
    write = claim(ledger)
    assert due(ledger) == []
    assert ledger.next_at(A, with_content=False) is None
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        ledger.fail(write.id, "down", Status.WAITING)
        assert due(ledger) == []
        assert ledger.next_at(A, with_content=False) == pause
        clock.now += pause
        assert [each.id for each in due(ledger)] == [write.id]
    ledger.fail(write.id, "refused")
    assert due(ledger) == []


def test_due_is_what_was_written_last(ledger: Ledger, clock: Clock) -> None:
    """G12: of each entry only what was written last, if that waits for a portal."""
    waiting = {"status": Status.WAITING}
    ledger.keep(ref("a"), b"older", "down", 0, [A], **waiting)  # type: ignore[arg-type]
    ledger.keep(ref("a"), b"last", "down", 0, [A], **waiting)  # type: ignore[arg-type]
    ledger.keep(ref("b"), b"denied", "denied", 0, [A])
    ledger.keep(ref("c"), b"waits", "down", 0, [A], **waiting)  # type: ignore[arg-type]
    ledger.keep(ref("c"), b"edit", "changed", 0, [A], status=Status.CONFLICT)
    ledger.keep(ref("d"), b"else", "down", 0, [B], **waiting)  # type: ignore[arg-type]
    ledger.keep(ref("e"), b"content", "down", 0, [B], [A], **waiting)  # type: ignore[arg-type]
    clock.now += 1
    assert [each.data for each in due(ledger)] == [b"last"]
    assert due(ledger, with_content=True) == []


# --- processes


def test_who_failed_leaves_a_write_to_the_process_that_posts_it_now(ledger: Ledger):
    """G12: sent by one of the mounts; a failure that is recorded late or twice lets no other in."""
    ledger.keep(REF, b"x", "down", portals=[A], status=Status.WAITING)
    (number,) = (each.id for each in ledger.pending())
    with closing(Ledger(ledger.path, process=1)) as other:
        assert ledger.begin(number)
        ledger.fail(number, "down", Status.WAITING)
        assert other.begin(number)
        ledger.fail(number, "down", Status.FAILED)
        (left,) = unsent(ledger)
        assert (left.is_posting, left.status) == (True, Status.WAITING)
        assert not ledger.begin(number)
        other.fail(number, "refused")
    (left,) = unsent(ledger)
    assert (left.is_posting, left.status, left.reason) == (False, Status.FAILED, "refused")


def test_only_the_last_write_begins(ledger: Ledger):
    """A later one is the one that counts, also if it is a conflict."""
    ledger.keep(REF, b"x", "down", portals=[A], status=Status.WAITING)
    (number,) = (each.id for each in ledger.pending())
    assert ledger.begin(number, only_last=True)
    ledger.keep(REF, b"edit", "changed", portals=[A], status=Status.CONFLICT)
    assert not ledger.begin(number, only_last=True)
    assert ledger.begin(number)
    ledger.keep(REF, b"edit", "changed", portals=[A])
    (later,) = unsent(ledger)
    ledger.keep(REF, b"y", "down", portals=[A], status=Status.CONFLICT)
    assert ledger.begin(later.id)
    ledger.keep(REF, b"z", "down", portals=[A], status=Status.WAITING)
    assert not ledger.begin(unsent(ledger)[0].id)


def test_what_a_process_posts_is_released_when_it_dies(path: Path):
    """Until then it is left to it; what it was posting is sent again."""
    code = (
        "import sys; from pathlib import Path; from skymount.portal.ledger.ledger import Ledger\n"
        "from tests.portal.ledger.entries import PAIR, signed\n"
        "from tests.portal.ledger.test_outbox import A, REF, ref\n"
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "ledger.claim(REF, PAIR, b'x', 0, [A])\n"
        "ledger.owe(signed(tweak=ref('b').tweak), 'b', [A], 'down')\n"
        "ledger.begin_owed(signed(tweak=ref('b').tweak), A)\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    child = start(code, path)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    with closing(Ledger.open(path)) as ledger:
        write, debt = ledger.pending()
        assert (write.is_posting, debt.is_posting) == (True, True)
        assert not ledger.begin(write.id)
        assert not ledger.begin_owed(signed(tweak=ref("b").tweak), A)
        assert ledger.release() == 0
        assert due(ledger) == []
        child.kill()
        child.communicate()
        assert due(ledger) == []
        assert ledger.release() == 1
        assert [each.is_posting for each in due(ledger)] == [False, False]
        assert "interrupted" in ledger.pending()[0].reason
        assert ledger.begin(write.id)
        assert ledger.begin(write.id)


def test_process_runs_until_it_ends():
    """The name of a process that ended is nobody's, also if it was not waited for."""
    assert entries.is_running(entries.name_of(os.getpid()))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        name = entries.name_of(child.pid)
        assert entries.is_running(name)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not entries.is_running(name)
        assert not entries.is_running(name.split()[0] + " 1")
    assert not entries.is_running(None)


_CLAIMING = """
import sys
from pathlib import Path
from skymount.portal.ledger.ledger import Ledger
from tests.portal.ledger.entries import PAIR
from tests.portal.ledger.test_outbox import A, B, REF
name, count = sys.argv[2], int(sys.argv[3])
ledger = Ledger.open(Path(sys.argv[1]))
print("ready", flush=True)
for n in range(count):
    write = ledger.claim(REF, PAIR, f"{name} {n}".encode(), -1, [A, B])
    print(write.id, write.signed.entry.revision, write.signed.entry.data.decode(), flush=True)
    if n % 3 == 0:
        ledger.took(write, "a", [A], {B: "down"}, {})
        print("took", write.id, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 3, 10, 25])
def test_nothing_that_was_said_is_lost_by_a_kill(path: Path, lines: int):
    """G12: kill -9 at any moment: what was claimed last is there, and its revision taken; what was
    accepted is owed to the other portal.
    """
    child = start(_CLAIMING, path, "killed", "100000")
    assert child.stdout is not None
    said = [child.stdout.readline().split() for _ in range(lines)]
    child.send_signal(signal.SIGKILL)
    with child:  # `communicate` would lose what `readline` has buffered
        rest = child.stdout.readlines()
    said += [line.split() for line in rest if line.endswith("\n")]  # one may be cut off
    claims = [words for words in said if words and words[0] not in ("ready", "took")]
    taken = [words[1] for words in said if words and words[0] == "took"]
    with closing(Ledger.open(path)) as ledger:
        if not claims:
            return
        number, revision, *data = claims[-1]
        highest = ledger.highest_revision(KEY, TWEAK)
        assert highest is not None
        assert highest >= int(revision)
        left = [(str(each.id), each.data.decode()) for each in unsent(ledger)]
        later = highest > int(revision)  # it was killed before it said so
        assert (number, " ".join(data)) in left or number in taken or later or owed(ledger)
        accepted = {words[0]: int(words[1]) for words in claims if words[0] in taken}
        if accepted:
            (debt,) = owed(ledger)
            assert debt.entry.revision >= max(accepted.values())
        assert not any(each.is_posting for each in ledger.pending())
        assert claim(ledger).signed.entry.revision == highest + 1


def test_two_processes_never_take_the_same_revision(path: Path):
    """G12: several mounts and commands share the ledger."""
    children = [start(_CLAIMING, path, name, "60") for name in ("one", "two", "three")]
    revisions: list[int] = []
    for child in children:
        out, _ = child.communicate()
        assert child.returncode == 0
        lines = [line.split() for line in out.splitlines()]
        claims = [words for words in lines if words[0] not in ("ready", "took")]
        assert len(claims) == 60
        revisions += [int(words[1]) for words in claims]
    assert sorted(revisions) == list(range(180))


def test_threads_share_a_ledger(ledger: Ledger):
    """Any thread may call at any time."""
    taken: list[int] = []

    def work(name: str) -> None:
        for n in range(20):
            write = claim(ledger, f"{name}{n}".encode(), -1)
            took(ledger, write, A)
            taken.append(write.signed.entry.revision)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(80))
    assert unsent(ledger) == []


# --- what portals are owed


def test_one_debt_for_each_entry_and_portal(ledger: Ledger):
    """A newer revision takes the place of an older one, and an older one never that of a newer."""
    assert ledger.owe(signed(b"one", 1), "a", [A, B], "down\n") == 2
    assert {each.reason for each in owed(ledger)} == {"down "}
    assert ledger.owe(signed(b"one", 1), "a", [A], "still down") == 0
    assert ledger.owe(signed(b"two", 2), "a", [A], "down") == 1
    assert ledger.owe(signed(b"one", 1), "a", [A], "down") == 0
    assert debts(ledger) == {(A, b"two", 2), (B, b"one", 1)}
    low, *_, high = by_work(5)
    assert ledger.owe(high, "a", [A], "down") == 1
    assert ledger.owe(low, "a", [A], "down") == 0
    assert debts(ledger) == {(A, high.entry.data, 5), (B, b"one", 1)}


def test_debt_with_content_stays_one(ledger: Ledger):
    """Who finds the entry missing does not know of its content."""
    ledger.owe(signed(b"x", 1), "a", [A], "down", needs_content=True)
    assert ledger.owe(signed(b"x", 1), "a", [A], "behind") == 0
    assert owed(ledger)[0].lacking == (A,)
    ledger.owe(signed(b"x", 1), "a", [B], "behind")
    assert ledger.owe(signed(b"x", 1), "a", [B], "down", needs_content=True) == 1
    assert all(each.lacking for each in owed(ledger))


def test_a_debt_stands_beside_a_write(ledger: Ledger):
    """If the write is dropped, the portal is owed the entry before all the same."""
    ledger.record_seen(signed(b"old", 1), "a")
    ledger.owe(signed(b"old", 1), "a", [A], "down")
    write = claim(ledger, b"new", 1)
    assert debts(ledger) == {(A, b"old", 1)}
    ledger.drop(write.id)
    assert debts(ledger) == {(A, b"old", 1)}
    took(ledger, claim(ledger, b"newer", 1), A)
    assert ledger.pending() == []


def test_seen_revision_supersedes_what_is_owed(ledger: Ledger):
    """When something newer is seen, the portal is owed that; nothing below the mark is owed."""
    ledger.owe(signed(b"old", 1), "a", [A, B], "down")
    ledger.put_off(signed(b"old", 1), A, "down", 2000.0)
    ledger.owe(signed(b"else", 7, tweak=hash_data_key("b")), "b", [A], "down")
    ledger.record_seen(signed(b"new", 5), "a", portal=B)
    assert debts(ledger) == {(A, b"new", 5), (A, b"else", 7)}
    assert (owed(ledger)[0].attempts, owed(ledger)[0].next_at) == (0, 0.0)
    assert ledger.owe(signed(b"old", 1), "a", [B], "down") == 0


def test_paid_debts_are_gone(ledger: Ledger):
    """A portal that has the entry is owed it no more; a newer one that it is owed stays."""
    ledger.owe(signed(b"one", 1), "a", [A, B], "down")
    ledger.owe(signed(b"two", 2), "a", [B], "down")
    ledger.mark_paid(signed(b"one", 1), [A, B])
    assert debts(ledger) == {(B, b"two", 2)}
    ledger.mark_paid(signed(b"two", 2), [B])
    assert ledger.pending() == []


def test_own_write_that_a_portal_s_newer_entry_won_over_is_a_conflict(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
):
    """It was acknowledged: it is kept, and shown. Not what others wrote, nor a deletion, nor what
    has the same content, nor while a later write is pending.
    """
    for number, (data, theirs, is_own, later, kept) in enumerate(
        [
            (b"mine", b"theirs", True, False, True),
            (b"others", b"theirs", False, False, False),
            (DELETED, b"theirs", True, False, False),
            (b"same", b"same", True, False, False),
            (b"mine", b"theirs", True, True, False),
        ]
    ):
        entry = ref(str(number))
        made = signed(data, 1, tweak=entry.tweak)
        ledger.owe(made, entry.data_key, [A, B], "down", is_own=is_own)
        if later:
            ledger.keep(entry, b"later", "down", portals=[A])
        caplog.clear()
        ledger.record_seen(signed(theirs, 7, tweak=entry.tweak), entry.data_key, portal=A)
        found = [each for each in ledger.pending() if each.tweak == entry.tweak]
        conflicts = [each for each in found if each.status is Status.CONFLICT]
        assert [(each.data, each.portals) for each in conflicts] == [(b"mine", (A,))] * kept
        assert ("revision 7 won" in caplog.text) == (kept or data == DELETED)
        assert [each.portals for each in found if each.accepted] == [(B,)]


def test_failed_attempts_are_counted(ledger: Ledger, clock: Clock):
    """A debt is due again at the time that was said."""
    ledger.owe(signed(), "a", [A], "first")
    assert ledger.begin_owed(signed(), A)
    assert owed(ledger)[0].is_posting
    ledger.put_off(signed(), A, "second", 5.0)
    (left,) = owed(ledger)
    assert (left.attempts, left.next_at, left.reason) == (1, 1005.0, "second")
    assert not left.is_posting
    clock.now = 1004.9
    assert due(ledger) == []
    clock.now = 1005.0
    assert due(ledger) == [left]


@pytest.mark.parametrize("ahead", [86_400.0, 365 * 86_400.0, 301.0])
def test_time_beyond_the_longest_pause_is_due(ledger: Ledger, clock: Clock, ahead: float):
    """G12: a clock that was wrong when something came to be owed holds it up for ever otherwise."""
    clock.now += ahead
    ledger.owe(signed(), "a", [A], "down")
    ledger.put_off(signed(), A, "down", 1.0)
    ledger.keep(ref("b"), b"x", "down", 0, [A], status=Status.WAITING)
    clock.now -= ahead
    assert len(due(ledger)) == 2
    wait = ledger.next_at(A, with_content=False)
    assert wait is not None
    assert wait <= 0
    ledger.put_off(signed(), A, "down", 300.0)
    assert len(due(ledger)) == 1


def test_success_of_a_portal_ends_pauses(ledger: Ledger):
    """What it was to get later is due; not what is being posted, nor what needs content."""
    for name in ("a", "b", "c"):
        entry = signed(tweak=hash_data_key(name))
        ledger.owe(entry, name, [A, B], "down", needs_content=name == "c")
        ledger.put_off(entry, A, "refused", 100.0)
    ledger.begin_owed(signed(tweak=hash_data_key("b")), A)
    ledger.end_pauses(A)
    assert [each.data_key for each in due(ledger)] == ["a"]
    assert due(ledger, with_content=True) == []


def test_debt_that_is_gone_is_not_begun(ledger: Ledger):
    """Somebody paid it, or it was superseded."""
    assert not ledger.begin_owed(signed(), A)
    ledger.owe(signed(b"one", 1), "a", [A], "down")
    ledger.owe(signed(b"two", 2), "a", [A], "down")
    assert not ledger.begin_owed(signed(b"one", 1), A)
    assert ledger.begin_owed(signed(b"two", 2), A)


def test_numbers_are_unique(ledger: Ledger):
    """A number names one thing, and is not used again."""
    ledger.keep(REF, b"x", "down", portals=[A, B])
    ledger.owe(signed(b"1", tweak=bytes(32)), None, [A, B], "down")
    numbers = [each.id for each in ledger.pending()]
    assert len(numbers) == len(set(numbers)) == 3
    assert ledger.drop(numbers[-1])
    assert not ledger.drop(numbers[-1])
    ledger.keep(ref("b"), b"y", "down", portals=[A])
    assert ledger.pending()[-1].id > numbers[-1]


def test_totals(ledger: Ledger, clock: Clock):
    """For each portal: how much, since when, and why the last attempt failed."""
    assert ledger.totals() == []
    ledger.owe(signed(b"x"), "a", [A, B], "silent")
    ledger.keep(ref("c"), b"x", "down", portals=[A])
    clock.now = 1010.0
    ledger.owe(signed(b"y", tweak=hash_data_key("b")), "b", [A], "down")
    ledger.put_off(signed(b"x"), A, "refused", 10.0)
    assert ledger.totals() == [
        OwedTotal(A, 2, 1000.0, "refused"),
        OwedTotal(B, 1, 1000.0, "silent"),
    ]
    assert owed_summary([]) == ""
    assert owed_summary(ledger.totals()).endswith(f"{A} 2, {B} 1")


def test_number_of_debts_is_bounded(ledger: Ledger, caplog: pytest.LogCaptureFixture):
    """The oldest go, with one line in the log; those of other portals stay."""
    caplog.set_level(logging.WARNING)
    ledger.owe(signed(), "a", [A, B], "down")
    with closing(sqlite3.connect(ledger.path)) as database, database:
        rows = ((n, A, KEY, n.to_bytes(32, "big"), b"x", bytes(64)) for n in range(outbox.LIMIT))
        database.executemany(
            "INSERT INTO outbox (id, portal, public_key, tweak, revision, kind, data, signature,"
            " accepted, needs_content, status, created, next_at, reason)"
            " VALUES (?, ?, ?, ?, x'0000000000000000', 1, ?, ?, 1, 0, 'waiting', 2000, 0, '')",
            rows,
        )
    for name in ("b", "c"):
        ledger.owe(signed(tweak=hash_data_key(name)), name, [A], "down")
    counts = {each.portal: each.count for each in ledger.totals()}
    assert counts == {A: outbox.LIMIT * 9 // 10 + 3, B: 1}
    assert signed() not in [each.signed for each in owed(ledger, [A])]
    assert [A in line.message for line in caplog.records] == [True]


# --- the last entry seen


def test_newest_entry_is_kept(ledger: Ledger):
    """So that a portal that lost it can get it back, also after a restart."""
    assert ledger.newest_entry(KEY, TWEAK) is None
    ledger.record_seen(signed(b"new", 5), "a")
    ledger.record_seen(signed(b"old", 4), "a")
    assert ledger.newest_entry(KEY, TWEAK) == signed(b"new", 5)
    with closing(Ledger.open(ledger.path)) as other:
        assert other.newest_entry(KEY, TWEAK) == signed(b"new", 5)
    write = claim(ledger, b"mine")
    assert ledger.newest_entry(KEY, TWEAK) == signed(b"new", 5)
    took(ledger, write, A)
    assert ledger.newest_entry(KEY, TWEAK) == write.signed


def test_forgotten_entry_is_not_known_nor_owed(ledger: Ledger):
    """`forget --seen` is not undone by what the ledger has; `forget` alone changes nothing."""
    ledger.record_seen(signed(b"new", 5), "a")
    ledger.owe(signed(b"new", 5), "a", [A], "down")
    ledger.keep(REF, b"kept", "down", portals=[A])
    ledger.forget(KEY, TWEAK)
    assert ledger.newest_entry(KEY, TWEAK) == signed(b"new", 5)
    assert len(owed(ledger)) == 1
    ledger.forget(KEY, TWEAK, seen=True)
    assert ledger.newest_entry(KEY, TWEAK) is None
    assert [each.data for each in ledger.pending()] == [b"kept"]


@pytest.mark.parametrize("statement", ["signature = x'00'", "revision = 'soon'", "kind = 9"])
def test_damaged_debt_is_refused(ledger: Ledger, statement: str):
    """The error names the file; the debt can be dropped."""
    ledger.owe(signed(), "a", [A], "down")
    with closing(sqlite3.connect(ledger.path)) as database, database:
        database.execute(f"UPDATE outbox SET {statement}")
    with pytest.raises(StorageError, match="damaged"):
        ledger.pending()
    assert ledger.drop(1)
    assert ledger.pending() == []


def test_entry_of_the_mark_is_verified(ledger: Ledger):
    """What was changed in the file is not sent to anybody."""
    made: SignedEntry = signed(b"x", 5)
    ledger.record_seen(made, "a")
    with closing(sqlite3.connect(ledger.path)) as database, database:
        database.execute("UPDATE entries SET signature = ?", (bytes(64),))
    with pytest.raises(StorageError, match="damaged"):
        ledger.newest_entry(KEY, TWEAK)


def test_owner_is_who_signs(ledger: Ledger):
    """An entry of another key is another entry."""
    other = EntryId(OTHER.public_key, TWEAK, "a")
    ledger.claim(other, OTHER, b"x", 3)
    assert claim(ledger, b"x", 3).signed.entry.revision == 4
    assert len(unsent(ledger)) == 2

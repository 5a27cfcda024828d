"""Which entries are believed, with a ledger, without one, and with one that cannot be written."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from skymount.errors import BadContentError, RolledBackError, StorageError
from skymount.portal.ledger.entries import EntryId, RevisionMark
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.revision_marks import RevisionMarks
from skymount.wire.registry_entry import Entry, SignedEntry
from tests.portal.ledger.entries import KEY, OTHER, TWEAK, by_work, signed

REF = EntryId(KEY, TWEAK, "a")


class ReadOnlyLedger(Ledger):
    """A ledger on a disk that can be read, but for now not written."""

    is_full = True

    def record_seen(
        self, signed: SignedEntry, data_key: str | None, *, named: bool = True, portal: str = ""
    ) -> RevisionMark:
        if self.is_full:
            raise StorageError("no space left")
        return super().record_seen(signed, data_key, named=named, portal=portal)


@pytest.fixture(params=["ledger", "memory"])
def marks(request: pytest.FixtureRequest, ledger: Ledger) -> RevisionMarks:
    return RevisionMarks(ledger if request.param == "ledger" else None, lambda: 1000.0)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[ReadOnlyLedger]:
    opened = ReadOnlyLedger.open(tmp_path / "full.sqlite3")
    yield opened
    opened.close()


def test_name_of_an_entry():
    """It is the same entry whether its data key is known or only the hash of it."""
    hashed = EntryId(KEY, TWEAK)
    assert hashed == REF
    assert str(REF) == f"{KEY.hex()}/'a'"
    assert str(hashed) == f"{KEY.hex()}/{TWEAK.hex()}"


async def test_mark_is_raised(marks: RevisionMarks):
    """G4: it is the highest revision seen, with the most work."""
    less, more, *_ = by_work(5)
    assert await marks.find(REF) is None
    for each in (less, more, less, signed(b"old", 4)):
        await marks.record(REF, each)
    mark = await marks.find(REF)
    assert mark is not None
    assert (mark.revision, mark.work) == (5, more.entry.work)
    assert await marks.find_entry(signed().link) == REF
    assert await marks.find_entry(Entry(TWEAK, b"", 1).sign(OTHER.private_key).link) is None


async def test_entry_that_came_with_something_else(marks: RevisionMarks):
    """H4: it is verified, raises the mark, and must not be behind it."""
    await marks.check(REF, signed(b"new", 5), "http://p", named=True)
    with pytest.raises(RolledBackError, match="behind revision 5") as caught:
        await marks.check(REF, signed(b"old", 4), "http://p", named=True)
    assert caught.value.url == "http://p"
    forged = SignedEntry(KEY, Entry(TWEAK, b"x", 9), bytes(64))
    with pytest.raises(BadContentError, match="signature"):
        await marks.check(REF, forged, "http://p", named=True)
    mark = await marks.find(REF)
    assert mark is not None
    assert mark.revision == 5


async def test_answer_of_a_portal(marks: RevisionMarks):
    """An entry is believed with the time of its request; that there is none is no error."""
    answers: list[SignedEntry | None] = [None, signed(b"new", 5)]

    async def fetch() -> SignedEntry | None:
        await trio.lowlevel.checkpoint()
        return answers.pop(0)

    assert await marks.read(REF, fetch, "http://p") is None
    begun = trio.current_time()
    found = await marks.read(REF, fetch, "http://p")
    assert found is not None
    assert (found.signed, found.mark.revision) == (signed(b"new", 5), 5)
    assert begun <= found.requested_at <= trio.current_time()


async def test_answer_that_was_overtaken(ledger: Ledger):
    """What this machine posts during a request makes the answer look old: it is asked for again."""
    marks = RevisionMarks(ledger)
    asked = 0

    async def fetch() -> SignedEntry:
        nonlocal asked
        asked += 1
        if asked == 1:
            await marks.record(REF, signed(b"mine", 6))
            return signed(b"theirs", 5)
        return signed(b"mine", 6)

    found = await marks.read(REF, fetch, "http://p")
    assert found is not None
    assert (found.signed, asked) == (signed(b"mine", 6), 2)


async def test_answer_that_stays_old(ledger: Ledger):
    """G4: what was seen before the request is not overtaken: one answer is enough to refuse it."""
    marks = RevisionMarks(ledger)
    await marks.record(REF, signed(b"new", 6))
    asked = 0

    async def fetch() -> SignedEntry:
        nonlocal asked
        asked += 1
        return signed(b"old", 5)

    await trio.sleep(0.01)
    with pytest.raises(RolledBackError, match="revision 6"):
        await marks.read(REF, fetch, "http://p")
    assert asked == 1


async def test_ledger_that_cannot_be_written(
    full: ReadOnlyLedger, caplog: pytest.LogCaptureFixture
):
    """What was seen is kept in memory, said once, and written when that is possible again."""
    marks = RevisionMarks(full, lambda: 1000.0)
    for revision in (5, 6):
        mark = await marks.record(REF, signed(b"new", revision))
        assert mark.revision == revision
    assert len(caplog.records) == 1
    assert marks.failure is not None
    with pytest.raises(RolledBackError):
        await marks.check(REF, signed(b"old", 5), "http://p", named=True)
    await marks.save()
    assert full.mark_of(KEY, TWEAK) is None
    full.is_full = False
    await marks.save()
    assert marks.failure is None
    saved = full.mark_of(KEY, TWEAK)
    assert saved is not None
    assert saved.revision == 6
    assert await marks.find(REF) == saved

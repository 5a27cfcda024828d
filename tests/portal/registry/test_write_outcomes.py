"""What becomes of writes that are posted, and of those that fail."""

import sqlite3
from pathlib import Path

import pytest
import trio

from skymount.errors import (
    BadContentError,
    PortalError,
    ReadOnlyPortalError,
    RolledBackError,
    StorageError,
)
from skymount.portal.http.response import Response
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.registry_entry import SignedEntry
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import PAIR, unsent
from tests.portal.registry.entries import pending, ref, signed


@pytest.mark.parametrize("fault", ["down", "denied", "slow"])
async def test_failed_write_is_pending(
    fault: str, alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: what could not be posted is kept, signed if a revision was taken."""
    one.always = fault
    with pytest.raises(PortalError):
        await alone.write(ref(), PAIR, b"unasked", None)
    assert pending(ledger) == [(b"unasked", None)]
    one.faults = [""]
    with pytest.raises(PortalError):
        await alone.write(ref("b"), PAIR, b"asked", None)
    assert pending(ledger) == [(b"unasked", None), (b"asked", 0)]
    assert all(each.reason for each in unsent(ledger))


async def test_write_that_is_cancelled_when_it_is_done(ledger: Ledger, autojump_clock: object):
    """G12: what the portal has taken is not in the outbox, whenever its writer gives up."""

    class Cancelling(FakeRegistry):
        def _post(self, posted: SignedEntry, fault: str | float) -> Response:
            answer = super()._post(posted, fault)
            scope.cancel()
            return answer

    entries = VerifiedRegistry(portals_of([Cancelling()]), ledger)
    with trio.CancelScope() as scope:
        await entries.write(ref(), PAIR, b"ours", None)
    assert scope.cancel_called
    assert pending(ledger) == []
    mark = ledger.mark_of(ref().public_key, ref().tweak)
    assert mark is not None
    assert mark.revision == 0


async def test_write_that_is_cancelled_is_pending(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: a deadline or an interrupt loses nothing, wherever it strikes."""
    for faults, data, name in [(["hang"], b"unasked", "b"), (["", "hang"], b"asked", "a")]:
        one.faults = [*faults]
        with trio.CancelScope() as scope:
            one.before = lambda scope=scope: one.faults or scope.cancel()
            await alone.write(ref(name), PAIR, data, None)
        assert scope.cancelled_caught
    one.before = lambda: None
    assert pending(ledger) == [(b"unasked", None), (b"asked", 0)]
    assert {each.reason for each in unsent(ledger)} == {"interrupted"}
    assert (await alone.write(ref(), PAIR, b"asked", None)).revision == 1
    assert pending(ledger) == [(b"unasked", None)]


async def test_status_of_what_is_kept(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger
) -> None:
    """G12: what failed because no portal answered waits for one, of its portals; nothing else."""
    for number, (fault, status) in enumerate(
        [
            ("down", Status.WAITING),
            ("slow", Status.WAITING),
            ("denied", Status.FAILED),
        ]
    ):
        one.faults = [fault] * 3
        with pytest.raises(PortalError):
            await alone.write(ref(str(number)), PAIR, b"x", None)
        assert unsent(ledger)[-1].status is status
        assert unsent(ledger)[-1].portals == (one.url,)


class FullLedger(Ledger):
    """A ledger on a disk that may be full."""

    def fill(self, full: bool = True) -> None:
        """Fill the disk, or empty it: SQLite's own limit stands for it."""

        def limit(database: sqlite3.Connection) -> None:
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            database.execute(f"PRAGMA max_page_count = {pages if full else 1 << 30}")

        self.database.write(limit)


async def test_full_disk_stops_writing_and_not_reading(
    one: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: object
):
    """G12: what cannot be claimed is not posted; reading goes on, and roll-backs are still seen."""
    ledger = FullLedger.open(tmp_path / "ledger.sqlite3")
    entries = VerifiedRegistry(portals_of([one]), ledger, fresh=0)
    ledger.fill()

    async def write_all() -> None:
        while True:  # until the free space within the pages is used up
            await entries.write(ref(str(len(one.posts))), PAIR, bytes(113), None)

    with pytest.raises(StorageError, match="full"):
        await write_all()
    assert len(one.posts) == len(one.stored)
    names = [str(n) for n in range(100, 200)]
    for name in names:
        one.set(signed(b"old" * 30, 1, name))
        one.set(signed(b"new" * 30, 2, name))
        assert (await entries.read(ref(name))).data == b"new" * 30
    one.always = "stale"
    for name in names:
        with pytest.raises(BadContentError):
            await entries.read(ref(name))
    assert caplog.text.count("is kept in memory until it can be written") == 1
    ledger.fill(False)
    await entries.save()  # as a mount does from time to time
    ledger.close()
    again = Ledger.open(tmp_path / "ledger.sqlite3")
    entries = VerifiedRegistry(portals_of([one]), again, fresh=0)
    with pytest.raises(RolledBackError):  # what the disk did not take then it has now
        await entries.read(ref(names[0]))
    one.always = ""
    assert (await entries.write(ref("199"), PAIR, b"x", None)).revision == 3
    again.close()


async def test_without_a_portal_to_write_to_nothing_is_signed(ledger: Ledger):
    """W2: the content is kept, and not sent by itself; a deletion is refused."""
    mirror = FakeRegistry(1, read_only=True)
    mirror.set(signed(b"there", 4))
    entries = VerifiedRegistry(portals_of([mirror]), ledger, fresh=0)
    with pytest.raises(ReadOnlyPortalError):
        await entries.write(ref(), PAIR, b"ours", None)
    with pytest.raises(ReadOnlyPortalError):
        await entries.delete(ref(), PAIR)
    (kept,) = unsent(ledger)
    assert (kept.data, kept.signed, kept.portals) == (b"ours", None, ())
    assert kept.status is Status.FAILED
    assert mirror.posts == []

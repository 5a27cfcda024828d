"""Portals that turn out to be behind are owed the newest entry that is known."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from skymount.errors import RolledBackError, StorageError
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.registry.entry_reader import REPAIR_TIME, ReadRepair
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.registry_entry import DELETED, MAX_REVISION, SignedEntry
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import PAIR, by_work, owed
from tests.portal.registry.entries import Inline, ref, signed


@dataclass
class Repairing:
    """A reader that repairs."""

    entries: VerifiedRegistry
    ledger: Ledger
    owed_calls: int = 0

    async def owed(self) -> list[tuple[str, SignedEntry]]:
        """Return which portal is owed what, once everything is noted."""
        await trio.testing.wait_all_tasks_blocked()
        return [(each.portals[0], each.signed) for each in owed(self.ledger)]

    async def paid(self) -> None:
        """Send what is owed."""
        for portal, entry in await self.owed():
            self.ledger.mark_paid(entry, [portal])

    def count(self) -> None:
        """Count that something is owed."""
        self.owed_calls += 1


@asynccontextmanager
async def repairing(ledger: Ledger, *registries: FakeRegistry) -> AsyncIterator[Repairing]:
    """Make a reader over some registries."""
    async with trio.open_nursery() as nursery:
        portals = portals_of(registries)
        made = Repairing(VerifiedRegistry(portals, ledger), ledger)
        made.entries.marks = Inline(ledger)
        writable = [client.url for client in portals.writable_clients]
        made.entries.repair = ReadRepair(ledger, made.entries.marks, writable, nursery, made.count)
        yield made
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("newer", [0, 1])
async def test_portal_with_an_older_entry(
    newer: int, one: FakeRegistry, two: FakeRegistry, ledger: Ledger
):
    """G18: the newest entry is read, whoever has it, and the other portal gets it."""
    both = [one, two]
    for registry in both:
        registry.set(signed(b"old", 0))
    both[newer].set(signed(b"new", 4))
    async with repairing(ledger, *both) as made:
        found = await made.entries.read(ref())
        assert (found.data, found.revision) == (b"new", 4)
        assert await made.owed() == [(both[1 - newer].url, signed(b"new", 4))]
        assert made.owed_calls == 1


async def test_portal_that_lacks_an_entry(one: FakeRegistry, two: FakeRegistry, ledger: Ledger):
    """G18: one that does not have it gets it too; one that has it is owed nothing."""
    one.set(signed(b"x", 3))
    async with repairing(ledger, one, two) as made:
        assert (await made.entries.read(ref())).data == b"x"
        assert await made.owed() == [(two.url, signed(b"x", 3))]
        two.set(signed(b"x", 3))
        await made.paid()
        await made.entries.read(ref())
        assert await made.owed() == []


@pytest.mark.parametrize("other", ["old", "nothing"])
async def test_single_portal_gets_back_what_was_seen(
    other: str, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G18: also with one portal, whose word still counts for the read that found it out."""
    ledger.record_seen(signed(b"new", 4), "a")
    if other == "old":
        one.set(signed(b"old", 2))
    async with repairing(ledger, one) as made:
        if other == "old":
            with pytest.raises(RolledBackError):
                await made.entries.read(ref())
        else:
            assert (await made.entries.read(ref())).data is None
        assert await made.owed() == [(one.url, signed(b"new", 4))]


async def test_deletion_is_brought_too(one: FakeRegistry, two: FakeRegistry, ledger: Ledger):
    """G18: a portal that still has what was deleted gets the deletion."""
    one.set(signed(b"x", 3))
    two.set(signed(DELETED, 4))
    async with repairing(ledger, one, two) as made:
        assert (await made.entries.read(ref())).data is None
        assert await made.owed() == [(one.url, signed(DELETED, 4))]


@pytest.mark.parametrize("fault", ["down", "denied", "forged"])
async def test_portal_that_does_not_say_is_owed_nothing(
    fault: str, one: FakeRegistry, two: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G18: only what a portal says shows that it is behind."""
    one.always = fault
    one.set(signed(b"old", 1))
    two.set(signed(b"new", 2))
    async with repairing(ledger, one, two) as made:
        assert (await made.entries.read(ref())).data == b"new"
        assert await made.owed() == []


async def test_what_was_written_since(one: FakeRegistry, ledger: Ledger):
    """G18: a portal that was asked before a write is not behind."""
    async with repairing(ledger, one) as made:
        assert (await made.entries.read(ref())).signed is None
        ledger.record_seen(signed(b"x", 0), "a")
        assert await made.owed() == []
        await made.entries.read(ref())
        assert await made.owed() == [(one.url, signed(b"x", 0))]


async def test_what_was_never_seen(one: FakeRegistry, two: FakeRegistry, ledger: Ledger):
    """G18: nothing is known, so nothing is owed."""
    async with repairing(ledger, one, two) as made:
        assert (await made.entries.read(ref())).signed is None
        assert await made.owed() == []


async def test_what_was_forgotten(one: FakeRegistry, ledger: Ledger, autojump_clock: object):
    """G18: `registry forget --seen` is not undone."""
    one.set(signed(b"old", 1))
    ledger.record_seen(signed(b"new", 4), "a")
    async with repairing(ledger, one) as made:
        with pytest.raises(RolledBackError):
            await made.entries.read(ref())
        assert len(await made.owed()) == 1
        ledger.forget(PAIR.public_key, ref().tweak, seen=True)
        assert (await made.entries.read(ref())).data == b"old"
        assert await made.owed() == []


async def test_read_only_portal(two: FakeRegistry, ledger: Ledger):
    """W2: it is owed nothing."""
    one = FakeRegistry(1, read_only=True)
    one.set(signed(b"old", 1))
    two.set(signed(b"new", 2))
    async with repairing(ledger, one, two) as made:
        assert (await made.entries.read(ref())).data == b"new"
        assert await made.owed() == []


async def test_once_in_a_while(one: FakeRegistry, two: FakeRegistry, ledger: Ledger):
    """G18: a portal that stays as it is gets the same entry every five minutes at most."""
    one.set(signed(b"x", 3))
    async with repairing(ledger, one, two) as made:
        await made.entries.read(ref())
        await made.paid()
        for _ in range(3):
            await made.entries.read(ref())
        assert await made.owed() == []
        one.set(signed(b"newer", 4))
        await made.entries.read(ref())
        assert await made.owed() == [(two.url, signed(b"newer", 4))]
        await made.paid()
        two.set(signed(b"newer", 4))
        await made.entries.read(ref())
        two.forget(PAIR.public_key, ref().tweak)  # it had it, and lost it again
        await made.entries.read(ref())
        assert await made.owed() == [(two.url, signed(b"newer", 4))]


async def test_again_after_a_while(
    one: FakeRegistry, two: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G18: a debt may have been dropped."""
    one.set(signed(b"x", 3))
    async with repairing(ledger, one, two) as made:
        await made.entries.read(ref())
        await made.paid()
        await trio.sleep(REPAIR_TIME + 1)
        await made.entries.read(ref())
        assert await made.owed() == [(two.url, signed(b"x", 3))]


async def test_equal_revisions(one: FakeRegistry, two: FakeRegistry, ledger: Ledger):
    """G18: of one revision the registry's own rule decides."""
    less, more, most, _ = by_work(3)
    one.set(less)
    two.set(most)
    async with repairing(ledger, one, two) as made:
        assert (await made.entries.read(ref())).signed == most
        assert await made.owed() == [(one.url, most)]
    assert more not in one.ever


async def test_last_revision(one: FakeRegistry, two: FakeRegistry, ledger: Ledger):
    """G18: of the last possible revision it is the one that was seen first."""
    one.set(signed(b"one", MAX_REVISION))
    two.set(signed(b"two", MAX_REVISION))
    two.faults = ["slowly"]
    async with repairing(ledger, one, two) as made:
        for _ in range(3):
            assert (await made.entries.read(ref())).data == b"one"


class BrokenLedger(Ledger):
    """Knows nothing of entries."""

    def newest_entry(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        raise StorageError("the ledger is broken")


async def test_broken_ledger(
    one: FakeRegistry, two: FakeRegistry, ledger: Ledger, caplog: pytest.LogCaptureFixture
):
    """G18: a ledger that fails harms no read."""
    caplog.set_level("INFO")
    one.set(signed(b"x", 3))
    async with repairing(BrokenLedger(ledger.path), one, two) as made:
        for _ in range(2):
            assert (await made.entries.read(ref())).data == b"x"
        assert await made.owed() == []
        made.ledger.close()
    assert "the ledger is broken" in caplog.text

"""What waits for a portal, and is sent by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar, TypeVarTuple

import pytest
import trio

from skymount.errors import PortalError
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.registry.spool_retry import FIRST_PAUSE, LAST_PAUSE, SpoolRetry
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DELETED, Entry, hash_data_key
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import PAIR
from tests.portal.registry.entries import Inline, held, ref, signed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def pair_of(public_key: bytes) -> SigningKeyPair | None:
    return PAIR if public_key == PAIR.public_key else None


@asynccontextmanager
async def running(ledger: Ledger, *registries: FakeRegistry) -> AsyncIterator[VerifiedRegistry]:
    """Have a mount's entries, of which what waits is sent."""
    entries = VerifiedRegistry(portals_of(registries), ledger, fresh=0)
    entries.marks = Inline(ledger)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(SpoolRetry(entries, ledger, pair_of).run)
        yield entries
        nursery.cancel_scope.cancel()


async def fail(entries: VerifiedRegistry, data: bytes, name: str = "a") -> None:
    with pytest.raises(PortalError):
        await entries.write(ref(name), PAIR, data, None)


async def until_sent(ledger: Ledger) -> None:
    """Wait until nothing waits any more."""
    with trio.fail_after(10 * LAST_PAUSE):
        while unsent(ledger):
            await trio.sleep(0.1)


@pytest.mark.parametrize("faults", [[""], []])
async def test_what_waits_is_sent_once_a_portal_answers(
    faults: list[str | float], ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: signed or not; at most 30 s after that answers; posted once."""
    async with running(ledger, one) as entries:
        one.faults, one.always = [*faults], "down"
        await fail(entries, b"first")
        await fail(entries, b"second", "b")
        await trio.sleep(1000)
        assert len(unsent(ledger)) == 2
        one.always = ""
        begun = trio.current_time()
        await until_sent(ledger)
        assert trio.current_time() - begun < LAST_PAUSE + 1
        await trio.sleep(1000)
    assert [each.entry.data for each in one.ever] == [b"first", b"second"]
    assert len(one.posts) == 2


async def test_what_waits_for_one_portal_is_sent_together(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: a portal that answers gets all of it, without a pause after each."""
    async with running(ledger, one) as entries:
        one.always = "down"
        for name in "abcde":
            await fail(entries, b"data", name)
        await trio.sleep(1000)
        one.always = ""
        while not one.ever:
            await trio.sleep(0.1)
        await trio.sleep(FIRST_PAUSE / 2)
        assert unsent(ledger) == []
    assert len(one.posts) == 5


async def test_pauses_grow(ledger: Ledger, one: FakeRegistry, autojump_clock: object) -> None:
    """A portal that is away is tried once in a while, with one entry, and soon after something was
    kept.
    """
    async with running(ledger, one) as entries:
        one.always = "down"
        await fail(entries, b"x")
        await fail(entries, b"z", "c")
        asked = one.requests
        await trio.sleep(FIRST_PAUSE * 1.5)
        assert one.requests == asked + 1
        await trio.sleep(3600)
        tries = one.requests - asked
        assert 3600 / LAST_PAUSE <= tries <= 3600 / LAST_PAUSE + 10
        await fail(entries, b"y", "b")
        asked = one.requests
        await trio.sleep(2 * LAST_PAUSE)
        assert asked < one.requests <= asked + 4


async def test_what_is_there_supersedes_what_was_written_before(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: of each entry only what was written last, also if that is what the entry has."""
    one.set(signed(b"old", 0))
    async with running(ledger, one) as entries:
        await entries.read(ref())
        one.always = "down"
        await fail(entries, b"new")
        await fail(entries, b"old")
        one.always = ""
        await until_sent(ledger)
        await trio.sleep(100)
    assert one.ever[-1].entry.data == b"old"
    assert b"new" not in [each.entry.data for each in one.ever]


async def test_what_is_written_while_the_retry_waits_for_it(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: of each entry only the last write is sent."""
    one.set(signed(b"old", 0))
    async with running(ledger, one) as entries:
        await entries.read(ref())
        one.always = "deaf"
        await fail(entries, b"first")
        one.faults = [2 * FIRST_PAUSE]  # its GET holds the lock when the retry begins
        await fail(entries, b"second")
        one.always = ""
        await until_sent(ledger)
        await trio.sleep(100)
    assert [each.entry.data for each in one.ever] == [b"old", b"second"]


@pytest.mark.parametrize("fault", ["denied", "missing"])
async def test_what_is_refused_is_not_sent_again(
    fault: str, ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: what failed because no portal answered; other failures wait for somebody to say so."""
    async with running(ledger, one) as entries:
        one.always = "down"
        await fail(entries, b"x")
        one.always = "denied"
        await trio.sleep(100)
        asked = one.requests
        await trio.sleep(3600)
        assert one.requests == asked
        (left,) = unsent(ledger)
        assert (left.status, left.data) == (Status.FAILED, b"x")


@pytest.mark.parametrize("faults", [[""], []])
async def test_somebody_else_s_newer_entry_stays(
    faults: list[str | float],
    ledger: Ledger,
    one: FakeRegistry,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: object,
) -> None:
    """G12: nothing that somebody else has changed meanwhile is overwritten; it stays in the list.

    Not even an entry of the revision that was signed here, whichever has more work.
    """
    for number in range(4):
        async with running(ledger, one) as entries:
            name = str(number)
            one.set(signed(b"old", 0, name))
            await entries.read(ref(name))
            one.faults, one.always = [*faults], "down"
            await fail(entries, b"ours", name)
            one.set(signed(b"theirs %d" % number, 1, name))
            one.always = ""
            await trio.sleep(100)
        latest = one.latest(PAIR.public_key, hash_data_key(name))
        assert latest is not None
        assert latest.entry.data.startswith(b"theirs")
        assert unsent(ledger)[-1].status is Status.FAILED
    assert one.posts == []
    assert len(unsent(ledger)) == 4
    assert "is not sent by itself: the entry was changed since" in caplog.text


async def test_what_was_there_unknown_to_all_is_a_conflict(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: what was written while nothing was known of an entry that turns out to be there."""
    one.set(signed(b"theirs", 0))
    async with running(ledger, one) as entries:
        one.always = "down"
        await fail(entries, b"ours")
        one.always = ""
        await trio.sleep(100)
    assert [each.status for each in unsent(ledger)] == [Status.CONFLICT]
    assert one.posts == []


async def test_it_goes_to_the_portals_that_it_was_for(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
) -> None:
    """G12: to a portal for which it was written and no other; nor where that is not known."""
    held(ledger, b"x")
    held(ledger, b"y", "b", portals=[])
    async with running(ledger, two):
        await trio.sleep(1000)
        assert two.requests == 0
    async with running(ledger, two, one):
        await trio.sleep(1000)
    assert two.requests == 0
    assert [each.entry.data for each in one.ever] == [b"x"]
    assert [each.data for each in unsent(ledger)] == [b"y"]


async def test_two_mounts_post_once(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: by one of the mounts. Here the ledger takes both for processes of their own."""
    other = Ledger(ledger.path, process=1)
    for number in range(5):
        held(ledger, b"x", str(number))
    one.faults = [0.5] * 100
    async with running(ledger, one), running(other, one):
        await until_sent(ledger)
        await trio.sleep(100)
    assert len(one.posts) == len(one.ever) == 5
    other.close()


async def test_deletion_that_waits_is_sent(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: also of an entry that was to be removed."""
    one.set(signed(b"x", 0))
    async with running(ledger, one) as entries:
        one.faults, one.always = [""], "down"
        with pytest.raises(PortalError):
            await entries.delete(ref(), PAIR)
        one.always = ""
        await until_sent(ledger)
    latest = one.latest(PAIR.public_key, ref().tweak)
    assert latest is not None
    assert latest.entry.data == DELETED


async def test_without_the_key_what_is_not_signed_waits(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: the key may be there again tomorrow; what is signed needs none."""
    stranger = SigningKeyPair.from_seed("no key of ours")
    key = (stranger.public_key, hash_data_key("a"), "a")
    ledger.add_unsigned(*key, b"x", "down", portals=[one.url], status=Status.WAITING)
    made = Entry(hash_data_key("b"), b"y", 0).sign(stranger.private_key)
    ledger.mark_failed(
        ledger.claim_revision(made, "b", portals=[one.url]), "down", Status.WAITING
    )
    async with running(ledger, one):
        await trio.sleep(1000)
    assert one.ever == [made]
    assert [(each.data, each.status) for each in unsent(ledger)] == [
        (b"x", Status.WAITING)
    ]


async def test_a_portal_that_hangs_is_given_up_in_time(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
) -> None:
    """Who writes to the entry meanwhile does not wait for long; others are sent all the same."""
    held(ledger, b"x")
    held(ledger, b"y", "b", portals=[two.url])
    one.always = "hang"
    async with running(ledger, one, two) as entries:
        await trio.sleep(20)
        assert [each.entry.data for each in two.ever] == [b"y"]
        one.always = ""
        assert (await entries.write(ref(), PAIR, b"new", None)).data == b"new"
        await trio.sleep(100)
        assert unsent(ledger) == []
        assert one.ever[-1].entry.data == b"new"

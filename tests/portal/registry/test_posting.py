"""Posting an entry to several portals (G19)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from skymount.errors import PortalError, ReadOnlyPortalError, StaleEntryError, UnavailableError
from skymount.policies import WritePolicy
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.registry_entry import SignedEntry
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import KEY, PAIR, by_work, owed, unsent
from tests.portal.registry.entries import Inline, among, pending, ref, signed

ALL, MAJORITY = WritePolicy.ALL, WritePolicy.MAJORITY


@asynccontextmanager
async def mounted(
    ledger: Ledger,
    *registries: FakeRegistry,
    policy: WritePolicy = WritePolicy.ANY,
    fresh: float = 0,
) -> AsyncIterator[VerifiedRegistry]:
    """Have a mount's registry, which may leave posts behind."""
    async with trio.open_nursery() as nursery:
        portals = replace(portals_of(registries), background=nursery)
        entries = VerifiedRegistry(portals, ledger, fresh=fresh, policy=policy)
        entries.marks = Inline(ledger)
        yield entries
        nursery.cancel_scope.cancel()


@pytest.fixture
def three() -> FakeRegistry:
    return FakeRegistry(3)


def at(portal: FakeRegistry, name: str = "a") -> bytes | None:
    found = portal.latest(KEY, ref(name).tweak)
    return None if found is None else found.entry.data


def debts(ledger: Ledger) -> list[tuple[str, bytes, int]]:
    return [(each.portals[0], each.data, each.entry.revision) for each in owed(ledger)]


async def test_write_goes_to_all(
    ledger: Ledger,
    one: FakeRegistry,
    two: FakeRegistry,
    three: FakeRegistry,
    autojump_clock: object,
):
    """The same bytes, once each; nobody is owed anything."""
    async with mounted(ledger, one, two, three) as entries:
        await entries.write(ref(), PAIR, b"x", None)
        assert one.posts == two.posts == three.posts == [signed(b"x", 0)]
        assert debts(ledger) == []
        assert pending(ledger) == []


@pytest.mark.parametrize("fault", ["down", "denied", "slow", "deaf", "lost"])
async def test_one_portal_is_enough(
    fault: str,
    ledger: Ledger,
    one: FakeRegistry,
    two: FakeRegistry,
    three: FakeRegistry,
    autojump_clock: object,
):
    """With `any` the write is done; the others are owed it, with the reason."""
    one.always = three.always = fault
    async with mounted(ledger, one, two, three) as entries:
        state = await entries.write(ref(), PAIR, b"x", None)
        assert state.data == at(two) == b"x"
        assert set(debts(ledger)) == {(one.url, b"x", 0), (three.url, b"x", 0)}
        assert pending(ledger) == []
        assert all(each.reason for each in owed(ledger))


async def test_read_only_portal_is_owed_nothing(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
):
    """W2: it is as if it were not there."""
    other = FakeRegistry(2, read_only=True)
    async with mounted(ledger, one, other, policy=ALL) as entries:
        await entries.write(ref(), PAIR, b"x", None)
        assert other.posts == []
        assert debts(ledger) == []
    async with mounted(ledger, other) as entries:
        with pytest.raises(ReadOnlyPortalError):
            await entries.write(ref(), PAIR, b"y", None)
        assert other.posts == []


@pytest.mark.parametrize(("policy", "down"), [(MAJORITY, 2), (ALL, 1)])
async def test_too_few_took_it(
    policy: WritePolicy,
    down: int,
    ledger: Ledger,
    one: FakeRegistry,
    two: FakeRegistry,
    three: FakeRegistry,
    autojump_clock: object,
):
    """The write fails, says how many took it, and stays in the outbox for all portals."""
    for each in (three, two)[:down]:
        each.always = "deaf"
    async with mounted(ledger, one, two, three, policy=policy) as entries:
        with pytest.raises(UnavailableError, match=rf"{3 - down} of 3 portals took it"):
            await entries.write(ref(), PAIR, b"x", None)
        (left,) = unsent(ledger)
        assert left.status is Status.WAITING
        assert left.portals == (one.url, two.url, three.url)
        assert owed(ledger) == []
        two.always = three.always = ""
        await trio.sleep(120)
        chosen = among(entries, left.portals)
        assert (await entries.send(left, among=chosen)).revision == 0
        assert at(one) == at(two) == at(three) == b"x"
        assert {len({post.signature for post in each.posts}) for each in (one, two, three)} == {1}
        assert unsent(ledger) == []


async def test_late_post_is_recorded(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Nobody waits for a late portal, which is owed the entry until it says that it has it."""
    async with mounted(ledger, one, two, fresh=3600) as entries:
        await entries.write(ref(), PAIR, b"w", None)
        woken = []
        entries.posting.on_pending = lambda: woken.append(True)
        two.faults = [3.0]
        begun = trio.current_time()
        await entries.write(ref(), PAIR, b"x", None)
        assert trio.current_time() - begun < 2
        (debt,) = owed(ledger)
        assert (debt.portals[0], debt.is_posting) == (two.url, True)
        await trio.sleep(5)
        assert owed(ledger) == []
        assert at(two) == b"x"
        two.faults = ["hang"]
        begun = trio.current_time()
        await entries.write(ref(), PAIR, b"y", None)
        assert trio.current_time() - begun < 0.1
        await trio.sleep(60)
        (debt,) = owed(ledger)
        assert (debt.attempts, debt.is_posting) == (1, False)
        assert "in time" in debt.reason
        assert woken


async def test_nothing_goes_on_after_a_write_that_was_cancelled(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Also if enough portals had it, and another one was waited for."""
    async with mounted(ledger, one, two, fresh=3600) as entries:
        await entries.write(ref(), PAIR, b"w", None)
        two.faults = [3.0]
        with trio.move_on_after(0.5):
            await entries.write(ref(), PAIR, b"x", None)
        await trio.sleep(60)
        assert at(one) == b"x"
        assert at(two) == b"w"


async def test_new_entry_while_a_portal_is_down(
    ledger: Ledger,
    one: FakeRegistry,
    two: FakeRegistry,
    three: FakeRegistry,
    autojump_clock: object,
):
    """Enough portals must say that there is none yet."""
    three.always = "down"
    async with mounted(ledger, one, two, three, policy=MAJORITY) as entries:
        await entries.write(ref(), PAIR, b"x", None)
        assert at(one) == at(two) == b"x"
        await trio.sleep(120)
        two.always = "down"
        with pytest.raises(UnavailableError):
            await entries.write(ref("b"), PAIR, b"x", None)
        assert one.latest(KEY, ref("b").tweak) is None


async def test_newer_entry_at_one_portal_is_a_conflict(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """G10: a rewrite takes a revision above it, at all portals; an edit is refused."""
    two.set(signed(b"theirs", 4))
    one.set(signed(b"old", 1))
    async with mounted(ledger, one, two) as entries:
        one_state = await entries.ask(ref(), among=among(entries, [one.url]))
        with pytest.raises(StaleEntryError):
            await entries.write(ref(), PAIR, b"edit", one_state)
        state = await entries.write(ref(), PAIR, b"whole", None)
        assert state.revision == 5
        assert at(one) == at(two) == b"whole"
        assert owed(ledger) == []


async def test_claimed_conflict_is_not_believed(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """A portal that refuses a post as outdated and shows nothing newer has failed."""
    two.set(signed(b"theirs", 4))
    two.always = "stale"  # it shows nothing
    one.set(signed(b"old", 1))
    async with mounted(ledger, one, two) as entries:
        assert (await entries.write(ref(), PAIR, b"x", None)).revision == 2
        ((url, data, revision),) = debts(ledger)
        assert (url, data, revision) == (two.url, b"x", 2)
        assert "without having a newer one" in owed(ledger)[0].reason


async def test_equal_revisions_are_decided_by_work(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """A portal takes the one with less work in place of the other."""
    first, *_, last = by_work(0)
    two.set(first)
    async with mounted(ledger, one, two) as entries:
        assert await entries.posting.post(entries.portals, last) is not None
        assert one.ever == [last]
        assert two.ever == [first, last]
        assert await entries.posting.post(entries.portals, first) is None


async def test_portal_without_the_content_is_owed_both(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """The entry is not posted where what it leads to is missing."""
    async with mounted(ledger, one, two) as entries:
        await entries.write(ref(), PAIR, b"x", None, lacking=[two.url])
        assert two.posts == []
        (debt,) = owed(ledger)
        assert (debt.portals[0], bool(debt.lacking)) == (two.url, True)
        with pytest.raises(PortalError):
            await entries.write(ref(), PAIR, b"y", None, lacking=[one.url, two.url])


async def test_write_again_pays_what_was_owed(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """A later write takes the place of what a portal was owed, or pays it."""
    two.always = "deaf"
    async with mounted(ledger, one, two) as entries:
        await entries.write(ref(), PAIR, b"x", None)
        await trio.sleep(120)
        await entries.write(ref(), PAIR, b"y", None)
        assert debts(ledger) == [(two.url, b"y", 1)]
        two.always = ""
        await trio.sleep(120)
        await entries.write(ref(), PAIR, b"z", None)
        assert debts(ledger) == []
        assert at(two) == b"z"


async def test_interrupted_write_is_sent_to_all_later(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """The process ended after one portal took it: it is pending, with the same signature."""
    async with mounted(ledger, one, two, policy=ALL, fresh=3600) as entries:
        await entries.write(ref(), PAIR, b"w", None)
        two.faults = ["hang"]
        with trio.move_on_after(5):
            await entries.write(ref(), PAIR, b"x", None)
        assert (at(one), at(two)) == (b"x", b"w")
        (left,) = unsent(ledger)
        await entries.send(left, PAIR)
        posts: list[SignedEntry] = one.posts + two.posts
        assert {post.signature for post in posts if post.entry.data == b"x"} == {
            signed(b"x", 1).signature
        }
        assert at(one) == at(two) == b"x"
        assert owed(ledger) == unsent(ledger) == []


@pytest.mark.parametrize("is_signed", [True, False])
async def test_retry_remembers_who_lacks_the_content(
    ledger: Ledger,
    one: FakeRegistry,
    two: FakeRegistry,
    autojump_clock: object,
    is_signed: bool,
):
    """W4: the entry goes to those that have its content; the others are owed both then."""
    one.always = "deaf" if is_signed else "down"
    async with mounted(ledger, one, two) as entries:
        two.always = "" if is_signed else "down"
        with pytest.raises(UnavailableError):
            await entries.write(ref(), PAIR, b"x", None, lacking=[two.url])
        one.always = two.always = ""
        (left,) = unsent(ledger)
        assert (left.signed is not None) == is_signed
        assert (left.portals, left.lacking) == ((one.url,), (two.url,))
        chosen = among(entries, left.portals) if is_signed else None
        await trio.sleep(120)
        await entries.send(left, PAIR, among=chosen)
        assert (at(one), two.posts) == (b"x", [])
        (debt,) = owed(ledger)
        assert (debt.portals[0], bool(debt.lacking), debt.is_own) == (two.url, True, True)
        assert unsent(ledger) == []


async def test_content_that_is_written_again_is_owed(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """W4 holds also if the entry need not be posted."""
    one.set(signed(b"old", 0))
    async with mounted(ledger, one, two) as entries:
        base = await entries.read(ref())
        one.set(signed(b"x", 1))
        await entries.write(ref(), PAIR, b"x", base, lacking=[two.url])
        (debt,) = owed(ledger)
        assert (debt.portals[0], bool(debt.lacking)) == (two.url, True)

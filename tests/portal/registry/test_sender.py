"""What is sent by itself: what portals are owed (G19), and what waits for one (G12)."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace

import pytest
import trio

from skymount.errors import PortalError, StaleEntryError, StorageError, UnavailableError
from skymount.policies import WritePolicy
from skymount.portal.client.base import PortalReader
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.registry.sender import FIRST_PAUSE, LAST_PAUSE, Sender
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DELETED, hash_data_key
from skymount.wire.skylink import Skylink
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import KEY, PAIR, owed, unsent
from tests.portal.registry.entries import Inline, held, ref, signed

LINK = Skylink.v1(bytes(range(32)), 4096)


class SendContent:
    """Content that is sent, unless a failure is set."""

    def __init__(self) -> None:
        self.sent: list[tuple[Skylink, str]] = []
        self.failure: Exception | None = None

    async def __call__(self, skylink: Skylink, portal: PortalReader) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.sent.append((skylink, portal.url))


@asynccontextmanager
async def running(
    ledger: Ledger,
    *registries: FakeRegistry,
    send_content: SendContent | None = None,
    policy: WritePolicy = WritePolicy.ANY,
    fresh: float = 3600,
) -> AsyncIterator[tuple[VerifiedRegistry, Sender]]:
    async with trio.open_nursery() as nursery:
        portals = replace(portals_of(registries), background=nursery)
        entries = VerifiedRegistry(portals, ledger, fresh=fresh, policy=policy)
        entries.marks = Inline(ledger)
        sender = Sender(entries, ledger, pair_of=pair_of, send_content=send_content)
        nursery.start_soon(sender.run)
        yield entries, sender
        nursery.cancel_scope.cancel()


async def pair_of(public_key: bytes) -> SigningKeyPair | None:
    return PAIR if public_key == PAIR.public_key else None


def at(portal: FakeRegistry, name: str = "a") -> bytes | None:
    found = portal.latest(KEY, ref(name).tweak)
    return None if found is None else found.entry.data


async def until(is_so: Callable[[], object], limit: float = 3600) -> float:
    """Wait until something holds; return how long that took."""
    begun = trio.current_time()
    with trio.fail_after(limit):
        while not is_so():
            await trio.sleep(0.1)
    return trio.current_time() - begun


@pytest.fixture
def ledger(ledger: Ledger) -> Iterator[Ledger]:
    """A ledger by trio's clock."""
    with closing(Ledger(ledger.path, trio.current_time)) as by_trio:
        yield by_trio


async def test_owed_entry_is_sent_when_the_portal_is_back(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Soon after, if it was not away for long; nothing else is owed then."""
    two.always = "down"
    async with running(ledger, one, two) as (entries, sender):
        for name in ("a", "b", "c"):
            await entries.write(ref(name), PAIR, b"x", None)
        await until(lambda: sender.totals and sender.totals[0].count == 3)
        assert [(each.portal, each.count) for each in sender.totals] == [(two.url, 3)]
        await trio.sleep(3)
        two.always = ""
        assert await until(lambda: not owed(ledger)) < 10
        assert [at(two, name) for name in ("a", "b", "c")] == [b"x"] * 3
        await until(lambda: not sender.totals)


async def test_what_too_few_took_is_sent_when_the_portal_is_back(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """The retry finds it at the other portal: it is owed then, and sent as soon."""
    async with running(ledger, one, two, policy=WritePolicy.ALL) as (entries, _):
        await entries.write(ref(), PAIR, b"old", None)
        two.always = "down"
        with pytest.raises(UnavailableError):
            await entries.write(ref(), PAIR, b"x", None)
        await until(lambda: owed(ledger))
        assert not unsent(ledger)
        two.always = ""
        assert await until(lambda: not owed(ledger)) < 10
        assert at(one) == at(two) == b"x"


async def test_pauses_grow(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """A portal that is away is tried once in a while, with one entry."""
    two.always = "down"
    async with running(ledger, one, two) as (entries, _):
        for name in ("a", "b", "c"):
            await entries.write(ref(name), PAIR, b"x", None)
        await trio.sleep(3600)
        asked = two.requests
        await trio.sleep(3600)
        assert 3600 / LAST_PAUSE - 2 <= two.requests - asked <= 3600 / LAST_PAUSE


async def test_portal_that_answers_others_is_tried_again(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """The pause of a portal that was silent ends when it answers somebody."""
    two.always = "down"
    async with running(ledger, one, two) as (entries, _):
        await entries.write(ref(), PAIR, b"x", None)
        await trio.sleep(3600)
        two.always = ""
        second = entries.portals.clients[1]
        entries.portals.health(second).gave_sign(trio.current_time() + 1)
        assert await until(lambda: at(two)) < 70


async def test_superseded_entries_are_not_sent(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Only the last one of each entry."""
    two.always = "down"
    async with running(ledger, one, two) as (entries, _):
        for data in (b"x", b"y", b"z"):
            await entries.write(ref(), PAIR, data, None)
        two.posts.clear()
        two.always = ""
        await until(lambda: not owed(ledger))
        assert {each.entry.data for each in two.posts} == {b"z"}


async def test_portal_with_something_newer_is_owed_nothing(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """What it has is recorded."""
    async with running(ledger, one, two) as (entries, _):
        two.set(signed(b"theirs", 7))
        ledger.owe(signed(b"x", 3), "a", [two.url], "down")
        entries.wake_senders()
        await until(lambda: not owed(ledger))
        assert at(two) == b"theirs"
        assert ledger.newest_entry(KEY, ref().tweak) == signed(b"theirs", 7)


async def test_refused_entry_holds_up_no_other(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """It is tried again with growing pauses of its own."""
    async with running(ledger, one, two) as (entries, _):
        two.faults = ["denied"]
        ledger.owe(signed(b"x", 1), "a", [two.url], "down")
        entries.wake_senders()
        await until(lambda: two.requests)
        ledger.owe(signed(b"y", 1, "b"), "b", [two.url], "down")
        entries.wake_senders()
        assert await until(lambda: at(two, "b")) < 1
        await until(lambda: at(two))
        assert owed(ledger) == []


async def test_content_goes_first(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """The entry is not posted before its content is there; a failure of that is the reason."""
    send_content = SendContent()
    send_content.failure = UnavailableError("no room")
    async with running(ledger, one, two, send_content=send_content) as (entries, _):
        await entries.write(ref(), PAIR, bytes(LINK), None, lacking=[two.url])
        await trio.sleep(10)
        assert two.posts == []
        assert "no room" in owed(ledger)[0].reason
        send_content.failure = None
        await until(lambda: not owed(ledger), 100)
        assert send_content.sent == [(LINK, two.url)]
        assert at(two) == bytes(LINK)


async def test_without_means_content_waits(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Nothing is posted, and the entry stays owed."""
    async with running(ledger, one, two) as (entries, sender):
        await entries.write(ref(), PAIR, bytes(LINK), None, lacking=[two.url])
        await trio.sleep(1000)
        assert two.posts == []
        (debt,) = owed(ledger)
        assert 3 < debt.attempts < 15
        with pytest.raises(StorageError, match="content"):
            await sender.send_owed(entries.portals.clients[1], debt)


async def test_what_a_dead_process_was_posting_is_sent(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Soon after the start of a mount."""
    dead = Ledger(ledger.path, trio.current_time, process=2**22 + 1)
    dead.owe(signed(b"x", 1), "a", [two.url], "down")
    assert dead.begin_owed(signed(b"x", 1), two.url)
    dead.close()
    async with running(ledger, one, two):
        assert await until(lambda: at(two)) < 5


async def test_damaged_entry_is_not_sent(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Its signature is checked before it leaves the machine."""
    wrong = replace(signed(b"x", 1), signature=bytes(64))
    async with running(ledger, one, two) as (entries, _):
        ledger.owe(wrong, "a", [two.url], "down")
        entries.wake_senders()
        await until(lambda: owed(ledger)[0].attempts)
        assert two.posts == []
        assert "damaged" in owed(ledger)[0].reason


async def test_read_only_portal_and_others_are_sent_nothing(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
):
    """W2; and what is owed to portals that this mount does not use waits for another one."""
    other = FakeRegistry(2, read_only=True)
    ledger.owe(signed(b"x", 1), "a", [other.url, "http://elsewhere.invalid"], "down")
    async with running(ledger, one, other) as (_, sender):
        await trio.sleep(1000)
        assert other.posts == []
        assert len(sender.totals) == 2


async def test_one_entry_that_always_fails_keeps_no_other_back(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Its content cannot be sent; what is owed after it goes to the portal all the same."""
    send_content = SendContent()
    send_content.failure = UnavailableError("no room")
    async with running(ledger, one, two, send_content=send_content) as (entries, _):
        await entries.write(ref(), PAIR, bytes(LINK), None, lacking=[two.url])
        await trio.sleep(100)
        two.always = "down"
        await entries.write(ref("b"), PAIR, b"b", None)
        await entries.write(ref("c"), PAIR, b"c", None)
        two.always = ""
        await until(lambda: at(two, "b") and at(two, "c"), 1000)
        assert [debt.data_key for debt in owed(ledger)] == ["a"]


async def test_a_write_that_was_kept_is_owed_to_portals_that_are_not_in_use(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """It was kept for two portals, and a mount of one of them sends it."""
    one.always = two.always = "down"
    async with running(ledger, one, two) as (entries, _):
        with pytest.raises(UnavailableError):
            await entries.write(ref(), PAIR, b"x", None)
    one.always = two.always = ""
    async with running(ledger, one) as (entries, _):
        (pending,) = unsent(ledger)
        await entries.send(pending, PAIR)
        assert (at(one), at(two), unsent(ledger)) == (b"x", None, [])
        assert [debt.portals[0] for debt in owed(ledger)] == [two.url]
    async with running(ledger, one, two):
        await until(lambda: at(two))


async def test_content_that_takes_long_keeps_no_entry_back(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """An entry without content is posted while the content of another one is sent."""

    class Slowly(SendContent):
        async def __call__(self, skylink: Skylink, portal: PortalReader) -> None:
            await trio.sleep(7200)

    async with running(ledger, one, two, send_content=Slowly()) as (entries, _):
        await entries.write(ref(), PAIR, bytes(LINK), None, lacking=[two.url])
        await trio.sleep(10)
        ledger.owe(signed(b"b", 1, "b"), "b", [two.url], "down")
        entries.wake_senders()
        assert await until(lambda: at(two, "b")) < 60


async def test_write_that_is_older_than_what_the_portal_has_is_kept(
    ledger: Ledger,
    one: FakeRegistry,
    two: FakeRegistry,
    autojump_clock: object,
    caplog: pytest.LogCaptureFixture,
):
    """It was acknowledged while that portal was away, so it is not lost without a word."""
    async with running(ledger, one, two) as (entries, _):
        await entries.write(ref(), PAIR, b"base", None)
        two.always = "down"
        await entries.write(ref(), PAIR, b"mine", None)
        two.set(signed(b"theirs", 7))
        two.always = ""
        await until(lambda: at(one) == b"mine" and not owed(ledger, [two.url]))
        (kept,) = unsent(ledger)
        assert (kept.data, kept.status) == (b"mine", Status.CONFLICT)
        assert "revision 7 won, which http://p2.invalid has" in kept.reason
        (line,) = [each for each in caplog.records if "revision 7 won" in each.message]
        assert (line.levelname, str(ref()) in line.message) == ("WARNING", True)
        with pytest.raises(StaleEntryError):
            await entries.send(kept, PAIR)
        assert [each.status for each in unsent(ledger)] == [Status.CONFLICT]
        await entries.send(kept, PAIR, overwrite=True)
        assert at(one) == at(two) == b"mine"
        assert ledger.pending() == []


async def test_deletion_that_is_older_than_what_the_portal_has_is_a_warning(
    ledger: Ledger,
    one: FakeRegistry,
    two: FakeRegistry,
    autojump_clock: object,
    caplog: pytest.LogCaptureFixture,
):
    """Nothing is kept of it: there is no content."""
    async with running(ledger, one, two) as (entries, _):
        await entries.write(ref(), PAIR, b"base", None)
        two.always = "down"
        await entries.delete(ref(), PAIR)
        two.set(signed(b"theirs", 7))
        two.always = ""
        await until(lambda: not owed(ledger, [two.url]))
        assert "the deletion of revision 1 was made" in caplog.text
        assert unsent(ledger) == []


async def test_write_that_somebody_replaced_where_it_was_taken_is_no_conflict(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """The other program saw it there, as far as anybody can tell."""
    async with running(ledger, one, two) as (entries, _):
        two.always = "down"
        await entries.write(ref(), PAIR, b"mine", None)
        for portal in (one, two):
            portal.set(signed(b"theirs", 7))
        two.always = ""
        await until(lambda: not owed(ledger))
        assert unsent(ledger) == []


@pytest.mark.parametrize("data", [b"mine", b"other"])
async def test_read_finds_a_conflict_too(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object, data: bytes
):
    """Whoever learns first what the portal has keeps the write; the same content is none."""
    two.always = "down"
    async with running(ledger, one, two) as (entries, _):
        await entries.write(ref(), PAIR, b"mine", None)
    two.always = ""
    two.set(signed(data, 7))
    reader = VerifiedRegistry(portals_of([one, two]), ledger)
    reader.marks = Inline(ledger)
    assert (await reader.read(ref())).data == data
    assert [each.data for each in unsent(ledger)] == ([b"mine"] if data == b"other" else [])


async def test_repair_of_what_others_wrote_is_no_conflict(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """Only the writes of this machine are kept."""
    async with running(ledger, one, two) as (entries, _):
        two.set(signed(b"newer", 7))
        ledger.owe(signed(b"theirs", 3), "a", [two.url], "behind")
        entries.wake_senders()
        await until(lambda: not owed(ledger))
        assert unsent(ledger) == []


async def test_later_write_stands_for_the_one_before(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """A rewrite that meets something newer takes the next revision; nothing else is kept."""
    two.always = "down"
    entries = VerifiedRegistry(portals_of([one, two]), ledger, fresh=3600)
    entries.marks = Inline(ledger)
    await entries.write(ref(), PAIR, b"mine", None)
    assert [each.is_own for each in owed(ledger)] == [True]
    await trio.sleep(120)
    two.always = ""
    two.set(signed(b"theirs", 7))
    await entries.write(ref(), PAIR, b"again", None)
    assert at(one) == at(two) == b"again"
    assert ledger.pending() == []


# --- writes that no portal took


@asynccontextmanager
async def waiting(ledger: Ledger, *registries: FakeRegistry) -> AsyncIterator[VerifiedRegistry]:
    """Have a mount's entries, of which what waits is sent."""
    async with running(ledger, *registries, fresh=0) as (entries, _):
        yield entries


async def fail(entries: VerifiedRegistry, data: bytes, name: str = "a") -> None:
    with pytest.raises(PortalError):
        await entries.write(ref(name), PAIR, data, None)


async def until_sent(ledger: Ledger) -> None:
    """Wait until nothing waits any more."""
    with trio.fail_after(10 * LAST_PAUSE):
        while ledger.pending():
            await trio.sleep(0.1)


@pytest.mark.parametrize("faults", [[""], []])
async def test_what_waits_is_sent_once_a_portal_answers(
    faults: list[str | float], ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: signed or not; at most 30 s after that answers; posted once."""
    async with waiting(ledger, one) as entries:
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
    assert {each.entry.data for each in one.ever} == {b"first", b"second"}
    assert len(one.posts) == 2


async def test_what_waits_for_one_portal_is_sent_together(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: a portal that answers gets all of it, without a pause after each."""
    async with waiting(ledger, one) as entries:
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


async def test_pauses_grow_while_a_write_waits(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """A portal that is away is tried once in a while, with one entry, and soon after something was
    kept.
    """
    async with waiting(ledger, one) as entries:
        one.always = "down"
        await fail(entries, b"x")
        await fail(entries, b"z", "c")
        asked = one.requests
        await trio.sleep(FIRST_PAUSE * 1.5)
        assert asked < one.requests <= asked + 2
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
    async with waiting(ledger, one) as entries:
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
    async with waiting(ledger, one) as entries:
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
    async with waiting(ledger, one) as entries:
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
        async with waiting(ledger, one) as entries:
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
    async with waiting(ledger, one) as entries:
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
    async with waiting(ledger, two):
        await trio.sleep(1000)
        assert two.requests == 0
    async with waiting(ledger, two, one):
        await trio.sleep(1000)
    assert two.requests == 0
    assert [each.entry.data for each in one.ever] == [b"x"]
    assert [each.data for each in unsent(ledger)] == [b"y"]


async def test_two_mounts_post_once(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: by one of the mounts. Here the ledger takes both for processes of their own."""
    other = Ledger(ledger.path, trio.current_time, process=1)
    for number in range(5):
        held(ledger, b"x", str(number))
    one.faults = [0.5] * 100
    async with waiting(ledger, one), waiting(other, one):
        await until_sent(ledger)
        await trio.sleep(100)
    assert len(one.posts) == len(one.ever) == 5
    other.close()


async def test_deletion_that_waits_is_sent(
    ledger: Ledger, one: FakeRegistry, autojump_clock: object
) -> None:
    """G12: also of an entry that was to be removed."""
    one.set(signed(b"x", 0))
    async with waiting(ledger, one) as entries:
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
    entry = EntryId(stranger.public_key, hash_data_key("a"), "a")
    waits = Status.WAITING
    ledger.keep(entry, b"x", "down", portals=[one.url], status=waits)
    other = EntryId(stranger.public_key, hash_data_key("b"), "b")
    write = ledger.claim(other, stranger, b"y", -1, [one.url])
    ledger.fail(write.id, "down", waits)
    async with waiting(ledger, one):
        await trio.sleep(1000)
    assert one.ever == [write.signed]
    assert [(each.data, each.status) for each in unsent(ledger)] == [(b"x", Status.WAITING)]


async def test_a_portal_that_hangs_is_given_up_in_time(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
) -> None:
    """Who writes to the entry meanwhile does not wait for long; others are sent all the same."""
    held(ledger, b"x")
    held(ledger, b"y", "b", portals=[two.url])
    one.always = "hang"
    async with waiting(ledger, one, two) as entries:
        await trio.sleep(20)
        assert [each.entry.data for each in two.ever] == [b"y"]
        one.always = ""
        assert (await entries.write(ref(), PAIR, b"new", None)).data == b"new"
        await trio.sleep(100)
        assert unsent(ledger) == []
        assert one.ever[-1].entry.data == b"new"


async def test_write_that_needs_a_portal_that_is_away_is_not_tried_all_the_time(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
) -> None:
    """The portal that works is asked with growing pauses too."""
    one.always = two.always = "down"
    async with running(ledger, one, two, policy=WritePolicy.ALL, fresh=0) as (entries, _):
        await fail(entries, b"x")
        one.always = ""
        await trio.sleep(600)
        asked = one.requests
        await trio.sleep(600)
        assert 600 / LAST_PAUSE - 2 <= one.requests - asked <= 4 * 600 / LAST_PAUSE
        two.always = ""
        assert await until(lambda: not ledger.pending()) < LAST_PAUSE + 10
        assert at(one) == at(two) == b"x"

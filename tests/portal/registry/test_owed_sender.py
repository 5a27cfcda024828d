"""What portals are owed, and is sent by itself (G19)."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace

import pytest
import trio

from skymount.errors import StaleEntryError, StorageError, UnavailableError
from skymount.policies import WritePolicy
from skymount.portal.client.base import PortalReader
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.registry.owed_sender import OwedConfig, OwedSender
from skymount.portal.registry.spool_retry import SpoolRetry
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.skylink import Skylink
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import KEY, PAIR
from tests.portal.registry.entries import Inline, ref, signed

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
) -> AsyncIterator[tuple[VerifiedRegistry, OwedSender]]:
    async with trio.open_nursery() as nursery:
        portals = replace(portals_of(registries), background=nursery)
        entries = VerifiedRegistry(portals, ledger, fresh=3600, policy=policy)
        entries.marks = Inline(ledger)
        sender = Sender(entries, ledger, send_content=send_content, clock=trio.current_time)
        nursery.start_soon(sender.run)
        yield entries, sender
        nursery.cancel_scope.cancel()


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

    async def pair_of(_: bytes) -> SigningKeyPair:
        return PAIR

    async with (
        running(ledger, one, two, policy=WritePolicy.ALL) as (entries, _),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(SpoolRetry(entries, ledger, pair_of).run)
        await entries.write(ref(), PAIR, b"old", None)
        two.always = "down"
        with pytest.raises(UnavailableError):
            await entries.write(ref(), PAIR, b"x", None)
        await until(ledger.owed)
        assert not unsent(ledger)
        two.always = ""
        assert await until(lambda: not owed(ledger)) < 10
        assert at(one) == at(two) == b"x"
        nursery.cancel_scope.cancel()


async def test_pauses_grow(
    ledger: Ledger, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """A portal that is away is tried once in a while, with one entry."""
    two.always = "down"
    config = OwedConfig()
    async with running(ledger, one, two) as (entries, _):
        for name in ("a", "b", "c"):
            await entries.write(ref(name), PAIR, b"x", None)
        await trio.sleep(3600)
        asked = two.requests
        await trio.sleep(3600)
        assert 3600 / config.longest_pause - 2 <= two.requests - asked <= 14


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
            await sender.send(entries.portals.clients[1], debt)


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
        assert [debt.portal for debt in owed(ledger)] == [two.url]
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
        assert unsent(ledger) == owed(ledger) == []


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
    assert unsent(ledger) == owed(ledger) == []

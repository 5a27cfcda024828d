"""Entries read from all portals: verified, never rolled back, and cached."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    PortalError,
    RolledBackError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.contestants import FailoverConfig
from skymount.portal.failover.health import State
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.registry.entry_reader import (
    EntryState,
)
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.registry_entry import DELETED, Entry, SignedEntry
from tests.fakes.entries import FakeRegistry, portals_of
from tests.fakes.portal import FakePortal, running, stalls_after
from tests.fakes.skyfiles import of_files
from tests.portal.ledger.entries import OTHER, PAIR, by_work, owed, unsent
from tests.portal.registry.entries import pending, ref, signed


async def test_read_shows_what_the_portal_has(alone: VerifiedRegistry, one: FakeRegistry):
    """G3: content, absence and deletion are states."""
    found = await alone.read(ref())
    assert (found.data, found.revision, found.signed) == (None, -1, None)
    one.set(signed(b"hello", 3))
    found = await alone.read(ref())
    assert (found.data, found.revision, found.signed) == (b"hello", 3, signed(b"hello", 3))
    one.set(signed(DELETED, 4))
    found = await alone.read(ref())
    assert (found.data, found.revision) == (None, 4)
    one.set(signed(b"", 5))
    assert (await alone.read(ref())).data == b""


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("down", UnavailableError),
        ("slow", UnavailableError),
        ("denied", AccessDeniedError),
        ("forged", BadContentError),
    ],
)
async def test_failures_are_errors(
    fault: str,
    kind: type[PortalError],
    alone: VerifiedRegistry,
    one: FakeRegistry,
    autojump_clock: object,
):
    """G3: every other failure is an error, never absence."""
    one.set(signed(b"hello", 3))
    one.always = fault
    with pytest.raises(kind):
        await alone.read(ref())
    assert alone.recall(ref()) is None


async def test_forged_entry_is_refused_and_logged_once(
    both: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: object,
):
    """G4: the next portal is asked; the log names portal, key and reason."""
    one.set(signed(b"hello", 3))
    two.set(signed(b"hello", 3))
    one.always = "forged"
    for _ in range(3):
        assert (await both.read(ref())).data == b"hello"
        await trio.sleep(3600)  # the fault is forgotten
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for words in (one.url, PAIR.public_hex, "'a'", "Could not verify signature"):
        assert words in record.getMessage()


async def test_roll_back_is_refused(
    both: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: object,
):
    """G4: a revision below the highest seen is EIO unless another portal has a better one."""
    one.set(signed(b"old", 3))
    two.set(signed(b"new", 4))
    ledger.record_seen(signed(b"new", 4), "a")
    assert (await both.read(ref())).data == b"new"
    assert "revision 3 is behind revision 4" in caplog.text
    two.always = "down"
    with pytest.raises(BadContentError, match="behind revision 4"):
        await both.read(ref())
    two.always = "missing"
    with pytest.raises(BadContentError):
        await both.read(ref())


async def test_roll_back_is_refused_after_a_restart(
    one: FakeRegistry, tmp_path: Path, autojump_clock: object
):
    """G4: the mark is kept on disk."""
    path = tmp_path / "ledger.sqlite3"
    one.set(signed(b"old", 3))
    one.set(signed(b"new", 4))
    first = Ledger.open(path)
    await VerifiedRegistry(portals_of([one]), first).read(ref())
    first.close()
    one.always = "stale"
    second = Ledger.open(path)
    with pytest.raises(BadContentError):
        await VerifiedRegistry(portals_of([one]), second).read(ref())
    second.close()


async def test_owner_replaces_what_was_rolled_back(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G4: the owner's next whole rewrite, or deletion, goes above what was seen."""
    ledger.record_seen(signed(b"lost", 7), "a")
    one.set(signed(b"old", 3))
    written = await alone.write(ref(), PAIR, b"anew", None)
    assert (written.data, written.revision) == (b"anew", 8)
    assert (await alone.read(ref())).data == b"anew"
    ledger.record_seen(signed(b"lost again", 20), "a")
    assert (await alone.delete(ref(), PAIR)).revision == 21
    assert (await alone.read(ref())).data is None
    assert pending(ledger) == []


async def test_change_of_what_was_rolled_back_is_refused(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G4: a change of what a portal shows no more is kept; to overwrite sends it all the same."""
    one.set(signed(b"seen", 7))
    base = await alone.read(ref())
    ledger.record_seen(signed(b"lost", 8), "a")
    with pytest.raises(RolledBackError):
        await alone.write(ref(), PAIR, b"seen, and more", base)
    assert pending(ledger) == [(b"seen, and more", None)]
    (kept,) = unsent(ledger)
    with pytest.raises(RolledBackError):
        await alone.send(kept, PAIR)
    assert (await alone.send(kept, PAIR, overwrite=True)).revision == 9
    assert pending(ledger) == []


async def test_equal_revision_with_less_work_is_rolled_back(
    alone: VerifiedRegistry, one: FakeRegistry, autojump_clock: object
):
    """G4: of two entries of one revision the registry keeps the one with more work."""
    less, more, most, _ = by_work(3)
    one.set(less)
    first = await alone.read(ref())
    one.set(more)
    second = await alone.read(ref())
    assert second.signed == more
    assert second.seen_at > first.seen_at
    one.set(most)
    assert (await alone.read(ref())).signed == most
    one.always = "stale"
    with pytest.raises(BadContentError):
        await alone.read(ref())


@pytest.mark.parametrize("missing", [0, 1])
async def test_portal_that_has_it_wins_over_one_that_has_not(
    missing: int, both: VerifiedRegistry, one: FakeRegistry, two: FakeRegistry
):
    """One portal's 404 is not the last word."""
    for number, registry in enumerate((one, two)):
        if number != missing:
            registry.set(signed(b"here", 1))
    assert (await both.read(ref())).data == b"here"


@pytest.mark.parametrize("newer", [0, 1])
async def test_newest_of_all_portals_is_read(
    newer: int, both: VerifiedRegistry, one: FakeRegistry, two: FakeRegistry
):
    """G18: both are asked, and the highest revision counts, whichever comes first."""
    for registry in (one, two):
        registry.set(signed(b"old", 0))
    for slow in (one, two):
        (one, two)[newer].set(signed(b"new", 4 if slow is one else 5))
        slow.faults = ["slowly"]
        assert (await both.read(ref())).data == b"new"
    recalled = both.recall(ref())
    assert recalled is not None
    assert recalled.revision == 5


async def test_older_entry_is_no_failure_of_its_portal(
    both: VerifiedRegistry, one: FakeRegistry, two: FakeRegistry
):
    """R12: a portal that is only behind is asked like the other one."""
    one.set(signed(b"old", 0))
    two.set(signed(b"new", 4))
    for _ in range(2):
        assert (await both.read(ref())).data == b"new"
    health = both.portals.health(both.portals.clients[0])
    assert health.state(trio.current_time()) is State.CLOSED


async def test_absent_is_what_all_portals_say(
    both: VerifiedRegistry, one: FakeRegistry, two: FakeRegistry, autojump_clock: object
):
    """G3: while one fails, nothing is known to be absent."""
    assert (await both.read(ref())).signed is None
    assert one.gets == two.gets == 1
    one.always = "down"
    with pytest.raises(UnavailableError):
        await both.read(ref())


async def test_what_was_seen_is_not_absent(
    both: VerifiedRegistry, one: FakeRegistry, two: FakeRegistry, ledger: Ledger
):
    """G4: one portal took a write that the other one still lacks, and denies it now."""
    two.always = "deaf"
    written = await both.write(ref(), PAIR, b"x", None)
    assert [each.portals[0] for each in owed(ledger)] == [two.url]
    one.always = "missing"
    with pytest.raises(RolledBackError, match="no portal has it; revision 0 was seen before"):
        await both.read(ref())
    assert both.recall(ref()) == written
    one.always = ""
    assert (await both.read(ref())).data == b"x"


async def test_what_was_seen_and_lost_can_be_deleted(
    both: VerifiedRegistry, one: FakeRegistry, two: FakeRegistry
):
    """G4: then it is absent. The deletion is posted, so that nobody brings the entry back."""
    for portal in (one, two):
        portal.set(signed(b"x", 3))
    await both.read(ref())
    for portal in (one, two):
        portal.stored.clear()
    assert (await both.delete(ref(), PAIR)).revision == 4
    for portal in (one, two):
        portal.stored.clear()
    assert (await both.read(ref())).data is None


async def test_answer_that_was_overtaken_is_asked_for_again(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, caplog: pytest.LogCaptureFixture
):
    """A portal is not blamed for an answer that became old while it was on its way."""
    one.set(signed(b"old", 1))
    one.set(signed(b"new", 2))
    one.faults = ["stale"]
    one.before = lambda: ledger.record_seen(signed(b"new", 2), "a")
    assert (await alone.read(ref())).data == b"new"
    assert one.gets == 2
    one.faults = ["missing"]
    one.before = lambda: ledger.record_seen(signed(b"newer", 3), "a") and None
    one.set(signed(b"newer", 3))
    assert (await alone.read(ref())).data == b"newer"
    assert not caplog.records


async def test_read_is_new_or_as_old_as_allowed(
    alone: VerifiedRegistry, one: FakeRegistry, autojump_clock: object
):
    """G5: an open asks; stat is at most `registry_ttl` old."""
    one.set(signed(b"one", 1))
    assert alone.recall(ref()) is None
    first = await alone.read(ref(), 2.0)
    assert alone.recall(ref()) == first
    one.set(signed(b"two", 2))
    await trio.sleep(2.0)
    assert (await alone.read(ref(), 2.0)).data == b"one"
    await trio.sleep(0.1)
    assert (await alone.read(ref(), 2.0)).data == b"two"
    one.set(signed(b"three", 3))
    assert (await alone.read(ref())).data == b"three"
    assert (await alone.read(ref(), 2.0)).data == b"three"
    assert one.gets == 3


async def test_change_is_when_it_was_first_seen(
    one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G5: a change by somebody else changes the time, and nothing else does, nor does a restart."""
    now = 1000.0
    opened = Ledger.open(ledger.path, lambda: now)
    here = VerifiedRegistry(portals_of([one]), opened, clock=lambda: now)
    one.set(signed(b"one", 1))
    assert (await here.read(ref())).seen_at == 1000.0
    now = 2000.0
    assert (await here.read(ref())).seen_at == 1000.0
    again = VerifiedRegistry(portals_of([one]), opened, clock=lambda: now)
    assert (await again.read(ref())).seen_at == 1000.0
    one.set(signed(b"two", 2))
    assert (await here.read(ref())).seen_at == 2000.0
    now = 3000.0
    assert (await here.read(ref("absent"))).seen_at == 3000.0
    now = 4000.0
    assert (await here.read(ref("absent"))).seen_at == 3000.0
    opened.close()


async def test_readers_of_one_entry_share_an_answer(
    alone: VerifiedRegistry, one: FakeRegistry, autojump_clock: object
):
    """A hundred stats at once are one request, also when it fails."""
    one.set(signed(b"x", 1))
    one.faults = [1.0]
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(alone.read, ref(), 2.0)
    assert one.gets == 1
    await trio.sleep(10)
    one.always = "down"
    failures = 0

    async def failing() -> None:
        nonlocal failures
        with pytest.raises(UnavailableError):
            await alone.read(ref(), 2.0)
        failures += 1

    asked = one.requests
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(failing)
    assert failures == 100
    assert one.requests == asked + FailoverConfig().rounds


async def test_reader_that_is_cancelled_leaves_the_others_their_answer(
    alone: VerifiedRegistry, one: FakeRegistry
):
    """Whoever waits next asks instead."""
    one.set(signed(b"x", 1))
    one.faults = ["hang"]
    got: list[bytes | None] = []
    scopes: list[trio.CancelScope] = []

    async def read() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            got.append((await alone.read(ref(), 2.0)).data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()
    assert got == [b"x"] * 3
    assert one.gets == 1


async def test_read_begun_after_a_write_sees_it(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G5: close-to-open, also between two mounts of one machine with different portals."""
    other = VerifiedRegistry(portals_of([one]), ledger, fresh=0)
    for n in range(5):
        await other.write(ref(), PAIR, b"%d" % n, None)
        assert (await alone.read(ref())).data == b"%d" % n


async def test_slow_old_answer_does_not_hide_a_write(
    alone: VerifiedRegistry, one: FakeRegistry, autojump_clock: object
):
    """What is remembered after a write is the write, whatever arrives later."""
    one.set(signed(b"old", 1))
    await alone.read(ref())
    got: list[EntryState] = []

    async def slow() -> None:
        got.append(await alone.read(ref()))

    async with trio.open_nursery() as nursery:
        one.faults = [5.0]
        nursery.start_soon(slow)
        await trio.testing.wait_all_tasks_blocked()
        await alone.write(ref(), PAIR, b"new", None)
    found = alone.recall(ref())
    assert found is not None
    assert found.data == b"new"


async def test_names_are_remembered(alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger):
    """G6: what was read or written is listed, what is absent, deleted or only proven is not."""
    one.set(signed(b"x", 1, "read"))
    one.set(signed(DELETED, 1, "deleted"))
    one.set(signed(b"x", 1, "resolved"))
    for name in ("read", "deleted", "absent"):
        await alone.read(ref(name))
    await alone.read(ref("resolved"), named=False)
    await alone.write(ref("written"), PAIR, b"x", None)
    await alone.accept(signed(b"x", 1, "proven"), 0.0)
    assert {each.data_key for each in await alone.names(PAIR.public_key)} == {"read", "written"}
    await alone.delete(ref("written"), PAIR)
    assert {each.data_key for each in await alone.names(PAIR.public_key)} == {"read"}
    assert await alone.public_keys() == [PAIR.public_key]


async def test_entry_from_elsewhere_is_held_to_the_same_rules(
    alone: VerifiedRegistry, ledger: Ledger, autojump_clock: object
):
    """H4: what a proof shows is verified, raises the mark, and must not be behind it."""
    await alone.accept(signed(b"new", 5), 0.0, "http://p")
    assert ledger.highest_revision(PAIR.public_key, ref().tweak) == 5
    await alone.accept(signed(b"new", 5), 0.0)
    with pytest.raises(BadContentError, match="behind revision 5"):
        await alone.accept(signed(b"old", 4), 0.0)
    forged = SignedEntry(OTHER.public_key, Entry(ref().tweak, b"x", 9), bytes(64))
    with pytest.raises(BadContentError, match="signature"):
        await alone.accept(forged, 0.0)
    assert ledger.mark_of(OTHER.public_key, ref().tweak) is None


async def test_changes_are_told(alone: VerifiedRegistry, one: FakeRegistry, autojump_clock: object):
    """H5: when a registry entry is changed, or found changed: then, once, and never otherwise."""
    told: list[tuple[EntryId, bytes | None]] = []
    alone.watch(lambda which, state: told.append((which, state.data)))
    one.set(signed(b"first", 1))
    for _ in range(2):  # nothing was known, then it is as it was
        await alone.read(ref())
    assert told == []
    await alone.accept(signed(b"proven", 2), trio.current_time())
    await alone.accept(signed(b"proven", 2), trio.current_time())
    one.set(signed(b"read", 3))
    for _ in range(2):
        await alone.read(ref())
    await alone.write(ref(), PAIR, b"written", None)
    await alone.delete(ref(), PAIR)
    assert told == [(ref(), data) for data in (b"proven", b"read", b"written", None)]


async def test_failed_portal_comes_back(one: FakeRegistry, two: FakeRegistry, ledger: Ledger):
    """R12: also while entries are only written."""
    async with trio.open_nursery() as probes:
        portals = replace(portals_of([one, two]), background=probes)
        both = VerifiedRegistry(portals, ledger, fresh=0)
        first = portals.health(portals.clients[0])
        for each in (one, two):
            each.set(signed(b"before", 1))
        one.faults = ["down"]
        await both.write(ref(), PAIR, b"a", None)
        assert first.state(trio.current_time()) is State.OPEN
        await trio.sleep(1.1)
        await both.write(ref(), PAIR, b"b", None)
        with trio.fail_after(10):
            while first.state(trio.current_time()) is not State.CLOSED:
                await trio.sleep(0.01)
        probes.cancel_scope.cancel()


async def test_what_is_fetched_ahead_leaves_room_for_others(ledger: Ledger):
    """G6: also at a portal that answers nothing of it."""
    skyfile = of_files({"a": b"b"})
    async with (
        running(FakePortal()) as fake,
        PortalReader(fake.url, retries=0, connections=4) as portal,
        trio.open_nursery() as nursery,
    ):
        fake.add(skyfile)
        fake.fault(stalls_after(-1), "/svc/registry")
        entries = VerifiedRegistry(Portals([portal]), ledger)
        with trio.fail_after(50):
            for name in "abcdefgh":
                nursery.start_soon(entries.fetch_ahead, ref(name), 2.0)
            while len(fake.requests) < 3:
                await trio.sleep(0.01)
            assert (await portal.head(skyfile.skylink)).skylink == skyfile.skylink
        assert len(fake.asked("/svc/registry")) == 3
        nursery.cancel_scope.cancel()


# --- what was seen last (G20)


@pytest.fixture
def told(
    both: VerifiedRegistry,
    alone: VerifiedRegistry,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """What was served as it was seen last, by registries that may do so."""
    found: list[str] = []

    async def at_once(function: Callable[..., object], *args: object) -> object:
        return function(*args)  # in a thread it would take no time by a clock that jumps

    for registry in (both, alone):
        registry.on_stale = lambda what, error: found.append(f"{what}: {error}")
        monkeypatch.setattr(registry.marks, "in_thread", at_once)
    ledger.record_seen(signed(b"seen", 4), "a")
    return found


@pytest.mark.parametrize(
    ("first", "second"), [("down", "down"), ("hang", "down"), ("down", "hang")]
)
async def test_no_portal_has_an_answer(
    first: str,
    second: str,
    both: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    told: list[str],
    autojump_clock: object,
):
    """G20: within 2 s what was seen last counts, later at once; it is no base of a write."""
    one.always, two.always = first, second
    begun = trio.current_time()
    found = await both.read(ref())
    assert (found.data, found.stale) == (b"seen", True)
    assert trio.current_time() - begun < 2.2
    assert len(told) == 1
    begun = trio.current_time()
    assert (await both.read(ref(), 0.1)).stale
    assert trio.current_time() - begun < 2.2
    with pytest.raises(UnavailableError):
        with trio.fail_after(60):
            await both.write(ref(), PAIR, b"new", None)
    one.always = two.always = ""
    one.set(signed(b"newer", 5))
    await trio.sleep(120)
    found = await both.read(ref())
    assert (found.data, found.stale) == (b"newer", False)


async def test_definite_answers_count(
    both: VerifiedRegistry,
    alone: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    told: list[str],
    autojump_clock: object,
):
    """G20, G4: a valid entry is one, also an older one than was seen, and so is a refusal."""
    one.set(signed(b"old", 3))
    two.always = "down"
    with pytest.raises(RolledBackError):
        await both.read(ref())
    one.always = "denied"
    with pytest.raises(AccessDeniedError):
        await alone.read(ref())
    one.always = "missing"
    assert (await alone.read(ref())).signed is None
    assert not told


async def test_a_portal_that_is_slow_is_waited_for(
    alone: VerifiedRegistry, one: FakeRegistry, told: list[str], autojump_clock: object
):
    """G20: while it sends anything, or may be restarting."""
    one.set(signed(b"new", 5))
    one.faults = [6.0]
    async with trio.open_nursery() as nursery:
        found: list[EntryState] = []

        async def read() -> None:
            found.append(await alone.read(ref()))

        nursery.start_soon(read)
        await trio.sleep(1.5)
        [client] = alone.portals.clients
        alone.portals.health(client).gave_sign(trio.current_time())
    assert [(each.data, each.stale) for each in found] == [(b"new", False)]
    assert not told


async def test_nothing_was_seen(
    alone: VerifiedRegistry, one: FakeRegistry, told: list[str], autojump_clock: object
):
    """G20: then it is an error, or takes as long as the portal does."""
    one.always = "down"
    with pytest.raises(UnavailableError):
        await alone.read(ref("b"))
    one.always, one.faults = "", [6.0]
    assert (await alone.read(ref("b"))).signed is None
    assert not told

"""Writes that wait for each other, deletions, and pending writes that are sent again."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from skymount.errors import (
    FrozenEntryError,
    KeyringError,
    MalformedError,
    ReadOnlyPortalError,
    RolledBackError,
    StaleEntryError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.ledger import Ledger, Write
from skymount.portal.ledger.outbox import Pending, Status
from skymount.portal.registry.entry_reader import (
    EntryState,
)
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.registry_entry import DELETED, MAX_REVISION
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import OTHER, PAIR, unsent
from tests.portal.registry.entries import pending, ref, signed
from tests.portal_process import PortalProcess


async def test_spooled_bytes_that_are_behind_are_not_sent(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: nor to a portal that has lost what was seen since, and would take them."""
    one.always = "deaf"
    with pytest.raises(UnavailableError):
        await alone.write(ref(), PAIR, b"late", None)
    assert pending(ledger) == [(b"late", 0)]
    one.always = ""
    one.set(signed(b"newer", 7))
    await alone.read(ref())
    one.stored.clear()
    one.posts.clear()
    with pytest.raises(StaleEntryError, match="behind revision 7"):
        await alone.send(unsent(ledger)[0])
    assert one.posts == []


async def test_write_waits_for_another_of_the_same_entry(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """Writes to one entry come after one another, without conflicts."""
    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(alone.write, ref(), PAIR, b"%d" % n, None)
    assert [post.entry.revision for post in one.posts] == list(range(20))
    assert one.most == 1


async def test_writes_to_different_entries_run_at_once(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """A lock is one entry's: of a hundred writes by 16 tasks 16 are always on their way."""
    names = [str(n) for n in range(100)]
    one.always = "slowly"

    async def work() -> None:
        while names:
            name = names.pop()
            await alone.write(ref(name), PAIR, name.encode(), None)

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(work)
    assert one.most == 16
    for n in range(100):
        assert (await alone.read(ref(str(n)))).data == str(n).encode()
    assert pending(ledger) == []


async def test_two_mounts_write_one_entry(
    one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: several processes share the ledger; every rewrite gets a revision of its own."""
    here, there = (
        VerifiedRegistry(portals_of([one]), ledger, fresh=0),
        VerifiedRegistry(portals_of([one]), ledger),
    )

    async def work(entries: VerifiedRegistry, name: bytes) -> None:
        for n in range(10):
            await entries.write(ref(), PAIR, b"%s%d" % (name, n), None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, here, b"here")
        nursery.start_soon(work, there, b"there")
    by_revision: dict[int, set[bytes]] = {}
    for post in one.posts:
        by_revision.setdefault(post.entry.revision, set()).add(post.entry.data)
    assert all(len(contents) == 1 for contents in by_revision.values())
    assert pending(ledger) == []


async def test_delete_posts_the_deletion(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger
):
    """G13: the deletion is an entry of the next revision; what is absent is not deleted again."""
    await alone.delete(ref(), PAIR)
    assert one.posts == []
    await alone.write(ref(), PAIR, b"x", None)
    gone = await alone.delete(ref(), PAIR)
    assert (gone.data, gone.revision) == (None, 1)
    assert one.latest(PAIR.public_key, ref().tweak) == signed(DELETED, 1)
    await alone.delete(ref(), PAIR)
    assert len(one.posts) == 2
    assert (await alone.write(ref(), PAIR, b"y", gone)).revision == 2


async def test_failed_delete_is_pending_once_it_is_signed(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: nothing is kept of one that was never signed: there is no content to lose."""
    one.set(signed(b"x", 1))
    one.faults = ["down"] * 3
    with pytest.raises(UnavailableError):
        await alone.delete(ref(), PAIR)
    assert pending(ledger) == []
    one.faults = ["", "down", "down", "down"]
    with pytest.raises(UnavailableError):
        await alone.delete(ref(), PAIR)
    assert pending(ledger) == [(DELETED, 2)]


async def test_wrong_input_is_refused_at_once(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger
):
    """G9: too much data, or a key that is not the owner's, ask no portal and keep nothing."""
    with pytest.raises(MalformedError, match="too big"):
        await alone.write(ref(), PAIR, bytes(114), None)
    with pytest.raises(MalformedError, match="owner"):
        await alone.write(ref(), OTHER, b"x", None)
    with pytest.raises(MalformedError, match="owner"):
        await alone.delete(ref(), OTHER)
    assert (one.gets, one.posts, pending(ledger)) == (0, [], [])


# what is pending


async def refused_post(
    entries: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, data: bytes
) -> Pending:
    """Fail to post signed content; return what is in the outbox."""
    one.faults = ["", "down", "down", "down"]
    with pytest.raises(UnavailableError):
        await entries.write(ref(), PAIR, data, None)
    return unsent(ledger)[-1]


async def held(
    entries: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, data: bytes
) -> Pending:
    """Fail to ask for the revision; return what is in the outbox."""
    one.faults = ["down", "down", "down"]
    with pytest.raises(UnavailableError):
        await entries.write(ref(), PAIR, data, None)
    return unsent(ledger)[-1]


async def test_spooled_bytes_are_sent_as_they_are(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: retry posts the very same bytes, and needs no private key."""
    waiting = await refused_post(alone, one, ledger, b"x")
    done = await alone.send(waiting)
    assert done.signed == waiting.signed == one.latest(PAIR.public_key, ref().tweak)
    assert pending(ledger) == []
    with pytest.raises(StorageError, match="not pending any more"):
        await alone.send(waiting)


async def test_spooled_bytes_that_arrived_are_known(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """The answer was lost, the post was not: sending it again is done at once."""
    one.faults = ["", "lost", "down", "down"]
    with pytest.raises(UnavailableError):
        await alone.write(ref(), PAIR, b"x", None)
    await alone.send(unsent(ledger)[0])
    assert pending(ledger) == []
    assert len(one.stored[PAIR.public_key, ref().tweak]) == 1


async def test_read_clears_what_arrived(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """Once it is seen at a portal it is no longer pending."""
    one.faults = ["", "lost", "down", "down"]
    with pytest.raises(UnavailableError):
        await alone.write(ref(), PAIR, b"x", None)
    assert pending(ledger) == [(b"x", 0)]
    assert (await alone.read(ref())).data == b"x"
    assert pending(ledger) == []


@pytest.mark.parametrize("fail", [refused_post, held])
async def test_spooled_content_does_not_replace_what_is_newer(
    fail: Callable[..., object], one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: unless it is told to, and then with the next revision."""
    entries = VerifiedRegistry(portals_of([one]), ledger, fresh=0)
    one.set(signed(b"base", 4))
    await entries.read(ref())
    waiting = await fail(entries, one, ledger, b"ours")  # type: ignore[misc]
    one.set(signed(b"theirs", 7))
    with pytest.raises(StaleEntryError, match="changed since"):
        await entries.send(waiting, PAIR)
    assert [data for data, _ in pending(ledger)] == [b"ours"]
    with pytest.raises(KeyringError):
        await entries.send(waiting, None, overwrite=True)
    done = await entries.send(waiting, PAIR, overwrite=True)
    assert (done.data, done.revision) == (b"ours", 8)
    assert pending(ledger) == []


async def test_superseded_bytes_are_not_sent_to_a_portal_that_lags(
    both: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    ledger: Ledger,
    autojump_clock: object,
):
    """G12: what this machine saw since counts, whatever the portal has."""
    one.always = "down"
    two.faults = ["", "down", "down", "down"]
    one.faults = ["missing"]
    with pytest.raises(UnavailableError):
        await both.write(ref(), PAIR, b"older", None)
    (waiting,) = unsent(ledger)
    ledger.record_seen(signed(b"newer", 1), "a")
    one.always = ""
    with pytest.raises(StaleEntryError):
        await both.send(waiting, PAIR)
    assert one.posts == []


async def test_a_write_takes_the_place_of_what_was_kept_before(
    alone: VerifiedRegistry,
    one: FakeRegistry,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: object,
):
    """G12: what was written later takes its place, and the log says so; a conflict stays."""
    one.set(signed(b"theirs", 0))
    with pytest.raises(StaleEntryError):
        await alone.write(ref(), PAIR, b"edit", EntryState(None, 0.0, 0.0, 0.0))
    await held(alone, one, ledger, b"first")
    await refused_post(alone, one, ledger, b"second")
    now = await held(alone, one, ledger, b"third")
    assert [each.status for each in unsent(ledger)] == [Status.CONFLICT, Status.WAITING]
    assert (await alone.send(now, PAIR)).revision == 2
    assert [each.data for each in unsent(ledger)] == [b"edit"]
    assert caplog.text.count("never posted, and is given up: something was written later") == 2


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("keep", [refused_post, held])
async def test_what_is_pending_of_a_frozen_entry_is_given_up(
    alone: VerifiedRegistry,
    one: FakeRegistry,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    keep: Callable[[VerifiedRegistry, FakeRegistry, Ledger, bytes], Awaitable[Pending]],
    overwrite: bool,
    autojump_clock: object,
):
    """G11: signed or not, and what was pending before it too."""
    await keep(alone, one, ledger, b"first")
    later = await keep(alone, one, ledger, b"second")
    one.set(signed(b"theirs", MAX_REVISION))
    with pytest.raises(FrozenEntryError):
        await alone.send(later, PAIR, overwrite=overwrite)
    assert pending(ledger) == []
    assert one.posts == []
    for data in (b"first", b"second"):
        assert caplog.text.count(f"{data!a} was never posted, and is given up") == 1


@pytest.mark.parametrize("keep", [refused_post, held])
async def test_what_need_not_be_posted_supersedes_what_was_kept_before(
    alone: VerifiedRegistry,
    one: FakeRegistry,
    ledger: Ledger,
    keep: Callable[[VerifiedRegistry, FakeRegistry, Ledger, bytes], Awaitable[Pending]],
    autojump_clock: object,
):
    """G12: While something is pending, a later write or deletion is posted all the same."""
    await keep(alone, one, ledger, b"first")
    gone = await alone.delete(ref(), PAIR)
    assert [each.entry.data for each in one.posts] == [DELETED]
    assert pending(ledger) == []
    one.set(signed(b"theirs", 7))
    await keep(alone, one, ledger, b"second")
    await alone.write(ref(), PAIR, b"theirs", gone)
    assert [each.entry.data for each in one.ever][1:] == [b"theirs", b"theirs"]
    assert pending(ledger) == []


@pytest.mark.parametrize("when", ["before", "while"])
async def test_what_another_process_writes_later_is_not_overwritten(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, when: str, autojump_clock: object
):
    """G12: of each entry only what was written last. Here the ledger takes both for processes."""
    other = Ledger(ledger.path, process=1)
    one.set(signed(b"old", 0))
    await alone.read(ref())
    kept = await held(alone, one, ledger, b"kept")
    claimed: list[Write] = []

    def claim() -> None:
        one.before = lambda: None
        claimed.append(other.claim(ref(), PAIR, b"later", 0, [one.url]))

    if when == "before":
        claim()
    else:
        one.before = claim
    with pytest.raises(StorageError if when == "before" else StaleEntryError):
        await alone.send(kept, PAIR)
    assert one.posts == []
    (later,) = claimed
    assert later.signed.entry.revision == 1
    one.set(later.signed)
    other.took(later, "a", [one.url], {}, {})
    other.close()
    assert (await alone.read(ref())).data == b"later"


async def test_conflict_needs_no_post(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: what is never sent by itself, nor superseded, is no reason to post."""
    one.set(signed(b"theirs", 0))
    with pytest.raises(StaleEntryError):
        await alone.write(ref(), PAIR, b"edit", EntryState(None, 0.0, 0.0, 0.0))
    await alone.write(ref(), PAIR, b"theirs", EntryState(None, 0.0, 0.0, 0.0))
    assert one.posts == []
    assert pending(ledger) == [(b"edit", None)]


async def test_without_a_ledger(one: FakeRegistry, two: FakeRegistry, autojump_clock: object):
    """G4: what was seen is remembered for as long as the reader is; nothing is changed."""
    entries = VerifiedRegistry(portals_of([one, two]), None)
    one.set(signed(b"old", 3))
    two.set(signed(b"old", 3))
    two.set(signed(b"new", 4))
    assert await entries.marks.find_entry(signed(b"", 0).link) is None
    two.always = "down"
    assert (await entries.read(ref())).data == b"old"
    two.always = ""
    await trio.sleep(60)  # the pause is over
    assert (await entries.read(ref())).data == b"new"
    two.always = "down"
    with pytest.raises(RolledBackError, match="revision 3 is behind revision 4"):
        await entries.read(ref())
    assert await entries.marks.find_entry(signed(b"", 0).link) == ref()
    with pytest.raises(StorageError):
        await entries.write(ref(), PAIR, b"x", None)


async def test_what_was_forgotten_is_believed_again(
    one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G4: `registry forget --seen` lets the older one be believed; nothing is signed twice."""
    ledger.record_seen(signed(b"new", 7), "a")
    one.set(signed(b"old", 3))
    with pytest.raises(RolledBackError):
        await VerifiedRegistry(portals_of([one]), ledger).read(ref())
    assert ledger.forget(PAIR.public_key, ref().tweak, seen=True)
    entries = VerifiedRegistry(portals_of([one]), ledger)
    assert (await entries.read(ref())).data == b"old"
    assert (await entries.write(ref(), PAIR, b"mine", None)).revision == 8


async def test_held_content_is_signed_when_it_is_sent(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: content without a revision gets one; that needs the private key."""
    waiting = await held(alone, one, ledger, b"x")
    assert waiting.signed is None
    with pytest.raises(KeyringError):
        await alone.send(waiting)
    one.faults = ["", "down", "down", "down"]
    with pytest.raises(UnavailableError):
        await alone.send(waiting, PAIR)
    assert pending(ledger) == [(b"x", 0)]
    assert (await alone.send(unsent(ledger)[0], PAIR)).data == b"x"
    assert pending(ledger) == []


async def test_held_content_that_is_there_is_done(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """Somebody posted the very same: nothing is left to be sent."""
    waiting = await held(alone, one, ledger, b"x")
    one.set(signed(b"x", 3))
    assert (await alone.send(waiting)).revision == 3
    assert pending(ledger) == []


# the ledger fails


async def test_ledger_that_cannot_be_read_stops_everything(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G4: without the marks nothing can be believed."""
    one.set(signed(b"x", 1))
    ledger.close()
    with pytest.raises(StorageError):
        await alone.read(ref())
    with pytest.raises(StorageError, match="the content is lost"):
        await alone.write(ref(), PAIR, b"y", None)
    assert one.posts == []


# a real portal


async def test_real_portal(portal: PortalProcess, ledger: Ledger):
    """All of it with the embedded portal over HTTP."""
    async with PortalClient(portal.url) as client:
        entries = VerifiedRegistry(Portals([client]), ledger)
        assert (await entries.read(ref("real"))).signed is None
        state = await entries.write(ref("real"), PAIR, b"one", None)
        state = await entries.write(ref("real"), PAIR, b"two", state)
        assert (await entries.read(ref("real"))).signed == state.signed
        await client.registry.post(signed(b"theirs", 9, "real"))
        with pytest.raises(StaleEntryError):
            await entries.write(ref("real"), PAIR, b"edit", state)
        assert (await entries.write(ref("real"), PAIR, b"rewrite", None)).revision == 10
        assert (await entries.delete(ref("real"), PAIR)).data is None
        assert pending(ledger) == [(b"edit", None)]


# read-only portals


async def test_a_retry_without_a_portal_to_write_to_changes_nothing(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger
):
    """W2: what waits for a portal goes on waiting for it."""
    one.always = "deaf"
    with pytest.raises(UnavailableError):
        await alone.write(ref(), PAIR, b"ours", None)
    before = unsent(ledger)
    mirror = VerifiedRegistry(portals_of([FakeRegistry(2, read_only=True)]), ledger, fresh=0)
    with pytest.raises(ReadOnlyPortalError):
        await mirror.send(before[0], PAIR)
    assert unsent(ledger) == before

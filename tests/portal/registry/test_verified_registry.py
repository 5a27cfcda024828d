"""Entries changed on all portals, and what becomes of writes that fail."""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from skymount.errors import (
    BadContentError,
    FrozenEntryError,
    KeyringError,
    MalformedError,
    PortalError,
    ReadOnlyPortalError,
    RevisionConflictError,
    RolledBackError,
    StaleEntryError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.portals import Portals
from skymount.portal.http.response import Response
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite
from skymount.portal.registry.entry_state import (
    EntryState,
)
from skymount.portal.registry.entry_writer import CONFLICTS
from skymount.portal.registry.verified_registry import FRESH, VerifiedRegistry
from skymount.portal.write_policy import WritePolicy
from skymount.wire.registry_entry import DELETED, MAX_REVISION, SignedEntry
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import OTHER, PAIR
from tests.portal.registry.entries import pending, ref, signed
from tests.portal_process import PortalProcess

# writing


async def test_write_takes_the_next_revision(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger
):
    """G8: changed content is signed with the next revision and posted, once."""
    for revision, data in enumerate([b"zero", b"one", b"one", b""]):
        done = await alone.write(ref(), PAIR, data, None)
        assert (done.data, done.revision) == (data, revision)
        assert one.latest(PAIR.public_key, ref().tweak) == done.signed
        assert alone.recall(ref()) == done
    assert len(one.posts) == 4
    assert pending(ledger) == []
    assert ledger.highest_revision(PAIR.public_key, ref().tweak) == 3


async def test_edit_of_what_is_there_is_posted(alone: VerifiedRegistry, one: FakeRegistry):
    """G10: nobody changed it, so it takes the next revision."""
    base = await alone.read(ref())
    base = await alone.write(ref(), PAIR, b"new", base)
    base = await alone.write(ref(), PAIR, b"newer", base)
    assert (base.revision, base.data) == (1, b"newer")


async def test_edit_of_what_was_changed_is_stale(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G10: a partial edit changes nothing then, and its content is kept."""
    one.set(signed(b"base", 1))
    base = await alone.read(ref())
    one.set(signed(b"theirs", 2))
    with pytest.raises(StaleEntryError):
        await alone.write(ref(), PAIR, b"ours", base)
    assert one.latest(PAIR.public_key, ref().tweak) == signed(b"theirs", 2)
    assert one.posts == []
    assert pending(ledger) == [(b"ours", None)]
    assert ledger.pending()[0].base == 1


async def test_edit_that_meets_a_change_on_its_way_is_stale(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G10: also when the other change comes between the question and the post."""
    one.set(signed(b"base", 1))
    base = await alone.read(ref())

    def meanwhile() -> None:
        if one.gets == 2:
            one.set(signed(b"theirs", 3))
            one.before = lambda: None

    one.before = meanwhile
    with pytest.raises(StaleEntryError):
        await alone.write(ref(), PAIR, b"ours", base)
    assert one.latest(PAIR.public_key, ref().tweak) == signed(b"theirs", 3)
    assert pending(ledger) == [(b"ours", 2)]


async def test_edit_with_the_same_result_is_done(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """The registry has the very content: nothing is posted, nothing is wrong."""
    one.set(signed(b"base", 1))
    base = await alone.read(ref())
    one.set(signed(b"same", 2))
    assert (await alone.write(ref(), PAIR, b"same", base)).revision == 2
    assert one.posts == []
    assert pending(ledger) == []


async def test_rewrite_wins(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G10: a rewrite takes the revision after somebody else's, also if that comes meanwhile."""
    one.set(signed(b"theirs", 5))
    assert (await alone.write(ref(), PAIR, b"ours", None)).revision == 6
    theirs = iter([10, 20])

    def meanwhile() -> None:
        if one.gets and (revision := next(theirs, None)):
            one.set(signed(b"theirs", revision))

    one.gets = 0
    one.before = meanwhile
    done = await alone.write(ref(), PAIR, b"ours again", None)
    assert done.revision == 21
    assert one.latest(PAIR.public_key, ref().tweak) == done.signed
    assert pending(ledger) == []


async def test_rewrite_after_a_fresh_answer_is_one_request(
    one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G8: a rewrite does not ask for what was answered a moment ago."""
    entries = VerifiedRegistry(portals_of([one]), ledger)
    one.set(signed(b"theirs", 5))
    await entries.read(ref())
    one.gets = 0
    assert (await entries.write(ref(), PAIR, b"ours", None)).revision == 6
    assert (await entries.write(ref(), PAIR, b"again", None)).revision == 7
    assert one.gets == 0
    await trio.sleep(FRESH)
    assert (await entries.write(ref(), PAIR, b"later", None)).revision == 8
    assert one.gets == 1


async def test_rewrite_after_an_answer_that_is_behind(
    one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G10: if somebody else was faster it still wins, with the revision above."""
    entries = VerifiedRegistry(portals_of([one]), ledger)
    one.set(signed(b"theirs", 5))
    await entries.read(ref())
    one.set(signed(b"later", 90))
    assert (await entries.write(ref(), PAIR, b"ours", None)).revision == 91
    assert len(one.posts) == 2
    assert pending(ledger) == []


async def test_rewrite_gives_up_after_some_conflicts(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """Against somebody who is always faster it fails, and the content is kept."""
    revision = 0

    def meanwhile() -> None:
        nonlocal revision
        revision += 10
        one.set(signed(b"theirs", revision))

    one.before = meanwhile
    with pytest.raises(RevisionConflictError, match="faster"):
        await alone.write(ref(), PAIR, b"ours", None)
    assert len(one.posts) == CONFLICTS
    assert len({post.entry.revision for post in one.posts}) == CONFLICTS
    assert [data for data, _ in pending(ledger)] == [b"ours"]


async def test_lost_answer_is_followed_by_the_same_bytes(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G8: a post whose answer was lost is sent again, and known when it is there already."""
    one.faults = ["", "lost"]
    done = await alone.write(ref(), PAIR, b"x", None)
    assert [post.entry.revision for post in one.posts] == [0, 0]
    assert one.posts[0] == one.posts[1] == done.signed
    assert pending(ledger) == []


async def test_post_that_arrives_twice_is_done(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """The refusal of the second one is none, since the registry holds this very entry."""
    one.faults = ["", "twice"]
    assert (await alone.write(ref(), PAIR, b"x", None)).revision == 0
    assert len(one.posts) == 1
    assert pending(ledger) == []


async def test_frozen_entry_whose_answer_was_lost_is_done(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G11: the last revision can be written, once."""
    one.set(signed(b"x", MAX_REVISION - 1))
    one.faults = ["", "lost"]
    assert (await alone.write(ref(), PAIR, b"last", None)).revision == MAX_REVISION
    with pytest.raises(FrozenEntryError):
        await alone.write(ref(), PAIR, b"more", None)
    with pytest.raises(FrozenEntryError):
        await alone.delete(ref(), PAIR)
    assert pending(ledger) == [(b"more", None)]
    assert len(one.posts) == 2


async def test_write_goes_to_the_next_portal(
    both: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    ledger: Ledger,
    autojump_clock: object,
):
    """The first portal that accepts it has it; the one that is behind is not believed then."""
    one.set(signed(b"old", 1))
    two.set(signed(b"old", 1))
    one.faults = ["", "down"]
    assert (await both.write(ref(), PAIR, b"new", None)).revision == 2
    assert two.latest(PAIR.public_key, ref().tweak) == signed(b"new", 2)
    assert one.latest(PAIR.public_key, ref().tweak) == signed(b"old", 1)
    await trio.sleep(3600)
    assert (await both.read(ref())).data == b"new"
    one.faults = ["denied", "denied"]
    assert (await both.write(ref(), PAIR, b"newer", None)).revision == 3


async def test_conflict_at_one_portal_is_not_passed_by_at_another(
    both: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    ledger: Ledger,
    autojump_clock: object,
):
    """G10, G19: a portal that lags takes an edit which another refuses, and is owed the newer
    entry for it.
    """
    for registry in (one, two):
        registry.set(signed(b"base", 1))
    base = await both.read(ref())

    def meanwhile() -> None:
        if one.gets == 2:
            one.set(signed(b"theirs", 9))
            one.before = lambda: None

    one.before = meanwhile
    with pytest.raises(StaleEntryError):
        await both.write(ref(), PAIR, b"ours", base)
    assert two.latest(PAIR.public_key, ref().tweak) == signed(b"ours", 2)
    owed = [(each.portal, each.signed) for each in ledger.owed()]
    assert owed == [(two.url, signed(b"theirs", 9))]


@pytest.mark.parametrize("fault", ["down", "denied", "slow"])
async def test_failed_write_is_in_the_spool(
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
    assert all(each.reason for each in ledger.pending())


async def test_revision_is_never_used_for_other_content(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: a post that failed may have been done: the next content gets another revision."""
    one.faults = ["", "down", "down", "down"]
    with pytest.raises(UnavailableError):
        await alone.write(ref(), PAIR, b"first", None)
    done = await alone.write(ref(), PAIR, b"second", None)
    assert done.revision == 1
    assert (await alone.write(ref(), PAIR, b"third", done)).revision == 2


async def test_revision_is_above_the_mark_when_the_portal_lost_the_entry(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: absence is believed, and still no revision is used again."""
    one.set(signed(b"x", 7))
    await alone.read(ref())
    one.stored.clear()
    gone = await alone.read(ref())
    assert gone.signed is None
    assert (await alone.write(ref(), PAIR, b"y", gone)).revision == 8


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
        await alone.send(ledger.pending()[0])
    assert one.posts == []


async def test_write_that_is_cancelled_when_it_is_done(ledger: Ledger, autojump_clock: object):
    """G12: what the portal has taken is not in the spool, whenever its writer gives up."""

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


async def test_write_that_is_cancelled_is_in_the_spool(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: a deadline or an interrupt loses nothing, wherever it strikes."""
    for faults, data in [(["hang"], b"unasked"), (["", "hang"], b"asked")]:
        one.faults = [*faults]
        with trio.CancelScope() as scope:
            one.before = lambda scope=scope: one.faults or scope.cancel()
            await alone.write(ref(), PAIR, data, None)
        assert scope.cancelled_caught
    one.before = lambda: None
    assert pending(ledger) == [(b"unasked", None), (b"asked", 0)]
    assert {each.reason for each in ledger.pending()} == {"interrupted"}
    assert (await alone.write(ref(), PAIR, b"asked", None)).revision == 1
    assert pending(ledger) == []


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


async def test_failed_delete_is_in_the_spool_once_it_is_signed(
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


# the spool


async def spooled(
    entries: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, data: bytes
) -> PendingWrite:
    """Fail to post signed content; return what is in the spool."""
    one.faults = ["", "down", "down", "down"]
    with pytest.raises(UnavailableError):
        await entries.write(ref(), PAIR, data, None)
    return ledger.pending()[-1]


async def held(
    entries: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, data: bytes
) -> PendingWrite:
    """Fail to ask for the revision; return what is in the spool."""
    one.faults = ["down", "down", "down"]
    with pytest.raises(UnavailableError):
        await entries.write(ref(), PAIR, data, None)
    return ledger.pending()[-1]


async def test_spooled_bytes_are_sent_as_they_are(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: retry posts the very same bytes, and needs no private key."""
    waiting = await spooled(alone, one, ledger, b"x")
    done = await alone.send(waiting)
    assert done.signed == waiting.signed == one.latest(PAIR.public_key, ref().tweak)
    assert pending(ledger) == []
    with pytest.raises(StorageError, match="not in the spool"):
        await alone.send(waiting)


async def test_spooled_bytes_that_arrived_are_known(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """The answer was lost, the post was not: sending it again is done at once."""
    one.faults = ["", "lost", "down", "down"]
    with pytest.raises(UnavailableError):
        await alone.write(ref(), PAIR, b"x", None)
    await alone.send(ledger.pending()[0])
    assert pending(ledger) == []
    assert len(one.stored[PAIR.public_key, ref().tweak]) == 1


async def test_read_clears_what_arrived_from_the_spool(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """Once it is seen at a portal it is no longer pending."""
    one.faults = ["", "lost", "down", "down"]
    with pytest.raises(UnavailableError):
        await alone.write(ref(), PAIR, b"x", None)
    assert pending(ledger) == [(b"x", 0)]
    assert (await alone.read(ref())).data == b"x"
    assert pending(ledger) == []


@pytest.mark.parametrize("fail", [spooled, held])
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
    (waiting,) = ledger.pending()
    ledger.record_seen(signed(b"newer", 1), "a")
    one.always = ""
    with pytest.raises(StaleEntryError):
        await both.send(waiting, PAIR)
    assert one.posts == []


async def test_what_is_posted_supersedes_what_was_kept_before(
    alone: VerifiedRegistry,
    one: FakeRegistry,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: object,
):
    """G12: that leaves the list, and the log says so; a conflict stays, and what came later."""
    one.set(signed(b"theirs", 0))
    with pytest.raises(StaleEntryError):
        await alone.write(ref(), PAIR, b"edit", EntryState(None, 0.0, 0.0))
    await held(alone, one, ledger, b"first")
    await spooled(alone, one, ledger, b"second")
    now = await held(alone, one, ledger, b"third")
    later = await held(alone, one, ledger, b"fourth")
    assert [each.status for each in ledger.pending()] == [
        PendingStatus.CONFLICT,
        *[PendingStatus.WAITING] * 4,
    ]
    assert (await alone.send(now, PAIR)).revision == 2
    assert [each.data for each in ledger.pending()] == [b"edit", later.data]
    assert caplog.text.count("never posted, and is given up: something was written later") == 2


@pytest.mark.parametrize("keep", [spooled, held])
async def test_what_need_not_be_posted_supersedes_what_was_kept_before(
    alone: VerifiedRegistry,
    one: FakeRegistry,
    ledger: Ledger,
    keep: Callable[[VerifiedRegistry, FakeRegistry, Ledger, bytes], Awaitable[PendingWrite]],
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
    later = signed(b"later", 1)
    claimed: list[int] = []

    def claim() -> None:
        one.before = lambda: None
        claimed.append(other.claim_revision(later, "a"))

    if when == "before":
        claim()
    else:
        one.before = claim
    with pytest.raises(StorageError if when == "before" else StaleEntryError):
        await alone.send(kept, PAIR)
    assert one.posts == []
    assert len(claimed) == 1
    one.set(later)
    other.mark_posted(claimed[0])
    other.close()
    assert (await alone.read(ref())).data == b"later"


async def test_conflict_needs_no_post(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: what is never sent by itself, nor superseded, is no reason to post."""
    one.set(signed(b"theirs", 0))
    with pytest.raises(StaleEntryError):
        await alone.write(ref(), PAIR, b"edit", EntryState(None, 0.0, 0.0))
    await alone.write(ref(), PAIR, b"theirs", EntryState(None, 0.0, 0.0))
    assert one.posts == []
    assert pending(ledger) == [(b"edit", None)]


async def test_status_of_what_is_spooled(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger
) -> None:
    """G12: what failed because no portal answered waits for one, of its portals; nothing else."""
    for number, (fault, status) in enumerate(
        [
            ("down", PendingStatus.WAITING),
            ("slow", PendingStatus.WAITING),
            ("denied", PendingStatus.FAILED),
        ]
    ):
        one.faults = [fault] * 3
        with pytest.raises(PortalError):
            await alone.write(ref(str(number)), PAIR, b"x", None)
        assert ledger.pending()[-1].status is status
        assert ledger.pending()[-1].portals == (one.url,)


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
    assert (await alone.send(ledger.pending()[0], PAIR)).data == b"x"
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


class FullLedger(Ledger):
    """A ledger on a disk that may be full."""

    def fill(self, full: bool = True) -> None:
        """Fill the disk, or empty it: SQLite's own limit stands for it."""

        def limit(database: sqlite3.Connection) -> None:
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            database.execute(f"PRAGMA max_page_count = {pages if full else 1 << 30}")

        self.file.database.write(limit)


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


@pytest.mark.parametrize("deletes", [False, True], ids=["rewrite", "deletion"])
async def test_change_waits_for_a_portal_that_may_have_something_newer(
    both: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    ledger: Ledger,
    deletes: bool,
    autojump_clock: object,
):
    """G4: a portal that is behind does not speak for one that cannot be asked."""
    one.set(signed(b"old", 3))
    two.set(signed(b"newer, by another machine", 9))
    ledger.record_seen(signed(b"seen", 4), "a")
    two.always = "down"
    change = both.delete(ref(), PAIR) if deletes else both.write(ref(), PAIR, b"mine", None)
    with pytest.raises(PortalError):
        await change
    assert [data for data, _ in pending(ledger)] == ([] if deletes else [b"mine"])
    assert one.posts == two.posts == []


@pytest.mark.parametrize("seen", [4, 3])
async def test_edit_of_what_one_portal_lost_while_another_is_away(
    both: VerifiedRegistry, one: FakeRegistry, two: FakeRegistry, ledger: Ledger, seen: int
):
    """G10: it is made on what is known, unless this machine has seen something newer."""
    one.set(signed(b"base", 3))
    two.set(signed(b"base", 3))
    base = await both.read(ref())
    one.forget(PAIR.public_key, ref().tweak)
    two.always = "down"
    if seen > base.revision:
        ledger.record_seen(signed(b"theirs", seen), "a")
        with pytest.raises(StaleEntryError):
            await both.write(ref(), PAIR, b"base, edited", base)
        return
    done = await both.write(ref(), PAIR, b"base, edited", base)
    assert (done.revision, one.latest(PAIR.public_key, ref().tweak)) == (4, done.signed)
    assert [(each.portal, each.signed) for each in ledger.owed()] == [(two.url, done.signed)]


async def test_edit_of_what_too_few_portals_answer_for(
    one: FakeRegistry, two: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G10: the error is that of the portal that is away, and the edit goes out once it is back."""
    everywhere = VerifiedRegistry(portals_of([one, two]), ledger, fresh=0, policy=WritePolicy.ALL)
    one.set(signed(b"base", 3))
    two.set(signed(b"base", 3))
    base = await everywhere.read(ref())
    one.forget(PAIR.public_key, ref().tweak)
    two.always = "down"
    with pytest.raises(UnavailableError, match="down") as failure:
        await everywhere.write(ref(), PAIR, b"base, edited", base)
    assert failure.value.url == two.url
    (kept,) = ledger.pending()
    assert (kept.status, kept.base) == (PendingStatus.WAITING, 3)
    either = VerifiedRegistry(portals_of([one, two]), ledger, fresh=0)
    with pytest.raises(UnavailableError):  # what it was made from may be there
        await either.send(kept, PAIR)
    assert [each.status for each in ledger.pending()] == [PendingStatus.WAITING]
    two.always = ""
    await trio.sleep(100)
    done = await either.send(kept, PAIR)
    assert (done.revision, done.data) == (4, b"base, edited")
    assert pending(ledger) == []


async def test_edit_of_what_all_portals_lost(
    both: VerifiedRegistry, one: FakeRegistry, two: FakeRegistry
):
    """G10: it is stale, and the error says why."""
    one.set(signed(b"base", 3))
    base = await both.read(ref())
    one.forget(PAIR.public_key, ref().tweak)
    with pytest.raises(StaleEntryError, match="it is gone, the change was made from revision 3"):
        await both.write(ref(), PAIR, b"base, edited", base)


# read-only portals


async def test_writes_skip_a_portal_that_is_read_only(one: FakeRegistry, ledger: Ledger):
    """W2: as if it were not there; G12: what fails is kept for the others only."""
    mirror = FakeRegistry(2, read_only=True)
    entries = VerifiedRegistry(portals_of([mirror, one]), ledger, fresh=0)
    mirror.set(signed(b"theirs", 4))
    done = await entries.write(ref(), PAIR, b"ours", None)
    assert (done.revision, one.latest(PAIR.public_key, ref().tweak)) == (5, done.signed)
    one.always = "deaf"
    with pytest.raises(UnavailableError):
        await entries.write(ref(), PAIR, b"later", None)
    assert [each.portals for each in ledger.pending()] == [(one.url,)]
    assert mirror.posts == []
    assert entries.at([mirror.url]) is None


async def test_without_a_portal_to_write_to_nothing_is_signed(ledger: Ledger):
    """W2: the content is kept, and not sent by itself; a deletion is refused."""
    mirror = FakeRegistry(1, read_only=True)
    mirror.set(signed(b"there", 4))
    entries = VerifiedRegistry(portals_of([mirror]), ledger, fresh=0)
    with pytest.raises(ReadOnlyPortalError):
        await entries.write(ref(), PAIR, b"ours", None)
    with pytest.raises(ReadOnlyPortalError):
        await entries.delete(ref(), PAIR)
    (kept,) = ledger.pending()
    assert (kept.data, kept.signed, kept.portals) == (b"ours", None, ())
    assert kept.status is PendingStatus.FAILED
    assert mirror.posts == []


async def test_a_retry_without_a_portal_to_write_to_changes_nothing(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger
):
    """W2: what waits for a portal goes on waiting for it."""
    one.always = "deaf"
    with pytest.raises(UnavailableError):
        await alone.write(ref(), PAIR, b"ours", None)
    before = ledger.pending()
    mirror = VerifiedRegistry(portals_of([FakeRegistry(2, read_only=True)]), ledger, fresh=0)
    with pytest.raises(ReadOnlyPortalError):
        await mirror.send(before[0], PAIR)
    assert ledger.pending() == before

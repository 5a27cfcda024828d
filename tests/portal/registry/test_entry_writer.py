"""New content of entries: which revision it takes, and who is asked before."""

from contextlib import closing

import pytest
import trio

from skymount.errors import (
    FrozenEntryError,
    PortalError,
    RevisionConflictError,
    StaleEntryError,
    UnavailableError,
)
from skymount.policies import WritePolicy
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.registry.verified_registry import CONFLICTS, FRESH, VerifiedRegistry
from skymount.wire.registry_entry import MAX_REVISION
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import PAIR, owed, unsent
from tests.portal.registry.entries import pending, ref, signed


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
    assert unsent(ledger)[0].base == 1


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
    assert pending(ledger) == []
    assert len(one.posts) == 2


async def test_edit_of_what_was_frozen_is_not_kept(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G11: a change of an earlier revision is no conflict either, which could be sent later."""
    one.set(signed(b"base", 1))
    base = await alone.read(ref())
    one.set(signed(b"theirs", MAX_REVISION))
    with pytest.raises(FrozenEntryError):
        await alone.write(ref(), PAIR, b"ours", base)
    assert pending(ledger) == []
    assert (await alone.write(ref(), PAIR, b"theirs", base)).revision == MAX_REVISION


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
    debts = [(each.portals[0], each.signed) for each in owed(ledger)]
    assert debts == [(two.url, signed(b"theirs", 9))]


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


async def test_rewrite_asks_a_portal_that_asked_for_a_pause(
    both: VerifiedRegistry,
    one: FakeRegistry,
    two: FakeRegistry,
    ledger: Ledger,
    autojump_clock: object,
):
    """R12, G4: at its end, since the other one is behind."""
    one.set(signed(b"old", 3))
    two.set(signed(b"newer, by another machine", 9))
    ledger.record_seen(signed(b"seen", 4), "a")
    busy = UnavailableError("slow down", url=two.url)
    busy.retry_after = 3
    [_, second] = both.portals.clients
    both.portals.health(second).failed(busy, trio.current_time())
    written = await both.write(ref(), PAIR, b"mine", None)
    assert (written.revision, written.data) == (10, b"mine")
    assert 3 <= trio.current_time() < 5


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
    assert [each.portals for each in unsent(ledger)] == [(one.url,)]
    assert mirror.posts == []


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
    assert [(each.portals[0], each.signed) for each in owed(ledger)] == [(two.url, done.signed)]


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
    (kept,) = unsent(ledger)
    assert (kept.status, kept.base) == (Status.WAITING, 3)
    either = VerifiedRegistry(portals_of([one, two]), ledger, fresh=0)
    with pytest.raises(UnavailableError):  # what it was made from may be there
        await either.send(kept, PAIR)
    assert [each.status for each in unsent(ledger)] == [Status.WAITING]
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


async def test_edit_that_two_others_overtook_is_kept(
    alone: VerifiedRegistry, one: FakeRegistry, ledger: Ledger, autojump_clock: object
):
    """G12: another process took its place in the outbox, and then somebody else was faster."""
    one.set(signed(b"base", 0))
    base = await alone.read(ref())

    def overtake() -> None:
        if unsent(ledger):
            one.before = lambda: None
            with closing(Ledger(ledger.path, process=1)) as other:
                other.claim(ref(), PAIR, b"later", 0, [one.url])
            one.set(signed(b"theirs", 9))

    one.before = overtake
    with pytest.raises(StaleEntryError):
        await alone.write(ref(), PAIR, b"edit", base)
    found = [(each.data, each.status) for each in unsent(ledger)]
    assert found == [(b"later", Status.WAITING), (b"edit", Status.CONFLICT)]

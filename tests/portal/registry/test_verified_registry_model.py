"""VerifiedRegistry against a plain reference, while portals fail, lie and forget, other programs
write, and the process ends and begins again.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skymount.errors import (
    FrozenEntryError,
    PortalError,
    RevisionError,
    StaleEntryError,
    StorageError,
)
from skymount.policies import WritePolicy
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Pending, Status
from skymount.portal.registry.entry_reader import EntryState
from skymount.portal.registry.sender import Sender
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DELETED, MAX_REVISION, Entry, SignedEntry, hash_data_key
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import owed, unsent
from tests.portal.registry.entries import Inline

PAIR = SigningKeyPair.from_seed("model")
NAMES = ("a", "b")
REFS = {name: EntryId(PAIR.public_key, hash_data_key(name), name) for name in NAMES}
LASTING = ["", "", "", "down", "deaf", "lost", "twice", "stale", "forged", "missing"]
FAULTS = [*LASTING, "denied", "slow", 0.3]
PORTALS = 3

T = TypeVar("T")

names = st.sampled_from(["a", "a", "a", "b"])
contents = st.sampled_from([b"x", b"y", b"", b"z" * 113, DELETED])
faults = st.lists(st.sampled_from(FAULTS), max_size=8)


class Model(RuleBasedStateMachine):
    """Two processes with one ledger, three portals, and the owner's program on another machine."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.policy = WritePolicy.ANY
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.portals = [FakeRegistry(n) for n in range(PORTALS)]
        self.ledgers: list[Ledger] = []
        self.processes: list[VerifiedRegistry] = []
        self.known: dict[str, EntryState] = {}
        """The last state of each entry that a program here has read, to be the base of edits."""
        self.marks: dict[str, SignedEntry] = {}
        """The latest of each entry that this machine was shown, or posted."""
        self.unsent: dict[tuple[str, bytes], list[int]] = {}
        """What was reported as failed, and not dropped; and how much each portal had had then."""
        self.meanwhile: tuple[int, str] | None = None
        """At which request of the next change the other machine writes, and what."""
        self.foreign: set[SignedEntry] = set()
        """What the other machine signed."""
        self.conflicts: set[tuple[str, bytes]] = set()
        """What is to be kept until somebody overwrites or drops it."""
        self.ahead = 0.0
        """Seconds that the wall clock is wrong by."""

    @initialize(policy=st.sampled_from(WritePolicy))
    def begin(self, policy: WritePolicy) -> None:
        self.policy = policy
        self.ledgers = [self.ledger() for _ in range(2)]
        self.processes = [self.process(ledger) for ledger in self.ledgers]

    def teardown(self) -> None:
        for ledger in self.ledgers:
            ledger.close()
        shutil.rmtree(self.root)

    # --- what the world does

    @rule(number=st.integers(0, PORTALS - 1), script=faults, then=st.sampled_from(LASTING))
    def misbehave(self, number: int, script: list[str | float], then: str) -> None:
        """A portal will have these faults, then the last one for good."""
        self.portals[number].faults = [*script]
        self.portals[number].always = then

    @rule(
        name=names,
        data=contents,
        where=st.sets(st.integers(0, PORTALS - 1), min_size=1),
        ahead=st.integers(0, 3),
    )
    def other_machine_writes(self, name: str, data: bytes, where: set[int], ahead: int) -> None:
        """The owner's other program posts to some portals, perhaps at a revision that is there."""
        revision = self.highest(name) + ahead
        if 0 <= revision <= MAX_REVISION:
            self.foreign_post(name, data, revision, where)

    @rule(name=names, where=st.sets(st.integers(0, PORTALS - 1), min_size=1))
    def other_machine_freezes(self, name: str, where: set[int]) -> None:
        """The owner posts the last revision but two, so that few are left."""
        self.foreign_post(name, b"late", MAX_REVISION - 2, where)

    def other_machine_writes_next(self, name: str) -> None:
        """The owner's other program posts to every portal, with the next revision."""
        if (revision := self.highest(name) + 1) <= MAX_REVISION:
            self.foreign_post(name, b"meanwhile", revision, set(range(PORTALS)))

    def highest(self, name: str) -> int:
        """Return the highest revision that is at a portal, -1 without any."""
        there = [found for portal in self.portals if (found := self.at(portal, name))]
        return max((found.entry.revision for found in there), default=-1)

    def foreign_post(self, name: str, data: bytes, revision: int, where: set[int]) -> None:
        signed = Entry(REFS[name].tweak, data, revision).sign(PAIR.private_key)
        for number in where:
            with contextlib.suppress(RevisionError):
                self.portals[number].set(signed)
                self.foreign.add(signed)

    @rule(number=st.integers(0, PORTALS - 1), name=names)
    def portal_forgets(self, number: int, name: str) -> None:
        """A portal loses an entry."""
        self.portals[number].forget(PAIR.public_key, REFS[name].tweak)

    @rule(number=st.integers(0, 1))
    def restart(self, number: int) -> None:
        """A process ends and begins again."""
        self.ledgers[number].close()
        self.ledgers[number] = self.ledger()
        self.processes[number] = self.process(self.ledgers[number])

    @rule(ahead=st.sampled_from([0.0, 86_400.0, -86_400.0, 365 * 86_400.0]))
    def wall_clock_jumps(self, ahead: float) -> None:
        """The monotonic clock goes on as it did."""
        self.ahead = ahead

    # --- what is done here

    @rule(name=names, by=st.integers(0, 1), age=st.sampled_from([0.0, 0.0, 2.0]))
    def read(self, name: str, by: int, age: float) -> None:
        """What is shown was signed by the owner, and is not older than what was shown before."""
        with contextlib.suppress(PortalError):
            state = self.run(self.processes[by].read, REFS[name], age)
            self.shown(name, state, remembered=age > 0)

    @rule(
        name=names,
        data=contents,
        by=st.integers(0, 1),
        edit=st.booleans(),
        cancel_after=st.none() | st.integers(1, 5),
        meanwhile=st.none() | st.integers(1, 5),
    )
    def write(
        self,
        name: str,
        data: bytes,
        by: int,
        edit: bool,
        cancel_after: int | None,
        meanwhile: int | None,
    ) -> None:
        """Write everything, or edit what was read; perhaps it is interrupted at some request, or
        the other machine writes at one.
        """
        self.meanwhile = meanwhile and (meanwhile, name)
        base = self.known.get(name) if edit else None
        ref, process = REFS[name], self.processes[by]
        self.change(name, data, base, lambda: process.write(ref, PAIR, data, base), cancel_after)

    @rule(name=names, by=st.integers(0, 1), cancel_after=st.none() | st.integers(1, 5))
    def delete(self, name: str, by: int, cancel_after: int | None) -> None:
        process = self.processes[by]
        self.change(name, None, None, lambda: process.delete(REFS[name], PAIR), cancel_after)

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), by=st.integers(0, 1), overwrite=st.booleans())
    def retry(self, data: st.DataObject, by: int, overwrite: bool) -> None:
        """Send something that is in the outbox; if it is there already, older ones are given up."""
        waiting = data.draw(st.sampled_from(self.pending()), "pending")
        name = self.name_of(waiting)
        process = self.processes[by]

        async def send() -> EntryState:
            return await process.send(waiting, PAIR, overwrite=overwrite)

        self.change(name, waiting.data, None, send, None)
        if overwrite and waiting.id not in {each.id for each in self.pending()}:
            self.conflicts.discard((name, waiting.data))

    @precondition(lambda self: self.pending())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """Give something up."""
        waiting = data.draw(st.sampled_from(self.pending()), "pending")
        assert self.ledgers[1].drop(waiting.id)
        self.unsent.pop((self.name_of(waiting), waiting.data), None)
        self.conflicts.discard((self.name_of(waiting), waiting.data))

    @precondition(lambda self: self.owed())
    @rule(data=st.data(), by=st.integers(0, 1))
    def pay(self, data: st.DataObject, by: int) -> None:
        """Send a portal what it is owed; a write of this machine is not lost without a word."""
        debt = data.draw(st.sampled_from(self.owed()), "owed")
        name = self.name_of(debt)
        process = self.processes[by]
        number = [portal.url for portal in self.portals].index(debt.portals[0])
        (client,) = (each for each in process.portals.clients if each.url == debt.portals[0])
        sender = Sender(process, self.ledgers[by])
        with contextlib.suppress(PortalError, StorageError):
            is_sent = self.run(sender.send_owed, client, debt)
            there = self.at(self.portals[number], name)
            if is_sent:
                assert debt.signed in self.portals[number].ever
            elif debt.is_own and there is not None and not debt.entry.is_deleted:
                assert self.is_known_to_have_lost(debt, name)

    def is_known_to_have_lost(self, debt: Pending, name: str) -> bool:
        """Whether a write that a newer entry won over is kept, or was replaced where it was."""
        data = debt.data
        kept = [each for each in self.pending() if self.name_of(each) == name]
        others = [each for each in self.portals if each.url != debt.portals[0]]
        there = [found for each in self.portals if (found := self.at(each, name))]
        return (
            any(each.status is not Status.CONFLICT or each.data == data for each in kept)
            or any(found.entry.data == data for found in there)
            or any(
                is_behind(debt.entry, found.entry)
                for each in others
                if (found := self.at(each, name))
            )
        )

    @rule(by=st.integers(0, 1))
    def wait_until_all_is_sent(self, by: int) -> None:
        """Once portals work, a mount sends all that waits within a minute, whatever the clock says;
        what is left waits for a person.
        """
        for portal in self.portals:
            portal.faults, portal.always = [], ""
        process = self.processes[by]

        async def pair_of(_: bytes) -> SigningKeyPair:
            return PAIR

        async def mount() -> None:
            sender = Sender(process, self.ledgers[by], pair_of=pair_of)
            with trio.move_on_after(60):
                await sender.run()

        before = {self.name_of(each): each for each in self.pending()}
        self.run(mount)
        left = self.ledgers[0].pending()
        assert all(each.status is not Status.WAITING for each in left) or any(
            each.status is Status.CONFLICT
            for each in left  # written later than what waits
        )
        assert not [each for each in left if each.accepted]
        for name, each in before.items():
            if each.status is Status.WAITING and not any(self.name_of(e) == name for e in left):
                self.conflicts.discard((name, each.data))

    def change(
        self,
        name: str,
        data: bytes | None,
        base: EntryState | None,
        action: Callable[[], Awaitable[EntryState]],
        cancel_after: int | None,
    ) -> None:
        """Change an entry; `data` is None for a deletion that need not be posted."""
        try:
            state = self.run_until(action, cancel_after)
        except StaleEntryError:
            self.failed(name, data)
            if base is not None and data is not None and data != DELETED:
                self.conflicts.add((name, data))
            return
        except FrozenEntryError:
            assert MAX_REVISION - 2 <= max(
                entry.entry.revision for entry in self.all_signed() if self.is_of(entry, name)
            )
            kept = {(self.name_of(each), each.data) for each in self.pending()}
            for key in [key for key in self.unsent if key[0] == name and key not in kept]:
                del self.unsent[key]  # it is given up
                self.conflicts.discard(key)
            return
        except PortalError:
            self.failed(name, data)
            return
        except StorageError:  # a conflict, and something else was written later
            assert len([each for each in self.pending() if self.name_of(each) == name]) > 1
            return
        if state is None:  # interrupted
            self.failed(name, data)
            return
        self.shown(name, state, remembered=False)
        if data is None:
            assert state.data is None
            return
        assert state.signed is not None
        assert state.signed.entry.data == data
        self.done(name, state.signed)

    def failed(self, name: str, data: bytes | None) -> None:
        """What was reported as failed is in the outbox, at least unless it had come through."""
        if data != DELETED or self.is_written(name, DELETED):
            for each in [each for each in self.unsent if each[0] == name]:
                if each not in self.conflicts and self.is_written(name, data):
                    del self.unsent[each]  # its place was taken
        if data is not None and data != DELETED:
            self.unsent.setdefault((name, data), [len(each.posts) for each in self.portals])

    def is_written(self, name: str, data: bytes | None) -> bool:
        """Whether a write of that content is pending which is no conflict."""
        return any(
            self.name_of(each) == name and each.data == data
            for each in self.pending()
            if each.status is not Status.CONFLICT
        )

    def done(self, name: str, signed: SignedEntry) -> None:
        """What was reported as done is what a new process reads, or what somebody set since."""
        self.conflicts.discard((name, signed.entry.data))
        assert any(signed in portal.ever for portal in self.portals)
        assert signed in self.foreign or all(
            self.has_or_is_owed(portal, name, signed) for portal in self.portals
        )
        for portal in self.portals:
            portal.faults, portal.always = [], ""
        found = self.run(self.process(self.ledgers[0]).read, REFS[name])
        assert found.signed is not None
        if found.signed != signed:
            assert found.signed in self.foreign
            assert found.signed.entry.revision >= signed.entry.revision
        self.shown(name, found, remembered=False)

    def shown(self, name: str, state: EntryState, *, remembered: bool) -> None:
        """Check a state that somebody was shown."""
        if not remembered:
            self.known[name] = state
        if state.signed is None:
            return
        assert state.signed.verify() in self.all_signed()
        mark = self.marks.get(name)
        if mark is None or is_behind(mark.entry, state.signed.entry):
            self.marks[name] = state.signed
        elif not remembered:  # another process may remember what was true a moment ago
            assert not is_behind(state.signed.entry, mark.entry)

    def has_or_is_owed(self, portal: FakeRegistry, name: str, signed: SignedEntry) -> bool:
        """Whether an entry, or something newer, was at a portal or is owed to it."""
        owed = [each.signed for each in self.owed() if portal.url in each.portals and each.signed]
        return any(
            each == signed or is_behind(signed.entry, each.entry)
            for each in (*portal.ever, *owed)
            if self.is_of(each, name)
        )

    # --- what always holds

    @invariant()
    def nothing_outdated_is_owed(self) -> None:
        """Of an entry only the newest revision that was seen is owed."""
        for debt in self.owed():
            assert not debt.is_posting
            mark = self.ledgers[0].newest_entry(PAIR.public_key, debt.tweak)
            assert mark is not None
            assert not is_behind(debt.entry, mark.entry)

    @invariant()
    def no_revision_has_two_contents(self) -> None:
        """This machine signs no revision twice; what the other one signed, it may post as well."""
        contents: dict[tuple[bytes, int], bytes] = {}
        for portal in self.portals:
            for signed in set(portal.posts) - self.foreign:
                key = (signed.entry.tweak, signed.entry.revision)
                assert contents.setdefault(key, signed.entry.data) == signed.entry.data
        for waiting in self.pending():
            if waiting.signed is not None:
                key = (waiting.tweak, waiting.signed.entry.revision)
                assert contents.setdefault(key, waiting.data) == waiting.data

    @invariant()
    def nothing_is_lost(self) -> None:
        """What failed is pending, unless it came through after all, or was superseded: something
        was posted here to the same entry since, and the portal had or took it.
        """
        waiting = {(self.name_of(each), each.data) for each in self.pending()}
        for (name, data), before in self.unsent.items():
            assert (name, data) in waiting or any(
                signed.entry.data == data or signed in portal.posts[had:]
                for portal, had in zip(self.portals, before, strict=True)
                for signed in portal.ever
                if self.is_of(signed, name)
            )

    @invariant()
    def conflicts_stay(self) -> None:
        """They are shown until somebody overwrites or drops them, or that content is written."""
        kept = {(self.name_of(each), each.data) for each in self.pending()}
        assert {
            (name, data)
            for name, data in self.conflicts
            if not any(
                signed.entry.data == data and self.is_of(signed, name)
                for portal in self.portals
                for signed in portal.posts
            )
        } <= kept

    @invariant()
    def one_write_waits(self) -> None:
        """Of each entry at most one write is pending that is no conflict."""
        names = [
            self.name_of(each) for each in self.pending() if each.status is not Status.CONFLICT
        ]
        assert len(names) == len(set(names))

    @invariant()
    def nothing_is_left_behind(self) -> None:
        """No process says for ever that it is posting."""
        assert not any(each.is_posting for each in self.pending())

    # --- means

    def ledger(self) -> Ledger:
        path = self.root / "ledger.sqlite3"
        return Ledger.open(path, lambda: 2e9 + self.clock.current_time() + self.ahead)

    def process(self, ledger: Ledger) -> VerifiedRegistry:
        found = VerifiedRegistry(
            portals_of(self.portals), ledger, policy=self.policy, clock=ledger.clock
        )
        found.marks = Inline(ledger)
        return found

    def owed(self) -> list[Pending]:
        return owed(self.ledgers[0]) if self.ledgers else []

    def pending(self) -> list[Pending]:
        return unsent(self.ledgers[0]) if self.ledgers else []

    def all_signed(self) -> set[SignedEntry]:
        """Return all that the owner's programs ever signed and sent."""
        return self.foreign.union(*(portal.posts for portal in self.portals))

    @staticmethod
    def is_of(signed: SignedEntry, name: str) -> bool:
        return signed.entry.tweak == REFS[name].tweak

    @staticmethod
    def name_of(waiting: Pending) -> str:
        assert waiting.data_key is not None
        return waiting.data_key

    @staticmethod
    def at(portal: FakeRegistry, name: str) -> SignedEntry | None:
        return portal.latest(PAIR.public_key, REFS[name].tweak)

    def run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        return trio.run(function, *args, clock=self.clock)

    def run_until(self, action: Callable[[], Awaitable[T]], cancel_after: int | None) -> T | None:
        """Run it; cancelled when the portals have got so many requests: None then."""

        async def main() -> T | None:
            requests = 0
            with trio.CancelScope() as scope:

                def count() -> None:
                    nonlocal requests
                    requests += 1
                    if requests == cancel_after:
                        scope.cancel()
                    if self.meanwhile and requests == self.meanwhile[0]:
                        self.other_machine_writes_next(self.meanwhile[1])

                for portal in self.portals:
                    portal.before = count
                return await action()
            return None

        try:
            return trio.run(main, clock=self.clock)
        finally:
            self.meanwhile = None
            for portal in self.portals:
                portal.before = lambda: None


def is_behind(one: Entry, other: Entry) -> bool:
    """Whether the registry would replace one by the other."""
    return one.revision < other.revision or (
        one.revision == other.revision and other.work < one.work
    )


Model.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestModel = pytest.mark.slow(pytest.mark.timeout(600)(Model.TestCase))  # 12 s without other work

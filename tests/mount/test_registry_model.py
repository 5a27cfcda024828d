"""A mounted registry against a plain reference, while its portal fails, lies and loses answers, the
owner's program on another machine writes, and the daemon is killed.
"""

import errno
import os
from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Pending
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.settings import PortalOptions
from skymount.wire.registry_entry import SignedEntry, hash_data_key
from tests.mount.keys import HOME, Owner, Program, until
from tests.mount.scripted import ScriptedPortal, scripted_portal
from tests.portal.ledger.entries import unsent
from tests.skymount_process import Mount, Sandbox, end

EXAMPLES = 10
STEPS = 40
LIMIT = 113

FAULTS = ["", "", "down", "drop", "lost", "twice", "stale", "forged", "missing", "denied", "slow"]
HARMLESS = {"slow", "twice"}
"""Faults of which nobody notices anything."""
MODES = {
    "read": os.O_RDONLY,
    "edit": os.O_RDWR,
    "append": os.O_RDWR | os.O_CREAT | os.O_APPEND,
    "rewrite": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
}

names = st.integers(0, 3)
slots = st.integers(0, 2)
scripts = st.lists(st.sampled_from(FAULTS), min_size=1, max_size=5)


class World:
    """The portal, the home and the mount that all examples share; each has names of its own."""

    def __init__(self, portal: ScriptedPortal, owner: Owner) -> None:
        self.portal = portal
        self.owner = owner
        self.ledger = Ledger(owner.sandbox.root / "state/skymount/ledger.sqlite3")
        self.numbers = count()
        self._stack = ExitStack()
        self.mount: Mount
        self.tool: Program

    def begin(self) -> None:
        """Mount, and start a program in the mount."""
        self.mount = self._stack.enter_context(
            self.owner.sandbox.mounted("--portal", self.portal.url, clean=False)
        )
        self.tool = Program(self.mount.path / "registry" / HOME)
        self._stack.callback(lambda: end(self.tool.process))
        self.tool.do("(fds := {})")

    def end(self) -> None:
        self._stack.close()

    def kill(self) -> None:
        """End the daemon at once, then what is left of the mount."""
        self.mount.daemon.signal(SIGKILL)
        self.mount.daemon.wait()
        self.end()

    def fresh(self, refs: Sequence[EntryId]) -> list[SignedEntry | None]:
        """Return what a program reads that never asked before."""

        async def read(ledger: Ledger) -> list[SignedEntry | None]:
            options = PortalOptions.parse(self.portal.url, retries=0)
            async with PortalReader.of(options) as reader:
                entries = VerifiedRegistry(Portals([reader]), ledger)
                return [(await entries.read(ref)).signed for ref in refs]

        with TemporaryDirectory() as directory, closing(Ledger(Path(directory) / "new")) as ledger:
            return trio.run(read, ledger)


class Unknown:
    """Stands for what cannot be told."""


@dataclass
class Content:
    """What is being written to an entry, as the reference has it; several handles share it."""

    data: bytes
    base: "SignedEntry | Unknown | None"
    """The entry that an edit is of; None: there was none."""
    stored: bytes | None
    is_new: bool | None
    """None when that cannot be told."""
    rewrites: bool = False
    """Whether it replaces whatever there is."""
    written: bool = False
    emptied: bool = False
    overflowed: bool = False
    failed: bool = False
    """Whether its last posting failed."""
    is_cut_off: bool = False
    writers: int = 0


@dataclass
class Handle:
    """An open file."""

    name: int
    content: Content | None
    """None of one that is open for reading."""
    appends: bool = False
    seen: list[bytes] = field(default_factory=list)
    kept: bytes | None = None
    """What it had when its file was removed, renamed or replaced in the mount."""


class Result(NamedTuple):
    """What an operation came to."""

    text: str
    """A value, or the name of an errno."""
    honest: bool
    """Whether the portal did as it should meanwhile, and nobody else wrote."""
    faults: set[str]
    was_changed: bool
    """Whether the other machine wrote meanwhile."""
    posts: list[SignedEntry]

    @property
    def failed(self) -> bool:
        return self.text in errno.errorcode.values()


class Model(RuleBasedStateMachine):
    """Up to three open files of four entries."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.portal, self.owner = self.world.portal, self.world.owner
        number = next(self.world.numbers)
        self.names = [f"e{number}-{letter}" for letter in "abcd"]
        self.refs = [
            EntryId(self.owner.pair.public_key, hash_data_key(name), name) for name in self.names
        ]
        self.tokens = count()
        self.handles: dict[int, Handle] = {}
        self.contents: dict[int, Content] = {}
        self.local: set[int] = set()
        """Files that are new, empty, and not open."""
        self.marks = dict.fromkeys(range(4), -1)
        """The highest revision that was shown, or reported as done."""
        self.visible: dict[int, list[bytes]] = {name: [] for name in range(4)}
        """All that was ever written to a file, posted or not."""
        self.unsent: dict[tuple[int, bytes], int] = {}
        """What was reported as failed."""
        self.meanwhile: tuple[int, int] | None = None
        """At how many requests from now the other machine writes, and to which entry."""
        self.was_disturbed = False
        self.restarts = 0

    @initialize(modes=st.lists(st.sampled_from([*MODES]), min_size=2, max_size=3))
    def begin(self, modes: list[str]) -> None:
        """There are some entries, and some of them are open."""
        for name in range(3):
            self.foreign_post(name, self.token(b"first"))
        for slot, mode in enumerate(modes):
            self.open(slot, slot // 2, mode)

    # --- what the world does

    @rule(script=scripts, meanwhile=st.none() | st.tuples(st.integers(1, 3), names))
    def misbehave(self, script: list[str], meanwhile: tuple[int, int] | None) -> None:
        """The next requests have these faults; at one of them the other machine writes."""
        self.portal.faults = [*script]
        self.meanwhile = meanwhile

    @rule(always=st.sampled_from(["", "", "", "down", "deaf", "lost", "stale", "forged"]))
    def misbehave_for_good(self, always: str) -> None:
        """All requests have a fault from now on, or none."""
        self.portal.faults, self.portal.always, self.meanwhile = [], always, None

    @rule(name=names, is_deletion=st.sampled_from([False, False, True]))
    def other_machine_writes(self, name: int, is_deletion: bool) -> None:
        """The owner's other program sets or deletes an entry."""
        self.foreign_post(name, bytes(34) if is_deletion else self.token(b"theirs"))

    def foreign_post(self, name: int, data: bytes) -> None:
        if name in self.local:
            return  # when the mount notices that cannot be told
        current = self.latest(name)
        revision = current.entry.revision + 1 if current else 0
        self.portal.set(self.owner.signed(self.names[name], data, revision))

    def before_request(self) -> None:
        if self.meanwhile is None:
            return
        left, name = self.meanwhile
        self.meanwhile = (left - 1, name) if left > 1 else None
        if left == 1:
            self.was_disturbed = True  # (the portal holds its lock)
            self.foreign_post(name, self.token(b"meanwhile"))

    @precondition(lambda self: not self.restarts)
    @rule(is_crash=st.booleans())
    def restart(self, is_crash: bool) -> None:
        """The mount ends, or is killed, and begins again."""
        self.restarts += 1
        if is_crash:
            self.handles.clear()  # what is written now and not closed is reported as failed
            self.world.kill()
        else:
            for slot in list(self.handles):
                self.close(slot)
            self.world.end()
        self.contents.clear()
        self.local.clear()
        self.world.begin()

    # --- what programs do

    @rule(slot=slots, name=names, mode=st.sampled_from([*MODES]))
    def open(self, slot: int, name: int, mode: str) -> None:
        """G5: An open sees what the portal has at that time."""
        if slot in self.handles:
            self.close(slot)
        existed = self.is_there(name)
        before = self.latest(name)
        step = f"fds.__setitem__({slot}, os.open({self.names[name]!r}, {MODES[mode]}))"
        result = self.do(step)
        if result.failed:
            if result.honest:
                assert result.text == "ENOENT"
                assert not existed
                assert mode in ("read", "edit")
            elif not result.was_changed and not result.faults & {"missing", "stale"}:
                is_gone = not existed or self.was_seen_deleted(name)
                assert result.text != "ENOENT" or is_gone  # G3, G20
            return
        if result.honest:
            assert existed or mode in ("append", "rewrite")
        data = self.pread(slot)
        if mode == "read":
            self.handles[slot] = Handle(name, None, seen=[data])
            self.check_read(name, data, result.honest)
            return
        content = self.contents.get(name)
        if content is None:
            content = self.new_content(name, data, mode, before, result.honest)
        elif mode != "rewrite":
            assert data == content.data
        if mode == "rewrite":
            assert data == b""
            self.resize(content, 0)
        content.writers += 1
        self.contents[name] = content
        self.handles[slot] = Handle(name, content, mode == "append")

    def new_content(
        self, name: int, data: bytes, mode: str, before: SignedEntry | None, honest: bool
    ) -> Content:
        was_local, is_empty = name in self.local, before is None or before.entry.is_deleted
        if mode != "rewrite":
            self.check_read(name, data, honest, may_be_new=mode == "append" or was_local)
        self.local.discard(name)
        if not honest:
            return Content(data, Unknown(), None, None)
        stored = None if before is None or is_empty else before.entry.data
        return Content(data, before, stored, is_empty, rewrites=was_local and is_empty)

    @precondition(lambda self: self.handles)
    @rule(slot=slots, size=st.sampled_from([0, 1, 5, 60, 120]), at=st.integers(0, 130))
    def write(self, slot: int, size: int, at: int) -> None:
        """G9: More than 113 bytes are EFBIG at write."""
        slot, handle = self.writable(slot)
        if handle is None or handle.content is None:
            return
        content, data = handle.content, self.token(b"ours").ljust(size, b".")
        at = len(content.data) if handle.appends else at if at < 114 else 0
        result = self.do(f"os.pwrite(fds[{slot}], {data!r}, {at})")
        if content.is_cut_off:
            assert result.text == "ESTALE"
        elif content.overflowed or at + len(data) > LIMIT:
            assert result.text == "EFBIG"
            content.overflowed = True
        else:
            assert result.text == str(len(data))
            there = content.data.ljust(at, b"\0")
            content.data = there[:at] + data + there[at + len(data) :]
            content.written, content.failed = True, False
            self.visible[handle.name].append(content.data)
        assert result.posts == []
        assert content.is_cut_off or self.pread(slot) == content.data

    @rule(
        slot=slots,
        name=names,
        mode=st.sampled_from(["edit", "append", "rewrite"]),
        script=st.just([""]) | scripts,
        meanwhile=st.none() | st.tuples(st.integers(1, 3), names),
    )
    def save(
        self, slot: int, name: int, mode: str, script: list[str], meanwhile: tuple[int, int] | None
    ) -> None:
        """A program opens a file, writes, and closes it, while the portal has these faults."""
        self.open(slot, name, mode)
        if slot in self.handles:
            self.write(slot, 5, 3)
        self.misbehave(script, meanwhile)
        self.close(slot)

    @precondition(lambda self: self.handles)
    @rule(slot=slots)
    def write_same(self, slot: int) -> None:
        """A program writes what is stored already."""
        slot, handle = self.writable(slot)
        if handle is None or handle.content is None or not handle.content.stored:
            return
        content = handle.content
        if content.is_cut_off or content.overflowed or content.data:
            return
        data = content.stored
        assert self.do(f"os.pwrite(fds[{slot}], {data!r}, 0)").text.isdigit()
        content.data, content.written, content.failed = data, True, False

    @precondition(lambda self: self.handles)
    @rule(slot=slots, size=st.sampled_from([0, 0, 3, 113, 114]))
    def truncate(self, slot: int, size: int) -> None:
        """A program cuts or extends a file that it has open."""
        slot, handle = self.writable(slot)
        if handle is None or handle.content is None:
            return
        result = self.do(f"os.ftruncate(fds[{slot}], {size})")
        if handle.content.is_cut_off:
            assert result.text == "ESTALE"
        elif size > LIMIT:
            assert result.text == "EFBIG"
        else:
            assert result.text == "None"
            self.resize(handle.content, size)
            self.visible[handle.name].append(handle.content.data)
            assert self.pread(slot) == handle.content.data

    def resize(self, content: Content, size: int) -> None:
        content.failed = False
        if size == 0:
            content.rewrites, content.emptied = True, True
            content.written = content.overflowed = False
        elif size != len(content.data):
            content.written = True
        content.data = content.data[:size].ljust(size, b"\0")

    @precondition(lambda self: self.handles)
    @rule(slot=slots)
    def read_on(self, slot: int) -> None:
        """A reader that has a file open sees one of its contents, never a mixture."""
        slot = self.chosen(slot)
        handle = self.handles.get(slot)
        if handle is None:
            return
        data = self.pread(slot)
        if handle.kept is not None:
            assert data == handle.kept
            shown = self.do(f"[(s.st_nlink, s.st_size) for s in [os.fstat(fds[{slot}])]]").text
            assert shown == str([(0, len(data))])
            return
        if handle.content is not None:
            assert data == handle.content.data
            return
        assert data in [*handle.seen, b"", *self.visible[handle.name], *self.ever(handle.name)]

    @precondition(lambda self: self.handles)
    @rule(slot=slots)
    def sync(self, slot: int) -> None:
        """G8: the fsync has the result."""
        handle = self.handles.get(slot)
        if handle is None:
            return
        before = self.expectation(handle, at_release=True)
        self.check_posted(handle, before, self.do(f"os.fsync(fds[{slot}])"))

    @precondition(lambda self: self.handles)
    @rule(slot=slots)
    def close_one(self, slot: int) -> None:
        """A program closes a file."""
        self.close(self.chosen(slot))

    def close(self, slot: int) -> None:
        """G8: the close has the result."""
        handle = self.handles.pop(slot, None)
        if handle is None:
            return
        content = handle.content
        if content and content.is_new is None and content.emptied and not content.written:
            self.handles[slot] = handle
            self.sync(slot)  # nobody can tell whether the end of such a file posts it
            del self.handles[slot]
        before = self.expectation(handle, at_release=False)
        result = self.do(f"os.close(fds.pop({slot}))")
        if content and self.is_posted_at_release(content):  # it may be there before the close is
            empty = [each for each in self.posted_to(handle.name, result) if not each.entry.data]
            result = result._replace(posts=[each for each in result.posts if each not in empty])
        self.check_posted(handle, before, result)
        if handle.content is None:
            return
        self.do("os.listdir()")  # by now the daemon has noticed
        self.released(handle, handle.content)

    def released(self, handle: Handle, content: Content) -> None:
        """What happens once nobody has the file open."""
        content.writers -= 1
        if content.writers or content.is_cut_off:
            return
        del self.contents[handle.name]
        if self.was_only_emptied(content):
            self.was_emptied(handle.name, content)
        elif not content.failed and (content.is_new or self.may_be_local(handle.name, content)):
            self.local.add(handle.name)

    def was_only_emptied(self, content: Content) -> bool:
        return content.emptied and not (content.written or content.failed or content.overflowed)

    def is_posted_at_release(self, content: Content) -> bool:
        """Whether it is posted by the daemon on its own, once the last writer has closed it."""
        is_last = content.writers == 1 and not content.is_cut_off
        return is_last and content.is_new is False and self.was_only_emptied(content)

    def may_be_local(self, name: int, content: Content) -> bool:
        return content.is_new is None and not content.data and not self.has_data(name)

    def was_emptied(self, name: int, content: Content) -> None:
        """A file that was only emptied is posted when nobody has it open any more."""
        if content.is_new is not False:
            self.local.add(name)
            return

        def is_done() -> bool:
            found = self.latest(name)
            is_there = found is not None and found.entry.data == b""
            return is_there or (name, b"") in self.waiting()

        until(is_done)
        found = self.latest(name)
        if found is not None and found.entry.data == b"":
            self.marks[name] = max(self.marks[name], found.entry.revision)

    def expectation(self, handle: Handle, *, at_release: bool) -> str:
        """Return what posting must come to if the portal is honest."""
        content = handle.content
        if content is None:
            return "nothing"
        if content.failed:
            return "error"
        if content.overflowed or content.is_cut_off:
            return "nothing"
        if not content.written and not (content.emptied and at_release):
            return "nothing"
        if content.is_new is not False and not content.data:
            return "nothing" if content.is_new else "perhaps"
        if content.rewrites:
            return "done"
        if isinstance(content.base, Unknown):
            return "perhaps"
        if content.written and content.stored == content.data:
            return "nothing"
        latest = self.latest(handle.name)
        same = latest == content.base or (
            latest is not None and content.base is not None and latest.entry == content.base.entry
        )
        return "done" if same else "stale"

    def check_posted(self, handle: Handle, expected: str, result: Result) -> None:
        content = handle.content
        if content is None or expected == "nothing":
            assert result.text == "None"
            assert result.posts == []
            return
        data, name = content.data, handle.name
        if expected == "error":
            assert result.failed
            assert result.posts == []
            return
        if not result.failed and expected == "perhaps" and not result.posts:
            return
        content.written = content.emptied = False
        if result.failed:
            assert not result.honest or expected in ("stale", "perhaps"), result
            content.failed = True
            self.not_done(name, data)
            return
        assert not (result.honest and expected == "stale")
        signed = self.done(name, data, result)
        content.is_new, content.stored = False, data
        content.base, content.rewrites = signed, False

    @rule(name=names)
    def unlink(self, name: int) -> None:
        """G13: rm posts the deletion of the entry."""
        content = self.contents.get(name)
        existed, is_local = self.is_there(name), name in self.local
        before = self.latest(name)
        is_new = content.is_new if content else is_local
        result = self.do(f"os.unlink({self.names[name]!r})")
        if result.failed:
            if result.honest:
                assert result.text == "ENOENT"
                gone = before is None or before.entry.is_deleted
                assert not existed or (content is not None and not is_new and gone)
            return
        found = self.latest(name)
        if result.honest:
            assert existed
            assert is_new is not False or found is None or found.entry.is_deleted
        self.cut_off(name)

    def cut_off(self, name: int) -> None:
        self.local.discard(name)
        content = self.contents.pop(name, None)
        if content is not None:
            content.is_cut_off = True
        for slot, handle in self.handles.items():
            if handle.name == name and handle.kept is None:
                handle.kept = self.pread(slot)
                if content is not None:
                    assert handle.kept == content.data
                else:
                    known = [*handle.seen, b"", *self.visible[name], *self.ever(name)]
                    assert handle.kept in known

    @rule(source=names, onto=names)
    def rename(self, source: int, onto: int) -> None:
        """G13: A rename posts the new entry, then deletes the old one."""
        is_honest = not (self.portal.faults or self.portal.always or self.meanwhile)
        involved = {source, onto} & {*self.contents, *self.local}
        if source == onto or (involved and not is_honest):
            return  # of the latter nobody could tell how far it came
        content, latest = self.contents.get(source), self.latest(source)
        existed, was_there = self.is_there(source), self.is_there(onto)
        data = b""
        if content is not None:
            data = content.data
        elif latest is not None and not latest.entry.is_deleted:
            data = latest.entry.data
        result = self.do(f"os.rename({self.names[source]!r}, {self.names[onto]!r})")
        if result.failed:
            if result.honest:
                assert (result.text, existed) == ("ENOENT", False)
            now = self.latest(source)
            if now != latest and now in result.posts:  # deleted: then it has its new name
                assert self.posted_to(onto, result)
            return
        if result.honest:
            assert existed
        else:
            found = self.posted_to(onto, result)
            if found:  # what the source held just then
                data = found[-1].entry.data
                assert data in self.ever(source)
        self.cut_off(onto)
        if not data and not was_there:
            self.local.add(onto)
        elif result.honest:
            self.done(onto, data, result)
        self.cut_off(source)

    def posted_to(self, name: int, result: Result) -> list[SignedEntry]:
        return [each for each in result.posts if each.entry.tweak == self.refs[name].tweak]

    def ever(self, name: int) -> list[bytes]:
        """Return all contents that the portal ever had of an entry."""
        tweak = self.refs[name].tweak
        return [each.entry.data for each in self.portal.ever if each.entry.tweak == tweak]

    # --- what always holds

    @invariant()
    def no_revision_has_two_contents(self) -> None:
        """G12: A revision is never signed for two contents."""
        contents: dict[tuple[bytes, int], bytes] = {}
        signed = [*self.portal.posts, *(each.signed for each in self.pending() if each.signed)]
        for each in signed:
            key = (each.entry.tweak, each.entry.revision)
            assert contents.setdefault(key, each.entry.data) == each.entry.data

    @invariant()
    def nothing_is_lost(self) -> None:
        """G12: What could not be posted is kept on disk, unless it came through after all, or this
        machine has posted something to the entry since.
        """
        waiting = self.waiting()
        for (name, data), had in self.unsent.items():
            later = [each for each in self.portal.ever[had:] if each in self.portal.posts]
            is_superseded = any(each.entry.tweak == self.refs[name].tweak for each in later)
            assert (name, data) in waiting or data in self.ever(name) or is_superseded

    def teardown(self) -> None:
        """G8: What was reported as done is what a program reads that never asked before."""
        self.misbehave_for_good("")
        for slot in list(self.handles):
            self.close(slot)
        found = self.world.fresh(self.refs)
        for name, signed in enumerate(found):
            assert signed == self.latest(name)
            assert self.marks[name] <= (signed.entry.revision if signed else -1)

    # --- checks

    def check_read(self, name: int, data: bytes, honest: bool, *, may_be_new: bool = False) -> None:
        """G4: Nothing is shown that its owner did not sign, or that is rolled back.

        G5: An open sees what the portal has at that time.
        """
        if name in self.contents:
            assert data == self.contents[name].data
            return
        if data == b"" and (may_be_new or name in self.local) and not self.has_data(name):
            return
        if honest:
            latest = self.latest(name)
            assert latest is not None
            assert data == latest.entry.data
        shown = [
            each.entry.revision
            for each in self.signed_with(name, data)
            if each.entry.revision >= self.marks[name]
        ]
        if shown:
            self.marks[name] = min(shown)
        else:
            assert (data, honest, may_be_new) == (b"", False, True)

    def done(self, name: int, data: bytes, result: Result) -> SignedEntry:
        """Check that something is at the portal, unless somebody else wrote meanwhile."""
        signed = self.signed_with(name, data)[-1]
        latest = self.latest(name)
        assert latest is not None
        if result.honest:
            assert latest == signed
        assert latest == signed or latest not in self.portal.posts
        assert signed.entry.revision >= self.marks[name]
        self.marks[name] = signed.entry.revision
        return signed

    def not_done(self, name: int, data: bytes) -> None:
        """G12: What could not be posted is kept on disk."""
        assert (name, data) in self.waiting()
        self.unsent.setdefault((name, data), len(self.portal.ever))

    # --- means

    def do(self, step: str) -> Result:
        """Let the program do something."""
        with self.portal.lock:
            self.portal.used.clear()
        self.portal.before = self.before_request
        self.was_disturbed, posts = False, len(self.portal.posts)
        text = self.world.tool.do(step)
        faults = {*self.portal.used} - HARMLESS
        honest = not faults and not self.was_disturbed
        return Result(text, honest, faults, self.was_disturbed, self.portal.posts[posts:])

    def pread(self, slot: int) -> bytes:
        data = literal_eval(self.do(f"os.pread(fds[{slot}], 200, 0)").text)
        assert isinstance(data, bytes)
        return data

    def chosen(self, slot: int) -> int:
        """Return a slot with an open file."""
        return sorted(self.handles)[slot % len(self.handles)] if self.handles else slot

    def writable(self, slot: int) -> tuple[int, Handle | None]:
        """Return one that is open for writing, if there is any."""
        found = [each for each in sorted(self.handles) if self.handles[each].content]
        if not found:
            return slot, None
        slot = found[slot % len(found)]
        return slot, self.handles[slot]

    def token(self, word: bytes) -> bytes:
        """Return content that was never there."""
        return b"%s%d" % (word, next(self.tokens))

    def latest(self, name: int) -> SignedEntry | None:
        return self.portal.latest(self.refs[name].public_key, self.refs[name].tweak)

    def has_data(self, name: int) -> bool:
        found = self.latest(name)
        return found is not None and not found.entry.is_deleted

    def was_seen_deleted(self, name: int) -> bool:
        """Whether a deletion is the newest that this machine has seen of an entry."""
        ref = self.refs[name]
        found = self.world.ledger.newest_entry(ref.public_key, ref.tweak)
        return found is not None and found.entry.is_deleted

    def is_there(self, name: int) -> bool:
        return name in self.contents or name in self.local or self.has_data(name)

    def signed_with(self, name: int, data: bytes) -> list[SignedEntry]:
        """Return all that the portal ever had of an entry with that content."""
        tweak = self.refs[name].tweak
        return [
            each
            for each in self.portal.ever
            if each.entry.tweak == tweak and each.entry.data == data
        ]

    def pending(self) -> list[Pending]:
        tweaks = {ref.tweak for ref in self.refs}
        return [each for each in unsent(self.world.ledger) if each.tweak in tweaks]

    def waiting(self) -> set[tuple[int, bytes]]:
        """Return what is in the outbox, less what is being posted just now."""
        numbers = {ref.tweak: name for name, ref in enumerate(self.refs)}
        return {(numbers[each.tweak], each.data) for each in self.pending() if not each.is_posting}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A portal, a home and a mount."""
    with scripted_portal() as portal:
        root = tmp_path_factory.mktemp("model")
        owner = Owner.make(Sandbox.make(root / "sandbox"), portal.url)
        # No lookup is cut short, and no answer is remembered.
        sandbox = owner.sandbox.with_env(
            SKYMOUNT_REGISTRY_TTL="0.000001",
            SKYMOUNT_LOOKUP_GRACE="20",
            SKYMOUNT_SEND_PENDING="false",
        )
        made = World(portal, Owner(sandbox, portal.url, owner.pair))
        made.begin()
        with closing(made.ledger):
            try:
                yield made
            finally:
                portal.faults, portal.always, portal.before = [], "", lambda: None
                made.end()
        logs = [log.read_text(errors="replace") for log in owner.sandbox.logs]
        assert not [text for text in logs if "Traceback" in text]


@pytest.mark.slow
def test_model(world: World) -> None:
    """G4, G8, G12: whatever the portal does, what close said is true, nothing is lost in silence,
    and no revision has two contents.
    """
    run_state_machine_as_test(
        lambda: Model(world),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # each step is real: making a failure smaller takes long
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_same_content_while_the_portal_is_down(world: World) -> None:
    """G12: What could not be posted is kept on disk, also if it is what was there before."""
    name, data = "same", b"content"
    world.portal.set(world.owner.signed(name, data, 0))
    assert world.tool.do(f"open({name!r}, 'rb').read()") == repr(data)
    world.portal.always = "down"
    try:
        world.tool.do(f"fds.__setitem__(0, os.open({name!r}, os.O_WRONLY | os.O_TRUNC))")
        assert world.tool.do(f"os.write(fds[0], {data!r})") == str(len(data))
        assert world.tool.do("os.close(fds.pop(0))") == "EIO"
    finally:
        world.portal.always = ""
    assert data in [each.data for each in unsent(world.ledger) if each.data_key == name]

"""A program that ends at each statement and at each request of a scenario in turn, and looks what
is left then. It has one thread, so that it can fork. `test_kills` runs it.
"""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio
import trio.testing

from skymount.errors import PortalError, RevisionError
from skymount.policies import WritePolicy
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.registry.sender import Sender
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import SignedEntry
from tests.fakes.entries import FakeRegistry, portals_of
from tests.portal.ledger.entries import KEY, PAIR
from tests.portal.registry.entries import Inline, ref, signed

PORTALS = 2


class Recorded(FakeRegistry):
    """A portal that outlasts the process: what it takes is in a file."""

    def __init__(self, number: int, path: Path) -> None:
        super().__init__(number)
        self.path = path
        if path.exists():
            for line in path.read_bytes().splitlines():
                entry = SignedEntry.parse_update(line)
                self.posts.append(entry)
                with suppress(RevisionError):
                    super().set(entry)

    def set(self, signed: SignedEntry) -> None:
        append(self.path, signed.encode_update())  # what was sent counts, taken or not
        super().set(signed)


def append(path: Path, line: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line + b"\n")
    os.close(file)


async def pair_of(_: bytes) -> SigningKeyPair:
    return PAIR


class Machine:
    """A mount's part that writes entries, over files in one directory."""

    def __init__(self, root: Path, policy: WritePolicy) -> None:
        self.root = root
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.portals = [Recorded(n, root / f"portal{n}") for n in range(PORTALS)]
        self.ledger = Ledger.open(root / "ledger.sqlite3", lambda: 2e9 + self.clock.current_time())
        self.entries = VerifiedRegistry(
            portals_of(self.portals), self.ledger, fresh=0, policy=policy, clock=self.ledger.clock
        )
        self.entries.marks = Inline(self.ledger)

    def run(self, function: Callable[[], Awaitable[object]]) -> None:
        trio.run(function, clock=self.clock)

    async def write(self, data: bytes, name: str = "a", *, is_edit: bool = False) -> None:
        """Write, and note what close(2) would say."""
        try:
            base = await self.entries.ask(ref(name)) if is_edit else None
            self.note("begun", name, data)
            await self.entries.write(ref(name), PAIR, data, base)
        except PortalError:
            self.note("kept", name, data)
        else:
            self.note("done", name, data)

    def note(self, what: str, name: str, data: bytes) -> None:
        append(self.root / "said", json.dumps([what, name, data.decode()]).encode())

    async def send(self, seconds: float) -> None:
        sender = Sender(self.entries, self.ledger, pair_of=pair_of)
        with trio.move_on_after(seconds):
            await sender.run()


async def scenario(machine: Machine) -> None:
    """Writes with each fate: taken, taken by one, by none, refused; sent later; overtaken."""
    one, two = machine.portals
    await machine.write(b"first")
    two.always = "down"
    await machine.write(b"second")
    await machine.write(b"third")
    two.always = ""
    await machine.send(5)
    one.always = two.always = "down"
    await machine.write(b"unsigned", "b")
    one.always = two.always = "deaf"
    await machine.write(b"replaced", "c")
    await machine.write(b"signed", "c")
    one.always, two.always = "lost", "down"
    await machine.write(b"lost", "d")
    one.always, two.always = "", "denied"
    await machine.write(b"edit", is_edit=True)
    await machine.write(b"mine", "e")
    two.set(signed(b"theirs", 7, "e"))
    one.always = two.always = ""
    await machine.send(60)


def main() -> None:
    """Print at how many points the scenario was ended."""
    logging.disable()
    points = 0
    policy = WritePolicy(sys.argv[1])
    memory = Path("/dev/shm")  # nothing is synced there
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        while True:
            root = Path(directory) / str(points)
            root.mkdir()
            child = os.fork()
            if not child:
                code = 1
                try:
                    run_until(root, policy, points)
                    code = 0
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            assert code in (0, 9), f"point {points} of {policy}: exit status {code}"
            try:
                look(root, policy)
            except AssertionError:
                sys.stderr.write(f"point {points} of {policy}\n")
                raise
            points += 1
            if code == 0:
                break
    sys.stdout.write(f"{points}\n")


def run_until(root: Path, policy: WritePolicy, last: int) -> None:
    """Run the scenario, and end at the point of this number, at once."""
    machine = Machine(root, policy)
    left = last

    def point(*_: object) -> None:
        nonlocal left
        if left == 0:
            os._exit(9)
        left -= 1

    machine.ledger.database.write(lambda db: db.set_trace_callback(point))
    for portal in machine.portals:
        portal.before = point

        def after(signed: SignedEntry, take: Callable[[SignedEntry], None] = portal.set) -> None:
            take(signed)
            point()

        portal.set = after  # type: ignore[method-assign]
    machine.run(lambda: scenario(machine))


def look(root: Path, policy: WritePolicy) -> None:
    """Look at what a process left that was ended; then let the next one go on."""
    machine = Machine(root, policy)
    said = root / "said"
    notes = [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []
    begun = {name: data.encode() for what, name, data in notes if what == "begun"}
    pending = machine.ledger.pending()
    contents: dict[tuple[bytes, int], bytes] = {}
    made = [each.signed for each in pending if each.signed is not None]
    for portal in machine.portals:
        for each in [*portal.posts, *made]:
            key = each.entry.tweak, each.entry.revision
            assert contents.setdefault(key, each.entry.data) == each.entry.data, key
    for what, name, data in notes:
        tweak, text = ref(name).tweak, data.encode()
        ever = [
            {each.entry.data for each in portal.ever if each.entry.tweak == tweak}
            for portal in machine.portals
        ]
        kept = {each.data for each in pending if each.tweak == tweak}
        if what == "done":
            assert any(text in each for each in ever), (name, data)
        if what == "kept" and text == begun[name]:
            assert text in kept or any(text in each for each in ever), (name, data)
    machine.run(lambda: machine.send(60))
    left = machine.ledger.pending()
    assert all(each.status is not Status.WAITING for each in left), left
    for name, data in begun.items():
        if any(each.tweak == ref(name).tweak for each in left):
            continue  # it waits for a person
        latest = [portal.latest(KEY, ref(name).tweak) for portal in machine.portals]
        assert len({each and each.entry for each in latest}) == 1, (name, latest)
        if any(what == "done" and (n, d.encode()) == (name, data) for what, n, d in notes):
            assert latest[0] is not None
            assert latest[0].entry.data == data, (name, data)
    machine.ledger.close()


if __name__ == "__main__":
    main()

"""Processes that write entries and are killed: nothing that was acknowledged is lost, and no
revision has two contents (G12, G19).

    SKYMOUNT_KILL_SECONDS=600 scripts/test -n0 -s tests/portal/registry/test_kills.py
"""

import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from tests.mount.scripted import ScriptedPortal, scripted_portal
from tests.portal.ledger.entries import KEY
from tests.portal.ledger.processes import start
from tests.portal.registry.entries import ref
from tests.portal.registry.writer import NAMES

SECONDS = float(os.environ.get("SKYMOUNT_KILL_SECONDS", "0"))
FAULTS = ["", "", "", "down", "drop", "lost", "deaf", "slow", "denied", "twice"]
WRITERS = 4
_WRITER = "from tests.portal.registry import writer; writer.run()"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["any", "all"])
def test_process_that_ends_at_any_point(policy: str):
    """At each statement and at each request, of whatever becomes of a write."""
    code = "from tests.portal.registry import kill_points; kill_points.main()"
    child = start(code, policy)
    out, _ = child.communicate()
    assert child.returncode == 0
    assert int(out) > 100


class Writers:
    """Processes that write to one ledger, and what they said."""

    def __init__(self, root: Path, portals: list[ScriptedPortal]) -> None:
        self.root = root
        self.path = root / "ledger.sqlite3"
        self.urls = [portal.url for portal in portals]
        self.running: list[tuple[subprocess.Popen[str], Path]] = []
        self.said: list[list[str]] = []
        self.kills = 0

    def begin(self) -> None:
        number = self.kills + len(self.running)
        said = self.root / f"said-{number}"
        with said.open("w") as file:
            child = start(_WRITER, self.path, str(number), *self.urls, stdout=file)
        self.running.append((child, said))

    def kill(self, number: int = 0) -> None:
        """End one of them at once."""
        child, said = self.running.pop(number)
        child.kill()
        child.communicate()
        self.kills += 1
        lines = said.read_text().split("\n")[:-1]  # the last one may be cut off
        self.said += [line.split() for line in lines]


@pytest.mark.timeout(SECONDS + 600)
def test_several_processes_that_are_killed(tmp_path: Path):
    """Four write the same entries, and send what is pending, at portals that fail."""
    with ExitStack() as stack:
        portals = [stack.enter_context(scripted_portal()) for _ in range(2)]
        writers = Writers(tmp_path, portals)
        try:
            for _ in range(WRITERS):
                writers.begin()
            until, chance = time.monotonic() + (SECONDS or 8), random.Random(SECONDS)
            while time.monotonic() < until or writers.kills < 5:
                for portal in portals:
                    portal.always = chance.choice(FAULTS)
                time.sleep(chance.uniform(0.2, 1.5))
                number = chance.randrange(WRITERS)
                if "done" in writers.running[number][1].read_text():
                    writers.kill(number)
                    writers.begin()
        finally:
            while writers.running:
                writers.kill()
        for portal in portals:
            portal.always = ""
        with start(_WRITER, writers.path, "last", *writers.urls) as last:
            assert last.wait(200) == 0
        look(writers, portals)


def look(writers: Writers, portals: list[ScriptedPortal]) -> None:
    """Look at what the portals have, and what is left."""
    contents: dict[tuple[bytes, int], bytes] = {}
    for portal in portals:
        for each in portal.posts:
            key = each.entry.tweak, each.entry.revision
            assert contents.setdefault(key, each.entry.data) == each.entry.data
    ever = {(each.entry.tweak, each.entry.data) for portal in portals for each in portal.ever}
    done = [(name, data, int(rev)) for what, name, data, rev in writers.said if what == "done"]
    for name, data, _ in done:
        assert (ref(name).tweak, data.encode()) in ever
    with closing(Ledger.open(writers.path)) as ledger:
        left = ledger.pending()
    assert all(each.status is not Status.WAITING and not each.is_posting for each in left)
    for name in NAMES:
        tweak = ref(name).tweak
        written = [each for each in left if each.tweak == tweak and each.status is Status.FAILED]
        one, two = (portal.latest(KEY, tweak) for portal in portals)
        last = max((number for other, _, number in done if other == name), default=-1)
        assert (one and one.entry) == (two and two.entry) or written
        assert one is None or one.entry.revision >= last or written
    pending = {(each.tweak, each.data) for each in left}
    stale = {(ref(n).tweak, data.encode()) for what, n, data, _ in writers.said if what == "stale"}
    assert stale <= pending | ever
    assert len(done) >= 5
    sys.stdout.write(
        f"{writers.kills} kills, {len(writers.said)} lines, {len(done)} writes acknowledged,"
        f" {len(stale)} conflicts, {len(left)} left, {len(contents)} revisions posted\n"
    )

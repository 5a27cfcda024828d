"""Portals on shared storage that are killed again and again, at any moment, under load.

For a longer run, which says what it did:

    SKYMOUNT_KILL_SECONDS=600 scripts/test -n0 -s tests/server/storage/cluster/test_kills.py
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from skymount.server.config import ClusterSettings
from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.content_store import SKYFILES, SharedContent
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.cluster.sweeper import sweep
from tests.portal_process import PortalProcess
from tests.server.storage.cluster.conftest import running
from tests.server.storage.cluster.load import Load
from tests.server.storage.cluster.servers import BUCKET, CREDENTIALS, Shared, descendants

SECONDS = float(os.environ.get("SKYMOUNT_KILL_SECONDS", "0"))
"""How long to go on; by default until there were `_KILLS`, or for `_LONGEST` on a busy machine."""

_KILLS = 16
_LONGEST = 15.0  # seconds
_WORKERS = 3

pytestmark = [pytest.mark.xdist_group("kills"), pytest.mark.timeout(240 + 2 * SECONDS)]


class Victim:
    """A portal that is killed and started again."""

    def __init__(self, shared: Shared, directory: Path, *arguments: str) -> None:
        self._start = lambda: running(shared, directory, *arguments)
        self._stack = ExitStack()
        self._portal: PortalProcess | None = None
        self.start()

    @property
    def urls(self) -> list[str]:
        """Where it is; nowhere while it is down, as its port may be another one's then."""
        portal = self._portal
        return [] if portal is None else [portal.url]

    def start(self) -> None:
        self._portal = self._stack.enter_context(self._start())

    def kill(self) -> None:
        """Kill the process that was started."""
        assert self._portal is not None
        self._portal.kill()
        self._portal = None
        self._stack.close()

    def kill_workers(self, count: int) -> int:
        """Kill some of its workers; return how many there were to kill."""
        assert self._portal is not None
        workers = descendants(self._portal.process.pid)[:count]
        for worker in workers:
            os.kill(worker, 9)
        return len(workers)

    def close(self) -> None:
        self._stack.close()


class Killer:
    """Kills portals until there were enough kills, each at a random moment."""

    def __init__(self, alone: Victim, parent: Victim, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._random = random.Random(seed)
        self._began = time.monotonic()
        self._victims = alone, parent

    def _is_enough(self) -> bool:
        seconds = time.monotonic() - self._began
        if SECONDS:
            return seconds >= SECONDS
        return self.counts.total() >= _KILLS or seconds >= _LONGEST

    def run(self) -> None:
        """Return after the last kill; all are running again."""
        threads = [
            threading.Thread(target=self._repeat, args=(step,))
            for step in (self._kill_alone, self._kill_workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.failures

    def _repeat(self, step: Callable[[], None]) -> None:
        try:
            while not self._is_enough():
                time.sleep(self._random.uniform(0, 0.8))
                step()
        except Exception as error:  # of a thread: raised by `run`
            self.failures.append(repr(error))

    def _kill_alone(self) -> None:
        self._victims[0].kill()
        self.counts["portals of one process"] += 1
        self._victims[0].start()

    def _kill_workers(self) -> None:
        victim = self._victims[1]
        if self._random.random() < 0.2:
            victim.kill()
            self.counts["portals of several processes"] += 1
            victim.start()
        else:
            self.counts["workers"] += victim.kill_workers(self._random.choice([1, 1, 2, _WORKERS]))


def test_portals_that_are_killed_at_any_moment(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SP2: nothing acknowledged is lost, nothing half is seen, no revision goes back."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    seed = random.randrange(1 << 32)
    with running(shared, tmp_path) as steady:
        with (
            closing(Victim(shared, tmp_path)) as alone,
            closing(Victim(shared, tmp_path, "--workers", str(_WORKERS))) as parent,
        ):
            load = Load(lambda: [steady.url, *alone.urls, *parent.urls], steady.url, seed=seed)
            killer = Killer(alone, parent, seed)
            try:
                with load.running():
                    killer.run()
            finally:
                sys.stdout.write(f"seed {seed}: killed {dict(killer.counts)}; {load.summary()}\n")
        assert killer.counts["workers"]
        assert load.stored
        assert load.skykeys
        assert_rows_protect(shared)
        load.check(steady.url)
    with running(shared, tmp_path) as fresh:
        load.check(fresh.url)


def assert_rows_protect(shared: Shared) -> None:
    """Each skyfile has its row and those of its sectors; so nothing of it is swept."""
    url = shared.postgres.url(shared.database)
    objects = Objects(ClusterSettings(BUCKET, shared.prefix, url, shared.endpoint))
    with (
        closing(Database.open(url, Tables.UPDATE)) as database,
        closing(SharedContent(objects, database)) as content,
    ):
        links = [str(link) for link in content.skylinks()]
        assert len(links) == len([*objects.list(SKYFILES)])
        assert skyfile_rows.known(database, links) == {*links}
        assert sweep(content, -1000.0) is not None  # as if everything were old

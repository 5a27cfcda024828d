"""Real portals that break in every way at random while real work is done at a real mount.

Each test runs a chain of schedules in one mount. What is asserted holds on a machine of any speed:
no wrong byte, no lost write, no revision signed twice, no hang, no traceback. That nearly all
operations are right while a portal is healthy depends on time-outs, and so on the machine's speed:
here at least nine in ten must be, and `benchmarks/soak` measures how many are.
"""

from pathlib import Path

import pytest

from tests.chaos.arena import arena
from tests.chaos.runner import runner
from tests.chaos.schedule import Setting, make_schedule
from tests.fuse_device import NEEDS_MOUNTS

pytestmark = [*NEEDS_MOUNTS, pytest.mark.slow, pytest.mark.timeout(400)]

SCHEDULES = 25
SECONDS = 0.9
SLACK = 30.0
RIGHT = 0.9
"""The share of operations that must be right, of those that a healthy portal could serve."""

CHAINS = {
    "two portals": (1000, Setting()),
    "two portals of one network": (2000, Setting(is_shared=True)),
    "two portals of one network over TLS": (
        3000,
        Setting(is_shared=True, tls=True, verify="available", disk_cache="64 MiB"),
    ),
    "three portals": (4000, Setting(portals=3)),
}
"""The seed of the first schedule, and what it runs with."""


@pytest.mark.parametrize("name", CHAINS)
def test_chaos(tmp_path: Path, name: str) -> None:
    """R1: A read returns exactly the bytes of the content, or fails.

    R2: Every operation ends within `timeout`.

    L4: A name is ENOENT only if every portal says that it does not exist.

    G4: Nothing is shown below the highest revision that this machine has seen.

    G12: A revision is never signed for two contents, also after a crash.
    """
    first, setting = CHAINS[name]
    with arena(tmp_path, setting) as made, runner(made, SLACK) as run:
        for seed in range(first, first + SCHEDULES):
            run.run(make_schedule(seed, setting, SECONDS))
        run.settle()
    assert run.report.violations == []
    assert run.report.tally.share >= RIGHT, (str(run.report.tally), run.report.failures)
    assert run.report.schedules == SCHEDULES

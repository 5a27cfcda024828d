"""Uses a real mount of two or three real portals for a long time while these break at random.

Faults, operations and their judge are those of tests/chaos. Each schedule is made from its seed:
the first one has the seed that is printed first, the next one the next number. `--seed S
--schedules 1` does one again. The exit status is 1 after a wrong byte, a lost write, a revision
signed twice, a hang or a traceback, if fewer than 99.9 % of the operations were right of those that
a healthy portal could serve, or if memory or descriptors grew over the second half.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from benchmarks import machine
from tests.chaos.arena import Arena, arena
from tests.chaos.runner import Runner, runner
from tests.chaos.schedule import Setting, make_schedule

SETTINGS = {
    "portals": Setting(),
    "portals-tls": Setting(tls=True, verify="available", disk_cache="64 MiB"),
    "content": Setting(writes=False),
    "network": Setting(is_shared=True),
    "network-tls": Setting(is_shared=True, tls=True, verify="available", disk_cache="64 MiB"),
}
"""Portals have a store each; behind those of a `network` is one. `content` is only read."""
RIGHT = 0.999
MEMORY = 10.0  # MB that the daemon may grow over the second half
DESCRIPTORS = 10
SAMPLE = 1.0  # seconds


@dataclass(frozen=True)
class Sample:
    """The daemon at one moment."""

    pid: int
    memory: float
    """MB."""
    descriptors: int


class Samples:
    """Looks at the daemon all the time."""

    def __init__(self, watched: Arena) -> None:
        self._arena = watched
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.taken: list[Sample] = []

    def _look(self) -> None:
        while not self._over.wait(SAMPLE):
            pid = self._arena.daemon.pid
            try:
                count = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                self.taken.append(Sample(pid, machine.memory(pid)[0], count))
            except (OSError, KeyError):
                continue  # it was killed

    @contextmanager
    def running(self) -> Iterator["Samples"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join()

    def growth(self) -> tuple[list[str], bool]:
        """Return the medians of each quarter of the time, and whether the second half is flat."""
        size = len(self.taken) // 4
        if not size:
            return ["too short to tell whether memory is flat"], True
        quarters = [self.taken[n * size : (n + 1) * size] for n in range(4)]
        memory = [median(each.memory for each in quarter) for quarter in quarters]
        descriptors = [median(each.descriptors for each in quarter) for quarter in quarters]
        lines = [
            "daemon, medians of the quarters: "
            + ", ".join(f"{each:.1f} MB" for each in memory)
            + "; descriptors: "
            + ", ".join(f"{each:.0f}" for each in descriptors)
        ]
        is_flat = memory[3] <= memory[2] + MEMORY and descriptors[3] <= descriptors[2] + DESCRIPTORS
        return lines, is_flat


def soak(given: argparse.Namespace, setting: Setting, run: Runner) -> int:
    """Run schedules until the time is over; return how many had no healthy portal for a while."""
    all_broken, begun = 0, time.monotonic()
    seconds = given.minutes * 60
    for seed in range(given.seed, given.seed + given.schedules):
        passed = time.monotonic() - begun
        if passed >= seconds:
            break
        # Killed daemons have no memory of the first half.
        now = replace(setting, kills_daemons=setting.kills_daemons and passed < seconds / 2)
        length = random.Random(f"length {seed}")
        schedule = make_schedule(
            seed, now, length.uniform(2, 2 * given.length), length.choice([1, 2, 3])
        )
        before = (len(run.report.violations), len(run.report.failures))
        run.run(schedule)
        all_broken += schedule.all_broken
        print(f"{passed:6.0f} s  {schedule}", flush=True)
        tell(run, *before)
    before = (len(run.report.violations), len(run.report.failures))
    run.settle()
    tell(run, *before)
    return all_broken


def tell(run: Runner, violations: int, failures: int) -> None:
    """Print what is new."""
    for each in run.report.violations[violations:]:
        print(f"  VIOLATION: {each}", flush=True)
    for each in run.report.failures[failures:]:
        print(f"  not right: {each.partition(' [')[0]}", flush=True)


def summary(run: Runner, samples: Samples, all_broken: int) -> bool:
    """Print what the run came to; return whether all is well."""
    report = run.report
    lines, is_flat = samples.growth()
    kills = len(run.arena.killed)
    print(
        f"{report.schedules} schedules, in {all_broken} of them no portal was healthy for a while"
    )
    print(f"{kills} daemons killed, {run.arena.posts.count} entries posted")
    print(report.tally)
    print("by kind:", ", ".join(f"{n} {kind}" for kind, n in sorted(report.tally.right.items())))
    for name, seconds in sorted(run.durations.items()):
        if len(seconds) > 1:
            found: Sequence[float] = quantiles(seconds, n=100)
            print(
                f"  {name}: median {found[49]:.3f} s, 99 of 100 within {found[98]:.2f} s, "
                f"slowest {max(seconds):.2f} s"
            )
    print(*lines, sep="\n")
    print(f"{len(report.violations)} violations")
    return not report.violations and report.tally.share >= RIGHT and is_flat


def main() -> int:
    """Run; 0 if all is well."""
    options = argparse.ArgumentParser(prog="benchmarks/soak", description=__doc__)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    options.add_argument("--schedules", type=int, default=10**9, help="at most so many")
    options.add_argument("--length", type=float, default=10.0, help="seconds of a schedule")
    options.add_argument("--portals", type=int, choices=(2, 3), default=2)
    options.add_argument("--setting", choices=SETTINGS, default="portals")
    options.add_argument("--timeout", type=float, default=10.0, help="that of the mount")
    options.add_argument("--log", type=Path, help="where the daemon's log is copied to")
    given = options.parse_args()
    setting = replace(SETTINGS[given.setting], portals=given.portals, timeout=given.timeout)
    print(f"--seed {given.seed} --setting {given.setting} --portals {given.portals}", flush=True)
    with tempfile.TemporaryDirectory(prefix="skymount-soak-") as work:
        place = Path(work).resolve()
        with arena(place, setting, small=300, large=6) as made, runner(made) as run:
            with Samples(made).running() as samples:
                all_broken = soak(given, setting, run)
            if given.log:
                given.log.write_text(made.log_text())
            return 0 if summary(run, samples, all_broken) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Measures the mount beside its peers, in turn, and rewrites docs/benchmarks.md and its drawing.

Only a whole run is written there; with --quick or --only the tables are just printed. Needs nginx
and curl; rclone and httpdirfs are measured where they are installed. As root the caches are
dropped before each cold read.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from benchmarks import (
    caches,
    cluster,
    daemon,
    distant,
    files,
    lists,
    machine,
    mirror,
    mounts,
    portal_speed,
    portals,
    report,
    scale,
    sequential,
    tls,
    trees,
)
from benchmarks.figures import Figure, Group, merged
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.report import Measured

GROUPS = {
    group.name: group
    for group in (
        *sequential.GROUPS,
        *tls.GROUPS,
        *distant.GROUPS,
        *lists.GROUPS,
        *portals.GROUPS,
        *mirror.GROUPS,
        *portal_speed.GROUPS,
        *caches.GROUPS,
        *cluster.GROUPS,
        *trees.GROUPS,
        *files.GROUPS,
        *daemon.GROUPS,
        *scale.GROUPS,
    )
}


def measure(group: Group, plan: Plan, rounds: int) -> Measured:
    """Measure one group; what goes wrong is told in its place."""
    missing = [name for name in group.needs if not machine.has(name)]
    if missing:
        return Measured(group, [], f"needs {', '.join(missing)}")
    found: list[Figure] = []
    try:
        with group.prepare(plan) as one_round:
            for _ in range(rounds):
                for figure in one_round():
                    found.append(figure)
                    print(f"  {figure.name}: {figure.told(figure.values[0])}", file=sys.stderr)
    except (machine.BenchmarkError, OSError, subprocess.SubprocessError) as error:
        print(f"  {error}", file=sys.stderr)
        return Measured(group, merged(found), str(error))
    return Measured(group, merged(found))


def measure_all(groups: Sequence[Group], plan: Plan, rounds: int) -> list[Measured]:
    """Measure groups, one after the other."""
    everything = []
    for group in groups:
        print(f"{group.name}: {group.title}", file=sys.stderr)
        everything.append(measure(group, plan, rounds))
    return everything


def _interrupted(*_: Any) -> NoReturn:
    """Leave by way of every clean-up; a second signal does not cut that short."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def working_directory(parent: Path | None) -> Iterator[Path]:
    """Make a directory for everything; nothing is left mounted below it."""
    with TemporaryDirectory(prefix="skymount-benchmarks-", dir=parent) as directory:
        work = Path(directory).resolve()
        try:
            yield work
        finally:
            mounts.unmount_below(work)


def facts(rounds: int, load: float) -> list[str]:
    """Return what has to be known of this run."""
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    loads = f"load average {load:.2f} before, {machine.load_average():.2f} after"
    return [f"{when} UTC, `benchmarks/run --rounds {rounds}`; {loads}.", *machine.facts()]


def main() -> int:
    """Measure what was asked for; 0 unless something could not be measured."""
    options = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", nargs="+", metavar="NAME", choices=GROUPS, default=[*GROUPS])
    options.add_argument("--quick", action="store_true", help="small sizes, to try it out")
    options.add_argument("--work", type=Path, help="a directory with 8 GB of room")
    given = options.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    groups, load = [GROUPS[name] for name in dict.fromkeys(given.only)], machine.load_average()
    try:
        with working_directory(given.work) as work:
            plan = Plan(work, QUICK if given.quick else FULL)
            everything = measure_all(groups, plan, given.rounds)
    except KeyboardInterrupt:
        print("interrupted: nothing is left mounted or running", file=sys.stderr)
        return 130
    told = facts(given.rounds, load)
    print("\n\n".join(told), *map(report.table, everything), sep="\n\n")
    print(report.summary(everything))
    if len(groups) == len(GROUPS) and not given.quick:
        report.write(everything, told)
    return int(any(each.problem for each in everything))


if __name__ == "__main__":
    sys.exit(main())

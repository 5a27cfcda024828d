"""Measures lists of a portal that is some way off: entries, documents, and new skylinks."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine, mounts
from benchmarks.figures import Figure, Group, Round
from benchmarks.mounts import Mounted
from benchmarks.plan import Plan
from benchmarks.proxy import Distance, distance
from skymount.portal import SyncPortalClient

_ENTRIES = 100
_SKYLINKS = 30
_FAR = 0.1  # seconds of a round trip
_FARTHER = 0.4
_FARTHEST = 1.0
_STOOD = 2.0  # seconds for which a mount has stood before it is used
_EXPIRED = 2.5  # seconds after which nothing that stat said holds any more
_MEANWHILE = 0.7  # seconds after the skylinks were asked for: more than `lookup_grace`
_FILES = {"registry": "entry-{:03}", "skydb": "{:03}.json"}
"""Names of files, by the subtree. Each has a key of the same name."""


@contextmanager
def prepare_lists(plan: Plan) -> Iterator[Round]:
    log = plan.work / "proxy.log"
    with ExitStack() as stack:
        portal = stack.enter_context(mounts.embedded_portal(plan.work))
        home = Path(stack.enter_context(TemporaryDirectory(prefix="lists-", dir=plan.work)))
        env = mounts.environment(home)
        for key in _FILES:
            machine.run(*machine.SKYMOUNT, "key", "generate", key, env=env)
        with _mount(plan.work, portal, env) as mounted:
            for key, name in _FILES.items():
                for number in range(_ENTRIES):
                    path = mounted.place / key / key / name.format(number)
                    path.write_text(f'{{"number": {number}}}\n')
        port = int(portal.rpartition(":")[2])
        far = stack.enter_context(distance(port, log, rtt=_FAR))
        farther = stack.enter_context(distance(port, log, rtt=_FARTHER))
        farthest = stack.enter_context(distance(port, log, rtt=_FARTHEST))
        yield partial(_lists, plan, portal, (far, farther), farthest, env)


@contextmanager
def _mount(work: Path, portal: str, env: dict[str, str]) -> Iterator[Mounted]:
    """Mount with the keys and the ledger of `env`, and an empty cache on disk."""
    with TemporaryDirectory(prefix="cache-", dir=work) as cache:
        command = (*machine.SKYMOUNT, "mount", "--foreground", "MOUNTPOINT", "--portal", portal)
        with mounts.mounted(work, *command, env=env | {"XDG_CACHE_HOME": cache}) as found:
            yield found


def _lists(
    plan: Plan,
    portal: str,
    distances: Sequence[Distance],
    farthest: Distance,
    env: dict[str, str],
) -> Iterator[Figure]:
    for subtree in _FILES:
        for name in ("ls -l", "grep -r"):
            yield from _of_entries(plan, distances[0], env, subtree, name)
    for name in ("ls -l", "grep -r"):
        yield from _of_entries(plan, farthest, env, "registry", name)
    for each in distances:
        yield from _of_skylinks(plan, each, env, _published(portal))


def _of_entries(
    plan: Plan, far: Distance, env: dict[str, str], subtree: str, name: str
) -> Iterator[Figure]:
    command = {"ls -l": ("ls", "-l"), "grep -r": ("grep", "-rc", "number")}[name]
    with _mount(plan.work, far.url, env) as mounted:
        directory = mounted.place / subtree / subtree
        time.sleep(_STOOD)
        for when in ("", ", again"):
            far.take_counts()
            took = machine.timed(_listed, *command, f"{directory}/")
            label = f"{name} of {_ENTRIES} files of {subtree}, {_told(far)} away{when}"
            yield Figure(label, (took,), "s", at_most=1.0 if far.rtt == _FAR else 8.0)
            yield Figure(f"{label}: requests", (far.take_counts().requests,))
            time.sleep(_EXPIRED)


def _listed(*command: str) -> None:
    lines = machine.run(*command).splitlines()
    if sum(not line.startswith("total") for line in lines) != _ENTRIES:
        raise machine.BenchmarkError(f"{' '.join(command)}: {len(lines)} lines")


def _published(portal: str) -> list[str]:
    """Upload files that nobody has seen yet; returns their skylinks."""
    with SyncPortalClient(portal) as client:
        found = [client.upload_file(os.urandom(64), custom_filename="a") for _ in range(_SKYLINKS)]
    return [str(each.skylink) for each in found]


def _of_skylinks(
    plan: Plan, far: Distance, env: dict[str, str], skylinks: list[str]
) -> Iterator[Figure]:
    with (
        _mount(plan.work, far.url, env) as mounted,
        ThreadPoolExecutor(len(skylinks) + 2) as threads,
    ):
        time.sleep(_STOOD)
        directory = mounted.place / "skylinks"
        begun = time.perf_counter()
        lists = [threads.submit(_files, directory / each) for each in skylinks]
        at_once = threads.submit(machine.timed, _look, directory / "notaskylink")
        time.sleep(_MEANWHILE)
        meanwhile = machine.timed(_look, directory / "stillnotaskylink")
        counts = [each.result() for each in lists]
        took = time.perf_counter() - begun
    if counts != [1] * len(skylinks):
        raise machine.BenchmarkError(f"listed {counts}")
    label = f"{len(skylinks)} new skylinks at once, {_told(far)} away"
    yield Figure(label, (took,), "s", at_most=0.8 if far.rtt == _FAR else 2.0)
    yield Figure(
        f"{label}: a name that is no skylink, at once", (at_once.result(),), "s", at_most=0.6
    )
    yield Figure(f"{label}: another one, later", (meanwhile,), "s", at_most=0.1)


def _files(directory: Path) -> int:
    """Count the files of a directory as ls does, in a process of its own."""
    done = subprocess.run(("ls", directory), capture_output=True, check=True)
    return len(done.stdout.splitlines())


def _look(path: Path) -> None:
    subprocess.run(("ls", path), capture_output=True, check=False)


def _told(far: Distance) -> str:
    return f"{far.rtt * 1000:g} ms"


GROUPS = [
    Group(
        "lists",
        "Lists, some way off",
        f"{_ENTRIES} entries and {_ENTRIES} documents of one key, and {_SKYLINKS} skylinks "
        "that are listed for the first time, each by a process of its own. `again` is after "
        "everything that was known has expired.",
        prepare_lists,
        ("grep",),
    ),
]

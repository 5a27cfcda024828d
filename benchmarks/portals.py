"""Measures what several portals cost while one of them fails, beside one healthy portal alone."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine, mounts
from benchmarks.figures import Figure, Group, Round
from benchmarks.mounts import Mounted
from benchmarks.plan import Plan
from skymount.portal import SyncPortalClient
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, Fault, in_thread
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess, portal_process

_FILES = 16
_SIZE = 256 << 10
_SMALL = [skyfiles.of_files({"f": noise(_SIZE, number)}) for number in range(_FILES)]
_CROWD = 60
_HANGING = replace(
    skyfiles.of_files({f"{n:02}": noise(256 << 10, n) for n in range(_CROWD)}), base=None
)
_KEY = "home"
_LATER = 1.0  # seconds after which the portals are asked for entries again
_REPAIRED = 30.0  # seconds in which a portal that was behind is to have the newest entry

_FAULTS: dict[str, Fault] = {
    "silent": fake.stalls_after(-1),
    "answers after 3 s": fake.waits(3.0),
    "sends 10 KB/s": fake.drips(1000, 0.1),
    "sends its heads byte by byte": fake.drips_head(0.2),
    "answers 503": fake.status(503),
}


@contextmanager
def prepare_portals(plan: Plan) -> Iterator[Round]:
    yield partial(_portals, plan)


def _portals(plan: Plan) -> Iterator[Figure]:
    yield from _alone(plan)
    for name, fault in _FAULTS.items():
        yield from _broken_first(plan, name, fault)
    yield from _hanging(plan)
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="portals-", dir=plan.work)))
        env = mounts.environment(home)
        machine.run(*machine.SKYMOUNT, "key", "generate", _KEY, env=env)
        portals = [
            stack.enter_context(portal_process(home / f"portal-{name}")) for name in ("a", "b")
        ]
        yield from _newest(plan, portals, env)
        yield from _uploads(plan, portals, env)
        yield from _stopped(plan, portals, env)


@contextmanager
def _mount(plan: Plan, *portals: str, env: dict[str, str]) -> Iterator[Mounted]:
    words = [word for portal in portals for word in ("--portal", portal)]
    command = (*machine.SKYMOUNT, "mount", "--foreground", "MOUNTPOINT", *words)
    with mounts.mounted(plan.work, *command, env=env) as found:
        yield found


@contextmanager
def _new_home(plan: Plan) -> Iterator[dict[str, str]]:
    with TemporaryDirectory(prefix="home-", dir=plan.work) as home:
        yield mounts.environment(Path(home))


# --- content


def _alone(plan: Plan) -> Iterator[Figure]:
    with in_thread(FakePortal()) as portal, _new_home(plan) as env:
        portal.add(*_SMALL)
        with _mount(plan, portal.url, env=env) as mounted:
            yield from _reads(mounted, "one healthy portal alone")


def _broken_first(plan: Plan, name: str, fault: Fault) -> Iterator[Figure]:
    with in_thread(FakePortal()) as first, in_thread(FakePortal()) as second:
        for portal in (first, second):
            portal.add(*_SMALL)
        first.fault(fault)
        with _new_home(plan) as env, _mount(plan, first.url, second.url, env=env) as mounted:
            yield from _reads(mounted, f"first portal {name}", bounds=(2.5, 0.3))


def _reads(
    mounted: Mounted, title: str, bounds: tuple[float | None, float | None] = (None, None)
) -> Iterator[Figure]:
    took = [
        machine.timed(_cat, mounted.place / "skylinks" / each.name / "f", _SIZE) for each in _SMALL
    ]
    yield Figure(f"{title}: first file", (took[0],), "s", at_most=bounds[0])
    yield Figure(f"{title}: slowest of {_FILES - 1} more", (max(took[1:]),), "s", at_most=bounds[1])


def _cat(path: Path, size: int) -> None:
    done = subprocess.run(("cat", path), capture_output=True, check=False)
    if len(done.stdout) != size:
        raise machine.BenchmarkError(f"{path}: {done.stderr.decode(errors='replace')}")


def _hanging(plan: Plan) -> Iterator[Figure]:
    """Read a file that is on disk while many reads wait for a portal that falls silent."""
    with in_thread(FakePortal()) as portal, _new_home(plan) as env:
        portal.add(_SMALL[0], _HANGING)
        env["SKYMOUNT_TIMEOUT"] = "60"
        cached = f"skylinks/{_SMALL[0].name}/f"
        with _mount(plan, portal.url, env=env) as mounted:
            _cat(mounted.place / cached, _SIZE)
        with _mount(plan, portal.url, env=env) as mounted:
            directory = mounted.place / "skylinks" / _HANGING.name
            machine.run("stat", mounted.place / cached, directory / "00")
            portal.fault(fake.stalls_after(-1))
            paths = [directory / f"{number:02}" for number in range(_CROWD)]
            crowd = [
                subprocess.Popen(
                    ("cat", each), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                for each in paths
            ]
            try:
                time.sleep(_LATER)
                took = machine.timed(_cat, mounted.place / cached, _SIZE)
            finally:
                for each in crowd:
                    machine.end(each)
    who = "root" if machine.IS_ROOT else "an ordinary user"
    aim = 1.0 if machine.IS_ROOT else 6.0
    yield Figure(f"a file on disk, while {_CROWD} reads hang, as {who}", (took,), "s", at_most=aim)


# --- entries and uploads


def _newest(plan: Plan, portals: Sequence[PortalProcess], env: dict[str, str]) -> Iterator[Figure]:
    """The first portal has an older revision of an entry than the second one."""
    first, second = (portal.url for portal in portals)
    for portal, texts in ((first, ["0"]), (second, ["1", "2", "3", "4"])):
        with _mount(plan, portal, env=env) as mounted:
            for text in texts:
                (mounted.place / "registry" / _KEY / "behind").write_text(text)
    with _mount(plan, first, second, env=env) as mounted:
        path = mounted.place / "registry" / _KEY / "behind"
        begun = time.perf_counter()
        if path.read_text() != "4":
            raise machine.BenchmarkError("an old revision was read")
        yield Figure(
            "an entry of which the first portal has an old revision: read",
            (time.perf_counter() - begun,),
            "s",
        )
        key = os.readlink(mounted.place / "registry" / _KEY)
        with SyncPortalClient(first) as client:
            machine.wait_until(
                lambda: (
                    (found := client.registry.get_entry(key, "behind").entry) is not None
                    and found.data == b"4"
                ),
                "the first portal has the newest entry",
                _REPAIRED,
            )
        yield Figure(
            "until the first portal has the newest one", (time.perf_counter() - begun,), "s"
        )


def _uploads(plan: Plan, portals: Sequence[PortalProcess], env: dict[str, str]) -> Iterator[Figure]:
    file = plan.work / "portals-upload"
    file.write_bytes(noise(1 << 20))
    second = portals[1].url
    command = (*machine.SKYMOUNT, "upload", file)
    took = machine.timed(partial(machine.run, *command, "--portal", second, env=env))
    yield Figure("upload of 1 MiB, one healthy portal", (took,), "s")
    with in_thread(FakePortal()) as first:
        for name in ("silent", "answers 503"):
            first.fault(_FAULTS[name])
            words = ("--portal", first.url, "--portal", second)
            took = machine.timed(partial(machine.run, *command, *words, env=env))
            yield Figure(f"upload of 1 MiB, first portal {name}", (took,), "s")
            first.heal()


def _stopped(plan: Plan, portals: Sequence[PortalProcess], env: dict[str, str]) -> Iterator[Figure]:
    """Entries of a portal that is stopped by a signal, with a second portal that lacks them."""
    first, second = portals
    for count, others, aims in ((3, [second.url], (3.0, 0.3)), (5, [], (31.0, 0.3))):
        key = f"stopped-{count}"
        machine.run(*machine.SKYMOUNT, "key", "generate", key, env=env)
        with _mount(plan, first.url, env=env) as mounted:
            for number in range(count):
                (mounted.place / "registry" / key / f"{number}").write_text("x")
        with _mount(plan, first.url, *others, env=env) as mounted:
            first.process.send_signal(signal.SIGSTOP)
            try:
                title = f"`ls -l` of {count} entries, " + (
                    "first portal stopped, second says 404" if others else "one stopped portal"
                )
                directory = f"{mounted.place}/registry/{key}/"
                for when, aim in zip(("", ", again"), aims, strict=True):
                    took = machine.timed(_list, directory)
                    yield Figure(f"{title}{when}", (took,), "s", at_most=aim)
                    time.sleep(_LATER)
            finally:
                first.process.send_signal(signal.SIGCONT)


def _list(directory: str) -> None:
    subprocess.run(("ls", "-l", directory), capture_output=True, check=False)


GROUPS = [
    Group(
        "portals",
        "Several portals, of which one fails",
        f"Two portals with the same content; {_FILES} files of {_SIZE >> 10} KiB, each a skylink "
        "of its own that was never read. Entries and uploads are those of embedded portals.",
        prepare_portals,
        (),
    ),
]

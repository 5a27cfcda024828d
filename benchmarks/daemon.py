"""Measures the daemon itself: start, memory, many readers at once, uploads."""

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine, mounts, source
from benchmarks.figures import Figure, Group, Round, rate, ratio
from benchmarks.plan import Plan, make_cold
from benchmarks.sequential import cold, serving
from benchmarks.source import Site, Skyfile

_STARTS = 3  # in each round: a start is short, and varies


@contextmanager
def prepare_readers(plan: Plan) -> Iterator[Round]:
    sizes = plan.sizes
    total = sizes.readers * sizes.reader
    whole = source.make_file(plan.work, "one.bin", total)
    files = [
        source.make_file(plan.work, f"reader-{number}.bin", sizes.reader)
        for number in range(sizes.readers)
    ]
    with serving(plan, whole, *files) as site:
        yield partial(_readers, plan, site, whole, files)
    for skyfile in (whole, *files):
        skyfile.payload.unlink()


def _readers(plan: Plan, site: Site, whole: Skyfile, files: list[Skyfile]) -> Iterator[Figure]:
    one = cold(plan, site.url, whole, "one reader of one file")
    make_cold(*files)
    with (
        mounts.skymount(plan.work, site.url) as mounted,
        ThreadPoolExecutor(len(files)) as threads,
    ):
        paths = [mounted.file(skyfile) for skyfile in files]
        sizes = [skyfile.size for skyfile in files]
        machine.back_memory(2 * whole.size)
        seconds = machine.timed(lambda: list(threads.map(machine.read_whole, paths, sizes)))
        most = mounted.memory[1]
    many = rate(f"{len(files)} readers of {len(files)} files", whole.size, seconds)
    yield from (one, many)
    yield Figure("memory at most with all of them", (most,), "MB")
    yield ratio("many readers / one reader", many, one, at_least=0.9)


@contextmanager
def prepare_ready(plan: Plan) -> Iterator[Round]:
    with source.serve(plan.work, [], plan.directory("ready-tree")) as site:
        yield partial(_ready, plan, site)


def _ready(plan: Plan, site: Site) -> Iterator[Figure]:
    for _ in range(_STARTS):
        yield Figure("mount ready", (seconds_to_start(plan.work, site.url),), "s", at_most=0.5)
    with mounts.skymount(plan.work, site.url) as mounted:
        list(mounted.place.iterdir())
        yield Figure("memory, idle", (mounted.memory[0],), "MB", at_most=60)


def seconds_to_start(work: Path, portal: str, cache: Path | None = None) -> float:
    """Return the seconds from the command to a tree that answers, as a user mounts."""
    with TemporaryDirectory(prefix="ready-", dir=work) as directory:
        place = Path(directory) / "at"
        place.mkdir()
        env, log = mounts.environment(Path(directory)), work / "ready.log"
        if cache is not None:
            env["XDG_CACHE_HOME"] = str(cache)
        begun = time.perf_counter()
        with machine.process(
            *machine.SKYMOUNT, "mount", place, "--portal", portal, log=log, env=env
        ) as mounting:
            try:
                mounting.wait(machine.LIMIT)
                list(place.iterdir())
                seconds = time.perf_counter() - begun
            finally:
                mounting.wait(machine.LIMIT)  # when interrupted: what it starts must not be missed
                umount = (*machine.SKYMOUNT, "umount", str(place))
                subprocess.run(umount, env=env, capture_output=True, check=False)
                mounts.unmount(place)
        if mounting.returncode:
            raise machine.BenchmarkError(f"skymount mount: {log.read_text()}")
    return seconds


@contextmanager
def prepare_upload(plan: Plan) -> Iterator[Round]:
    file = plan.work / "upload.bin"
    source.write_random(file, plan.sizes.upload)
    yield partial(_upload, plan, file)


def _upload(plan: Plan, file: Path) -> Iterator[Figure]:
    with mounts.embedded_portal(plan.work) as portal, TemporaryDirectory(dir=plan.work) as home:
        command = (*machine.SKYMOUNT, "upload", str(file), "--portal", portal)
        env = mounts.environment(Path(home))
        seconds = machine.timed(partial(machine.run, *command, env=env))
    yield rate("skymount upload to the embedded portal", file.stat().st_size, seconds)


GROUPS = [
    Group(
        "readers",
        "64 readers of 64 files at once",
        "16 MiB each, never read before, each a skylink of its own; one reader reads one file of "
        "1 GiB.",
        prepare_readers,
    ),
    Group(
        "ready",
        "Starting",
        "From the command to its return, when the tree answers; and what the daemon holds then.",
        prepare_ready,
    ),
    Group(
        "upload",
        "Uploading",
        "One file of 256 MiB, hashed by the embedded portal on the same machine.",
        prepare_upload,
        (),
    ),
]

"""Measures reading from Python without a mount, beside the mount and beside fsspec over HTTP."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine, mounts, source
from benchmarks.figures import Figure, Group, Round, rate, ratio
from benchmarks.file_reader import READERS
from benchmarks.plan import Plan, make_cold
from benchmarks.proxy import Distance, distance
from benchmarks.sequential import serving
from benchmarks.source import Shape, Site, Skyfile

_NEAR = 0.02  # seconds of a round trip
_FAR = 0.05
_PART = 10  # of the small files are read one by one: one in so many


def _seconds(plan: Plan, portal: str, *words: str) -> float:
    """Read in a process of its own, with a new cache on disk; return the seconds of the read."""
    with TemporaryDirectory(prefix="home-", dir=plan.work) as home:
        env = mounts.environment(Path(home), SKYMOUNT_PORTALS=portal)
        return float(machine.run(sys.executable, "-m", "benchmarks.file_reader", *words, env=env))


def _link(skyfile: Skyfile) -> str:
    return f"skylink://{skyfile.skylink}/{skyfile.payload.name}"


@contextmanager
def prepare_fsspec(plan: Plan) -> Iterator[Round]:
    big = plan.big
    plain = big.without_base_sector()
    with (
        serving(plan, big) as site,
        serving(plan, plain) as other,
        distance(other.port, plan.work / "proxy.log", rtt=_NEAR) as near,
    ):
        yield partial(_fsspec, plan, site, near, big, plain)


def _fsspec(
    plan: Plan, site: Site, near: Distance, big: Skyfile, plain: Skyfile
) -> Iterator[Figure]:
    words: tuple[str, ...] = ("sequential", str(big.size))
    make_cold(big)
    machine.back_memory(2 * big.size)
    with mounts.skymount(plan.work, site.url) as mounted:
        path = mounted.file(big)
        path.stat()
        through = rate("mount, in order", big.size, _seconds(plan, site.url, str(path), *words))
    make_cold(big)
    machine.back_memory(2 * big.size)
    direct = rate("fsspec, in order", big.size, _seconds(plan, site.url, _link(big), *words))
    yield from (through, direct)
    yield ratio("in order: fsspec / mount", direct, through, at_least=0.8)

    words = ("random", str(plain.size), str(plan.sizes.reads))
    count = READERS * plan.sizes.reads
    make_cold(plain)
    with mounts.skymount(plan.work, near.url) as mounted:
        path = mounted.file(plain)
        path.stat()
        seconds = _seconds(plan, near.url, str(path), *words)
    through = Figure("mount, reads of 4 KiB at random", (count / seconds,), "a second")
    make_cold(plain)
    seconds = _seconds(plan, near.url, _link(plain), *words)
    direct = Figure("fsspec, reads of 4 KiB at random", (count / seconds,), "a second")
    yield from (through, direct)
    yield ratio("at random: fsspec / mount", direct, through, at_least=0.8)


@contextmanager
def prepare_cat(plan: Plan) -> Iterator[Round]:
    shape = replace(plan.sizes.small, directories=10)
    many = source.make_checkable(source.make_tree(plan.work, "cat", shape))
    tree = source.make_local_tree(plan.directory("cat-tree"), shape)
    with (
        source.serve(plan.work, [many], tree) as site,
        distance(site.port, plan.work / "proxy.log", rtt=_FAR) as far,
    ):
        yield partial(_cat, plan, far, many, shape)


def _cat(plan: Plan, far: Distance, many: Skyfile, shape: Shape) -> Iterator[Figure]:
    make_cold(many)
    link, total = f"skylink://{many.skylink}", f"{shape.count:,} files"
    far.take_counts()
    ours = Figure(
        f"skylink: cat of {total}", (_seconds(plan, far.url, link, "cat", str(shape.count)),), "s"
    )
    yield ours
    yield Figure("requests for them", (far.take_counts().requests,))
    part = str(shape.count // _PART)
    label = f"one by one, {part} files, times {_PART}"
    alone = _seconds(plan, far.url, link, "each", part) * _PART
    yield Figure(f"skylink: {label}", (alone,), "s")
    url = f"{far.url}/"
    together = _seconds(plan, far.url, url, "cat", str(shape.count))
    yield Figure(f"fsspec.http: cat of {total}, with their names", (together,), "s")
    theirs = Figure(
        f"fsspec.http: {label}", (_seconds(plan, far.url, url, "each", part) * _PART,), "s"
    )
    yield theirs
    yield ratio("fsspec.http one by one / cat of skylink", theirs, ours, at_least=20)


GROUPS = [
    Group(
        "fsspec",
        "Reading from Python, without a mount",
        "The same program reads 1 GiB in pieces of 1 MiB, with a portal on the same machine, and "
        f"4 KiB at random by {READERS} threads, 20 ms away: through a mount, and by fsspec in one "
        "process. The caches on disk are new, and the name is known.",
        prepare_fsspec,
    ),
    Group(
        "cat",
        "A thousand small files from Python, 50 ms away",
        "Files of 4 KiB, all in one skylink, by `cat` of fsspec with finding their names; and the "
        "same files from the same server by fsspec's HTTP file system. One by one, a tenth of them "
        "is read, and the time multiplied.",
        prepare_cat,
    ),
]

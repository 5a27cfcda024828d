"""Measures skylinks of many files: listing, and memory for each entry."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import machine, mounts, source
from benchmarks.figures import Figure, Group, Round, ratio
from benchmarks.plan import Plan, make_cold
from benchmarks.source import Site, Skyfile


def _find(name: str, directory: Path, count: int) -> Figure:
    """Time a `find` that must see so many files; it prints a character for each."""
    found = 0

    def find() -> None:
        nonlocal found
        found = len(machine.run("find", directory, "-type", "f", "-printf", "."))

    seconds = machine.timed(find)
    if found != count:
        raise machine.BenchmarkError(f"{directory}: {found} files instead of {count}")
    return Figure(name, (seconds,), "s")


@contextmanager
def prepare_find(plan: Plan) -> Iterator[Round]:
    shape = plan.sizes.listed
    listed = source.make_tree(plan.work, "listed", shape)
    local = source.make_local_tree(plan.directory("listed-tree"), shape)
    try:
        with source.serve(plan.work, [listed], local) as site:
            yield partial(_finds, plan, site, listed, local)
    finally:
        shutil.rmtree(local)


def _finds(plan: Plan, site: Site, listed: Skyfile, local: Path) -> Iterator[Figure]:
    count = plan.sizes.listed.count
    make_cold(listed)
    with mounts.skymount(plan.work, site.url) as mounted:
        directory = mounted.directory(listed.skylink)
        cold = _find(f"find: {count:,} files, cold", directory, count)
        again = _find("find: again", directory, count)
    _find("local directory, cold", local, count)
    with mounts.bare(plan.work, plan.sizes.listed) as mounted:
        _find("bare pyfuse3, cold", mounted.place, count)
        bare = _find("find: bare pyfuse3, again", mounted.place, count)
    there = _find("find: local directory, again", local, count)
    yield Figure(cold.name, cold.values, "s", at_most=1.5)
    yield from (again, bare, there)
    yield ratio("find: again, local directory's time / skymount's", there, again, at_least=0.5)


@contextmanager
def prepare_million(plan: Plan) -> Iterator[Round]:
    million = source.make_tree(plan.work, "million", plan.sizes.million)
    with source.serve(plan.work, [million], plan.directory("million-tree")) as site:
        yield partial(_million, plan, site, million)


def _million(plan: Plan, site: Site, million: Skyfile) -> Iterator[Figure]:
    shape = plan.sizes.million
    make_cold()  # its payload is never read
    machine.read_through(million.metadata)
    with mounts.skymount(plan.work, site.url) as mounted:
        before = mounted.memory[0]
        directory = mounted.directory(million.skylink)
        listed = _find("a million files: first listing", directory, shape.count)
        now, most = mounted.memory
        again = _find("a million files: second listing", directory, shape.count)
    entries = shape.count + shape.directories
    yield Figure(listed.name, listed.values, "s", at_most=20)
    yield again
    yield Figure(
        "a million files: memory for each entry",
        ((now - before) * 1e6 / entries,),
        "bytes",
        at_most=400,
    )
    yield Figure("a million files: memory of the daemon at most", (most,), "MB")


GROUPS = [
    Group(
        "find",
        "`find -type f` over 100,000 files",
        "All in one skylink, in a hundred directories; the metadata comes from nginx. The local "
        "directory is the same tree, the bare file system one of the same names.",
        prepare_find,
        ("nginx", "find"),
    ),
    Group(
        "million",
        "A million files in one skylink",
        "A thousand directories of a thousand. Memory is the daemon's resident memory after the "
        "first listing, less that of the idle mount.",
        prepare_million,
        ("nginx", "find"),
    ),
]

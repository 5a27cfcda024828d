"""Measures skylinks of many files: listing, and memory for each entry."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import machine, mounts, source
from benchmarks.figures import Figure, Group, Round, ratio
from benchmarks.plan import Plan, make_cold
from benchmarks.source import Shape, Site, Skyfile


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


_LISTERS = 16  # threads
_FEW = 5  # skylinks of a million files


@contextmanager
def prepare_memory(plan: Plan) -> Iterator[Round]:
    shape = Shape(1, 5, 1 << 20)  # more than a sector, as made-up skylinks are those of large files
    small = source.make_tree(plan.work, "looked-at", shape)
    million = source.make_tree(plan.work, "memory", plan.sizes.million)
    few = [replace(million, skylink=source.make_up_skylink()) for _ in range(_FEW)]
    tree = plan.directory("memory-tree")
    with source.serve(plan.work, few, tree, any_skylink=small) as site:
        yield partial(_memory, plan, site, few, shape)


def _memory(plan: Plan, site: Site, few: list[Skyfile], shape: Shape) -> Iterator[Figure]:
    count = plan.sizes.looked_at
    with mounts.skymount(plan.work, site.url) as mounted, ThreadPoolExecutor(_LISTERS) as threads:
        before = mounted.memory[0]
        skylinks = [source.make_up_skylink() for _ in range(count)]
        tops = [mounted.directory(each) / "dir-0000" for each in skylinks]
        counts = {len(names) for names in threads.map(os.listdir, tops)}
        if counts != {shape.files}:
            raise machine.BenchmarkError(f"listed {counts} files")
        label = f"memory that {count:,} skylinks took"
        yield Figure(label, (mounted.memory[0] - before,), "MB", at_most=33.5)
    with mounts.skymount(plan.work, site.url) as mounted:
        before = mounted.memory[0]
        for each in few:
            _find("find", mounted.directory(each.skylink), plan.sizes.million.count)
        now, most = mounted.memory
    label = f"{_FEW} skylinks of {plan.sizes.million.count:,} files"
    yield Figure(f"memory that {label} took", (now - before,), "MB", at_most=268)
    yield Figure(f"memory of the daemon at most, with {label}", (most,), "MB")


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
    Group(
        "memory",
        "Memory after many skylinks",
        "Skylinks of five files each that are listed once, by 16 threads; and skylinks of a "
        "million files, one after the other. Resident memory of the daemon, less that of the idle "
        "mount.",
        prepare_memory,
        ("nginx", "find"),
    ),
]

"""Owns the figures of a portal that is some way off, with a limited rate for each connection."""

import mmap
import os
import random
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import machine, mounts, source
from benchmarks.figures import Figure, Group, Round, rate, ratio
from benchmarks.plan import Plan, make_cold
from benchmarks.proxy import Distance, distance
from benchmarks.sequential import installed, peer_rate, serving
from benchmarks.source import Skyfile

_STOOD = 1.0  # seconds for which a mount has stood before the first byte is read
_FAR = 0.1  # seconds of a round trip
_NEAR = 0.02
_BETWEEN = 0.05
_RATE = 20e6  # bytes a second of one connection
_NO_LIMIT = 10e9  # bytes a second, to see what the proxy itself can do with a rate to keep
_BLOCK = 4096  # bytes of a small read
_READERS = 16
_CONNECTIONS = (16, 24, 32)


# --- sequential


@contextmanager
def prepare_distant(plan: Plan) -> Iterator[Round]:
    file = source.make_file(plan.work, "distant.bin", plan.sizes.distant)
    log = plan.work / "proxy.log"
    with (
        serving(plan, file) as site,
        distance(site.port, log, rate=_NO_LIMIT) as near,
        distance(site.port, log, rtt=_FAR, rate=_RATE) as far,
    ):
        yield partial(_distant, plan, near, far, file)


def _distant(plan: Plan, near: Distance, far: Distance, file: Skyfile) -> Iterator[Figure]:
    make_cold(file)
    limit = machine.timed(_by_curl, plan.work, near.url, file, 1)
    yield rate("the proxy's own limit, one connection", file.size, limit)
    limit = machine.timed(_by_curl, plan.work, near.url, file, _READERS)
    yield rate(f"the proxy's own limit, {_READERS} connections", file.size, limit)

    far.take_counts()
    machine.back_memory(2 * file.size)
    with mounts.skymount(plan.work, far.url) as mounted:
        path = mounted.file(file)
        naming = machine.timed(path.stat)
        reading = machine.read_whole(path, file.size)
    most = max(1, far.take_counts().most_open)
    known = rate("skymount, cold, the name known", file.size, reading)
    ours = rate("skymount, cold, with looking up the name", file.size, naming + reading)
    together = machine.timed(_by_curl, plan.work, far.url, file, most)
    ranges = rate("curl, as many ranges as skymount's connections", file.size, together)
    single = machine.timed(_by_curl, plan.work, far.url, file, 1)
    yield from (ours, known, ranges, rate("curl, one connection", file.size, single))
    yield Figure("connections that skymount had open at once", (most,))
    peers = _peers_distant(plan, far, file)
    yield from peers.values()
    if "rclone" in peers:
        yield ratio("distant: skymount / rclone", ours, peers["rclone"], at_least=4)
    if "httpdirfs" in peers:
        yield ratio("distant: skymount / httpdirfs", ours, peers["httpdirfs"])
    yield ratio("distant: skymount / curl in ranges", ours, ranges, at_least=0.9)
    yield ratio("distant: skymount, name known / curl in ranges", known, ranges, at_least=0.9)


@contextmanager
def prepare_connections(plan: Plan) -> Iterator[Round]:
    file = source.make_file(plan.work, "connections.bin", plan.sizes.distant)
    log = plan.work / "proxy.log"
    with (
        serving(plan, file) as site,
        distance(site.port, log, rtt=_FAR, rate=_RATE) as far,
    ):
        yield partial(_connections, plan, far, file)


def _connections(plan: Plan, far: Distance, file: Skyfile) -> Iterator[Figure]:
    make_cold(file)
    for count in _CONNECTIONS:
        machine.back_memory(2 * file.size)
        with mounts.skymount(plan.work, far.url, connections=str(count)) as mounted:
            path = mounted.file(file)
            path.stat()
            reading = machine.read_whole(path, file.size)
        yield rate(f"skymount, {count} connections", file.size, reading)


def _by_curl(work: Path, portal: str, file: Skyfile, parts: int) -> None:
    """Fetch a file in equal ranges at once, by one curl."""
    step = -(-file.size // parts)
    config = work / "curl.conf"
    config.write_text(
        "next\n".join(
            f'url = "{source.url_of(portal, file)}"\noutput = "{os.devnull}"\n'
            f"range = {start}-{min(start + step, file.size) - 1}\nsilent\nshow-error\nfail\n"
            for start in range(0, file.size, step)
        )
    )
    machine.run(
        *("curl", "--silent", "--parallel", "--parallel-immediate"),
        *("--parallel-max", str(parts), "--config", str(config)),
    )


def _peers_distant(plan: Plan, far: Distance, file: Skyfile) -> dict[str, Figure]:
    found = {}
    for name, mount in installed().items():
        with mount(plan.work, far.url) as mounted:
            found[name] = peer_rate(plan, name, mounted.place / file.payload.name, file.size)
    return found


# --- the first bytes


@contextmanager
def prepare_first(plan: Plan) -> Iterator[Round]:
    big, log = plan.big, plan.work / "proxy.log"
    with (
        serving(plan, big.without_base_sector()) as plain,
        serving(plan, big) as checkable,
        distance(plain.port, log, rtt=_FAR) as believed,
        distance(checkable.port, log, rtt=_FAR) as checked,
    ):
        yield partial(_first, plan, believed, checked)


def _first(plan: Plan, believed: Distance, checked: Distance) -> Iterator[Figure]:
    big = plan.big
    make_cold(big)
    for label, far in (("the metadata in a header", believed), ("a base sector", checked)):
        with mounts.skymount(plan.work, far.url) as mounted:
            time.sleep(_STOOD)
            took = machine.timed(_read_block, mounted.file(big))
        yield _trips(f"first 4 KiB, portal with {label}", took, at_most=2.2)
    with mounts.skymount(plan.work, believed.url) as mounted:
        mounted.file(big).stat()
        took = machine.timed(_read_block, mounted.file(big))
    yield _trips("first 4 KiB, the skylink known", took, at_most=1.2)
    for name, mount in installed().items():
        with mount(plan.work, believed.url) as mounted:
            time.sleep(_STOOD)
            took = machine.timed(_read_block, mounted.place / big.payload.name)
        yield _trips(f"first 4 KiB, {name}", took)


def _trips(name: str, seconds: float, at_most: float | None = None) -> Figure:
    return Figure(name, (seconds / _FAR,), "round trips", at_most=at_most)


def _read_block(path: Path) -> None:
    """Open a file and read its first 4 KiB."""
    file = os.open(path, os.O_RDONLY)
    try:
        if len(os.pread(file, _BLOCK, 0)) != _BLOCK:
            raise machine.BenchmarkError(f"{path}: a short read")
    finally:
        os.close(file)


# --- at random


@contextmanager
def prepare_random(plan: Plan) -> Iterator[Round]:
    big = plan.big.without_base_sector()
    with (
        serving(plan, big) as site,
        distance(site.port, plan.work / "proxy.log", rtt=_NEAR) as near,
    ):
        yield partial(_random, plan, near, big)


def _random(plan: Plan, near: Distance, big: Skyfile) -> Iterator[Figure]:
    rates: dict[str, Figure] = {}
    contenders = {"skymount": mounts.skymount, **installed()}
    for name, mount in contenders.items():
        make_cold(big)
        with mount(plan.work, near.url) as mounted:
            is_ours, slow = name == "skymount", name == "httpdirfs"
            reads = max(1, plan.sizes.reads // 16) if slow else plan.sizes.reads
            count = _READERS * reads
            path = mounted.file(big) if is_ours else mounted.place / big.payload.name
            path.stat()
            near.take_counts()
            seconds = machine.timed(_read_at_random, path, big.size, reads)
            fetched = near.take_counts().received / count / 1024
        rates[name] = Figure(f"at random: {name}, reads of 4 KiB", (count / seconds,), "a second")
        yield rates[name]
        label = f"at random: {name}, fetched for each read"
        yield Figure(label, (fetched,), "KiB", at_most=64 if is_ours else None)
    if "rclone" in rates:
        yield ratio("at random: skymount / rclone", rates["skymount"], rates["rclone"], at_least=2)
    if "httpdirfs" in rates:
        yield ratio("at random: skymount / httpdirfs", rates["skymount"], rates["httpdirfs"])


def _read_at_random(path: Path, size: int, reads: int) -> None:
    """Read blocks at places that are the same in each run, by several readers at once."""
    places = random.Random(1).sample(range(size // _BLOCK), _READERS * reads)
    shares = [places[number::_READERS] for number in range(_READERS)]
    with ThreadPoolExecutor(_READERS) as threads:
        list(threads.map(partial(_read_blocks, path), shares))


def _read_blocks(path: Path, places: list[int]) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(-1, _BLOCK) as buffer:
            for place in places:
                if os.preadv(file, [buffer], place * _BLOCK) != _BLOCK:
                    raise machine.BenchmarkError(f"{path}: a short read")
    finally:
        os.close(file)


# --- many small files


@contextmanager
def prepare_tar(plan: Plan) -> Iterator[Round]:
    shape = plan.sizes.small
    many = source.make_tree(plan.work, "small", shape)
    tree = plan.directory("small-tree")
    source.make_local_tree(tree, shape)
    with (
        source.serve(plan.work, [many], tree) as site,
        distance(site.port, plan.work / "proxy.log", rtt=_BETWEEN) as far,
    ):
        yield partial(_tar, plan, far, many)


def _tar(plan: Plan, far: Distance, many: Skyfile) -> Iterator[Figure]:
    shape = plan.sizes.small
    make_cold(many)
    far.take_counts()
    with mounts.skymount(plan.work, far.url) as mounted:
        took = machine.timed(_pack, mounted.directory(many.skylink), shape.total)
    ours = Figure(f"tar: skymount, {shape.count:,} files", (took,), "s", at_most=3)
    yield ours
    yield Figure("requests of skymount for them", (far.take_counts().requests,))
    with mounts.bare(plan.work, shape) as mounted:
        took = machine.timed(_pack, mounted.place, shape.total)
    yield Figure(f"tar: bare pyfuse3, {shape.count:,} files", (took,), "s")
    for name, mount in installed().items():
        make_cold(many)
        with mount(plan.work, far.url) as mounted:
            part = mounted.place / "dir-0000"
            took = machine.timed(_pack, part, shape.files * shape.size) * shape.directories
        label = f"tar: {name}, {shape.files} files, times {shape.directories}"
        theirs = Figure(label, (took,), "s")
        yield theirs
        aim = 20 if name == "rclone" else None
        yield ratio(f"tar: {name}'s time / skymount's", theirs, ours, at_least=aim)


def _pack(directory: Path, least: int) -> None:
    """Pack a directory; tar reads no files when its output is /dev/null, so this is a pipe."""
    command = ("tar", "-c", "-C", str(directory), ".")
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as tar:
        assert tar.stdout is not None
        count = 0
        try:
            while data := tar.stdout.read(machine.BLOCK):
                count += len(data)
            tar.wait()
        finally:
            machine.end(tar)
    if tar.returncode or count < least:
        raise machine.BenchmarkError(f"tar: exit {tar.returncode}, {count} bytes")


GROUPS = [
    Group(
        "distant",
        "One reader, one file, 100 ms away",
        "256 MiB; each connection carries 20 MB/s. curl has as many ranges at once as skymount "
        "had connections. skymount's figures are told with and without looking up the name, which "
        "no curl does.",
        prepare_distant,
        ("nginx", "curl"),
    ),
    Group(
        "connections",
        "The same with other numbers of connections",
        "256 MiB at 100 ms; each connection carries 20 MB/s; the name is known.",
        prepare_connections,
    ),
    Group(
        "first",
        "The first bytes, 100 ms away",
        "Opening a cold file in a new mount and reading 4 KiB, in round trips; `known` means "
        "that its name was looked up before.",
        prepare_first,
    ),
    Group(
        "random",
        "Reads of 4 KiB at random, 20 ms away",
        f"{_READERS} readers at once in one file of 1 GiB, the places the same in each run. The "
        "bytes are those that the proxy sent. httpdirfs does a sixteenth of the reads.",
        prepare_random,
    ),
    Group(
        "tar",
        "`tar -c` of 10,000 files of 4 KiB, 50 ms away",
        "All in one skylink. The peers pack one of the hundred directories; that time is "
        "multiplied by a hundred. The bare file system answers from memory at once.",
        prepare_tar,
        ("nginx", "tar"),
    ),
]

"""Measures one reader of one big file, with a portal on the same machine."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine, mounts, source
from benchmarks.figures import Figure, Group, Round, rate, ratio
from benchmarks.mounts import Mounted
from benchmarks.plan import Plan, make_cold
from benchmarks.source import Shape, Site, Skyfile
from skymount.settings import Config

Peer = Callable[[Path, str], AbstractContextManager[Mounted]]

PEERS: dict[str, Peer] = {"rclone": mounts.rclone, "httpdirfs": mounts.httpdirfs}

_WARM_READS = 5  # of each file, in one round
_FILLS = 5  # reads at most until all of a file is in the cache on disk
_DISK_CACHE = "4 GiB"  # room for the big file; the default is half of that


@contextmanager
def serving(plan: Plan, *skyfiles: Skyfile) -> Iterator[Site]:
    """Serve skyfiles of one file each, and the same files to the peers."""
    with TemporaryDirectory(prefix="tree-", dir=plan.work) as tree:
        for skyfile in skyfiles:
            os.link(skyfile.payload, Path(tree) / skyfile.payload.name)
        with source.serve(plan.work, skyfiles, Path(tree)) as site:
            yield site


def cold(plan: Plan, portal: str, skyfile: Skyfile, name: str) -> Figure:
    """Read a file that nobody has read, in a new mount."""
    make_cold(skyfile)
    with mounts.skymount(plan.work, portal) as mounted:
        return rate(name, skyfile.size, machine.read_cold(mounted.file(skyfile), skyfile.size))


def peers_cold(plan: Plan, portal: str, skyfile: Skyfile) -> dict[str, Figure]:
    """The same with each peer that is installed."""
    found = {}
    for name, mount in installed().items():
        make_cold(skyfile)
        with mount(plan.work, portal) as mounted:
            found[name] = peer_rate(plan, name, mounted.place / skyfile.payload.name, skyfile.size)
    return found


def peer_rate(plan: Plan, name: str, path: Path, size: int) -> Figure:
    """Read a file through a peer; of httpdirfs the beginning has to do."""
    if name != "httpdirfs":
        return rate(f"{name}, cold", size, machine.read_cold(path, size))
    part = plan.sizes.slowly
    seconds = machine.timed(machine.read_through, path, part)
    return rate(f"{name}, cold, the first {part >> 20} MiB", part, seconds)


def installed() -> dict[str, Peer]:
    """Return the peers that this machine has."""
    return {name: mount for name, mount in PEERS.items() if machine.has(name)}


# --- cold


@contextmanager
def prepare_cold(plan: Plan) -> Iterator[Round]:
    big = plan.big.without_base_sector()
    with serving(plan, big) as site:
        yield partial(_cold, plan, site, big)


def _cold(plan: Plan, site: Site, big: Skyfile) -> Iterator[Figure]:
    make_cold(big)
    curl = ("curl", "-sS", "-o", os.devnull, source.url_of(site.url, big))
    by_curl = rate("curl", big.size, machine.timed(machine.run, *curl))
    peers = peers_cold(plan, site.url, big)
    make_cold(big)
    with mounts.skymount(plan.work, site.url) as mounted:
        seconds = machine.read_cold(mounted.file(big), big.size)
        ours = rate("skymount, cold", big.size, seconds)
        most = mounted.memory[1]
    make_cold(big)
    with mounts.skymount(plan.work, site.url, disk_cache="off") as mounted:
        seconds = machine.read_cold(mounted.file(big), big.size)
        alone = rate("skymount, cold, without a cache on disk", big.size, seconds)
    shape = Shape(1, 1, big.size)
    with mounts.bare(plan.work, shape) as zeros:
        seconds = machine.read_cold(zeros.place / next(shape.paths()), big.size)
        bare = rate("bare pyfuse3, zeros from memory", big.size, seconds)
    yield from (by_curl, bare, *peers.values(), ours, alone)
    yield Figure("memory at most while reading (cache: 128 MiB)", (most,), "MB")
    if "rclone" in peers:
        yield ratio("cold: skymount / rclone", ours, peers["rclone"], at_least=2.5)
        yield ratio("cold, without a cache on disk: skymount / rclone", alone, peers["rclone"])
    if "httpdirfs" in peers:
        yield ratio("cold: skymount / httpdirfs", ours, peers["httpdirfs"])
    yield ratio("cold: skymount / curl", ours, by_curl, at_least=0.85)
    yield ratio("cold, without a cache on disk: skymount / curl", alone, by_curl)


# --- warm


@contextmanager
def prepare_warm(plan: Plan) -> Iterator[Round]:
    big = plan.big.without_base_sector()
    with serving(plan, big) as site:
        yield partial(_warm, plan, site, big)


def _warm(plan: Plan, site: Site, big: Skyfile) -> Iterator[Figure]:
    shape = Shape(1, 1, big.size)
    with (
        mounts.bare(plan.work, shape) as zeros,
        mounts.skymount(plan.work, site.url) as ours,
    ):
        names = {
            "local directory": big.payload,
            "bare pyfuse3": zeros.place / next(shape.paths()),
            "skymount": ours.file(big),
        }
        for path in names.values():
            machine.read_whole(path, big.size)
        found = _in_turn(names, big.size)
    yield from found.values()
    local = found["local directory"]
    yield ratio("page cache: skymount / local directory", found["skymount"], local, at_least=0.95)
    yield ratio("page cache: bare pyfuse3 / local directory", found["bare pyfuse3"], local)


def _in_turn(paths: Mapping[str, Path], size: int) -> dict[str, Figure]:
    """Read files in turn, several times, since each reading is so short; tell the median."""
    seconds: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(_WARM_READS):
        for name, path in paths.items():
            seconds[name].append(machine.read_whole(path, size))
    return {
        name: rate(f"{name}, page cache", size, statistics.median(times))
        for name, times in seconds.items()
    }


# --- the cache on disk


@contextmanager
def prepare_disk(plan: Plan) -> Iterator[Round]:
    if "disk_cache" not in {item.name for item in fields(Config)}:
        raise machine.BenchmarkError("this skymount has no cache on disk")
    big = plan.big.without_base_sector()
    with serving(plan, big) as site:
        yield partial(_disk, plan, site, big)


def _disk(plan: Plan, site: Site, big: Skyfile) -> Iterator[Figure]:
    with TemporaryDirectory(prefix="cache-", dir=plan.work) as directory:
        cache = Path(directory)

        def read(name: str) -> Figure:
            mount = mounts.skymount(plan.work, site.url, cache=cache, disk_cache=_DISK_CACHE)
            with mount as mounted:
                seconds = machine.read_cold(mounted.file(big), big.size)
                return rate(name, big.size, seconds)

        make_cold(big)
        filling = read("skymount, cold, filling the cache on disk")
        kept = machine.used_space(cache) / big.size
        for _ in range(_FILLS):  # what came too fast for the disk is kept the next time
            if machine.used_space(cache) < big.size:
                read("skymount, keeping the rest")
        remembered = read("skymount, remounted, from the cache on disk")
        machine.drop_caches()
        fetched = read("skymount, remounted, from the cache on disk, caches dropped")
    machine.drop_caches()
    seconds = machine.read_cold(big.payload, big.size)
    local = rate("local directory, caches dropped", big.size, seconds)
    yield from (filling, remembered, fetched, local)
    yield Figure("share of the file that the cache on disk took", (kept,))
    yield ratio("cache on disk / cold", remembered, filling, at_least=2)
    yield ratio("cache on disk, caches dropped / cold", fetched, filling, at_least=2)
    yield ratio("cache on disk / local directory, both dropped", fetched, local, at_least=0.5)


# --- the price of verification, and of not being root


@contextmanager
def prepare_verify(plan: Plan) -> Iterator[Round]:
    plain = plan.big.without_base_sector()
    with serving(plan, plain) as without, serving(plan, plan.big) as checkable:
        yield partial(_verify, plan, without, checkable)


def _verify(plan: Plan, without: Site, checkable: Site) -> Iterator[Figure]:
    believed = cold(plan, without.url, plan.big, "skymount, cold, nothing to check against")
    checked = cold(plan, checkable.url, plan.big, "skymount, cold, every chunk verified")
    yield from (believed, checked)
    yield ratio("verified / not verified", checked, believed)


@contextmanager
def prepare_read_ahead(plan: Plan) -> Iterator[Round]:
    big = plan.big.without_base_sector()
    with serving(plan, big) as site:
        yield partial(_read_ahead, plan, site, big)


def _read_ahead(plan: Plan, site: Site, big: Skyfile) -> Iterator[Figure]:
    wide = cold(plan, site.url, big, "skymount, cold, read-ahead of 1 MiB")
    make_cold(big)
    with mounts.skymount(plan.work, site.url, read_ahead="false") as mounted:
        mounts.set_read_ahead(mounted.place, mounts.USUAL_READ_AHEAD)
        seconds = machine.read_cold(mounted.file(big), big.size)
        narrow = rate("skymount, cold, read-ahead of 128 KiB, as without root", big.size, seconds)
    yield from (wide, narrow)
    peers = peers_cold(plan, site.url, big)
    yield ratio("128 KiB / 1 MiB", narrow, wide)
    if "rclone" in peers:
        yield peers["rclone"]
        yield ratio("128 KiB / rclone", narrow, peers["rclone"])


GROUPS = [
    Group(
        "cold",
        "One reader, one file, never read before",
        "A file of 1 GiB; nginx on the same machine has it in memory. Nothing is verified: the "
        "portal hands out no base sector (see `verify`). httpdirfs 1.2.5 waits about 0.1 s for "
        "each 128 KiB, so it reads only the beginning, here and below.",
        prepare_cold,
        ("nginx", "curl"),
    ),
    Group(
        "warm",
        "The same again, from the page cache",
        f"Read once, then {_WARM_READS} times in turn; a round's figure is their median. The bare "
        "file system answers with zeros from memory: what it loses is not skymount's to win.",
        prepare_warm,
    ),
    Group(
        "disk",
        "The same after a remount, from the cache on disk",
        f"`disk_cache` is {_DISK_CACHE}. Without dropping caches the kernel still has the files "
        "of the cache in memory.",
        prepare_disk,
    ),
    Group(
        "verify",
        "The price of verification",
        "Twice the same content and portal, once with the base sector, so that every chunk is "
        "checked before it is handed out.",
        prepare_verify,
    ),
    Group(
        "readahead",
        "Without root's read-ahead",
        "As `cold`, with the kernel asking for 128 KiB at a time instead of 1 MiB.",
        prepare_read_ahead,
    ),
]

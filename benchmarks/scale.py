"""A cache on disk of 200 GiB beside an empty one: mounting, `cache info`, making room."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import machine, mounts, source
from benchmarks.daemon import seconds_to_start
from benchmarks.figures import Figure, Group, Round
from benchmarks.plan import Plan
from benchmarks.source import Site
from skymount.content.cache import block_file, block_format
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore

_CONTENT = 1 << 20  # bytes of a block
_ON_DISK = block_file.bytes_on_disk(_CONTENT + block_format.SEAL)


def _key(index: int) -> BlockKey:
    return BlockKey("a skylink", _CONTENT, 1 << 50, index)


def _fill(cache: Path, count: int) -> None:
    """Make blocks, in no more than name and length."""
    store = BlockStore.open(cache, count * _ON_DISK)
    begun = time.time() - count
    for index in range(count):
        path = store.root.joinpath(*block_format.file_name(_key(index).identity))
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(file, _ON_DISK)
        os.close(file)
        os.utime(path, (begun + index, begun + index))


@contextmanager
def prepare_scale(plan: Plan) -> Iterator[Round]:
    caches = {"empty": plan.directory("empty"), "full": plan.directory("full")}
    _fill(caches["full"] / "skymount", plan.sizes.blocks)
    with source.serve(plan.work, [], plan.directory("scale-tree")) as site:
        yield partial(_scale, plan, site, caches)


def _scale(plan: Plan, site: Site, caches: dict[str, Path]) -> Iterator[Figure]:
    names = {"empty": "an empty cache", "full": f"{plan.sizes.blocks:,} blocks"}
    started = {}
    for name, cache in caches.items():
        started[name] = seconds_to_start(plan.work, site.url, cache)
        yield Figure(f"mount ready, {names[name]}", (started[name],), "s")
        env = mounts.environment(plan.work / "scale-home") | {"XDG_CACHE_HOME": str(cache)}
        command = (*machine.SKYMOUNT, "cache", "info")
        told = machine.timed(partial(machine.run, *command, env=env))
        yield Figure(f"`cache info`, {names[name]}", (told,), "s")
        for kind, seconds in zip(
            ("a block stored", "room made"), _put(cache / "skymount"), strict=True
        ):
            yield Figure(f"{kind}, {names[name]}", (seconds,), "s")
    more = max(0.0, started["full"] - started["empty"])
    yield Figure("mount ready: the full cache takes longer by", (more,), "s", at_most=0.1)


def _put(cache: Path) -> tuple[float, float]:
    """Return the seconds for a process's first block, and to list and evict others."""
    size = max(BlockStore.open(cache, 0).info().bytes, 64 << 20)
    store = BlockStore.open(cache, size)
    index = time.time_ns() >> 10
    stored = machine.timed(lambda: store.put(_key(index), bytes(_CONTENT)))
    return stored, machine.timed(store.make_room)


GROUPS = [
    Group(
        "scale",
        "A cache on disk of 200 GiB",
        "Blocks of 1 MiB that are names and lengths without content, beside an empty cache. The "
        "mount lists them in the background, and makes room for 1 GiB.",
        prepare_scale,
    )
]

"""Measures what reaches a portal of many mounts that read the same through a cache in front."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from benchmarks import machine, mounts, source
from benchmarks.figures import Figure, Group, Round
from benchmarks.plan import Plan
from benchmarks.proxy import Distance, distance
from skymount.portal import SyncPortalClient
from skymount.wire.skylink import Skylink
from tests.nginx import cache_before
from tests.portal_process import PortalProcess, portal_process

_MOUNTS = 8
_DIRECTORIES = 50  # of 100 files of 4 KiB
_AIM = 1.05  # of the content


@dataclass(frozen=True, slots=True)
class _Content:
    large: Skylink
    many: Skylink
    size: int
    """Bytes of both."""
    count: int
    """Files."""

    def read(self, mounted: mounts.Mounted) -> None:
        """Read all of it; BenchmarkError if something is missing."""
        count = size = 0
        for skylink in (self.large, self.many):
            for directory, _, names in os.walk(mounted.directory(skylink)):
                for name in names:
                    size += machine.read_through(Path(directory, name))
                    count += 1
        if (count, size) != (self.count, self.size):
            raise machine.BenchmarkError(f"{count} files of {size} bytes were read")


@contextmanager
def prepare_caches(plan: Plan) -> Iterator[Round]:
    shape = replace(plan.sizes.small, directories=min(_DIRECTORIES, plan.sizes.small.directories))
    tree = plan.directory("caches-tree")
    for path in shape.paths():
        (tree / path).parent.mkdir(exist_ok=True)
        source.write_random(tree / path, shape.size)
    large = plan.work / "caches.bin"
    source.write_random(large, plan.sizes.distant)
    yield partial(_caches, plan, large, tree)


def _caches(plan: Plan, large: Path, tree: Path) -> Iterator[Figure]:
    with ExitStack() as stack:
        work = Path(stack.enter_context(TemporaryDirectory(prefix="caches-", dir=plan.work)))
        portal = stack.enter_context(portal_process(work / "data"))
        content = _upload(portal, large, tree)
        port = urlsplit(portal.url).port
        assert port is not None
        origin = stack.enter_context(distance(port, work / "proxy.log"))
        yield from _reached(plan, origin, content, "one mount, direct", origin.url, 1)
        url = stack.enter_context(cache_before(origin.url, work / "nginx"))
        yield from _reached(plan, origin, content, f"{_MOUNTS} mounts, cold", url, _MOUNTS, _AIM)
        yield from _reached(plan, origin, content, f"{_MOUNTS} mounts, warm", url, _MOUNTS, 0.001)
        portal.kill()
        yield from _reached(plan, origin, content, "one mount, portal gone", url, 1, 0.001)


def _upload(portal: PortalProcess, large: Path, tree: Path) -> _Content:
    files = [path for path in tree.rglob("*") if path.is_file()]
    with SyncPortalClient(portal.url) as client:
        first = client.upload_file(large).skylink
        second = client.upload_directory(tree).skylink
    size = sum(path.stat().st_size for path in (large, *files))
    return _Content(first, second, size, len(files) + 1)


def _reached(
    plan: Plan,
    origin: Distance,
    content: _Content,
    name: str,
    url: str,
    count: int,
    at_most: float | None = None,
) -> Iterator[Figure]:
    """Let mounts read everything at once; yield what the portal saw of it."""
    origin.take_counts()
    with ExitStack() as stack, ThreadPoolExecutor(count) as threads:
        made = [
            stack.enter_context(mounts.skymount(plan.work, url, disk_cache="off"))
            for _ in range(count)
        ]
        list(threads.map(content.read, made))
    seen = origin.take_counts()
    yield Figure(f"{name}: requests to the portal", (seen.requests,))
    share = seen.received / content.size
    yield Figure(f"{name}: bytes from the portal / content", (share,), at_most=at_most)


GROUPS = [
    Group(
        "caches",
        "A cache in front of a portal",
        f"nginx as docs/scaling.md configures it, before the embedded portal. {_MOUNTS} mounts "
        "without a cache on disk read a file of 256 MiB and 5,000 files of 4 KiB at once; then "
        "others, when nginx has everything; then one, when the portal is gone.",
        prepare_caches,
    ),
]

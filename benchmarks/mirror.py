"""Eight mounts that read the same content: from a distant portal, and through a mirror of it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks import machine, mounts
from benchmarks.figures import Figure, Group, Round
from benchmarks.mounts import Mounted
from benchmarks.plan import Plan
from benchmarks.proxy import Distance, distance
from skymount.portal import SyncPortalClient
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import noise
from tests.portal_process import PortalProcess, portal_process

_MOUNTS = 8
_SMALL = 4096  # bytes of a small file
_PIECE = 8 << 20  # bytes of the large file that are made at once
_RTT = 0.02  # seconds to the origin and back
_MORE = 1.05  # times the content that the origin may send: metadata, and heads of answers


@contextmanager
def prepare_mirror(plan: Plan) -> Iterator[Round]:
    site = plan.directory("mirror-site")
    with (site / "big.bin").open("wb") as file:
        for number in range(plan.sizes.upload // _PIECE):
            file.write(noise(_PIECE, number))
    count = plan.sizes.upload >> 16
    for number in range(count):
        path = site / "files" / f"{number % 50:02}" / f"{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise(_SMALL, number))
    with portal_process(plan.work / "mirror-origin") as origin:
        with SyncPortalClient(origin.url) as client:
            skylink = client.upload_directory(str(site)).skylink
        yield partial(_mirror, plan, origin, skylink, plan.sizes.upload + count * _SMALL)


def _mirror(plan: Plan, origin: PortalProcess, skylink: Skylink, size: int) -> Iterator[Figure]:
    port = int(origin.url.rpartition(":")[2])
    log = plan.work / "mirror.log"
    with ExitStack() as stack:
        far = stack.enter_context(distance(port, log, rtt=_RTT))
        yield from _read(plan, far.url, far, skylink, size, "directly", at_most=None)
        data = plan.directory(f"mirror-{far.port}")
        with portal_process(data, "--upstream", far.url) as mirror:
            yield from _read(plan, mirror.url, far, skylink, size, "mirror, cold", at_most=_MORE)
            yield from _read(plan, mirror.url, far, skylink, size, "mirror, warm", at_most=0.01)
        with portal_process(data, "--upstream", "http://127.0.0.1:1") as mirror:
            yield from _read(plan, mirror.url, far, skylink, size, "mirror, upstream gone", 0.0)


def _read(
    plan: Plan,
    url: str,
    far: Distance,
    skylink: Skylink,
    size: int,
    title: str,
    at_most: float | None,
) -> Iterator[Figure]:
    """Read everything with each of the mounts, which have no cache on disk, at once."""
    far.take_counts()
    with ExitStack() as stack:
        mounted = [
            stack.enter_context(mounts.skymount(plan.work, url, disk_cache="off"))
            for _ in range(_MOUNTS)
        ]
        took = machine.timed(_read_all, mounted, skylink, size)
    counts = far.take_counts()
    yield Figure(f"{title}: all have read everything", (took,), "s")
    yield Figure(f"{title}: the origin sends", (counts.received / size,), "times", at_most=at_most)
    yield Figure(f"{title}: requests to the origin", (counts.requests,))


def _read_all(mounted: Sequence[Mounted], skylink: Skylink, size: int) -> None:
    with ThreadPoolExecutor(_MOUNTS) as readers:
        found = list(readers.map(lambda each: _size_of(each.directory(skylink)), mounted))
    if found != [size] * _MOUNTS:
        raise machine.BenchmarkError(f"read {found}, not {size} each")


def _size_of(directory: Path) -> int:
    return int(machine.run("sh", "-c", f"find {directory} -type f -print0 | xargs -0 cat | wc -c"))


GROUPS = [
    Group(
        "mirror",
        "Eight mounts read the same, from a portal at a distance and through a mirror",
        f"An embedded portal with a round trip of {_RTT * 1000:.0f} ms before it, and one with "
        "`--upstream` on this machine. Each mount reads a large file and small files of 4 KiB, and "
        "has no cache on disk. «Times»: bytes that the origin sent, by the size of the content.",
        prepare_mirror,
        (),
    ),
]

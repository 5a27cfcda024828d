"""Portals on shared storage beside one on a disk: requests a second, latency, processor time."""

import http.client
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path

import httpx

from benchmarks import machine, source
from benchmarks.cluster_engines import Engines, port_of, running_engines
from benchmarks.figures import Figure, Group, Round, rate
from benchmarks.plan import Plan
from benchmarks.portal_load import (
    SMALL,
    Load,
    body_request,
    get_request,
    processor_time,
    send_for,
    small_uploads,
    upload,
)
from benchmarks.portal_speed import registry_query
from benchmarks.proxy import distance
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, hash_data_key
from skymount.wire.skylink import SECTOR_SIZE
from tests.portal_process import PortalProcess, portal_process
from tests.server.storage.cluster.servers import CREDENTIALS, Shared

_CONNECTIONS = (1, 16, 64)
_FEW_CONNECTIONS = (1, 16)  # over a distance
_WORKERS = (1, 2, 4)
_RTT = 0.02  # seconds to the store, or to the database, and back
_WARM_UP = 0.3  # seconds of each load that do not count
_PARALLEL = 4  # large uploads, and downloads, at once
_NEW_FILES = 12  # of which the first byte is waited for
_ENTRIES = 2  # for each request of `Sizes.requests`: signed before, more than can be posted

_S3RVER, _POSTGRES = "s3rver", "PostgreSQL"
_DIRECT, _ENGINES = "without a portal", "the engines"


@dataclass(frozen=True, slots=True)
class _Column:
    """A portal that is measured."""

    title: str
    start: Callable[[Path], AbstractContextManager[PortalProcess]]
    connections: tuple[int, ...] = _CONNECTIONS
    engines: tuple[int, ...] = ()
    """Processes whose use of the processors is told as well."""


_LOCAL = _Column("local disk", lambda home: portal_process(home / "data"))
_NEAR = tuple(f"shared, {count} process{'es' if count > 1 else ''}" for count in _WORKERS)
_FAR_STORE, _FAR_DATABASE = (
    f"1 process, {what} {_RTT * 1000:.0f} ms away" for what in ("store", "database")
)


@contextmanager
def prepare_cluster(plan: Plan) -> Iterator[Round]:
    tree = plan.directory("cluster-tree")
    (tree / "small").write_bytes(os.urandom(SMALL))
    entries = _ENTRIES * plan.sizes.requests
    updates = {each: [*islice(_updates(each), entries)] for each in _CONNECTIONS}
    with ExitStack() as stack:
        engines = stack.enter_context(running_engines(plan.work))
        site = stack.enter_context(source.serve(plan.work, [], tree))
        log, store = plan.work / "cluster-distance.log", port_of(engines.endpoint)
        far_store = stack.enter_context(distance(store, log, rtt=_RTT))
        far_database = stack.enter_context(distance(engines.postgres.port, log, rtt=_RTT))
        shared = partial(_shared, engines)
        near = [
            _Column(
                title, partial(shared, workers), engines=engines.processes if workers == 1 else ()
            )
            for title, workers in zip(_NEAR, _WORKERS, strict=True)
        ]
        far = [
            _Column(_FAR_STORE, partial(shared, 1, store=far_store.url), _FEW_CONNECTIONS),
            _Column(_FAR_DATABASE, partial(shared, 1, port=far_database.port), _FEW_CONNECTIONS),
        ]
        yield partial(_round, plan, engines, site.port, [_LOCAL, *near, *far], updates)


def _shared(
    engines: Engines, workers: int, home: Path, store: str = "", port: int = 0
) -> AbstractContextManager[PortalProcess]:
    """Start a portal on a database and a prefix of its own."""
    storage = Shared.new(store or engines.endpoint, engines.postgres, home)
    arguments = [*storage.arguments, "--workers", str(workers)]
    if port:
        url = f"postgresql://skymount@127.0.0.1:{port}/{storage.database}"
        arguments[arguments.index("--database") + 1] = url
    return portal_process(home / "unused", *arguments, environment=CREDENTIALS)


def _round(
    plan: Plan,
    engines: Engines,
    nginx: int,
    columns: Sequence[_Column],
    updates: dict[int, list[bytes]],
) -> Iterator[Figure]:
    for column in columns:
        home = plan.directory(f"cluster-{time.monotonic_ns()}")
        with column.start(home) as portal:
            yield from _requests(plan, column, portal, updates)
            yield from _large(plan, column, portal)
            yield from _first_bytes(column, portal)
    yield from _without_portal(plan, engines, nginx)


def _without_portal(plan: Plan, engines: Engines, nginx: int) -> Iterator[Figure]:
    """Measure what the load program, s3rver and PostgreSQL can do by themselves."""
    seconds, size = _seconds(plan), plan.sizes.upload
    for connections in _CONNECTIONS:
        each = f"{_many(connections)} | {_DIRECT}"
        got = send_for(seconds, nginx, repeat(get_request("/small")), connections)
        yield from _told(f"GET of a small file, {each}", got)
        updated = engines.update_entries(plan.work, seconds, connections)
        yield from _told(f"registry POST, {each}", updated)
        put = engines.put_small(seconds, connections)
        yield from _told(f"upload of 2 KiB, {each}", put)
    mib = size >> 20
    yield rate(f"upload of {mib} MiB | {_DIRECT} | ", size, engines.put_sectors(size).seconds)
    yield rate(f"download of {mib} MiB | {_DIRECT} | ", size, engines.get_sectors(size).seconds)


def _seconds(plan: Plan) -> float:
    """Return how long requests of one kind are sent."""
    return plan.sizes.requests / 4000


def _many(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"


def _told(name: str, load: Load) -> Iterator[Figure]:
    done, ordered = len(load.latencies), sorted(load.latencies)
    yield Figure(f"{name} | a second", (done / load.seconds,), "/s")
    yield Figure(f"{name} | median", (statistics.median(ordered) * 1e3,), "ms")
    yield Figure(f"{name} | 99th percentile", (ordered[done * 99 // 100] * 1e3,), "ms")


class _Clock:
    """The processor time of a portal, and of what it uses."""

    def __init__(self, column: _Column, portal: PortalProcess) -> None:
        self._title = column.title
        self._processes = (portal.process.pid, *column.engines)
        self._began = [*map(processor_time, self._processes)]

    def told(self, row: str, amount: float, unit: str) -> Iterator[Figure]:
        """Yield what has been used since, by so much."""
        names = (self._title, *(_ENGINES for _ in self._processes[1:]))
        units = (unit, f"{unit} {_S3RVER}", f"{unit} {_POSTGRES}")
        for name, pid, began, each in zip(names, self._processes, self._began, units, strict=False):
            if used := processor_time(pid) - began:
                yield Figure(f"{row} | {name} | time of {each}", (used / amount,), each)


def _requests(
    plan: Plan, column: _Column, portal: PortalProcess, updates: dict[int, list[bytes]]
) -> Iterator[Figure]:
    port, link = port_of(portal.url), upload(portal.url, SMALL)
    with httpx.Client(base_url=portal.url, timeout=60) as client:
        entry = registry_query(client)
    for connections in column.connections:
        kinds: dict[str, Iterator[bytes]] = {
            "GET of a small file": repeat(get_request(f"/{link}")),
            "metadata": repeat(get_request(f"/svc/metadata/{link}")),
            "registry GET": repeat(get_request(f"/svc/registry?{entry}")),
            "registry POST": iter(updates[connections]),
            "upload of 2 KiB": small_uploads(),
        }
        for kind, requests in kinds.items():
            send_for(_WARM_UP, port, requests, connections)
            clock = _Clock(column, portal)
            load = send_for(_seconds(plan), port, requests, connections)
            row = f"{kind}, {_many(connections)}"
            yield from _told(f"{row} | {column.title}", load)
            yield from clock.told(row, len(load.latencies) / 1e6, "us")


def _updates(run: int) -> Iterator[bytes]:
    owner = SigningKeyPair.from_seed("the benchmark")
    for number in count():
        entry = Entry(hash_data_key(f"{run} {number}"), b"d" * 34, 1, 1).sign(owner.private_key)
        yield body_request("POST", "/svc/registry", entry.encode_update(), "application/json")


def _large(plan: Plan, column: _Column, portal: PortalProcess) -> Iterator[Figure]:
    size, links = plan.sizes.upload, list[str]()
    part = size // _PARALLEL

    def put(each: int) -> None:
        links.append(upload(portal.url, each))

    def at_once(work: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(_PARALLEL) as threads:
            list(threads.map(work, range(_PARALLEL)))

    kinds: dict[str, Callable[[], None]] = {
        f"upload of {size >> 20} MiB": lambda: put(size),
        f"download of {size >> 20} MiB": lambda: _download(portal.url, links[0], size),
        f"{_PARALLEL} uploads of {part >> 20} MiB": lambda: at_once(lambda _: put(part)),
        f"{_PARALLEL} downloads of {part >> 20} MiB": lambda: at_once(
            lambda each: _download(portal.url, links[1 + each], part)
        ),
    }
    for row, work in kinds.items():
        clock = _Clock(column, portal)
        yield rate(f"{row} | {column.title} | ", size, machine.timed(work))
        yield from clock.told(row, size / (1 << 30), "s/GiB")


def _download(url: str, link: str, size: int) -> None:
    """Read a file; BenchmarkError if it is short."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(url), timeout=600)
    try:
        connection.request("GET", f"/{link}")
        answer, buffer, received = connection.getresponse(), bytearray(1 << 20), 0
        while got := answer.readinto(buffer):
            received += got
    finally:
        connection.close()
    if received != size:
        raise machine.BenchmarkError(f"received {received} bytes instead of {size}")


def _first_bytes(column: _Column, portal: PortalProcess) -> Iterator[Figure]:
    for title, size in (("2 KiB", SMALL), ("8 MiB", 2 * SECTOR_SIZE)):
        links = [upload(portal.url, size) for _ in range(_NEW_FILES)]
        median = statistics.median(_first_byte(portal.url, link) for link in links)
        name = f"first byte of {title}, not in memory | {column.title} | median"
        yield Figure(name, (median * 1e3,), "ms")


def _first_byte(url: str, link: str) -> float:
    """Return the seconds from a request, on an open connection, to the first byte of content."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(url), timeout=60)
    try:
        connection.connect()
        began = time.perf_counter()
        connection.request("GET", f"/{link}")
        connection.getresponse().read(1)
        return time.perf_counter() - began
    finally:
        connection.close()


GROUPS = [
    Group(
        "cluster",
        "Portals on shared storage, beside one on a disk",
        "All on one machine: the load program, the portal (`--workers`), PostgreSQL with fsync, "
        "and s3rver, which is one process and does not sync. Connections stay open, each with one "
        "request at a time. Cells have requests a second, median and 99th percentile of their "
        "time, and the processor time of the portal for each. Where something is far, it is all "
        "that is. «Without a portal»: nginx and a file, PostgreSQL and the statement of the "
        "registry (pgbench), s3rver and bare PUT requests, six sectors at once. "
        "«The engines»: their processor time for the portal of one process.",
        prepare_cluster,
        ("nginx", "node"),
        ("local disk", *_NEAR, _FAR_STORE, _FAR_DATABASE, _DIRECT, _ENGINES),
    ),
]

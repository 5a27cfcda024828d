"""The figures of a mount in Prometheus' text format, as a file and over HTTP."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from skymount.wire.http.host import parse_loopback

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

log = logging.getLogger(__name__)

_SILENCE = 5.0  # seconds that a client may be silent

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Labels = tuple[tuple[str, str], ...]
Samples = Iterable[tuple[Labels, float | None]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure, or several with labels. Its name tells its kind."""

    name: str
    help: str
    samples: Samples

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            if value is not None:
                text = ",".join(f'{key}="{each.translate(_ESCAPES)}"' for key, each in labels)
                yield f"{self.name}{{{text}}} {value}" if text else f"{self.name} {value}"


_FIGURES = (
    ("skymount_requests_total", "Requests of the kernel by operation.", "operations"),
    ("skymount_failed_operations_total", "Operations that failed, by errno.", "failures"),
    (
        "skymount_requests_under_way",
        "Requests of the kernel that are not answered yet.",
        "requests.under_way",
    ),
    ("skymount_oldest_request_seconds", "Age of the oldest of these.", "oldest.seconds"),
    ("skymount_open_files", "Open files.", "open_files"),
    ("skymount_open_directories", "Open directories.", "open_directories"),
    ("skymount_skylinks", "Skylinks in use.", "skylinks"),
    ("skymount_domains", "Domains in use.", "domains"),
    ("skymount_fetched_bytes_total", "Bytes that portals have sent.", "fetched.bytes"),
    ("skymount_fetches_total", "Requests to portals for content.", "fetched.requests"),
    ("skymount_memory_cache_bytes", "Content in memory.", "memory_cache.used"),
    ("skymount_memory_cache_limit_bytes", "Limit of content in memory.", "memory_cache.size"),
    ("skymount_memory_cache_in_flight_bytes", "Content on its way.", "memory_cache.on_its_way"),
    ("skymount_memory_cache_hits_total", "Reads from memory.", "memory_cache.hits"),
    ("skymount_memory_cache_misses_total", "Reads that had to wait.", "memory_cache.misses"),
    ("skymount_tree_cache_bytes", "Memory for names and sizes.", "tree_cache.used"),
    ("skymount_tree_cache_limit_bytes", "Limit of that.", "tree_cache.size"),
    ("skymount_trees", "Trees in memory.", "tree_cache.loaded"),
    ("skymount_disk_cache_limit_bytes", "Limit of content on disk.", "disk_cache.size"),
    ("skymount_disk_cache_hits_total", "Blocks read from disk.", "disk_cache.hits"),
    ("skymount_disk_cache_misses_total", "Blocks that were not on disk.", "disk_cache.misses"),
    ("skymount_disk_cache_stored_total", "Blocks written to disk.", "disk_cache.stored"),
    (
        "skymount_disk_cache_dropped_total",
        "Blocks not written: the queue or disk was full.",
        "disk_cache.dropped",
    ),
    ("skymount_disk_cache_damaged_total", "Blocks found damaged.", "disk_cache.damaged"),
    (
        "skymount_portal_latency_seconds",
        "Usual time to the head of a response.",
        "portal_health.latency",
    ),
    (
        "skymount_portal_failure_ratio",
        "Share of failures lately.",
        "portal_health.failure_rate",
    ),
    (
        "skymount_portal_body_bytes_per_second",
        "Usual rate of bodies.",
        "portal_health.body_rate",
    ),
    (
        "skymount_portal_requests_under_way",
        "Requests that are not answered yet.",
        "portal_health.requests",
    ),
    (
        "skymount_portal_hedges_total",
        "Requests because another portal was late.",
        "portal_health.hedges",
    ),
    (
        "skymount_portal_hedges_lost_total",
        "Requests that another portal answered.",
        "portal_health.hedges_lost",
    ),
    ("skymount_owed_entries", "Entries that a portal has not got yet.", "owed_entries.count"),
    ("skymount_portal_up", "1 while the portal does not pause.", "portal_health.state"),
)
"""Name and help of each metric, and where its value is among the figures of ``status.json``."""

_LABELS = {"operations": "operation", "failures": "errno"}


def metrics_of(figures: Mapping[str, Any], failures: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the figures of ``status.json``, and failed operations by errno."""
    yield from _process(figures)
    oldest = figures["requests"]["oldest"] or {"seconds": 0}
    known = {**figures, "oldest": oldest, "failures": failures}
    for name, text, path in _FIGURES:
        samples = _samples(known, path)
        if samples is not None:
            yield Metric(name, text, samples)


def _samples(figures: Mapping[str, Any], path: str) -> Samples | None:
    """Return what is at a path: one value, one for each key, or one of each portal in a list."""
    first, _, rest = path.partition(".")
    if first not in figures:
        return None
    found = figures[first]
    if isinstance(found, list):
        return [((("portal", each["url"]),), _number(each[rest])) for each in found]
    if rest:
        return _samples(found, rest)
    if first in _LABELS:
        return [(((_LABELS[first], key),), value) for key, value in found.items()]
    return [((), found)]


def _number(value: Any) -> float | None:
    return int(value == "closed") if isinstance(value, str) else value


def render(metrics: Iterable[Metric]) -> bytes:
    """Return the text of the file."""
    return "".join(f"{line}\n" for each in metrics for line in each.lines()).encode()


async def serve(
    address: str, read: Callable[[], Iterable[Metric]], warn: Callable[[str], None]
) -> None:
    """Serve at a loopback address, if one is given, until cancelled; warn if it cannot listen.

    prometheus_client has a thread for each request; `read` is called in trio.
    """
    if not address:
        return
    token = trio.lowlevel.current_trio_token()
    host, port = parse_loopback(address)

    def from_trio() -> Iterable[Metric]:
        return trio.from_thread.run_sync(read, trio_token=token)

    try:
        server = await trio.to_thread.run_sync(_start, host, port, from_trio)
    except OSError as error:
        warn(f"metrics_listen: {address}: {error.strerror or error}")
        return
    try:
        shown = f"[{host}]" if ":" in host else host
        log.info("metrics: http://%s:%d/metrics", shown, server.server_port)
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.shutdown)
        server.server_close()


def _start(host: str, port: int, read: Callable[[], Iterable[Metric]]) -> "WSGIServer":
    import prometheus_client  # it takes a while, and most mounts do without
    from prometheus_client.registry import Collector

    class Figures(Collector):
        def collect(self) -> Iterator[prometheus_client.Metric]:
            for each in read():
                name = each.name.removesuffix("_total")
                metric = prometheus_client.Metric(name, each.help, each.kind)
                for labels, value in each.samples:
                    if value is not None:
                        metric.add_sample(each.name, dict(labels), value)
                yield metric

    registry = prometheus_client.CollectorRegistry()
    registry.register(Figures())
    server, _ = prometheus_client.start_http_server(port, host, registry)
    handler = server.RequestHandlerClass
    assert isinstance(handler, type)
    server.RequestHandlerClass = type("Handler", (handler,), {"timeout": _SILENCE})
    # It would print a traceback for each client that goes away.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    return server


def _process(figures: Mapping[str, Any]) -> Iterator[Metric]:
    labels = tuple((key, str(figures[key])) for key in ("mountpoint", "version", "verify"))
    yield Metric("skymount_mount_info", "What is mounted, and how.", [(labels, 1)])
    for name, text, value in (
        ("start_time_seconds", "Start, since 1970.", time.time() - figures["uptime_seconds"]),
        ("cpu_seconds_total", "Processor time.", time.process_time()),
        ("resident_memory_bytes", "Resident memory.", _resident()),
    ):
        yield Metric(f"process_{name}", text, [((), value and round(value, 2))])


def _resident() -> int | None:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None

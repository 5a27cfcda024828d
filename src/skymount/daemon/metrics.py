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


def metrics_of(figures: Mapping[str, Any], failures: Mapping[str, int]) -> list[Metric]:
    """Return the figures of ``status.json``, and failed operations by errno."""
    return [
        *_process(figures),
        *_operations(figures, failures),
        *_caches(figures),
        *_portals(figures["portal_health"], figures.get("owed_entries", ())),
    ]


def render(metrics: Iterable[Metric]) -> bytes:
    """Return the text of the file."""
    return "".join(f"{line}\n" for each in metrics for line in each.lines()).encode()


async def serve(address: str, read: Callable[[], list[Metric]]) -> None:
    """Serve at a loopback address until cancelled; OSError when it cannot listen there.

    prometheus_client has a thread for each request; `read` is called in trio.
    """
    token = trio.lowlevel.current_trio_token()
    host, port = parse_loopback(address)

    def from_trio() -> list[Metric]:
        return trio.from_thread.run_sync(read, trio_token=token)

    server = await trio.to_thread.run_sync(_start, host, port, from_trio)
    try:
        shown = f"[{host}]" if ":" in host else host
        log.info("metrics: http://%s:%d/metrics", shown, server.server_port)
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.shutdown)
        server.server_close()


def _start(host: str, port: int, read: Callable[[], list[Metric]]) -> "WSGIServer":
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


def _one(value: float | None) -> Samples:
    return [((), value)]


def _by(label: str, values: Mapping[str, float]) -> Samples:
    return [(((label, key),), value) for key, value in values.items()]


def _process(figures: Mapping[str, Any]) -> Iterator[Metric]:
    labels = tuple((key, str(figures[key])) for key in ("mountpoint", "version", "verify"))
    yield Metric("skymount_mount_info", "What is mounted, and how.", [(labels, 1)])
    started = time.time() - figures["uptime_seconds"]
    yield Metric("process_start_time_seconds", "Start, since 1970.", _one(round(started, 2)))
    yield Metric(
        "process_cpu_seconds_total", "Processor time.", _one(round(time.process_time(), 2))
    )
    yield Metric("process_resident_memory_bytes", "Resident memory.", _one(_resident()))


def _resident() -> int | None:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _operations(figures: Mapping[str, Any], failures: Mapping[str, int]) -> Iterator[Metric]:
    requests = figures["requests"]
    oldest = requests["oldest"]
    yield Metric(
        "skymount_requests_total",
        "Requests of the kernel by operation.",
        _by("operation", figures["operations"]),
    )
    yield Metric(
        "skymount_failed_operations_total",
        "Operations that failed, by errno.",
        _by("errno", failures),
    )
    yield Metric(
        "skymount_requests_under_way",
        "Requests of the kernel that are not answered yet.",
        _one(requests["under_way"]),
    )
    yield Metric(
        "skymount_oldest_request_seconds",
        "Age of the oldest of these.",
        _one(oldest["seconds"] if oldest else 0),
    )
    for name, text in (
        ("open_files", "Open files."),
        ("open_directories", "Open directories."),
        ("skylinks", "Skylinks in use."),
        ("domains", "Domains in use."),
    ):
        yield Metric(f"skymount_{name}", text, _one(figures[name]))


def _caches(figures: Mapping[str, Any]) -> Iterator[Metric]:
    memory, disk, trees = (figures[f"{name}_cache"] for name in ("memory", "disk", "tree"))
    fetched = figures["fetched"]
    for name, text, value in (
        ("fetched_bytes_total", "Bytes that portals have sent.", fetched["bytes"]),
        ("fetches_total", "Requests to portals for content.", fetched["requests"]),
        ("memory_cache_bytes", "Content in memory.", memory["used"]),
        ("memory_cache_limit_bytes", "Limit of content in memory.", memory["size"]),
        ("memory_cache_in_flight_bytes", "Content on its way.", memory["on_its_way"]),
        ("memory_cache_hits_total", "Reads from memory.", memory["hits"]),
        ("memory_cache_misses_total", "Reads that had to wait.", memory["misses"]),
        ("tree_cache_bytes", "Memory for names and sizes.", trees["used"]),
        ("tree_cache_limit_bytes", "Limit of that.", trees["size"]),
        ("trees", "Trees in memory.", trees["loaded"]),
        ("disk_cache_limit_bytes", "Limit of content on disk.", disk["size"]),
    ):
        yield Metric(f"skymount_{name}", text, _one(value))
    for name, text in (
        ("hits", "Blocks read from disk."),
        ("misses", "Blocks that were not on disk."),
        ("stored", "Blocks written to disk."),
        ("dropped", "Blocks not written: the queue or disk was full."),
        ("damaged", "Blocks found damaged."),
    ):
        if name in disk:
            yield Metric(f"skymount_disk_cache_{name}_total", text, _one(disk[name]))


def _portals(
    portals: Iterable[Mapping[str, Any]], owed: Iterable[Mapping[str, Any]]
) -> Iterator[Metric]:
    for name, text, key in (
        ("latency_seconds", "Usual time to the head of a response.", "latency"),
        ("failure_ratio", "Share of failures lately.", "failure_rate"),
        ("body_bytes_per_second", "Usual rate of bodies.", "body_rate"),
        ("requests_under_way", "Requests that are not answered yet.", "requests"),
        ("hedges_total", "Requests because another portal was late.", "hedges"),
        ("hedges_lost_total", "Requests that another portal answered.", "hedges_lost"),
    ):
        samples = [((("portal", each["url"]),), each[key]) for each in portals]
        yield Metric(f"skymount_portal_{name}", text, samples)
    yield Metric(
        "skymount_owed_entries",
        "Entries that a portal has not got yet.",
        [((("portal", each["url"]),), each["count"]) for each in owed],
    )
    states = [((("portal", each["url"]),), int(each["state"] == "closed")) for each in portals]
    yield Metric("skymount_portal_up", "1 while the portal does not pause.", states)

"""What a portal counts, and the endpoint that tells it Prometheus."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.server.http import responses
from skymount.server.http.access_log import Visit
from skymount.server.http.requester import HEALTH, METRICS
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.wire.dialect import PRESETS
from skymount.wire.skylink import BASE32_LENGTH, BASE64_LENGTH

_SHARED = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client counts in files, if it is set
_MEMORY = "/dev/shm"
_BUCKETS = (0.01, 0.1, 1, 10, 60)  # seconds

_PREFIXES = frozenset(dialect.prefix for dialect in PRESETS.values())
_ENDPOINTS = frozenset(
    {
        *("skyfile", "skylink", "registry", "resolve", "metadata", "basesector", "trustless"),
        *("root", "pin", "stats", "blocklist", "portals"),
        *("createskykey", "addskykey", "deleteskykey", "skykey", "skykeys"),
    }
)


def kind_of(method: str, path: str) -> str:
    """Return the kind of a request, of which there are few, whatever clients send."""
    first, _, below = path.removeprefix("/").partition("/")
    if first in _PREFIXES:
        name = below.partition("/")[0]
        if name in _ENDPOINTS:
            return name
        return "skyfile" if method == "POST" else "other"
    if first in ("hns", "hnsres"):
        return first
    if first == "file" or len(first) in (BASE32_LENGTH, BASE64_LENGTH):
        return "skylink"
    if path in (HEALTH, METRICS):
        return below
    return "page" if first in ("", "-") else "other"


class Metrics:
    """The counts of one portal; those of all its processes within `shared_counts`."""

    def __init__(self) -> None:
        import prometheus_client as prometheus  # it takes a while, and most portals do without

        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = prometheus.CollectorRegistry()
        name = "skymount_server"
        self._requests = prometheus.Counter(
            f"{name}_requests", "Requests.", ["kind", "status"], registry=registry
        )
        self._sent = prometheus.Counter(
            f"{name}_sent_bytes", "Bytes of bodies of answers.", ["kind"], registry=registry
        )
        self._seconds = prometheus.Histogram(
            f"{name}_request_seconds",
            "How long requests took.",
            ["kind"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self._wrong = prometheus.Counter(
            f"{name}_wrong_passwords", "Wrong passwords.", registry=registry
        )

    def count(self, visit: Visit) -> None:
        kind = kind_of(visit.method, visit.path)
        self._requests.labels(kind, visit.status).inc()
        self._sent.labels(kind).inc(visit.size)
        self._seconds.labels(kind).observe(visit.seconds)

    def count_wrong(self) -> None:
        self._wrong.inc()

    def render(self, skyfiles: int, size: int) -> tuple[str, bytes]:
        """Return the content type and the text, with what is stored."""
        from prometheus_client import CollectorRegistry, exposition, multiprocess

        registry = self._registry
        if _SHARED in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        stored = "".join(
            f"# HELP skymount_server_stored_{name} {text}\n"
            f"# TYPE skymount_server_stored_{name} gauge\n"
            f"skymount_server_stored_{name} {value}\n"
            for name, text, value in (
                ("skyfiles", "Skyfiles that are stored.", skyfiles),
                ("bytes", "What they take.", size),
            )
        )
        body = exposition.generate_latest(registry) + stored.encode()
        return exposition.CONTENT_TYPE_LATEST, body


@dataclass(frozen=True, slots=True)
class MetricsEndpoint:
    """Tells the counts of one portal."""

    metrics: Metrics
    index: SkyfileIndex

    async def get(self, request: Request) -> Response:
        skyfiles, size = self.index.totals()
        kind, body = await trio.to_thread.run_sync(self.metrics.render, skyfiles, size)
        return responses.BytesResponse(200, [("Content-Type", kind)], body)


@contextmanager
def shared_counts() -> Iterator[None]:
    """Have the processes that are started meanwhile count together."""
    memory = _MEMORY if os.path.isdir(_MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="skymount-metrics-", dir=memory) as directory:
        os.environ[_SHARED] = directory
        try:
            yield
        finally:
            del os.environ[_SHARED]

"""What monitors, load balancers and clients ask about the portal itself: its health, its counts for
Prometheus, and statistics (docs/wire.md 4.7).
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import trio

from skymount import __version__
from skymount.errors import StorageError
from skymount.server.http.access_log import Visit
from skymount.server.http.clients import HEALTH, METRICS
from skymount.server.http.forms import parse_query
from skymount.server.http.messages import Request, Response, fields, json_response, text_response
from skymount.server.storage.disk_errors import DiskFullError
from skymount.server.storage.interfaces import Entries
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.wire.dialect import PRESETS
from skymount.wire.skylink import BASE32_LENGTH, BASE64_LENGTH

_PATIENCE = 0.5  # seconds that an answer may take
_SILENCE = 5.0  # seconds that a check may take, as on a busy machine
_LATE = StorageError(f"no answer in {_SILENCE:.0f} s")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Round:
    began: float
    ended: trio.Event = field(default_factory=trio.Event)
    problem: StorageError | None = None


class SharedCheck:
    """A check that blocks. It runs once at a time, and all who ask meanwhile share what it finds.

    Until it has ended, what the one before has found counts for a while.
    """

    def __init__(self, name: str, check: Callable[[], None]) -> None:
        """`check` raises StorageError."""
        self._name = name
        self._check = check
        self._round: _Round | None = None
        self._known: StorageError | None = None  # the storage was opened just now
        self._is_told = False

    async def problem(self) -> StorageError | None:
        """Return what is the matter, soon."""
        asked = self._round
        if asked is None:
            asked = self._round = _Round(trio.current_time())
            trio.lowlevel.spawn_system_task(self._run, asked)  # it may outlive who asks
        with trio.move_on_at(asked.began + _PATIENCE):
            await asked.ended.wait()
        if asked.ended.is_set():
            found = asked.problem
        else:
            found = self._known if trio.current_time() < asked.began + _SILENCE else _LATE
        if self._is_told != (found is not None):
            self._is_told = found is not None
            _log.warning("%s: %s", self._name, found or "all is well again")
        return found

    async def _run(self, asked: _Round) -> None:
        try:
            # In a thread of its own: it says nothing about the disk that all others are busy.
            await trio.to_thread.run_sync(
                self._check, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
        except StorageError as error:
            asked.problem = error
        except Exception as error:  # noqa: BLE001  # a bug in it must not end the portal
            _log.exception("the check of the health failed")
            asked.problem = StorageError(str(error))
        finally:
            self._round, self._known = None, asked.problem
            asked.ended.set()


class HealthEndpoint:
    """The health of one portal."""

    def __init__(self, storage: PortalStorage, check_quota: Callable[[], None]) -> None:
        def check_storing() -> None:
            storage.check_reading()
            check_quota()
            storage.check_storing()

        self._reading = SharedCheck("what is stored cannot be read", storage.check_reading)
        self._storing = SharedCheck("nothing can be stored", check_storing)

    async def get(self, request: Request) -> Response:
        """Answer with one line. It names no place and no reason: strangers read it."""
        if "ready" not in parse_query(request.query):
            is_bad = await self._reading.problem() is not None
            if is_bad:
                return text_response(503, "what is stored cannot be read\n")
            return text_response(200, "ok\n")
        problem = await self._storing.problem()
        if problem is None:
            return text_response(200, "ready\n")
        is_full = isinstance(problem, DiskFullError)
        return text_response(503, "there is no room\n" if is_full else "nothing can be stored\n")


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
        return Response(200, fields(("Content-Type", kind)), body)


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


class _Stats(msgspec.Struct):
    version: str
    uptime: int  # seconds
    numfiles: int  # skyfiles, each of which may be a directory
    totalsize: int  # bytes of their content
    numentries: int  # of the registry, deleted ones included


@dataclass(frozen=True, slots=True)
class StatsEndpoints:
    """The endpoints about one portal."""

    index: SkyfileIndex
    entries: Entries
    started: float = field(default_factory=time.monotonic)

    async def stats(self, request: Request) -> Response:
        files, size = self.index.totals()
        entries = await self.entries.count()
        uptime = int(time.monotonic() - self.started)
        return _json(_Stats(__version__, uptime, files, size, entries))

    async def blocklist(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return _json({"blacklist": None, "blocklist": []})

    async def portals(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return _json({"portals": []})


def _json(value: object) -> Response:
    return json_response(msgspec.json.encode(value) + b"\n")

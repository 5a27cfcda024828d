"""What a mount says of itself: ``status.json``, figures for Prometheus, its size for statfs."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from skymount import __version__
from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.cache.write_behind import WriteBehindQueue
from skymount.content.fetch.reader import ContentReader
from skymount.daemon.embedded_portal import EmbeddedPortal
from skymount.fs.dispatcher import FileSystem
from skymount.fs.failures import FailureLog
from skymount.fs.skylinks.name_table import NameTable
from skymount.fs.skylinks.tree_cache import TreeCache
from skymount.portal.failover.health import HealthFigures
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.owed_entry import OwedTotal
from skymount.portal.registry.owed_sender import OwedSender
from skymount.settings import Config

if TYPE_CHECKING:
    from skymount.daemon.metrics import Metric


@dataclass
class MountStatus:
    """The parts of a mount that have figures; filled in while the mount is built."""

    config: Config
    embedded_portal: EmbeddedPortal
    portals: Portals = field(init=False)
    memory_cache: MemoryCache = field(init=False)
    write_behind: WriteBehindQueue | None = field(init=False, default=None)
    reader: ContentReader = field(init=False)
    trees: TreeCache = field(init=False)
    skylinks: NameTable = field(init=False)
    domains: NameTable = field(init=False)
    owed: OwedSender = field(init=False)
    files: FileSystem = field(init=False)
    operations: Mapping[str, int] = field(init=False)  # requests of the kernel by kind
    under_way: Mapping[int, tuple[str, float]] = field(init=False)  # those not answered yet
    failures: FailureLog = field(init=False)
    _started: float = field(init=False, default_factory=time.time)

    def to_json(self) -> bytes:
        found = self._figures(self._others_under_way())
        return json.dumps(found, indent=2).encode() + b"\n"

    def to_metrics(self) -> bytes:
        """Return the figures for Prometheus, as a request of the kernel sees them."""
        from skymount.daemon.metrics import metrics_of, render

        return render(metrics_of(self._figures(self._others_under_way()), self.failures.counts))

    def metrics(self) -> "list[Metric]":
        """Return the same as they are while the kernel asks for nothing."""
        from skymount.daemon.metrics import metrics_of

        return metrics_of(self._figures(list(self.under_way.values())), self.failures.counts)

    def _others_under_way(self) -> Sequence[tuple[str, float]]:
        """Return the requests under way without the one that is asking: the youngest."""
        return list(self.under_way.values())[:-1]

    def _figures(self, under_way: Sequence[tuple[str, float]]) -> dict[str, Any]:
        cache, trees, reader = self.memory_cache, self.trees, self.reader
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mountpoint": os.fsencode(self.config.mountpoint).decode(errors="backslashreplace"),
            "uptime_seconds": round(time.time() - self._started, 3),
            "portals": self.config.portal_urls,
            "portal_health": [
                _rounded(each) | {"requests": client.http.in_flight}
                for each, client in zip(self.portals.figures(), self.portals.clients, strict=True)
            ],
            "owed_entries": [_owed(each) for each in self.owed.totals],
            "own_portal": self.embedded_portal.is_running,
            "verify": self.config.verify.value,
            "memory_cache": {
                "size": cache.size,
                "used": cache.used,
                "on_its_way": cache.reserved,
                "hits": reader.hits,
                "misses": reader.misses,
            },
            "disk_cache": self._disk_cache(),
            "tree_cache": {"size": trees.config.size, "used": trees.used, "loaded": len(trees)},
            "fetched": reader.counts,
            "skylinks": len(self.skylinks),
            "domains": len(self.domains),
            "open_files": len(self.files.open_files),
            "open_directories": len(self.files.open_directories),
            "requests": _oldest(under_way),
            "operations": dict(sorted(self.operations.items())),
            "failed_operations": self.failures.recent(),
        }

    def _disk_cache(self) -> Mapping[str, int]:
        queue = self.write_behind
        if queue is None:
            return {"size": 0}
        return {
            "size": self.config.disk_cache,
            "waiting": queue.queued_bytes,
            **asdict(queue.counts),
        }

    def usage(self) -> tuple[int, int]:
        (size, files), (more_size, more_files) = self.skylinks.usage(), self.domains.usage()
        return size + more_size, files + more_files


def _oldest(under_way: Sequence[tuple[str, float]]) -> Mapping[str, object]:
    """Return how many requests are under way, and the oldest."""
    oldest = None
    if under_way:
        operation, begun = under_way[0]
        seconds = round(trio.current_time() - begun, 3)
        oldest = {"operation": operation, "seconds": seconds}
    return {"under_way": len(under_way), "oldest": oldest}


def _rounded(figures: HealthFigures) -> dict[str, object]:
    found = asdict(figures) | {"state": figures.state.value, "rank": figures.rank.name.lower()}
    return {
        key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()
    }


def _owed(total: OwedTotal) -> Mapping[str, object]:
    return {
        "url": total.portal,
        "count": total.count,
        "oldest_seconds": round(time.time() - total.since, 3),
        "reason": total.reason,
    }

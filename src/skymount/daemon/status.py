"""What a mount says of itself: ``status.json``, and the figures for Prometheus."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from skymount import __version__
from skymount.content.opening import Content
from skymount.daemon.embedded_portal import EmbeddedPortal
from skymount.daemon.metrics import Metric, metrics_of
from skymount.fs.skylinks.directory import SkylinksDirectory
from skymount.fs.skylinks.tree_cache import TreeCache
from skymount.portal.registry.sender import Sender
from skymount.settings import Config

if TYPE_CHECKING:
    from skymount.fs.fuse import FuseAdapter


@dataclass(frozen=True, slots=True)
class Mount:
    """The parts of a mount that have figures."""

    config: Config
    embedded_portal: EmbeddedPortal
    content: Content
    trees: TreeCache
    skylinks: SkylinksDirectory
    domains: SkylinksDirectory
    sender: Sender
    adapter: "FuseAdapter"
    _started: float = field(default_factory=time.time)

    def metrics(self, *, is_asking: bool = True) -> Iterable[Metric]:
        return metrics_of(self.figures(is_asking=is_asking), self.adapter.failures.counts)

    def figures(self, *, is_asking: bool = True) -> Mapping[str, Any]:
        """Return the figures of all parts.

        `is_asking`: a request of the kernel asks for them. It is the youngest, and is left out.
        """
        config, content, adapter = self.config, self.content, self.adapter
        cache, reader, trees = content.memory, content.reader, self.trees
        under_way = list(adapter.under_way.values())
        clients = zip(content.portals.figures(), content.portals.clients, strict=True)
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mountpoint": os.fsencode(config.mountpoint).decode(errors="backslashreplace"),
            "uptime_seconds": round(time.time() - self._started, 3),
            "portals": config.portal_urls,
            "portal_health": [
                {
                    **_rounded(asdict(figures)),
                    "state": figures.state.value,
                    "rank": figures.rank.name.lower(),
                    "requests": client.http.in_flight,
                }
                for figures, client in clients
            ],
            "owed_entries": [
                {
                    "url": each.portal,
                    "count": each.count,
                    "oldest_seconds": round(time.time() - each.since, 3),
                    "reason": each.reason,
                }
                for each in self.sender.totals
            ],
            "own_portal": self.embedded_portal.is_running,
            "verify": config.verify.value,
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
            "skylinks": len(self.skylinks.table),
            "domains": len(self.domains.table),
            "open_files": len(adapter.files.open_files),
            "open_directories": len(adapter.files.open_directories),
            "requests": _oldest(under_way[:-1] if is_asking else under_way),
            "operations": dict(sorted(adapter.counts.items())),
            "failed_operations": adapter.failures.recent(),
        }

    def _disk_cache(self) -> Mapping[str, int]:
        queue = self.content.queue
        if queue is None:
            return {"size": 0}
        size = self.config.disk_cache
        return {"size": size, "waiting": queue.queued_bytes, **asdict(queue.counts)}


def as_json(figures: Mapping[str, Any]) -> bytes:
    """Return the text of ``status.json``."""
    return json.dumps(figures, indent=2).encode() + b"\n"


def _oldest(under_way: Sequence[tuple[str, float]]) -> Mapping[str, object]:
    """Return how many requests are under way, and the oldest."""
    oldest = None
    if under_way:
        operation, begun = under_way[0]
        seconds = round(trio.current_time() - begun, 3)
        oldest = {"operation": operation, "seconds": seconds}
    return {"under_way": len(under_way), "oldest": oldest}


def _rounded(figures: Mapping[str, object]) -> Mapping[str, object]:
    return {
        key: round(value, 4) if isinstance(value, float) else value
        for key, value in figures.items()
    }

"""What a mount says of itself."""

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import trio

from skymount.content.cache.memory_cache import MemoryCache
from skymount.daemon.embedded_portal import EmbeddedPortal
from skymount.daemon.metrics import render
from skymount.daemon.status import Mount, as_json
from skymount.errors import PortalError
from skymount.fs.failures import FailureLog
from skymount.fs.skylinks.tree_cache import TreeCache, TreeCacheConfig
from skymount.portal.failover.health import Health, HealthFigures
from skymount.portal.ledger.outbox import OwedTotal
from skymount.settings import Config


def failing_portal() -> HealthFigures:
    health = Health()
    health.failed(PortalError("down"), 10.0, waited=0.0)
    return health.figures("http://a.example", 10.25, has_trials=True)


async def test_status() -> None:
    """E3: the health of each portal, and figures of every part."""
    config = Config(mountpoint="/mnt", portals=("http://a.example",), disk_cache=0)
    client = SimpleNamespace(http=SimpleNamespace(in_flight=2))
    asking = trio.current_time()
    parts: Any = (
        SimpleNamespace(
            portals=SimpleNamespace(figures=lambda: [failing_portal()], clients=[client]),
            memory=MemoryCache(1 << 20),
            reader=SimpleNamespace(counts={"bytes": 7, "requests": 1}, hits=5, misses=1),
            queue=None,
        ),
        TreeCache(TreeCacheConfig(1 << 20)),
        SimpleNamespace(table=range(2)),
        SimpleNamespace(table=range(1)),
        SimpleNamespace(totals=[OwedTotal("http://a.example", 2, time.time() - 9.0, "down")]),
        SimpleNamespace(
            counts={"read": 3, "lookup": 4},
            files=SimpleNamespace(open_files={1: None}, open_directories={}),
            under_way={7: ("read", asking - 2.5), 9: ("open", asking)},
            failures=FailureLog(),
        ),
    )
    mount = Mount(config, EmbeddedPortal(), *parts)
    found = json.loads(as_json(mount.figures()))
    assert (found["pid"], found["mountpoint"]) == (os.getpid(), "/mnt")
    assert (found["portals"], found["own_portal"]) == (["http://a.example"], False)
    assert (found["skylinks"], found["domains"], found["fetched"]["bytes"]) == (2, 1, 7)
    assert found["memory_cache"] == {
        "size": 1 << 20,
        "used": 0,
        "on_its_way": 0,
        "hits": 5,
        "misses": 1,
    }
    assert (found["open_files"], found["open_directories"]) == (1, 0)
    requests = found["requests"]
    assert (requests["under_way"], requests["oldest"]["operation"]) == (1, "read")
    assert 2.5 <= requests["oldest"]["seconds"] < 60
    assert found["disk_cache"] == {"size": 0}
    assert found["tree_cache"] == {"size": 1 << 20, "used": 0, "loaded": 0}
    assert found["failed_operations"] == []
    assert found["portal_health"] == [
        {
            "url": "http://a.example",
            "state": "open",
            "rank": "failing",
            "latency": None,
            "failure_rate": 0.2,
            "body_rate": None,
            "hedges": 0,
            "hedges_lost": 0,
            "last_error": "down",
            "last_error_age": 0.25,
            "requests": 2,
        }
    ]
    (owed,) = found["owed_entries"]
    assert 9 <= owed.pop("oldest_seconds") < 60
    assert owed == {"url": "http://a.example", "count": 2, "reason": "down"}
    assert list(found["operations"]) == ["lookup", "read"]
    text = render(mount.metrics()).decode()
    assert 'skymount_portal_up{portal="http://a.example"} 0\n' in text
    assert "skymount_requests_under_way 1\n" in text
    assert "skymount_requests_under_way 2\n" in render(mount.metrics(is_asking=False)).decode()

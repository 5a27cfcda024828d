"""Figures in Prometheus' text format."""

import re
from typing import Any

from skymount.daemon.metrics import metrics_of, render

PORTAL = {
    "url": 'http://a.example/"q"',
    "state": "closed",
    "latency": 0.0125,
    "failure_rate": 0.1,
    "body_rate": None,
    "requests": 2,
    "hedges": 3,
    "hedges_lost": 4,
}
CACHE = {"size": 10, "used": 5, "on_its_way": 1, "hits": 6, "misses": 7, "loaded": 2}
FIGURES: dict[str, Any] = {
    "owed_entries": [{"url": "http://b.example", "count": 7}],
    "mountpoint": "/a\nb",
    "version": "1",
    "verify": "require",
    "uptime_seconds": 5.0,
    "portal_health": [PORTAL],
    "memory_cache": CACHE,
    "tree_cache": CACHE,
    "disk_cache": {"size": 10, "hits": 1, "misses": 2, "stored": 3, "dropped": 4, "damaged": 5},
    "fetched": {"bytes": 8, "requests": 9},
    "skylinks": 1,
    "domains": 2,
    "open_files": 3,
    "open_directories": 4,
    "operations": {"lookup": 1, "read": 2},
    "requests": {"under_way": 2, "oldest": {"operation": "read", "seconds": 1.5}},
}

_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\S+)')


def samples(text: str) -> dict[str, float]:
    """Parse the text strictly; return the values by name and labels."""
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in text.split("\n")[:-1]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            assert (kind == "counter") == name.endswith("_total")
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] in kinds, line
            key = line.rpartition(" ")[0]
            assert key not in found
            found[key] = float(match[3])
    return found


def test_the_format() -> None:
    """E6: Each sample has a type; labels are escaped; what is not known is left out."""
    text = render(metrics_of(FIGURES, {"EIO": 3})).decode()
    assert text.endswith("\n")
    found = samples(text)
    portal = '{portal="http://a.example/\\"q\\""}'
    expected = {
        'skymount_mount_info{mountpoint="/a\\nb",version="1",verify="require"}': 1,
        'skymount_requests_total{operation="read"}': 2,
        'skymount_failed_operations_total{errno="EIO"}': 3,
        "skymount_requests_under_way": 2,
        "skymount_oldest_request_seconds": 1.5,
        "skymount_fetched_bytes_total": 8,
        "skymount_memory_cache_hits_total": 6,
        "skymount_disk_cache_damaged_total": 5,
        f"skymount_portal_up{portal}": 1,
        'skymount_owed_entries{portal="http://b.example"}': 7,
        f"skymount_portal_latency_seconds{portal}": 0.0125,
        f"skymount_portal_hedges_lost_total{portal}": 4,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert f"skymount_portal_body_bytes_per_second{portal}" not in found
    assert found["process_resident_memory_bytes"] > 1 << 20


def test_a_mount_without_a_disk_cache() -> None:
    figures = {**FIGURES, "disk_cache": {"size": 0}}
    found = samples(render(metrics_of(figures, {})).decode())
    assert found["skymount_disk_cache_limit_bytes"] == 0
    assert "skymount_disk_cache_hits_total" not in found

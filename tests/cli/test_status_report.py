"""How ``skymount status`` shows a mount."""

import json
from typing import Any

from skymount.cli.mount_probe import MountAnswer, MountState
from skymount.cli.status_report import checked, counted, readable_time, report


def shown(**status: Any) -> str:
    text = json.dumps(status).encode()
    return "\n".join(report([MountAnswer("/m", MountState.RUNNING, text)]))


def health(**more: Any) -> dict[str, Any]:
    plain = {"url": "http://a.example", "state": "closed", "rank": "healthy", "latency": 0.012}
    return {**plain, **more}


def test_no_mount() -> None:
    assert report([]) == ["nothing is mounted; `skymount mount DIRECTORY` does that"]


def test_portals() -> None:
    """E3: whether each is used, and how it is doing."""
    text = shown(
        portal_health=[
            health(body_rate=3 << 20, requests=2),
            health(url="http://b.example", state="open", rank="failing", failure_rate=0.25)
            | {"last_error": "cannot be reached", "last_error_age": 61.0},
            health(url="http://c.example", rank="lying"),
            health(url="http://d.example", last_error="old", last_error_age=7200.0),
            health(url="http://e.example", latency=None),
        ]
    )
    assert "portals       http://a.example  works, answers in 12 ms, 3 MiB/s, 2 requests" in text
    assert "http://b.example  pauses after a failure, answers in 12 ms, 25% failures" in text
    assert "last error 1 min 1 s ago: cannot be reached" in text
    assert "http://c.example  sent wrong content" in text
    assert "http://d.example  works" in text
    assert "old" not in text
    assert "http://e.example  not asked yet" in text


def test_portals_line_up() -> None:
    text = shown(portal_health=[health(url="http://short"), health(url="http://much.longer")])
    assert "portals       http://short        works" in text


def test_requests_and_failures() -> None:
    """E2, E3: the oldest request, and the last failures, the latest first."""
    failure = {"operation": "read", "path": "skylinks/x", "errno": "EIO", "reason": "overloaded"}
    text = shown(
        requests={"under_way": 3, "oldest": {"operation": "read", "seconds": 12.34}},
        failed_operations=[{**failure, "time": f"t{number}"} for number in range(5)],
    )
    assert "3 requests under way (a read for 12.3 s)" in text
    assert "last errors   t4  read skylinks/x: EIO, overloaded\n" in text
    assert "t2" in text
    assert "t1" not in text


def test_entries_owed() -> None:
    """By portal, with why."""
    first = {"url": "http://a.example", "count": 2, "oldest_seconds": 61.5, "reason": "down"}
    text = shown(owed_entries=[first, {"url": "http://b.example", "count": 1}])
    assert "owed          http://a.example  2 entries, the oldest for 1 min 1 s: down\n" in text
    assert "http://b.example  1 entry, the oldest for 0 s" in text
    assert "owed" not in shown(owed_entries=[])


def test_a_mount_of_another_version() -> None:
    """What it does not say is not shown; what cannot be read is no error of ours."""
    assert shown().startswith("/m  running for 0 s, pid 0, skymount ?")
    for text in (b"", b"[]", b'{"pid": "x"}', b"\xff", b"[" * 100_000):
        found = checked(MountAnswer("/m", MountState.RUNNING, text))
        assert found.state is MountState.UNREADABLE
        assert "status.json" in found.reason


def test_words() -> None:
    assert [counted(number, "entry") for number in (0, 1, 1234)] == [
        "0 entries",
        "1 entry",
        "1,234 entries",
    ]
    assert [readable_time(each) for each in (0.9, 59, 3600, 90_061)] == [
        "0 s",
        "59 s",
        "1 h 0 min",
        "1 d 1 h",
    ]

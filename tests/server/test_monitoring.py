"""Health and statistics."""

import logging
import threading
from pathlib import Path

import pytest
import trio

import skymount
from skymount.errors import StorageError
from skymount.server.monitoring import SharedCheck
from skymount.wire.skylink import Skylink
from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client, assert_same_headers, message_of, portal_client
from tests.server.pages.page_client import ACCEPT
from tests.server.raw_connection import PATIENCE, exchange
from tests.server.registry_entries import link_of, put, signed

_BAD = (503, "what is stored cannot be read\n")
_FULL = (503, "there is no room\n")


def health(client: Client, query: str = "") -> tuple[int, str]:
    answer = client.get(f"/-/health{query}")
    return answer.status_code, answer.text


def test_a_portal_that_works(client: Client) -> None:
    """One line, for everybody alike, that no cache keeps and no page reads."""
    assert health(client, "?ready") == health(client, "?ready=1") == (200, "ready\n")
    for headers in ({}, {"Accept": ACCEPT}, {"Origin": "https://evil.example"}):
        answer = client.get("/-/health", headers=headers)
        assert (answer.status_code, answer.text) == (200, "ok\n")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert_same_headers(client.head("/-/health"), answer)


def test_any_host_will_do(client: Client, portal: PortalProcess) -> None:
    """H1: a balancer asks by address, a name of its own, or none where HTTP/1.0 needs none."""
    for host in ("10.0.0.1:4280", "balancer.example", "[2001:db8::1]", "back_end"):
        answer = client.get("/-/health", headers={"Host": host})
        assert (answer.status_code, answer.text) == (200, "ok\n"), host
    assert client.get("/-/health", headers={"Host": "a b"}).status_code == 400
    for version, status in (("1.0", 200), ("1.1", 400)):
        answer = exchange(portal.url, f"GET /-/health HTTP/{version}\r\n\r\n".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert answer.endswith(b"\r\n\r\nok\n") == (status == 200)


def test_hosts_of_content_have_their_own(client: Client) -> None:
    link = client.upload({"-/health": b"very well", "b": b""})
    host = f"{Skylink(link).base32}.localhost"
    assert client.get("/-/health", headers={"Host": host}).content == b"very well"
    other = host.replace("localhost", "other.example")
    assert client.get("/-/health", headers={"Host": other}).status_code == 421


def test_strangers_may_ask(tmp_path: Path) -> None:
    """H1, H3: without the password, and without an agent."""
    secret = {"SKYMOUNT_PORTAL_PASSWORD": "secret"}
    with (
        portal_client(tmp_path, "--require-agent", environment=secret) as client,
    ):
        assert health(client) == (200, "ok\n")
        for method in ("GET", "HEAD"):
            for headers in ({}, {"Accept": ACCEPT}):
                assert client.request(method, "/", headers=headers).status_code == 200
        assert client.options("/").status_code == 204
        assert client.get("/svc/registry").status_code == 400


def test_a_disk_that_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """503 until it can; the log has the reason, and each change once."""
    with portal_process(tmp_path / "data") as portal, Client(base_url=portal.url) as client:
        skyfiles = portal.data / "v1/skyfiles"
        away = skyfiles.rename(tmp_path / "away")
        assert health(client) == health(client) == _BAD
        away.rename(skyfiles)
        assert health(client) == health(client) == (200, "ok\n")
        small = (portal.data / "v1/small.sqlite3").rename(tmp_path / "small")
        assert health(client) == _BAD
        small.rename(portal.data / "v1/small.sqlite3")
        assert health(client) == (200, "ok\n")
        (portal.data / "v1/incoming").rmdir()
        assert health(client) == (200, "ok\n")
        assert health(client, "?ready") == (503, "nothing can be stored\n")
    reading, storing = "what is stored cannot be read", "nothing can be stored"
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if reading in line or storing in line] == [
        *[
            f"WARNING: {reading}: cannot read stored content: No such file or directory",
            f"WARNING: {reading}: all is well again",
        ]
        * 2,
        f"WARNING: {storing}: cannot store an upload: No such file or directory",
    ]


def test_a_portal_that_has_reached_its_limit(tmp_path: Path) -> None:
    """It is healthy, and not ready."""
    with (
        portal_client(tmp_path, "--max-storage", "1 MiB") as client,
    ):
        assert health(client, "?ready") == (200, "ready\n")
        client.upload_file("large", bytes(990 << 10))
        assert health(client, "?ready") == _FULL
        assert health(client) == (200, "ok\n")


async def test_all_who_ask_share_one_check(mock_clock: trio.testing.MockClock) -> None:
    """H2: however many, at the same time; the next one begins anew."""
    begun, may_end = [], threading.Event()
    found: list[StorageError | None] = []
    shared = SharedCheck("x", lambda: (begun.append(1), may_end.wait())[0])

    async def ask() -> None:
        found.append(await shared.problem())

    for rounds in (1, 2):
        may_end.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            may_end.set()
        assert len(begun) == rounds
    assert len(found) == 2000


async def test_one_that_takes_long_has_failed_until_it_ends(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """H2: no other one begins meanwhile, whoever asks; after a while nobody waits for it."""
    begun, may_end = threading.Semaphore(0), threading.Event()
    shared = SharedCheck("away", lambda: (begun.release(), may_end.wait())[0])
    began = trio.current_time()
    for _ in range(100):
        assert await shared.problem() is None  # what is known from before
    assert trio.current_time() - began == 0.5
    await trio.sleep(4.5)
    for _ in range(100):
        assert str(await shared.problem()) == "no answer in 5 s"
    assert trio.current_time() - began == 5
    assert begun.acquire(timeout=PATIENCE)
    assert not begun.acquire(blocking=False)
    may_end.set()
    while await shared.problem() is not None:
        await trio.sleep(0.01)
    assert [record.getMessage() for record in caplog.records] == [
        "away: no answer in 5 s",
        "away: all is well again",
    ]


async def test_a_check_with_a_bug_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    def check() -> None:
        raise ValueError("surprise")

    with caplog.at_level(logging.ERROR):
        assert isinstance(await SharedCheck("x", check).problem(), StorageError)


def test_statistics(tmp_path: Path) -> None:
    """They follow uploads and updates, and are right after a restart."""

    def told(client: Client) -> list[object]:
        found = client.get("/svc/stats").json()
        assert list(found) == ["version", "uptime", "numfiles", "totalsize", "numentries"]
        assert found["version"] == skymount.__version__
        assert found["uptime"] >= 0
        return [found[name] for name in ("numfiles", "totalsize", "numentries")]

    with portal_client(tmp_path) as client:
        assert told(client) == [0, 0, 0]
        for _ in range(2):
            link = client.upload_file("small", b"x")
        small = len(client.get(f"/svc/basesector/{link}").content.rstrip(b"\0"))
        client.upload_file("large", bytes(5 << 20))
        for key, revision in (("a", 0), ("a", 1), ("b", 0)):
            put(client, signed(key, b"x", revision))
        found = told(client)
    files = (path for path in (tmp_path / "v1/skyfiles").rglob("*") if path.is_file())
    assert found == [2, small + sum(path.stat().st_size for path in files), 2]
    with portal_client(tmp_path) as client:
        assert told(client) == found


@pytest.mark.parametrize("prefix", ["svc", "skynet"])
def test_pinning(client: Client, prefix: str) -> None:
    """204 for what is here, of either version; 404 for what is not."""
    content = client.upload_file("pinned", b"pinned")
    put(client, signed(f"pin {prefix}", bytes(Skylink(content))))
    for link in (content, link_of(f"pin {prefix}")):
        answer = client.post(f"/{prefix}/pin/{link}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["skynet-skylink"] == content
    absent = client.post(f"/{prefix}/pin/{Skylink.v1(bytes(32), 4096)}")
    assert absent.status_code == 404
    assert message_of(absent) == "failed to fetch skylink: root not found"
    assert client.post(f"/{prefix}/pin/{link_of('absent')}").status_code == 404
    assert client.post(f"/{prefix}/pin/nonsense").status_code == 400
    assert client.get(f"/{prefix}/pin/{content}").status_code == 405

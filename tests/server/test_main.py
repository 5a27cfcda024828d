"""A portal process: it is killed, stopped, sent garbage, and left by its clients."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from skymount.wire.http.multipart import PartHeader
from tests.portal_process import (
    failing_start,
    portal_process,
)
from tests.server.http_client import Client, stored_files
from tests.server.raw_connection import (
    PATIENCE,
    begin_upload,
    connect,
    eventually,
    incoming_uploads,
)


def test_content_survives_kill_9(tmp_path: Path) -> None:
    """What was acknowledged is there, what was under way is not, and nothing is left of it."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        done = client.upload_file("done", b"d" * (6 << 20))
        with begin_upload(portal.url, 9 << 20, 20 << 20):
            eventually(lambda: bool(incoming_uploads(tmp_path)))
            portal.kill()
    assert incoming_uploads(tmp_path)
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        assert not incoming_uploads(tmp_path)
        assert client.get(f"/{done}").content == b"d" * (6 << 20)
    kept = {path.name for path in stored_files(tmp_path)} - {"catalogue.clean"}
    assert kept == {
        *("address", "lock", "base", "payload"),
        *("entries.sqlite3", "pins.sqlite3", "catalogue.sqlite3", "small.sqlite3"),
    }


def test_clients_that_leave_a_response_cost_nothing(tmp_path: Path) -> None:
    """No descriptor stays open, nothing is printed, and the stop is quick.

    Streamed, an archive, and a large response that is one body: its connection is not kept as idle.
    """
    with portal_process(tmp_path) as portal:
        before = portal.descriptors()
        with Client(base_url=portal.url, timeout=60) as client:
            link = client.upload_file("big", bytes(64 << 20))
            inline = client.upload_file("inline", bytes(3 << 20))
        for path in (link, f"{link}?format=tar", f"svc/basesector/{inline}"):
            for _ in range(5):
                with connect(portal.url) as connection:
                    connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        eventually(lambda: portal.descriptors() <= before)


def test_it_stops_quickly_whatever_clients_do(tmp_path: Path) -> None:
    """With one that does not read its download, one in the middle of an upload, one idle."""
    with portal_process(tmp_path) as portal:
        with Client(base_url=portal.url, timeout=60) as client:
            link = client.upload_file("big", bytes(64 << 20))
            stalled, idle = connect(portal.url), connect(portal.url)
            stalled.sendall(f"GET /{link} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert stalled.recv(10)
            uploading = begin_upload(portal.url, 5 << 20, 20 << 20)
            eventually(lambda: bool(incoming_uploads(tmp_path)))
            started = time.monotonic()
            portal.process.send_signal(signal.SIGTERM)
            assert portal.process.wait(PATIENCE) == 0
            assert time.monotonic() - started < 20
        for connection in (stalled, idle, uploading):
            connection.close()
    assert not incoming_uploads(tmp_path)


def _is_refused(url: str) -> bool:
    try:
        connect(url).close()
    except ConnectionRefusedError:
        return True
    return False


def test_running_requests_get_the_graceful_timeout(tmp_path: Path) -> None:
    """While new connections are refused."""
    with portal_process(tmp_path, "--graceful-timeout", "1h") as portal:
        with begin_upload(portal.url, 5 << 20, 6 << 20) as uploading:
            eventually(lambda: bool(incoming_uploads(tmp_path)))
            portal.process.send_signal(signal.SIGTERM)
            eventually(lambda: _is_refused(portal.url))
            portal.process.send_signal(signal.SIGTERM)
            uploading.sendall(bytes(1 << 20))
            assert uploading.recv(4096).startswith(b"HTTP/1.1 200")
        assert portal.process.wait(PATIENCE) == 0


def test_a_second_interrupt_ends_running_requests(tmp_path: Path) -> None:
    with (
        portal_process(tmp_path, "--graceful-timeout", "1h") as portal,
        begin_upload(portal.url, 5 << 20, 6 << 20),
    ):
        eventually(lambda: bool(incoming_uploads(tmp_path)))
        portal.process.send_signal(signal.SIGINT)
        eventually(lambda: _is_refused(portal.url))
        portal.process.send_signal(signal.SIGINT)
        assert portal.process.wait(PATIENCE) == 0
    assert not incoming_uploads(tmp_path)


def test_memory_stays_flat(tmp_path: Path) -> None:
    """256 MiB in, 256 MiB out, as a form, and the process stays below 150 MB."""
    size, piece = 256 << 20, bytes(1 << 20)
    head = b"--b\r\n" + PartHeader("file", "huge").encode() + b"\r\n"

    def body() -> Iterator[bytes]:
        yield head
        for _ in range(size // len(piece)):
            yield piece
        yield b"\r\n--b--\r\n"

    with portal_process(tmp_path) as portal, Client(base_url=portal.url, timeout=60) as client:
        answer = client.post(
            "/svc/skyfile",
            content=body(),
            headers={"Content-Type": "multipart/form-data; boundary=b"},
        )
        link = answer.json()["skylink"]
        received = 0
        with client.stream("GET", f"/{link}") as download:
            for data in download.iter_raw():
                received += len(data)
        assert received == size
        assert portal.rss() < 150_000_000


def test_it_says_why_it_cannot_start(tmp_path: Path) -> None:
    """Data directory in use, unusable, or port taken: one line, exit code 1."""
    data = tmp_path / "data"
    with portal_process(data) as portal:
        said = failing_start("--listen", "127.0.0.1:0", "--data", str(data))
        assert f"running on the data directory {data}: process {portal.process.pid}" in said
        address = urlsplit(portal.url).netloc
        assert "cannot listen on" in failing_start(
            "--listen", address, "--data", str(tmp_path / "other")
        )
    (tmp_path / "plain").write_text("")
    assert "data directory" in failing_start(
        "--listen", "127.0.0.1:0", "--data", str(tmp_path / "plain" / "below")
    )


def test_until_eof_ties_it_to_its_parent(tmp_path: Path) -> None:
    """It stops by itself when standard input ends."""
    with portal_process(tmp_path, "--until-eof") as portal:
        assert httpx.get(portal.url).status_code == 200
        assert portal.process.stdin is not None
        portal.process.stdin.close()
        assert portal.process.wait(PATIENCE) == 0

"""A portal process: it is killed, stopped, sent garbage, and left by its clients."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from skymount.wire.multipart import PartHeader
from tests.portal_process import (
    PortalProcess,
    portal_command,
    portal_environment,
    portal_process,
)
from tests.server.http_client import Client, stored_files

_PATIENCE = 10.0  # seconds for something that takes milliseconds


_UPGRADE = b"GET /svc/stats HTTP/1.1\r\nHost: localhost\r\nConnection: close, upgrade\r\nUpgrade: "


_HTTP2 = (  # preface, settings, and a GET whose path is not ASCII
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    b"\0\0\0\4\0\0\0\0\0"
    b"\0\0\x11\1\5\0\0\0\1\x82\x86\4\2/\xc3\1\x09localhost"
)


def _eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=_PATIENCE)


def _begin_upload(url: str, size: int, announced: int) -> socket.socket:
    """Send the beginning of an upload of `announced` bytes."""
    connection = _connect(url)
    head = (
        "POST /svc/skyfile?filename=a HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {announced}\r\n"
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    connection.sendall(head.encode())
    connection.sendall(b"\x01" * size)
    return connection


def _incoming(data: Path) -> list[Path]:
    return list((data / "v1" / "incoming").iterdir())


def test_content_survives_kill_9(tmp_path: Path) -> None:
    """What was acknowledged is there, what was under way is not, and nothing is left of it."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        done = client.upload_file("done", b"d" * (6 << 20))
        with _begin_upload(portal.url, 9 << 20, 20 << 20):
            _eventually(lambda: bool(_incoming(tmp_path)))
            portal.kill()
    assert _incoming(tmp_path)
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        assert not _incoming(tmp_path)
        assert client.get(f"/{done}").content == b"d" * (6 << 20)
    kept = {path.name for path in stored_files(tmp_path)}
    assert kept == {"lock", "base", "payload", "entries.sqlite3"}


"""Kills a portal before it touches a file of its store, for the n-th time since an upload began."""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 30_000 + b"\r\n",
        b"POST /svc/skyfile HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        _HTTP2,
    ],
)
def test_garbage_is_answered_or_cut_off(
    client: Client, portal: PortalProcess, request_bytes: bytes
) -> None:
    """With a 4xx or a closed connection, and the portal goes on."""
    with _connect(portal.url) as connection:
        try:
            connection.sendall(request_bytes)
            answer = connection.recv(4096)
        except ConnectionError:
            answer = b""
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert client.get("/").status_code == 404


@pytest.mark.parametrize(
    "upgrade",
    [
        b"h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: \xff\r\n\r\n",
        b"websocket\r\n\r\n",
    ],
)
def test_upgrades_are_ignored(portal: PortalProcess, upgrade: bytes) -> None:
    """There is only HTTP/1.1: the request is answered as if it did not ask for more."""
    with _connect(portal.url) as connection:
        connection.sendall(_UPGRADE + upgrade)
        with connection.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 200")


def _descriptors(portal: PortalProcess) -> int:
    return len(os.listdir(f"/proc/{portal.process.pid}/fd"))


def test_clients_that_leave_a_response_cost_nothing(tmp_path: Path) -> None:
    """No descriptor stays open, nothing is printed, and the stop is quick.

    Streamed, an archive, and a large response that is one body: its connection is not kept as idle.
    """
    with portal_process(tmp_path) as portal:
        before = _descriptors(portal)
        with Client(base_url=portal.url, timeout=60) as client:
            link = client.upload_file("big", bytes(64 << 20))
            inline = client.upload_file("inline", bytes(3 << 20))
        for path in (link, f"{link}?format=tar", f"svc/basesector/{inline}"):
            for _ in range(5):
                with _connect(portal.url) as connection:
                    connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        _eventually(lambda: _descriptors(portal) <= before)


def test_it_stops_quickly_whatever_clients_do(tmp_path: Path) -> None:
    """With one that does not read its download, one in the middle of an upload, one idle."""
    with portal_process(tmp_path) as portal:
        with Client(base_url=portal.url, timeout=60) as client:
            link = client.upload_file("big", bytes(64 << 20))
            stalled, idle = _connect(portal.url), _connect(portal.url)
            stalled.sendall(f"GET /{link} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert stalled.recv(10)
            uploading = _begin_upload(portal.url, 5 << 20, 20 << 20)
            _eventually(lambda: bool(_incoming(tmp_path)))
            started = time.monotonic()
            portal.process.send_signal(signal.SIGTERM)
            assert portal.process.wait(_PATIENCE) == 0
            assert time.monotonic() - started < 5
        for connection in (stalled, idle, uploading):
            connection.close()
    assert not _incoming(tmp_path)


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


def _fails(*args: str) -> str:
    """Run a portal that cannot start; return its one line."""
    done = subprocess.run(
        portal_command("serve", *args),
        capture_output=True,
        text=True,
        env=portal_environment(),
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_it_says_why_it_cannot_start(tmp_path: Path) -> None:
    """Data directory in use, unusable, or port taken: one line, exit code 1."""
    data = tmp_path / "data"
    with portal_process(data) as portal:
        assert "another portal is running" in _fails("--listen", "127.0.0.1:0", "--data", str(data))
        address = urlsplit(portal.url).netloc
        assert "cannot listen on" in _fails("--listen", address, "--data", str(tmp_path / "other"))
    (tmp_path / "plain").write_text("")
    assert "data directory" in _fails(
        "--listen", "127.0.0.1:0", "--data", str(tmp_path / "plain" / "below")
    )


def test_until_eof_ties_it_to_its_parent(tmp_path: Path) -> None:
    """It stops by itself when standard input ends."""
    with portal_process(tmp_path, "--until-eof") as portal:
        assert httpx.get(portal.url).status_code == 404
        assert portal.process.stdin is not None
        portal.process.stdin.close()
        assert portal.process.wait(_PATIENCE) == 0

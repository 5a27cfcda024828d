"""A portal at a Unix socket."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from skymount.errors import ConfigError
from skymount.server.config import PortalConfig
from skymount.server.http_server import listen
from tests.nginx import needs_nginx, nginx_before
from tests.portal_process import failing_start, portal_command, portal_environment
from tests.server.http_client import Client
from tests.server.pages.page_client import page
from tests.skymount_process import LIMIT, close_pipes, end


@contextmanager
def portal_at(path: Path, data: Path, *options: str, umask: int = 0o22) -> Iterator[str]:
    """Run a portal; yield what it says."""
    process = subprocess.Popen(
        portal_command("serve", "--listen", f"unix:{path}", "--data", str(data), *options),
        env=portal_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        umask=umask,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    finally:
        end(process)
        close_pipes(process)


def client_of(path: Path) -> Client:
    transport = httpx.HTTPTransport(uds=str(path))
    return Client(transport=transport, base_url="http://localhost", timeout=LIMIT)


def refusal(path: Path | str, tmp_path: Path) -> str:
    return failing_start("--listen", f"unix:{path}", "--data", str(tmp_path / "other"))


@pytest.mark.parametrize("umask", [0o0, 0o22, 0o177])
def test_it_serves_there_and_removes_it_at_the_end(tmp_path: Path, umask: int) -> None:
    """Its group may connect, whatever the umask. Host names are those of loopback."""
    path = tmp_path / "a socket"
    with portal_at(path, tmp_path / "data", umask=umask) as said, client_of(path) as client:
        hint = f"curl --unix-socket '{path}' http://localhost/"
        assert said == f"listening on unix:{path} ({hint})\n"
        assert path.stat().st_mode & 0o777 == 0o660
        link = client.upload_file("f", b"content")
        answer = client.get(f"/{link}")
        assert answer.content == b"content"
        assert answer.headers["svc-portal-api"] == "http://localhost"
        assert client.get("/", headers={"Host": "other.example"}).status_code == 421
        assert client.get("/-/health", headers={"Host": "other.example"}).text == "ok\n"
        assert page(client, "/").status_code == 200
        with socket.socket(socket.AF_UNIX) as old:
            old.settimeout(LIMIT)
            old.connect(str(path))
            old.sendall(b"GET /-/health HTTP/1.0\r\n\r\n")
            assert old.recv(12) == b"HTTP/1.1 200"
    assert not path.exists()


def test_a_socket_that_was_left_is_replaced(tmp_path: Path) -> None:
    """After a crash nobody listens there."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with portal_at(path, tmp_path / "data"), client_of(path) as client:
        assert client.get("/-/health").text == "ok\n"
    assert not path.exists()


def test_what_is_in_use_is_left_alone(tmp_path: Path) -> None:
    """By a portal, by a program that has no time, and what is no socket."""
    path = tmp_path / "socket"
    with portal_at(path, tmp_path / "data"), client_of(path) as client:
        assert refusal(path, tmp_path) == (
            f"skymount: cannot listen on unix:{path}: another program listens there; "
            "choose another address with --listen unix:PATH\n"
        )
        assert client.get("/-/health").text == "ok\n"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        assert "another program listens there" in refusal(path, tmp_path)
        assert path.is_socket()
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    assert "there is a file that is no socket" in refusal(file, tmp_path)
    assert file.read_bytes() == b"mine"


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    assert "No such file or directory" in refusal(tmp_path / "absent/socket", tmp_path)
    assert "too long" in refusal("/" + "x" * 200, tmp_path)


def test_a_socket_of_another_is_not_removed(tmp_path: Path) -> None:
    """One that took the place meanwhile."""
    path = tmp_path / "socket"
    with portal_at(path, tmp_path / "data"):
        path.unlink()
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(path))
    assert path.is_socket()
    other.close()


def test_a_proxy_may_be_trusted_there(tmp_path: Path) -> None:
    """Only if the portal is told to."""
    sent = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
    path = tmp_path / "socket"
    for proxy, scheme in (("127.0.0.1", "http"), ("unix", "https")):
        options = ("--trusted-proxy", proxy)
        with portal_at(path, tmp_path / "data", *options), client_of(path) as client:
            answer = client.get("/svc/stats", headers=sent)
            assert answer.headers["svc-portal-api"] == f"{scheme}://localhost"


@needs_nginx
def test_behind_nginx(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with (
        portal_at(path, tmp_path / "data"),
        nginx_before(f"http://unix:{path}", tmp_path / "nginx") as url,
        Client(base_url=url, timeout=LIMIT) as client,
    ):
        link = client.upload_file("f", b"x" * 100_000)
        assert client.get(f"/{link}").content == b"x" * 100_000
        assert client.get("/-/health?ready").text == "ready\n"


def test_who_replaces_the_socket_opens_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mode is set where it was made: a symbolic link that has come since is not followed."""
    secret, path = tmp_path / "secret", tmp_path / "socket"
    secret.touch(0o600)

    class Replaced(socket.socket):
        def bind(self, address: Any, /) -> None:
            super().bind(address)
            path.unlink()
            path.symlink_to(secret)

    monkeypatch.setattr(socket, "socket", Replaced)
    config = PortalConfig(data=tmp_path / "data", host=f"unix:{path}")
    with pytest.raises(ConfigError, match="replaced the socket"), listen(config, None):
        pass
    assert secret.stat().st_mode & 0o777 == 0o600

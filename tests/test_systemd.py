"""What systemd hears of us, and the sockets that it passes to a real process."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from skymount import systemd
from tests.portal_process import portal_command, portal_environment
from tests.skymount_process import LIMIT, NotifySocket, close_pipes

# As systemd does: the socket is descriptor 3, and LISTEN_PID the process that is started.
_PASSING = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def portal_with(
    data: Path, passed: socket.socket, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    command = portal_command("serve", "--listen", "127.0.0.1:1", "--data", str(data))
    process = subprocess.Popen(
        [sys.executable, "-c", _PASSING, str(passed.fileno()), *command],
        env={**portal_environment(), "LISTEN_FDS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[passed.fileno()],
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(LIMIT)
        close_pipes(process)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_portal_answers_at_the_socket_that_it_was_passed(tmp_path: Path, host: str) -> None:
    """A request that came before the portal is answered too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    notify = NotifySocket()
    with socket.create_server((host, 0), family=family) as passed:
        port = passed.getsockname()[1]
        with socket.create_connection((host, port), timeout=LIMIT) as early:
            early.sendall(b"GET /svc/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with portal_with(tmp_path / "data", passed, NOTIFY_SOCKET=notify.address) as portal:
                url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
                assert notify.receive(portal) == ["READY=1", f"STATUS=listening on {url}"]
                assert portal.stdout is not None
                assert portal.stdout.readline() == f"listening on {url}\n"
                assert early.recv(12) == b"HTTP/1.1 200"
                assert httpx.get(f"{url}/svc/stats", timeout=LIMIT).status_code == 200
    notify.close()


def test_a_portal_answers_at_a_unix_socket_that_it_was_passed(tmp_path: Path) -> None:
    """With a path, which stays, and without one. It needs no password."""
    path = tmp_path / "passed socket"
    for name, hint in (
        (str(path), f"unix:{path} (curl --unix-socket '{path}' http://localhost/)"),
        (
            "\0skymount-tests-passed",
            "unix:@skymount-tests-passed (curl --abstract-unix-socket skymount-tests-passed ",
        ),
    ):
        with socket.socket(socket.AF_UNIX) as passed:
            passed.bind(name)
            passed.listen()
            with (
                portal_with(tmp_path / "data", passed) as portal,
                socket.socket(socket.AF_UNIX) as client,
            ):
                assert portal.stdout is not None
                assert portal.stdout.readline().startswith(f"listening on {hint}")
                client.settimeout(LIMIT)
                client.connect(name)
                client.sendall(b"GET /svc/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(12) == b"HTTP/1.1 200"
    assert path.is_socket()


def test_a_socket_that_others_can_reach_needs_a_password_too(tmp_path: Path) -> None:
    with (
        socket.create_server(("0.0.0.0", 0)) as passed,
        portal_with(tmp_path / "data", passed) as portal,
    ):
        assert portal.stderr is not None
        assert "refusing to listen on 0.0.0.0:" in portal.stderr.read()
        assert portal.wait(LIMIT) == 1


@pytest.mark.parametrize("kind", [socket.AF_UNIX, socket.AF_INET])
def test_what_is_no_listening_socket_is_refused(tmp_path: Path, kind: int) -> None:
    with socket.socket(kind) as passed, portal_with(tmp_path / "data", passed) as portal:
        assert portal.stderr is not None
        said = portal.stderr.read()
        reason = "what was passed is not a listening TCP or Unix socket"
        assert said == f"skymount: LISTEN_FDS: {reason}\n"
        assert portal.wait(LIMIT) == 1


def test_variables_of_another_process_do_not_count() -> None:
    us = str(os.getpid())
    assert systemd.passed_listener({}) is None
    assert systemd.passed_listener({"LISTEN_FDS": "1", "LISTEN_PID": "1"}) is None
    assert systemd.passed_listener({"LISTEN_FDS": "0", "LISTEN_PID": us}) is None
    assert systemd.passed_listener({"LISTEN_FDS": "x", "LISTEN_PID": us}) is None
    with pytest.raises(systemd.ConfigError, match="2 sockets were passed"):
        systemd.passed_listener({"LISTEN_FDS": "2", "LISTEN_PID": us})


def test_the_time_of_the_watchdog() -> None:
    us = str(os.getpid())
    assert systemd.watchdog_timeout({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": us}) == 1.5
    assert systemd.watchdog_timeout({"WATCHDOG_USEC": "1500000"}) == 1.5
    assert systemd.watchdog_timeout({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}) is None
    assert systemd.watchdog_timeout({"WATCHDOG_USEC": "soon"}) is None
    assert systemd.watchdog_timeout({}) is None


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(abstract: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """M7: what changes goes to its socket, as it is."""
    listener = NotifySocket(abstract=abstract)
    try:
        monkeypatch.setenv("NOTIFY_SOCKET", listener.address)
        systemd.notify("READY=1\nSTATUS=mounted")
        assert listener.receive() == ["READY=1", "STATUS=mounted"]
        monkeypatch.delenv("NOTIFY_SOCKET")
        systemd.notify("STOPPING=1")
        assert not listener.has_message
    finally:
        listener.close()


@pytest.mark.parametrize("address", ["/nonexistent/socket", "@nobody-listens-here", "x" * 200])
def test_socket_that_nobody_listens_at(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a warning in the log."""
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    systemd.notify("READY=1")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["NOTIFY_SOCKET"]

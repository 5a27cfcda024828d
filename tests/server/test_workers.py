"""Processes of a portal that fail. What they do for a portal is tested with shared storage."""

import os
import signal
import socket
import subprocess
import sys

from tests.portal_process import portal_environment
from tests.server.raw_connection import PATIENCE, eventually

_PROGRAM = """
import socket, sys
from skymount.server.workers import Workers
def work(listener, tell, life):
    raise RuntimeError("a bug")
with socket.create_server(("127.0.0.1", 0)) as listener:
    sys.exit(Workers(2, listener, work, print, 1).run())
"""
_BUSY_PROGRAM = """
import signal, socket, sys, time
from skymount.server.workers import Workers
def work(listener, tell, life):
    signal.signal(signal.SIGTERM, lambda number, frame: listener.close())
    tell("ready")
    while True:
        time.sleep(60)
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    tell = lambda url: print(url, flush=True)
    sys.exit(Workers(1, listener, work, tell, 1000).run())
"""


def test_a_bug_in_the_first_process_is_told() -> None:
    """SP6: with its traceback; the others are not started."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        env=portal_environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("RuntimeError: a bug") == 1


def test_a_second_interrupt_ends_busy_processes() -> None:
    """SP6: after the first one connections are refused, and what is under way goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY_PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        env=portal_environment(),
        start_new_session=True,
    ) as workers:
        assert workers.stdout is not None
        port, ready = int(workers.stdout.readline()), workers.stdout.readline()
        assert ready == "ready\n"
        os.killpg(workers.pid, signal.SIGINT)  # as a terminal does
        eventually(lambda: _is_refused(port))
        assert workers.poll() is None
        os.killpg(workers.pid, signal.SIGINT)
        assert workers.wait(PATIENCE) == 0


def _is_refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0

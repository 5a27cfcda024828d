"""Processes of a portal that fail. What they do for a portal is tested with shared storage."""

import subprocess
import sys

from tests.portal_process import portal_environment

_PROGRAM = """
import socket, sys
from skymount.server.workers import Workers
def work(listener, tell, life):
    raise RuntimeError("a bug")
with socket.create_server(("127.0.0.1", 0)) as listener:
    sys.exit(Workers(2, listener, work, print).run())
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

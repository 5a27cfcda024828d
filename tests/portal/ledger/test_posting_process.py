"""Which process is posting."""

import os
import subprocess
import sys

from skymount.portal.ledger import posting_process


def test_process_runs_until_it_ends():
    """The name of a process that ended is nobody's, also if it was not waited for."""
    assert posting_process.is_running(posting_process.name_of(os.getpid()))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        name = posting_process.name_of(child.pid)
        assert posting_process.is_running(name)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not posting_process.is_running(name)
        assert not posting_process.is_running(name.split()[0] + " 1")
    assert not posting_process.is_running(None)

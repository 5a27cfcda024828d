"""The start of the command, before there is a command line."""

import sys
from pathlib import Path

from skymount import __version__
from tests.portal_process import SOURCE
from tests.skymount_process import Sandbox


def test_an_interrupt_while_it_loads(sandbox: Sandbox) -> None:
    """Exit code 130 without a traceback."""
    stub = sandbox.directory("stub") / "click.py"
    stub.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    box = sandbox.with_env(PYTHONPATH=f"{stub.parent}:{SOURCE}")
    done = box.skymount("--version")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_both_names_are_one_program(sandbox: Sandbox) -> None:
    """The script that is installed, and the module."""
    script = Path(sys.executable).with_name("skymount")
    for command in ([script], [sys.executable, "-m", "skymount"]):
        done = sandbox.run(*command, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"skymount {__version__}\n", "")

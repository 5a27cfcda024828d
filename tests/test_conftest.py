"""What holds for all tests."""

import sys
from pathlib import Path

import pytest

from tests.skymount_process import output, run

_HANDLERS = """
from signal import SIG_IGN, SIGHUP, SIGINT, getsignal
print(getsignal(SIGINT) is not SIG_IGN, getsignal(SIGHUP) is not SIG_IGN)
"""


def test_programs_get_their_signals() -> None:
    """A program that a test starts ends when it is told to."""
    assert output([sys.executable, "-IS", "-c", _HANDLERS]) == b"True True\n"


@pytest.mark.parametrize("workers", [0, 1])
def test_programs_get_their_signals_under_nohup(workers: int) -> None:
    """So does one of tests that are to outlive their terminal, or run in the background."""
    tests = f"exec '{sys.executable}' -m pytest -q -p no:cacheprovider -n {workers}"
    name = f"{__file__}::{test_programs_get_their_signals.__name__}"
    done = run(["sh", "-c", f"trap '' INT HUP; {tests} '{name}'"], cwd=Path(__file__).parent.parent)
    assert "1 passed" in done.stdout, done.stdout + done.stderr

"""What is left of a process that knows secrets: no core, and no file that others can read."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.careless_user import WIDE, allows_no_core, portal_of_careless_user
from tests.skymount_process import SKYMOUNT, Sandbox, end


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _leaves_no_core(pid: int) -> bool:
    return allows_no_core(Path(f"/proc/{pid}/limits").read_text())


def _has_private_umask(pid: int) -> bool:
    return "Umask:\t0077\n" in Path(f"/proc/{pid}/status").read_text()


def test_a_portal_is_a_service(tmp_path: Path) -> None:
    with portal_of_careless_user(tmp_path / "data") as (_, pid):
        assert _leaves_no_core(pid)
        assert _has_private_umask(pid)


@contextmanager
def _waiting(*command: str, env: dict[str, str]) -> Iterator[int]:
    """Run a command that waits for its standard input; yields its process id."""
    process = subprocess.Popen(
        [*WIDE, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    )
    try:
        yield process.pid
    finally:
        end(process)


@pytest.mark.parametrize(
    "command",
    [["key", "import", "work"], ["skykey", "add"], ["registry", "set", "home", "key", "-"]],
    ids=" ".join,
)
def test_commands_that_know_secrets_leave_no_core(sandbox: Sandbox, command: list[str]) -> None:
    """The umask is the user's."""
    sandbox.succeed("key", "generate", "home")
    with _waiting(*SKYMOUNT, *command, env=sandbox.env) as pid:
        _eventually(lambda: _leaves_no_core(pid))
        assert "Umask:\t0000\n" in Path(f"/proc/{pid}/status").read_text()


_SHOWS_ITSELF = """
import resource
from pathlib import Path
from skymount.process_hardening import {call}
{call}()
print(resource.getrlimit(resource.RLIMIT_CORE))
print(Path("/proc/self/status").read_text())
"""


@pytest.mark.parametrize(
    ("call", "umask"), [("disable_core_dumps", "0000"), ("harden_service", "0077")]
)
def test_what_is_left(call: str, umask: str) -> None:
    """No core, also of children; a service closes the files that it makes, too."""
    command = [*WIDE, sys.executable, "-c", _SHOWS_ITSELF.format(call=call)]
    shown = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert shown.startswith("(0, 0)\n")
    assert f"Umask:\t{umask}\n" in shown

"""Runs the embedded portal as a process of its own, for tests that want a real one."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

SOURCE = Path(__file__).resolve().parent.parent / "src"
_STOP_TIME = 40  # seconds until a portal that was asked to stop counts as hanging
_WITH_SETTINGS = """
import ast, sys
from pathlib import Path
from skymount.server.config import PortalConfig
from skymount.server.main import run

config = PortalConfig(Path(sys.argv[1]), port=0, **ast.literal_eval(sys.argv[2]))
run(config, on_listening=lambda url: print("listening on", url, flush=True))
"""


@dataclass(frozen=True)
class PortalProcess:
    """A running portal."""

    url: str
    process: subprocess.Popen[str]
    data: Path

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()

    def rss(self, name: str = "VmHWM") -> int:
        """Return the most bytes of memory that it has held so far; those of now as ``VmRSS``."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) << 10

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def portal_command(*args: str) -> list[str]:
    """Return the command line of ``skymount portal`` with those arguments."""
    if importlib.util.find_spec("skymount.cli") and _has_main():
        return [sys.executable, "-m", "skymount", "portal", *args]
    code = "from skymount.cli.commands.portal import portal; portal()"
    return [sys.executable, "-c", code, *args]


def _has_main() -> bool:
    import skymount.cli

    return hasattr(skymount.cli, "main")


def portal_environment() -> dict[str, str]:
    """Return an environment in which the package under test is found."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def portal_process(
    data: Path,
    *extra_args: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    log: IO[bytes] | None = None,
    prefix: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
) -> Iterator[PortalProcess]:
    """Run a portal on a free port with `data` as its directory; stop it at the end.

    `log` is where standard error goes, `prefix` a command that runs it. `settings` are those of its
    configuration that have no option, in place of `extra_args`.
    """
    command = portal_command("serve", "--listen", "127.0.0.1:0", "--data", str(data), *extra_args)
    if settings is not None:
        command = [sys.executable, "-c", _WITH_SETTINGS, str(data), repr(dict(settings))]
    process = subprocess.Popen(
        [*prefix, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**portal_environment(), **environment},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://"), f"the portal did not start: {line!r}"
        yield PortalProcess(line.split()[-1], process, data)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIME)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()
            process.stdin.close()


@contextmanager
def running_portal(tmp_path: Path, *extra_args: str) -> Iterator[str]:
    """Run a portal that keeps its content below `tmp_path`; yields its URL."""
    with portal_process(tmp_path / "portal-data", *extra_args) as portal:
        yield portal.url


def failing_start(*args: str, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a portal that cannot start; return its one line."""
    done = subprocess.run(
        portal_command("serve", *args),
        capture_output=True,
        text=True,
        env={**portal_environment(), **environment},
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    return done.stderr

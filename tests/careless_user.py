"""A user with the widest umask, who lets processes leave cores."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.portal_process import portal_command, portal_environment
from tests.skymount_process import end

WIDE = ("sh", "-c", 'umask 0; ulimit -c unlimited; exec "$@"', "-")


@contextmanager
def portal_of_careless_user(data: Path, *flags: str) -> Iterator[tuple[str, int]]:
    """Run a portal; yields its URL and process id."""
    process = subprocess.Popen(
        [*WIDE, *portal_command("serve", "--listen", "127.0.0.1:0", "--data", str(data), *flags)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=portal_environment(),
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().split()[-1], process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        end(process)


def allows_no_core(limits: str) -> bool:
    """Whether a process leaves no core, by its /proc/PID/limits."""
    (core,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
    return core.split()[4:6] == ["0", "0"]

"""What a worker program reads and writes, and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from skymount.content.worker.worker_main import MALFORMED
from tests.careless_user import WIDE, allows_no_core

_PROGRAM = """
import sys
from array import array
from pathlib import Path
from resource import RLIMIT_AS, getrlimit
from skymount.content.worker.worker_main import run
from skymount.errors import MalformedError

def work(read):
    {work}

sys.exit(run(work, "the work"))
"""


def run_worker(work: str, stdin: Path | None = None, offset: int = 0) -> tuple[int, bytes, str]:
    """Run a program that does this work; return its exit status, output and errors."""
    with (stdin or Path("/dev/null")).open("rb", buffering=0) as file:
        file.seek(offset)
        done = subprocess.run(
            [*WIDE, sys.executable, "-c", _PROGRAM.format(work=work)],
            stdin=file,
            capture_output=True,
            check=False,
        )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 5000, 9999, 10_000])
def test_input(tmp_path: Path, offset: int):
    """It is what the file on stdin has from its offset on, be that nothing."""
    content = bytes(range(250)) * 40
    (tmp_path / "input").write_bytes(content)
    found = run_worker("return [bytes(read())]", tmp_path / "input", offset)
    assert found == (0, content[offset:], "")


def test_output():
    """It is all parts one after another, of whatever type."""
    work = "return [b'a', bytearray(b'bc'), array('B', [100])]"
    assert run_worker(work) == (0, b"abcd", "")


def test_malformed_input():
    """The reason is one line on stderr, and the status tells it from a crash."""
    assert run_worker("raise MalformedError('no metadata')") == (MALFORMED, b"", "no metadata\n")
    status, _, reason = run_worker("raise RuntimeError('a bug')")
    assert status not in (0, MALFORMED)
    assert "RuntimeError: a bug" in reason


def test_bound_on_memory():
    """S10: That process takes 1 GiB of memory at most."""
    limits = "return [str(getrlimit(RLIMIT_AS)).encode()]"
    assert run_worker(limits) == (0, b"(1073741824, 1073741824)", "")
    reason = "the work takes more than 1024 MiB of memory\n"
    assert run_worker("return [bytearray(1 << 31)]") == (MALFORMED, b"", reason)


def test_it_is_a_service() -> None:
    """It reads what a portal has sent: it leaves no core, and no file that others can read."""
    work = "return [Path('/proc/self', name).read_bytes() for name in ('limits', 'status')]"
    status, shown, _ = run_worker(work)
    assert status == 0
    assert allows_no_core(shown.decode())
    assert b"Umask:\t0077\n" in shown

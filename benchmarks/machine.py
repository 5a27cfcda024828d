"""Runs commands, reads clocks, drops caches and does aligned reads for the measurements."""

import mmap
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyfuse3

SKYMOUNT = (sys.executable, "-m", "skymount")
BLOCK = 1 << 20  # bytes of one read(2): what cat and dd with a large block ask for
IS_ROOT = os.geteuid() == 0
LIMIT = 1200.0  # seconds that any command may take; only what hangs reaches it
_ENDING = 10.0  # seconds that a process has to end before it is killed
_POLL = 0.01  # seconds between two looks
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14, which Python has no name for


class BenchmarkError(Exception):
    """Something that a figure would need is not there, or is not what was asked for."""


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return what it printed; BenchmarkError if it failed."""
    words = [os.fspath(word) for word in command]
    done = _completed(words, env)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _completed(
    words: Sequence[str], env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, whatever that is; its session is its own, for Ctrl-C."""
    try:
        return subprocess.run(
            words,
            check=False,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{' '.join(words)}: still running after {LIMIT:g} s") from None


@contextmanager
def process(
    *command: str | Path, log: Path, env: Mapping[str, str] | None = None, **streams: Any
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process in a session of its own and end it with the block, by force if need be."""
    words = [os.fspath(word) for word in command]
    with log.open("a") as errors:
        options = {"stdin": subprocess.DEVNULL, "stdout": errors, "stderr": errors, **streams}
        started = subprocess.Popen(words, env=env, text=True, start_new_session=True, **options)
    try:
        yield started
    finally:
        end(started)


def end(started: "subprocess.Popen[Any]", limit: float = _ENDING) -> None:
    """End a process of ours and wait for it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if started.poll() is None:
            started.send_signal(number)
        try:
            started.wait(limit)
            break
        except subprocess.TimeoutExpired:
            continue
    for stream in (started.stdin, started.stdout):
        if stream is not None:
            stream.close()


def wait_until(ready: Callable[[], bool], what: str, limit: float = 30.0) -> None:
    """Return once something is so; BenchmarkError after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not ready():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"not within {limit:g} s: {what}")
        time.sleep(_POLL)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def timed(work: Callable[..., object], *args: object) -> float:
    """Return the seconds that some work takes."""
    start = time.perf_counter()
    work(*args)
    return time.perf_counter() - start


def read_through(path: Path, size: int | None = None) -> int:
    """Read a file, or its first `size` bytes, in order; return how many bytes came.

    The buffer is aligned to pages, as those of cat and dd are: see docs/benchmarks.md.
    """
    count = 0
    with mmap.mmap(-1, BLOCK) as buffer, path.open("rb", buffering=0) as file:
        while size is None or count < size:
            got = file.readinto(buffer)
            if not got:
                break
            count += got
    return count


def read_whole(path: Path, size: int) -> float:
    """Return the seconds that reading a file of that size takes; BenchmarkError if it is short."""
    start = time.perf_counter()
    count = read_through(path)
    seconds = time.perf_counter() - start
    if count != size:
        raise BenchmarkError(f"{path}: {count} bytes instead of {size}")
    return seconds


def read_cold(path: Path, size: int) -> float:
    """Return what `read_whole` does, of a file whose pages will be new ones."""
    back_memory(2 * size)
    return read_whole(path, size)


def back_memory(size: int) -> None:
    """Have so many bytes of free memory be there in truth.

    A virtual machine gives free pages back to its host, and the first touch of such a page costs
    more than its use; who is measured first would pay for all.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        taken.madvise(_POPULATE_WRITE)


def drop_caches() -> None:
    """Forget every clean page, name and inode, if we may."""
    os.sync()
    if IS_ROOT:
        Path("/proc/sys/vm/drop_caches").write_text("3")


def memory(pid: int) -> tuple[float, float]:
    """Return (resident now, resident at most) of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    now, most = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, most


def used_space(directory: Path) -> int:
    """Return the bytes of disk that the files below a directory take."""
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def facts() -> list[str]:
    """Return what has to be known of this machine and of the peers, a line each."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    caches = "root: caches are dropped" if IS_ROOT else "not root: caches were NOT dropped"
    hardware = f"{os.cpu_count()} processors ({model}), {memory_gb:.0f} GB"
    libraries = f"Python {platform.python_version()}, pyfuse3 {pyfuse3.__version__}"
    peers = ", ".join(filter(None, map(_version, _VERSIONS)))
    return [
        f"Linux {platform.release()}, {hardware}, {libraries}; {caches}.",
        f"skymount {_revision()}; {peers}.",
    ]


_NUMBER = re.compile(r"\d+\.[\w.+-]*")

_VERSIONS = {
    "nginx": ("nginx", "-v"),
    "curl": ("curl", "--version"),
    "rclone": ("rclone", "version"),
    "httpdirfs": ("httpdirfs", "--version"),
}


def _version(name: str) -> str:
    """Return a program's name and version; empty if it is not there."""
    if not has(name):
        return ""
    done = _completed(_VERSIONS[name])
    lines = (done.stdout + done.stderr).splitlines()
    versions = [_NUMBER.search(line) for line in lines if name in line.lower()]
    return " ".join([name, *(version[0] for version in versions[:1] if version)])


def _revision() -> str:
    """Return the commit that is measured, as git describes it."""
    command = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    done = _completed(command)
    return done.stdout.strip() or "of an unknown revision"


def has(program: str) -> bool:
    """Whether a program is installed."""
    return shutil.which(program) is not None


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]

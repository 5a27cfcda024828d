"""Reads that hang on a silent portal do not hold up reads of cached files."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, in_thread, stalls_after, waits
from tests.fakes.skyfiles import noise
from tests.mount.namespaces import NOBODY, Namespace
from tests.skymount_process import Sandbox, close_pipes, output, run

COUNT = 60
CACHED = skyfiles.of_files({"cached": noise(5 << 20, 1)})
HANGING = replace(
    skyfiles.of_files({f"{n:02}": noise(256 << 10, n) for n in range(COUNT)}), base=None
)
"""Content that is fetched file by file: nobody can prove it."""

CROWD = """
import os, sys, threading

failed = []

def read(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.read(descriptor, 100_000)
    except OSError as error:
        failed.append(error.errno)

threads = [threading.Thread(target=read, args=(path,)) for path in sys.argv[1:]]
for thread in threads:
    thread.start()
print("started", flush=True)
for thread in threads:
    thread.join()
print(failed, flush=True)
"""

UNCACHED_BY_THE_KERNEL = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
assert len(os.read(descriptor, 100_000)) == 100_000
"""


@pytest.fixture
def fake() -> Iterator[FakePortal]:
    """A portal that can prove one of its skyfiles."""
    with in_thread(FakePortal()) as portal:
        portal.add(CACHED, HANGING)
        yield portal


def python(code: str, *paths: Path, prefix: Sequence[str] = ()) -> list[str]:
    return [*prefix, sys.executable, "-IS", "-c", code, *map(str, paths)]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def seconds_of_a_cached_read(
    sandbox: Sandbox, fake: FakePortal, place: Path, prefix: Sequence[str]
) -> float:
    """Return how long a read of a file on disk takes while sixty reads hang."""
    with sandbox.within(prefix).mounted("--portal", fake.url, at=place) as mount:
        output([*prefix, "cat", mount.skylink(CACHED.name) / "cached"])
    flags = ("--portal", fake.url, "--timeout", "40")  # the crowd is to end some time
    with sandbox.within(prefix).mounted(*flags, at=place) as mount:
        cached, hanging = mount.skylink(CACHED.name) / "cached", mount.skylink(HANGING.name)
        output([*prefix, "stat", cached, hanging / "00"])
        fake.fault(stalls_after(-1))
        asked = len(fake.requests)
        paths = [hanging / f"{number:02}" for number in range(COUNT)]
        crowd = subprocess.Popen(python(CROWD, *paths, prefix=prefix), stdout=subprocess.PIPE)
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == b"started\n"
            wait_until(lambda: len(fake.requests) >= asked + 3)
            time.sleep(0.5)  # the others come soon after
            begun = time.monotonic()
            done = run(python(UNCACHED_BY_THE_KERNEL, cached, prefix=prefix))
            took = time.monotonic() - begun
            assert done.returncode == 0, done.stderr
            return took
        finally:
            crowd.kill()
            crowd.wait(60)
            close_pipes(crowd)


def test_as_anybody(sandbox: Sandbox, fake: FakePortal, mount_namespace: Namespace) -> None:
    """R13: Nearly all of the kernel's 12 places are taken; the reads fail, and others go on."""
    if os.getuid() != 0:
        pytest.skip("only root can be someone else")
    place = sandbox.directory_of(NOBODY)
    prefix = mount_namespace.as_nobody(sandbox.root)
    assert seconds_of_a_cached_read(sandbox, fake, place, prefix) < 20


def test_with_the_raised_limit(
    sandbox: Sandbox, fake: FakePortal, mount_namespace: Namespace
) -> None:
    """R8: Where the kernel sends more reads at once, nobody waits for those that hang."""
    knobs = "/sys/fs/fuse/connections"
    if mount_namespace.run("mount", "-t", "fusectl", "none", knobs).returncode:
        pytest.skip("the kernel's settings cannot be changed here")
    place = sandbox.directory()
    assert seconds_of_a_cached_read(sandbox, fake, place, mount_namespace.prefix) < 15


def test_another_portal_works(sandbox: Sandbox, fake: FakePortal) -> None:
    """R13: With several portals reads do not fail while one of them works."""
    with in_thread(FakePortal()) as second:
        second.add(HANGING)
        flags = ("--portal", fake.url, "--portal", second.url, "--timeout", "15")
        with sandbox.mounted(*flags) as mount:
            hanging = mount.skylink(HANGING.name)
            output(["stat", hanging / "00"])
            fake.fault(stalls_after(-1))
            paths = [hanging / f"{number:02}" for number in range(COUNT)]
            assert output(python(CROWD, *paths)) == b"started\n[]\n"


def test_a_slow_portal(sandbox: Sandbox, fake: FakePortal) -> None:
    """R13: Reads do not fail while the only portal gives signs of life."""
    with sandbox.mounted("--portal", fake.url) as mount:
        hanging = mount.skylink(HANGING.name)
        output(["stat", hanging / "00"])
        fake.fault(waits(5), HANGING.name)
        paths = [hanging / f"{number:02}" for number in range(12)]
        assert output(python(CROWD, *paths)) == b"started\n[]\n"

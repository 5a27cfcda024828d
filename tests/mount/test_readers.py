"""Programs that map files, seek in them, or read many at a time get the right bytes."""

import sys
from pathlib import Path

import pytest

from tests.mount.site import BIG, DATABASE, Site
from tests.skymount_process import output

MAPPED = """
import mmap, random, sys
source, mounted = sys.argv[1:]
expected = open(source, "rb").read()
with open(mounted, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as found:
    assert len(found) == len(expected)
    places = random.Random(1)
    for _ in range(200):
        at, size = places.randrange(len(expected)), places.randrange(1, 50_000)
        assert found[at : at + size] == expected[at : at + size], at
    assert found[:] == expected
"""

PRIVATE = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as found:
        found[0:4] = b"1234"
        assert found[0:4] == b"1234"
    assert file.read(4) != b"1234"
"""

SHARED_FOR_WRITING = """
import errno, mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
try:
    mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
except OSError as error:
    assert error.errno == errno.EACCES, error
else:
    raise SystemExit("it was mapped for writing")
"""

CROWD = """
import os, random, sys
count, source, mounted = int(sys.argv[1]), sys.argv[2], sys.argv[3]
paths = sys.argv[4:]
expected = {path: open(os.path.join(source, path), "rb").read() for path in paths}
gate, opened = os.pipe()

def read_at_random(number):
    places = random.Random(number)
    files = {path: os.open(os.path.join(mounted, path), os.O_RDONLY) for path in paths}
    os.read(gate, 1)  # until all are here
    for _ in range(25):
        path = places.choice(paths)
        at, size = places.randrange(len(expected[path])), places.choice([1, 4096, 70_000, 300_000])
        if os.pread(files[path], size, at) != expected[path][at : at + size]:
            return 1
    return 0

children = []
for number in range(count):
    pid = os.fork()
    if pid == 0:
        os.close(opened)
        os._exit(read_at_random(number))
    children.append(pid)
os.close(opened)
failed = [pid for pid in children if os.waitpid(pid, 0)[1]]
assert not failed, f"{len(failed)} of {count} readers got wrong bytes"
"""

THREADS = """
import hashlib, sys
from concurrent.futures import ThreadPoolExecutor
source, mounted = sys.argv[1:]
expected = open(source, "rb").read()

def read_forward(start):
    with open(mounted, "rb", buffering=0) as file:
        file.seek(start)
        found = b"".join(iter(lambda: file.read(131_072), b""))
    return found == expected[start:]

with ThreadPoolExecutor(64) as pool:
    starts = [number * 150_001 % len(expected) for number in range(64)]
    assert all(pool.map(read_forward, starts))
"""


@pytest.mark.parametrize("path", [BIG, DATABASE, "one byte", "long text.txt"])
def test_a_mapped_file_has_the_right_bytes_everywhere(site: Site, path: str) -> None:
    output([sys.executable, "-c", MAPPED, site.source / path, site.tree / path])


def test_a_private_map_may_be_written_and_changes_nothing(site: Site) -> None:
    output([sys.executable, "-c", PRIVATE, site.tree / "long text.txt"])
    assert output(["head", "-c", "4", site.tree / "long text.txt"]) == b"line"


def test_a_shared_map_cannot_be_written(site: Site) -> None:
    output([sys.executable, "-c", SHARED_FOR_WRITING, site.tree / "long text.txt"])


def test_64_processes_read_at_random_from_a_cold_mount(site: Site, sandbox_of_site: Path) -> None:
    """With less memory than content, so that units are evicted while others wait for them."""
    with site.sandbox.mounted(
        "--portal", site.portal, "--memory-cache", "6 MiB", at=sandbox_of_site
    ) as mount:
        tree = mount.skylink(site.skylink)
        crowd = [sys.executable, "-c", CROWD, "64", str(site.source), str(tree)]
        output([*crowd, BIG, "big/one sector", "long text.txt", DATABASE, "picture.png"])


def test_64_threads_read_one_file_forward(site: Site, sandbox_of_site: Path) -> None:
    with site.sandbox.mounted("--portal", site.portal, at=sandbox_of_site) as mount:
        big = mount.skylink(site.skylink) / BIG
        output([sys.executable, "-c", THREADS, site.source / BIG, big])


def test_a_cache_smaller_than_one_unit_still_reads(site: Site, sandbox_of_site: Path) -> None:
    with site.sandbox.mounted(
        "--portal", site.portal, "--memory-cache", "1 MiB", at=sandbox_of_site
    ) as mount:
        for path in (BIG, "picture.png", "many/9/0599.dat"):
            found = output(["cat", mount.skylink(site.skylink) / path])
            assert found == (site.source / path).read_bytes()


@pytest.fixture
def sandbox_of_site(site: Site, tmp_path: Path) -> Path:
    """Another mount point, for a mount of the shared site with a cold cache."""
    path = tmp_path / "mnt"
    path.mkdir()
    return path

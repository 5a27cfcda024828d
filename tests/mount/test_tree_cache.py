"""Trees that are dropped from memory, in a real mount: S12."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import FakeSkyfile, of_files
from tests.skymount_process import LIMIT, Mount, Sandbox, output

LOOK = """
import os, sys
for top in sys.argv[1:]:
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            print(os.stat(top).st_ino, os.stat(directory).st_ino, os.stat(path).st_ino, path)
"""

DROP = Path("/proc/sys/vm/drop_caches")


def look(mount: Mount, skyfiles: Sequence[FakeSkyfile]) -> list[bytes]:
    """Look at all files of skylinks; return their numbers and names."""
    tops = [mount.skylink(each.name) for each in skyfiles]
    return output([sys.executable, "-IS", "-c", LOOK, *tops]).splitlines()


@contextmanager
def held(mount: Mount, skyfiles: Sequence[FakeSkyfile]) -> Iterator[None]:
    """Keep the kernel from forgetting skylinks, whatever else goes on on the machine."""
    with ExitStack() as stack:
        for each in skyfiles:
            stack.callback(os.close, os.open(mount.skylink(each.name), os.O_PATH))
        yield


def make(count: int, prefix: str = "") -> list[FakeSkyfile]:
    """Return different skyfiles, of a few KiB of names each."""
    return [
        of_files({f"{prefix}{n}/{'x' * 200}{k}": b"%d" % k for k in range(20)})
        for n in range(count)
    ]


@pytest.fixture
def fake_portal() -> Iterator[FakePortal]:
    with in_thread(FakePortal()) as running:
        yield running


@pytest.fixture
def few_trees(sandbox: Sandbox) -> Sandbox:
    """A sandbox whose mounts keep a handful of trees."""
    sandbox.configure('tree_cache = "64 KiB"\n')
    return sandbox


def test_trees_come_back(few_trees: Sandbox, fake_portal: FakePortal) -> None:
    """S12: Beyond `tree_cache` trees are dropped. They come back from the cache on disk, without a
    portal, with the same names and inode numbers.
    """
    skyfiles = make(30)
    fake_portal.add(*skyfiles)
    with few_trees.mounted("--portal", fake_portal.url) as mount, held(mount, skyfiles):
        first = look(mount, skyfiles)
        assert len(first) == 600
        trees = mount.status()["tree_cache"]
        assert 1 <= trees["loaded"] < 10
        assert trees["used"] <= trees["size"] == 64 << 10
        assert mount.status()["skylinks"] == 30
        wait_for_disk(mount)
        requests = len(fake_portal.requests)
        assert look(mount, skyfiles) == first
        names = {each.name for each in skyfiles}
        assert set(os.listdir(mount.path / "skylinks")) == names
        for each in skyfiles:
            path, content = next(iter(each.files.items()))
            assert (mount.skylink(each.name) / path).read_bytes() == content
        assert len(fake_portal.requests) == requests


def test_working_directory_in_a_dropped_tree(few_trees: Sandbox, fake_portal: FakePortal) -> None:
    """S12: Numbers that the kernel holds stay good while the tree is out of memory."""
    one, *others = make(30)
    fake_portal.add(one, *others)
    with few_trees.mounted("--portal", fake_portal.url) as mount:
        place = os.open(mount.skylink(one.name) / "0", os.O_PATH)
        try:
            number = os.fstat(place).st_ino
            look(mount, others)
            here = f"/proc/self/fd/{place}"
            assert len(os.listdir(here)) == 20
            look(mount, others)
            assert (Path(here) / f"{'x' * 200}7").read_bytes() == b"7"
            assert os.fstat(place).st_ino == number
        finally:
            os.close(place)


@pytest.mark.skipif(not os.access(DROP, os.W_OK), reason="the kernel cannot be made to forget")
def test_forgotten_skylinks_are_dropped(few_trees: Sandbox, fake_portal: FakePortal) -> None:
    """S12: What the kernel has forgotten is dropped, and has the same numbers when it is back."""
    skyfiles = make(30)
    fake_portal.add(*skyfiles)
    with few_trees.mounted("--portal", fake_portal.url) as mount:
        first = look(mount, skyfiles)
        deadline = time.monotonic() + LIMIT
        while mount.status()["skylinks"] >= 10:
            assert time.monotonic() < deadline
            DROP.write_text("2")
            time.sleep(0.5)
        assert look(mount, skyfiles) == first


def wait_for_disk(mount: Mount) -> None:
    """Wait until what was looked at is on disk."""
    deadline = time.monotonic() + LIMIT
    while mount.status()["disk_cache"]["waiting"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)

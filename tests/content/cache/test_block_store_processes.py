"""Blocks on disk, between processes: several at once, killed ones, full disks, other users."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore
from tests.mount.namespaces import NOBODY, new_namespace
from tests.portal_process import SOURCE
from tests.skymount_process import run

MIB = 1 << 20

Start = Callable[..., "subprocess.Popen[bytes]"]

WRITER = """
import sys
from pathlib import Path
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore

path, size, first, count = sys.argv[1], *map(int, sys.argv[2:])
store = BlockStore.open(Path(path), size)
for index in range(first, first + count):
    data = index.to_bytes(4, "big") * (index * 7919 % 20_000)
    store.put(BlockKey("a link", 1, 2, index % 500), data)
    found = store.get(BlockKey("a link", 1, 2, index * 31 % 500))
    assert found is None or bytes(found[:4]) * (len(found) // 4) == found
    print(index, flush=True)
print("damaged", store.damaged, flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process that writes blocks into tmp_path/cache and says which it has written."""
    with ExitStack() as stack:

        def started(size: int, first: int, count: int) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-c", WRITER, str(tmp_path / "cache")]
            process = subprocess.Popen(
                [*command, str(size), str(first), str(count)], stdout=subprocess.PIPE
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield started


def check_all(store: BlockStore) -> int:
    """Return how many blocks are there, each of which must be whole and in its place."""
    found = 0
    for index in range(500):
        data = store.get(BlockKey("a link", 1, 2, index))
        if data:
            number = int.from_bytes(data[:4], "big")
            assert number % 500 == index
            assert data == number.to_bytes(4, "big") * (number * 7919 % 20_000)
            found += 1
    return found


def on_disk(path: Path) -> int:
    """Return the bytes that all blocks take."""
    blocks = path / "cache" / "content" / "v1"
    return sum(each.stat().st_blocks * 512 for each in blocks.rglob("*") if each.is_file())


def test_killed_writers(tmp_path: Path, start: Start) -> None:
    """K4: kill -9 harms no more than the block that was being written."""
    for turn in range(10):
        process = start(4 * MIB, turn * 1000, 1000)
        assert process.stdout is not None
        for _ in range(5 + turn * 17):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        store = BlockStore.open(tmp_path / "cache", 4 * MIB)
        assert check_all(store) > 3
        assert store.damaged == 0
        assert store.verify()[1] == 0
        assert len(list(tmp_path.rglob("*.tmp"))) <= turn + 1
    for leftover in tmp_path.rglob("*.tmp"):
        os.utime(leftover, (0, 0))
    store.make_room()
    assert not list(tmp_path.rglob("*.tmp"))
    assert on_disk(tmp_path) <= store.size


def test_two_processes_at_once(tmp_path: Path, start: Start) -> None:
    """K3: several mounts share one cache; each may exceed the bound by a sixteenth."""
    size = 4 * MIB
    processes = [start(size, first, 800) for first in (0, 10_000)]
    for process in processes:
        assert process.stdout is not None
        lines = process.stdout.read().split(b"\n")  # to its end
        assert lines[-2] == b"damaged 0"
        assert process.wait() == 0
    assert on_disk(tmp_path) <= size + 2 * size // 16
    store = BlockStore.open(tmp_path / "cache", size)
    assert check_all(store) > 50
    assert store.damaged == 0
    store.make_room()
    assert on_disk(tmp_path) <= size


FILL = """
import json, logging, sys
from pathlib import Path
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore, BlockStoreConfig

logging.basicConfig(stream=sys.stdout, format="%(message)s")
store = BlockStore.open(Path(sys.argv[1]), 1 << 30, config=BlockStoreConfig(pause=0.0))
put = [store.put(BlockKey("x", 1, 2, n), bytes([n]) * 40_000) for n in range(60)]
right = [store.get(BlockKey("x", 1, 2, n)) == bytes([n]) * 40_000 for n in range(60)]
left = len(list(store.root.rglob("*.tmp")))
print(json.dumps({"put": put, "right": right, "left": left, "verified": store.verify()}))
"""


def test_full_disk(tmp_path: Path) -> None:
    """K4: what was stored stays, the rest is not stored, and the log says so once."""
    with new_namespace(network=False) as space:
        space.do("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", tmp_path)
        *logged, said = space.python(FILL, tmp_path / "cache").splitlines()
    found = json.loads(said)
    stored = sum(found["put"])
    assert 15 <= stored < 30
    assert found["put"] == found["right"]
    assert found["left"] == 0
    assert found["verified"] == [stored, 0]
    (line,) = logged
    assert line.endswith("not cached on disk, tried again each minute: No space left on device")


def test_read_only_disk(tmp_path: Path) -> None:
    """K4: what is there is read; nothing is stored."""
    BlockStore.open(tmp_path / "cache", MIB).put(BlockKey("x", 1, 2, 0), bytes(40_000))
    with new_namespace(network=False) as space:
        space.do("mount", "--bind", tmp_path, tmp_path)
        space.do("mount", "-o", "remount,bind,ro", tmp_path)
        *logged, said = space.python(FILL, tmp_path / "cache").splitlines()
    found = json.loads(said)
    assert found["put"] == [False] * 60
    assert found["right"] == [True] + [False] * 59
    (line,) = logged
    assert line.endswith("Read-only file system")


OPEN = """
import sys
from pathlib import Path
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore
from skymount.errors import CacheError

for name in sys.argv[1:]:
    try:
        store = BlockStore.open(Path(name) / "cache", 1 << 20)
        print(store.put(BlockKey("x", 1, 2, 0), b"x"), store.get(BlockKey("x", 1, 2, 0)) == b"x")
    except CacheError as error:
        print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_rights(tmp_path: Path) -> None:
    """K6: a directory of their own is used; one of root's, or where they may not write, is not."""
    tmp_path.chmod(0o755)
    own, foreign, closed = (tmp_path / name for name in ("own", "foreign", "closed"))
    for path in (own, foreign, closed):
        path.mkdir()
    os.chown(own, NOBODY, NOBODY)
    BlockStore.open(foreign / "cache", MIB)
    (foreign / "cache").chmod(0o755)
    (foreign / "cache/content").chmod(0o755)
    with new_namespace(network=False) as space:
        prefix = space.as_nobody(tmp_path)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}
        done = run([*prefix, sys.executable, "-c", OPEN, own, foreign, closed], env=env)
    assert done.stderr == ""
    unusable = "not usable as a cache"
    assert done.stdout.splitlines() == [
        "True True",
        f"{foreign}/cache: {unusable}: it belongs to another user (uid 0)",
        f"{closed}/cache: {unusable}: Permission denied",
    ]

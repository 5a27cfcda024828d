"""``skymount cache``."""

import json
import os
from pathlib import Path

import pytest

from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore
from tests.skymount_process import Sandbox


def place(box: Sandbox) -> Path:
    """Return where caches of the box's user are."""
    return box.root / "cache/skymount"


@pytest.fixture
def store(sandbox: Sandbox) -> BlockStore:
    store = BlockStore.open(place(sandbox), 64 << 20)
    for index in range(3):
        assert store.put(BlockKey("a link", 1 << 20, 1 << 30, index), bytes(1 << 20))
    return store


def test_there_is_none(sandbox: Sandbox) -> None:
    """K1: it is said, and none is made."""
    for command in ("info", "clear", "verify"):
        assert sandbox.succeed("cache", command) == "nothing is cached on disk\n"
        assert json.loads(sandbox.succeed("cache", command, "--json"))["path"] is None
    assert not place(sandbox).exists()


def test_info(sandbox: Sandbox, store: BlockStore) -> None:
    """K1: how much of what may be kept is kept, and where."""
    assert sandbox.succeed("cache", "info").splitlines() == [
        str(store.root),
        "3 blocks, 3 MiB of 2 GiB (as configured)",
    ]
    assert json.loads(sandbox.succeed("cache", "info", "--json")) == {
        "path": str(store.root),
        "size": 2 << 30,
        "blocks": 3,
        "bytes": 3 * ((1 << 20) + 4096),
    }
    smaller = sandbox.with_env(SKYMOUNT_DISK_CACHE="10 MiB")
    assert smaller.succeed("cache", "info").endswith("3 MiB of 10 MiB (as configured)\n")
    without = sandbox.with_env(SKYMOUNT_DISK_CACHE="off")
    assert without.succeed("cache", "info").endswith("3 MiB (disk_cache is off)\n")


def test_clear(sandbox: Sandbox, store: BlockStore) -> None:
    """K1: nothing is left; who has it open goes on with it."""
    assert sandbox.succeed("cache", "clear") == "3 blocks removed, 3 MiB\n"
    assert store.info().blocks == 0
    assert json.loads(sandbox.succeed("cache", "clear", "--json"))["blocks"] == 0
    assert store.put(BlockKey("a link", 1, 1, 0), b"x")
    assert sandbox.succeed("cache", "clear") == "1 block removed, 4 KiB\n"


def test_verify(sandbox: Sandbox, store: BlockStore) -> None:
    """K2: what is damaged is removed, and the user told."""
    assert sandbox.succeed("cache", "verify") == "3 blocks good, 0 damaged and removed\n"
    path = next(store.root.glob("*/*"))
    os.truncate(path, 1000)
    done = sandbox.skymount("cache", "verify")
    assert done.returncode == 0
    assert done.stdout == "2 blocks good, 1 damaged and removed\n"
    assert "is the disk failing?" in done.stderr
    assert not path.exists()
    found = json.loads(sandbox.succeed("cache", "verify", "--json"))
    assert found == {"path": str(store.root), "good": 2, "removed": 0}


def test_a_cache_that_is_not_used(sandbox: Sandbox, store: BlockStore) -> None:
    """K6: one line says what is wrong with it."""
    store.root.chmod(0o777)
    for command in ("info", "clear", "verify"):
        done = sandbox.skymount("cache", command)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"skymount: {store.root}: not usable as a cache: other users can write to it; "
            f"run: chmod go-w {store.root}\n"
        )

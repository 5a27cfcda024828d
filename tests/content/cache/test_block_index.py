"""The index beside the blocks: made again when it is lost or foreign, open to other processes."""

import errno
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skymount.content.cache import block_format
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_index import BlockIndex, IndexedBlock
from skymount.content.cache.block_store import BlockStore, BlockStoreConfig, StoreStats
from tests.portal_process import SOURCE
from tests.skymount_process import run

KIB, MIB = 1 << 10, 1 << 20


def key(index: int) -> BlockKey:
    return BlockKey("a link", 32 * KIB, 1 << 40, index)


def file_of(store: BlockStore, wanted: BlockKey) -> Path:
    return store.root.joinpath(*block_format.file_name(wanted.identity))


def index_of(store: BlockStore) -> Path:
    return store.root.with_name("v1.sqlite3")


def reopened(store: BlockStore, swept: int = 8) -> BlockStore:
    """Return another store of the directory, which measures it at the next put."""
    config = BlockStoreConfig(pause=0.0, swept=swept)
    return BlockStore.open(store.root.parent.parent, store.size, config=config)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    """An empty store of 16 MiB that tries a disk that refused again at once."""
    made = BlockStore.open(tmp_path / "cache", 16 * MIB, config=BlockStoreConfig(pause=0.0))
    yield made
    made.close()


def test_blocks_of_a_clock_that_was_ahead_are_evicted(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: they go first, though more blocks than one eviction looks at are older by the index."""
    ahead = time.time() + 365 * 86_400
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: ahead)
        for index in range(100):
            assert store.put(key(index), b"x")
            os.utime(file_of(store, key(index)), (ahead, ahead))
    newer = range(1000, 1000 + store.size // 4096)
    other = reopened(store)
    for index in newer:
        assert other.put(key(index), b"y")
    assert not [index for index in range(100) if file_of(store, key(index)).exists()]
    assert sum(file_of(store, key(index)).exists() for index in newer) > 3500
    other.close()


def test_an_index_that_was_deleted_while_it_is_used_is_made_again(store: BlockStore) -> None:
    """K3: the bound holds, and all mounts use the new one."""
    for index in range(10):
        assert store.put(key(index), bytes(MIB))
    index_of(store).unlink()
    for index in range(10, 30):
        assert store.put(key(index), bytes(MIB))
    assert index_of(store).exists()
    there = sum(file_of(store, key(index)).exists() for index in range(30))
    other = reopened(store)
    assert other.info() == store.info() == StoreStats(there, there * (MIB + 4096))
    other.close()


def _foreign_columns(database: sqlite3.Connection) -> None:
    database.execute("DROP TABLE blocks")
    database.execute("CREATE TABLE blocks (name TEXT)")


def _no_table(database: sqlite3.Connection) -> None:
    database.execute("DROP TABLE complete")


def _another_version(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA user_version = 99")


def _no_version(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA user_version = 0")


@pytest.mark.parametrize("change", [_foreign_columns, _no_table, _another_version, _no_version])
def test_an_index_with_other_tables_is_made_again(
    store: BlockStore, change: Callable[[sqlite3.Connection], None]
) -> None:
    """K4: the disk cache is not off for good."""
    for index in range(10):
        assert store.put(key(index), bytes(MIB))
    store.close()
    with closing(sqlite3.connect(index_of(store), isolation_level=None)) as database:
        change(database)
    other = reopened(store)
    assert other.put(key(9), bytes(MIB)) or other.put(key(9), bytes(MIB))
    assert other.info().blocks == 10
    other.close()
    with closing(sqlite3.connect(index_of(store))) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)


def test_an_index_that_another_process_writes_to_is_kept(store: BlockStore) -> None:
    """K4: being busy is no damage."""
    assert store.put(key(0), b"x")
    before = index_of(store).stat().st_ino
    index = BlockIndex(store.root / "lock", busy_time=0.1)
    with closing(sqlite3.connect(index_of(store), isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match="locked") as raised:
            index.add(IndexedBlock(0.0, 1, b"a"))
        assert raised.value.errno == errno.EIO
        database.execute("ROLLBACK")
    assert index_of(store).stat().st_ino == before
    assert index.totals() == (1, 4096)
    index.close()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_something_else_in_place_of_the_index(
    store: BlockStore, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """K4: nothing is stored, and the log names what is in the way."""
    make(index_of(store))
    assert not store.put(key(0), b"x")
    (record,) = caplog.records
    assert str(index_of(store)) in record.getMessage()
    assert os.path.lexists(index_of(store))


def test_a_directory_in_place_of_the_log_of_the_index(
    store: BlockStore, caplog: pytest.LogCaptureFixture
) -> None:
    """K4: SQLite cannot open it, and the log says where."""
    Path(f"{index_of(store)}-wal").mkdir()
    assert not store.put(key(0), b"x")
    (record,) = caplog.records
    assert str(index_of(store)) in record.getMessage()


def test_blocks_of_a_skymount_without_an_index_count(store: BlockStore, tmp_path: Path) -> None:
    """K3: the first eviction after they were written finds them all, so the bound holds."""
    older = BlockStore.open(tmp_path / "older", store.size)
    for index in range(1500):
        assert older.put(key(index), bytes(4 * KIB))
    older.close()
    assert store.put(key(2000), b"x")
    store.close()
    shutil.copytree(older.root, store.root, dirs_exist_ok=True, ignore=lambda *_: ["lock"])
    other = reopened(store)
    assert other.put(key(2001), b"x")
    assert other.info() == StoreStats(1502, 1500 * 8192 + 2 * 4096)
    other.close()


def test_other_processes_add_blocks_while_one_lists_all(tmp_path: Path) -> None:
    """K3: they do not wait for it, and what they add is in the index afterwards."""
    (tmp_path / "v1").mkdir()
    lock = tmp_path / "v1/lock"
    lock.touch()
    index, other = BlockIndex(lock), BlockIndex(lock, busy_time=0.1)
    index.add(IndexedBlock(1.0, 1, b"not there any more"))

    def listed() -> Iterator[IndexedBlock]:
        yield IndexedBlock(1.0, 10, b"a")
        other.add(IndexedBlock(2.0, 100, b"b"))
        yield IndexedBlock(1.0, 1000, b"c")

    index.rebuild(listed())
    assert index.totals() == other.totals() == (3, 1110)
    assert other.is_complete()
    index.close()
    other.close()


LEFT_OPEN = """
import builtins
import os
import sys
from pathlib import Path
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore

store = BlockStore.open(Path(sys.argv[1]), 1 << 24)
print(store.put(BlockKey("x", 1, 2, 0), b"x"))
left = {"builtins": builtins, "environ": os.environ, "cycle": store}[sys.argv[2]]
left.left_open = store  # so it is closed only when most modules are gone
del left
"""


@pytest.mark.parametrize("left", ["builtins", "environ", "cycle"])
def test_an_index_that_is_open_when_python_ends(tmp_path: Path, left: str) -> None:
    """Nothing is said about it."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}
    done = run([sys.executable, "-c", LEFT_OPEN, tmp_path / "cache", left], env=env)
    assert (done.stdout, done.stderr) == ("True\n", "")

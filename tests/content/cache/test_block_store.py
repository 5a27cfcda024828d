"""Blocks on disk: what was put comes back or is a miss, and the bound holds."""

import errno
import logging
import mmap
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content.cache import block_file, block_format
from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore, BlockStoreConfig, StoreStats
from skymount.content.cache.buffer_pool import BufferPool
from skymount.errors import CacheError

LINK = "AAA9s0sR9i8NGy19EadRGcpUt0HdvDMHJilKGmW545-k1g"
KIB, MIB = 1 << 10, 1 << 20


def key(index: int = 0, source: str = "", unit: int = 32 * KIB) -> BlockKey:
    return BlockKey(LINK, unit, 1 << 40, index, source)


def file_of(store: BlockStore, wanted: BlockKey) -> Path:
    return store.root.joinpath(*block_format.file_name(wanted.identity))


def on_disk(store: BlockStore) -> int:
    """Return the bytes that all files of a store take, as du counts."""
    return sum(each.stat().st_blocks * 512 for each in store.root.rglob("*") if each.is_file())


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    """An empty store of 16 MiB."""
    return BlockStore.open(tmp_path / "cache", 16 * MIB)


# --- what was put comes back ----------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 32 * KIB, MIB, 3 * MIB + 1])
def test_what_was_put_comes_back(store: BlockStore, length: int) -> None:
    """K1: also by another store of the same directory, read-only, at a page boundary."""
    data = os.urandom(length)
    assert store.get(key()) is None
    assert store.put(key(), data)
    again = BlockStore.open(store.root.parent.parent, store.size)
    found = again.get(key())
    assert found == data
    assert found is not None
    assert found.readonly
    assert again.damaged == 0


def test_memory_is_not_used_again_while_somebody_reads_it(tmp_path: Path) -> None:
    """K2: a part of a block stays as it is, whatever is read after it into memory given back."""
    buffers = BufferPool()
    store = BlockStore.open(tmp_path, 64 * MIB, buffers)
    for index in range(20):
        assert store.put(key(index), bytes([index]) * MIB)
    parts: list[tuple[int, memoryview]] = []
    for _ in range(3):
        for index in range(20):
            found = store.get(key(index))
            assert found is not None
            parts.append((index, found[100:200]))
            buffers.give_back(found)
        del found, parts[::2]
        assert all(part == bytes([index]) * 100 for index, part in parts)


@pytest.mark.parametrize(
    "other",
    [
        BlockKey(LINK[:-1] + "w", 32 * KIB, 1 << 40, 0),
        BlockKey(LINK, 0, 1 << 40, 0),
        BlockKey(LINK, 32 * KIB, 1 << 39, 0),
        BlockKey(LINK, 32 * KIB, 1 << 40, 1),
        BlockKey(LINK, 32 * KIB, 1 << 40, 0, "https://portal.example"),
    ],
)
def test_each_part_of_a_key_counts(store: BlockStore, other: BlockKey) -> None:
    """K5: what could not be verified is kept for the portal that it came from, and so on."""
    store.put(key(), b"verified")
    assert store.get(other) is None
    store.put(other, b"other")
    assert store.get(key()) == b"verified"
    assert store.get(other) == b"other"


@settings(derandomize=True, database=None, deadline=None)
@given(
    a=st.builds(BlockKey, *[st.text(max_size=3), *[st.integers(0, 20)] * 3, st.text(max_size=3)])
)
def test_no_two_keys_make_the_same_name(a: BlockKey) -> None:
    """K2: a character that moves from one part of a key to the next makes another identity."""
    others = [
        replace(a, skylink=a.skylink + a.source[:1], source=a.source[1:]),
        replace(a, skylink=a.skylink[:-1], source=a.skylink[-1:] + a.source),
        replace(a, unit=a.unit * 10 + a.size, size=a.index, index=0),
        replace(a, index=a.index * 10),
    ]
    assert all((other.identity == a.identity) == (other == a) for other in others)


# --- damage ---------------------------------------------------------------------


def is_gone(store: BlockStore, wanted: BlockKey | None = None) -> bool:
    """Whether the block is a miss, is removed, and can be put again."""
    wanted = wanted or key()
    missed = store.get(wanted) is None and not os.path.lexists(file_of(store, wanted))
    return missed and store.put(wanted, b"new") and store.get(wanted) == b"new"


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(
    length=st.sampled_from([0, 1, 100, 4096, 70_000, MIB]),
    place=st.sampled_from(["content", "magic", "length", "identity", "checksum"]),
    where=st.integers(0, 1 << 20),
    flipped=st.integers(1, 255),
)
def test_a_byte_that_changed(
    tmp_path_factory: pytest.TempPathFactory, length: int, place: str, where: int, flipped: int
) -> None:
    """K2: one that is damaged is a miss and is removed."""
    path = tmp_path_factory.getbasetemp() / "flipped"
    store = BlockStore.open(path, 16 * MIB)
    store.put(key(), bytes(length))
    seal = file_of(store, key()).stat().st_size - block_format.SEAL
    start, size = {
        "content": (0, length),
        "magic": (seal, 8),
        "length": (seal + 8, 8),
        "identity": (seal + 16, 32),
        "checksum": (seal + 48, 16),
    }[place]
    if not size:
        return
    with file_of(store, key()).open("r+b") as file:
        file.seek(start + where % size)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ flipped]))
    assert is_gone(store)
    assert store.damaged == 1


@pytest.mark.parametrize("left", [0, 1, 63, 64, 65, 4096, 5000, 8192, 8192 + 48, 8192 + 63])
@pytest.mark.parametrize("length", [8192, MIB])
def test_cut_off(store: BlockStore, length: int, left: int) -> None:
    """K2: one that is cut off is a miss and is removed."""
    store.put(key(), bytes(length))
    os.truncate(file_of(store, key()), length - 8192 + left)
    assert is_gone(store)


@pytest.mark.parametrize("more", [b"x", bytes(64), bytes(10_000)])
def test_grown(store: BlockStore, more: bytes) -> None:
    """K2: one with something behind it as well."""
    store.put(key(), bytes(8192))
    with file_of(store, key()).open("ab") as file:
        file.write(more)
    assert is_gone(store)


def test_under_the_name_of_another(store: BlockStore) -> None:
    """K2: each block repeats what it is: two that are exchanged are both a miss."""
    first, second = key(0), key(1)
    store.put(first, b"the first")
    store.put(second, b"the other")
    aside = store.root / "aside"
    file_of(store, first).rename(aside)
    file_of(store, second).rename(file_of(store, first))
    aside.rename(file_of(store, second))
    assert store.get(second) is None
    assert is_gone(store)
    assert store.damaged == 2


def _symlink(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def _socket(path: Path) -> None:
    aside = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(aside)


def _directory(path: Path) -> None:
    (path / "below").mkdir(parents=True)
    (path / "below" / "file").write_bytes(b"x")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


def _sparse_but_not_too_long(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(block_format.MAX_BLOCK)


@pytest.mark.parametrize(
    "make",
    [
        _symlink,
        os.mkfifo,
        _socket,
        Path.mkdir,
        _directory,
        _sparse,
        _sparse_but_not_too_long,
    ],
)
@pytest.mark.parametrize("unit", [32 * KIB, MIB])
def test_something_else_in_its_place(
    store: BlockStore, make: Callable[[Path], None], unit: int
) -> None:
    """K2: something else is a miss and is removed, and nothing waits for it or follows it."""
    wanted = key(unit=unit)
    store.put(wanted, bytes(unit))
    path = file_of(store, wanted)
    path.rename(path.with_name("elsewhere"))
    make(path)
    assert is_gone(store, wanted)


@pytest.mark.parametrize("make", [_symlink, os.mkfifo, _directory])
def test_something_else_where_a_block_is_put(
    store: BlockStore, make: Callable[[Path], None]
) -> None:
    """K2: it is out of the way at the second attempt at the latest."""
    path = file_of(store, key())
    path.parent.mkdir()
    make(path)
    assert store.put(key(), b"new") or store.put(key(), b"new")
    assert store.get(key()) == b"new"


@pytest.mark.parametrize("make", [_symlink, Path.touch])
def test_something_else_in_place_of_a_directory(
    store: BlockStore, make: Callable[[Path], None]
) -> None:
    """K2: as for a block."""
    make(file_of(store, key()).parent)
    assert store.get(key()) is None
    assert store.put(key(), b"new") or store.put(key(), b"new")
    assert store.get(key()) == b"new"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else(store: BlockStore) -> None:
    """K2: a block that another user owns is one that they could write."""
    store.put(key(), b"forged")
    os.chown(file_of(store, key()), 65534, 65534)
    assert is_gone(store)


class NoMemory(BufferPool):
    """There is none."""

    def take(self, size: int) -> memoryview:
        raise OSError(12, "Cannot allocate memory")


def test_a_shortage_is_no_damage(store: BlockStore) -> None:
    """K2: without memory or descriptors it is a miss, and the block stays."""
    store.put(key(), b"x" * 100)
    short = BlockStore(store.root, store.size, NoMemory())
    assert short.get(key()) is None
    with pytest.raises(CacheError, match="Cannot allocate memory"):
        short.verify()
    assert short.damaged == 0
    assert store.get(key()) == b"x" * 100


# --- the bound ------------------------------------------------------------------


@settings(derandomize=True, database=None, deadline=None, max_examples=30)
@given(
    puts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 150_000)), min_size=5, max_size=60)
)
def test_the_bound_holds_after_each_put(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, int]]
) -> None:
    """K3: however large the blocks, and what is found is what was put last."""
    store = BlockStore.open(tmp_path_factory.getbasetemp() / "bounded", 512 * KIB)
    store.clear()
    last: dict[int, bytes] = {}
    for index, length in puts:
        data = bytes([index]) * length
        if store.put(key(index), data):
            last[index] = data
        assert on_disk(store) <= store.size
    for index, data in last.items():
        assert store.get(key(index)) in (None, data)
    assert store.damaged == 0


@pytest.mark.parametrize("length", [20 * KIB, 256 * KIB])
def test_the_bound_holds_for_several_threads(tmp_path: Path, length: int) -> None:
    """K3: what one writes counts while another one makes room."""
    store = BlockStore.open(tmp_path, 4 * MIB)
    filled = [memoryview(mmap.mmap(-1, length)) for _ in range(4)]
    for number, data in enumerate(filled):
        data[:] = bytes([number]) * length
    most: list[int] = []
    together = threading.Barrier(4, lambda: most.append(on_disk(store)))

    def put(first: int) -> None:
        for index in range(first, 160, 4):
            store.put(key(index), filled[first])
            together.wait(60)

    threads = [threading.Thread(target=put, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 3 * MIB < max(most) <= store.size
    found = {index: store.get(key(index)) for index in range(160)}
    assert store.damaged == 0
    there = {index: data for index, data in found.items() if data is not None}
    assert len(there) * length > 2 * MIB
    assert all(data == filled[index % 4] for index, data in there.items())


def test_what_was_not_used_for_longest_goes(store: BlockStore) -> None:
    """K3: a block that is read stays, though it was written first."""
    now = time.time()
    for index in range(100):
        assert store.put(key(index), bytes(128 * KIB))
        os.utime(file_of(store, key(index)), (now, now - 10_000 + index))
    store.get(key(3))
    for index in range(100, 140):
        assert store.put(key(index), bytes(128 * KIB))
    left = [index for index in range(140) if file_of(store, key(index)).exists()]
    assert left[0] == 3
    assert left[1:] == list(range(left[1], 140))
    assert store.size * 7 // 8 < on_disk(store) <= store.size


def test_a_clock_that_was_wrong(store: BlockStore) -> None:
    """K3: a block from the future goes first, and not never."""
    store.put(key(0), bytes(MIB))
    os.utime(file_of(store, key(0)), (0, time.time() + 10**8))
    for index in range(1, 16):
        store.put(key(index), bytes(MIB))
    assert store.get(key(0)) is None
    assert store.get(key(1)) is not None


def test_use_is_noted_once_a_minute(store: BlockStore) -> None:
    """K3: reading a block does not mean writing to the disk each time; to verify it is no use."""
    store.put(key(), b"x")
    path, now = file_of(store, key()), time.time()
    for age, is_noted in ((30, False), (90, True), (-90, True)):
        os.utime(path, (now - age, now - age))
        store.get(key())
        assert (abs(path.stat().st_mtime - now) < 25) == is_noted
    os.utime(path, (0, 0))
    store.verify()
    assert path.stat().st_mtime == 0


def test_a_block_larger_than_a_quarter(store: BlockStore) -> None:
    """K3: one block does not push out most others."""
    assert store.put(key(0), bytes(4 * MIB - 4096))
    assert not store.put(key(1), bytes(4 * MIB))
    assert store.get(key(0)) is not None


def test_a_smaller_bound_than_before(store: BlockStore) -> None:
    """K3: a mount makes room at its start; the blocks used last stay."""
    now = time.time()
    for index in range(12):
        store.put(key(index), bytes(MIB))
        os.utime(file_of(store, key(index)), (now, now - 100 + index))
    smaller = BlockStore.open(store.root.parent.parent, 4 * MIB)
    assert on_disk(smaller) > 12 * MIB
    smaller.make_room()
    assert on_disk(smaller) <= 4 * MIB
    left = [index for index in range(12) if file_of(store, key(index)).exists()]
    assert left == [9, 10, 11]


def test_without_a_bound_nothing_is_evicted(store: BlockStore) -> None:
    """K1: commands read what mounts have stored, and add and remove nothing."""
    store.put(key(), b"x")
    reading = BlockStore.existing(store.root.parent.parent, 0)
    assert reading is not None
    reading.make_room()
    assert not reading.put(key(1), b"y")
    assert reading.get(key()) == b"x"


def test_blocks_are_stored_before_they_are_counted(store: BlockStore) -> None:
    """K3: a sixteenth of the bound at most; then there is no more than the bound again."""
    for index in range(64):
        assert store.put(key(index), bytes(240 * KIB))
    again = BlockStore.open(store.root.parent.parent, store.size)
    with again._listing_lock:  # as while another thread lists a cache that is large
        for index in range(100, 115):
            assert again.put(key(index), bytes(60 * KIB))
        assert store.size < on_disk(again) <= store.size + store.size // 16
    again.make_room()
    assert on_disk(again) <= store.size * 15 // 16


def test_what_an_earlier_skymount_had(store: BlockStore) -> None:
    """K3: its index goes; its small blocks go when they were not used for longest."""
    for name in ("v1/lock", "v1.sqlite3", "v1.sqlite3-wal"):
        (store.root.parent / name).write_bytes(b"x")
    store.put(key(), b"x")
    again = BlockStore.open(store.root.parent.parent, store.size)
    assert [each.name for each in again.root.parent.iterdir()] == ["v1"]
    assert again.get(key()) == b"x"
    assert again.verify() == (1, 0)


def test_leftovers_are_removed(store: BlockStore) -> None:
    """K4: what a killed process left goes after ten minutes; what is being written stays."""
    store.put(key(), b"x")
    directory = file_of(store, key()).parent
    old, young, foreign = (directory / name for name in ("a.tmp", "b.tmp", "notes.txt"))
    for path in (old, young, foreign):
        path.write_bytes(b"x" * 5000)
    os.utime(old, (0, time.time() - 601))
    store.make_room()
    assert not old.exists()
    assert young.exists()
    assert not foreign.exists()
    assert store.get(key()) == b"x"


def test_a_file_too_long_for_a_block(store: BlockStore) -> None:
    """K2: something else is removed, and pushes out no block, however long it says it is."""
    store.put(key(), b"x")
    path = file_of(store, key(1))
    path.parent.mkdir()
    _sparse(path)
    store.make_room()
    assert not path.exists()
    assert store.get(key()) == b"x"


def test_what_a_link_leads_to_is_not_removed(store: BlockStore, tmp_path: Path) -> None:
    """K2: something else is removed, but nothing outside of the cache."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "letter.txt").touch()
    (store.root / "ab").symlink_to(outside)
    (store.root / "letters").symlink_to(outside)
    assert store.put(key(), b"x")
    store.make_room()
    assert store.verify() == (1, 0)
    store.clear()
    assert list(store.root.iterdir()) == []
    assert (outside / "letter.txt").exists()


def test_blocks_that_cannot_be_removed(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """K4: nothing is stored for a while, and the log says why."""
    for index in range(15):
        assert store.put(key(index), bytes(MIB))

    def refuse(path: str) -> bool:
        return False

    monkeypatch.setattr(block_file, "remove", refuse)
    for index in range(20, 25):
        store.put(key(index), bytes(MIB))
    assert on_disk(store) <= store.size
    assert caplog.text.count("not cached on disk, tried again each minute: there is no room") == 1


def test_blocks_that_cannot_be_listed(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """K4: nothing is stored for a while, and the log says why."""

    def refuse(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", refuse)
    store.make_room()
    assert not store.put(key(), b"x")
    assert "tried again each minute: Input/output error" in caplog.text


# --- all of it ------------------------------------------------------------------


def test_what_cannot_be_removed(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays is not said to be removed, as on a disk that can no more be written to."""

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    store.put(key(1), bytes(100 * KIB))
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(CacheError, match="cannot be removed"):
        store.clear()
    with file_of(store, key(1)).open("r+b") as file:
        file.write(b"x")
    with pytest.raises(CacheError, match="damaged, and cannot be removed"):
        store.verify()
    monkeypatch.undo()
    assert store.verify() == (0, 1)


def test_info_verify_and_clear(store: BlockStore) -> None:
    """K2: what is damaged is found and removed; the rest stays until it is cleared."""
    assert store.info() == StoreStats(0, 0)
    assert store.verify() == (0, 0)
    for index in range(10):
        store.put(key(index), os.urandom(10_000))
    assert store.info() == StoreStats(10, 10 * 12_288)
    os.truncate(file_of(store, key(3)), 5000)
    (file_of(store, key(4)).parent / "notes.txt").touch()
    assert store.verify() == (9, 2)
    assert store.verify() == (9, 0)
    assert store.clear() == StoreStats(9, 9 * 12_288)
    assert store.info() == StoreStats(0, 0)
    assert list(store.root.iterdir()) == []
    assert store.put(key(), b"again")


def test_the_directory_is_removed_while_it_is_used(store: BlockStore) -> None:
    """K4: what was there is a miss, and what comes then is stored anew."""
    store.put(key(0), b"x")
    shutil.rmtree(store.root.parent.parent)
    assert store.get(key(0)) is None
    assert store.put(key(1), b"y")
    assert store.get(key(1)) == b"y"
    assert store.info().blocks == 1


def test_a_disk_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """K4: nothing is stored for a while, and the log says so once, until it works again."""
    store = BlockStore.open(tmp_path, 16 * MIB, config=BlockStoreConfig(pause=0.0))
    store.put(key(0), b"before")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):

        def refuse(fd: int, data: memoryview) -> int:
            raise OSError(5, "Input/output error")

        patch.setattr(os, "write", refuse)
        assert not store.put(key(1), bytes(10_000))
        patch.undo()
        assert store.put(key(2), b"a small one finds a place")
        patch.setattr(os, "write", refuse)
        assert not store.put(key(3), bytes(10_000))
        assert [record.getMessage() for record in caplog.records] == [
            f"{store.root}: not cached on disk, tried again each minute: Input/output error"
        ]
    assert not list(store.root.rglob("*.tmp"))
    assert store.get(key(0)) == b"before"
    assert store.put(key(1), bytes(10_000))


def test_a_disk_that_refused_is_left_alone_for_a_while(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: a full disk is not tried again for each block, but each minute."""
    with monkeypatch.context() as patch:

        def refuse(fd: int, data: memoryview) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "write", refuse)
        assert not store.put(key(1), b"x")
    assert not store.put(key(1), b"x")
    refused = time.monotonic()
    for later, stored in ((50, False), (61, True)):
        monkeypatch.setattr(time, "monotonic", lambda now=refused + later: now)
        assert store.put(key(1), b"x") is stored


# --- whose it is ----------------------------------------------------------------


def test_everything_is_the_owners_alone(tmp_path: Path) -> None:
    """K6: the directories that are made, and the files in them, whatever the umask."""
    before = os.umask(0)
    try:
        store = BlockStore.open(tmp_path / "a" / "b", MIB)
        store.put(key(), b"x")
    finally:
        os.umask(before)
    for path in (tmp_path / "a").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_a_directory_that_others_can_read(store: BlockStore) -> None:
    """K6: it is closed: names of blocks tell what was read."""
    store.root.chmod(0o755)
    BlockStore.open(store.root.parent.parent, MIB)
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700


@pytest.mark.parametrize("above", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_can_write_to(store: BlockStore, above: int, mode: int) -> None:
    """K6: one that others can write to is not used."""
    places = [store.root, *store.root.parents]
    places[above].chmod(mode)
    with pytest.raises(CacheError, match=f"^{places[above]}: .*other users can write to it"):
        BlockStore.open(places[2], MIB)


@pytest.mark.parametrize("name", ["cache", "cache/content", "cache/content/v1"])
def test_no_directory(tmp_path: Path, name: str) -> None:
    """K6: one line says what is in the way."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(CacheError, match="not usable as a cache: "):
        BlockStore.open(tmp_path / "cache", MIB)

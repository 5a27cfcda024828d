"""The short way of large blocks: the same files and the same answers as step by step."""

import mmap
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skymount.content.cache import block_file, block_format, direct_io
from skymount.content.cache.buffer_pool import BufferPool
from skymount.content.cache.direct_io import PAGE
from tests.mount.namespaces import new_namespace

_pages = pytest.importorskip("skymount.content.cache._pages", reason="it is not built")

KIB, MIB = 1 << 10, 1 << 20
IDENTITY = bytes(range(32))
LENGTHS = [256 * KIB, 256 * KIB + PAGE, MIB, 4 * MIB]


def noise(length: int, at: int = 0) -> memoryview:
    """Return content that begins at a page."""
    made = mmap.mmap(-1, length)
    made[at:] = os.urandom(length - at)
    return memoryview(made)


def store(path: Path, data: memoryview | bytes) -> int:
    """Store a block the short way."""
    return direct_io.store(f"{path}.tmp", str(path), IDENTITY, data)


def load(path: Path, length: int, identity: bytes = IDENTITY) -> bytes | bool | None:
    """Load a block the short way; return its content, or why there is none."""
    data = memoryview(mmap.mmap(-1, length))
    found = direct_io.load(str(path), identity, data, touch=True)
    return bytes(data) if found else found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a block is to lie."""
    return tmp_path / "block"


@contextmanager
def step_by_step() -> Iterator[None]:
    """Leave only the long way, as without a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_io, "COMPILED", False)
        yield


def test_what_fits() -> None:
    """Large blocks of whole pages."""
    assert all(map(direct_io.fit, LENGTHS))
    assert not any(map(direct_io.fit, [0, PAGE, 256 * KIB - PAGE, 256 * KIB + 1, MIB - 64]))


@pytest.mark.parametrize("length", LENGTHS)
def test_both_ways_make_the_same_file(path: Path, length: int) -> None:
    """K2: byte for byte, and with the same word about its size."""
    data = noise(length)
    size = block_file.write(str(path), IDENTITY, data)
    short = path.read_bytes()
    with step_by_step():
        assert block_file.write(str(path), IDENTITY, data) == size == length + PAGE
    assert path.read_bytes() == short
    assert short[:length] == data
    assert short[-block_format.SEAL :] == block_format.seal(IDENTITY, data)
    assert os.listdir(path.parent) == ["block"]


@pytest.mark.parametrize("length", LENGTHS)
def test_each_way_reads_what_the_other_wrote(path: Path, length: int) -> None:
    """K2: a block is the same block with and without a compiler."""
    first, second = noise(length), noise(length)
    other = path.with_name("other")
    assert store(path, first) == length + PAGE
    with step_by_step():
        assert block_file.read(str(path), IDENTITY, length, BufferPool(), touch=True) == first
        assert store(other, second) == 0
        assert load(path, length) is False
        block_file.write(str(other), IDENTITY, second)
    assert load(other, length) == second


@pytest.mark.parametrize("at", [0, 1, MIB - 1, MIB, MIB + PAGE - 64, MIB + PAGE - 17, -16, -1])
def test_a_byte_that_changed(path: Path, at: int) -> None:
    """K2: in the content, the claim or the checksum: it is not the block. Zeros do not count."""
    data = noise(MIB)
    store(path, data)
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 1]))
    assert load(path, MIB) == (data if at == MIB else False)
    if at != MIB:
        with pytest.raises(OSError, match="Bad message"):
            block_file.read(str(path), IDENTITY, MIB, BufferPool(), touch=True)


def test_another_block(path: Path) -> None:
    """K2: one of another identity or length is not the block, the step by step tells which."""
    data = noise(MIB)
    store(path, data)
    assert load(path, MIB, bytes(32)) is False
    assert load(path, 2 * MIB) is False
    assert load(path, MIB - PAGE) is False
    assert block_file.read(str(path), IDENTITY, 2 * MIB, BufferPool(), touch=True) == data


@pytest.mark.parametrize("left", [0, 1, PAGE, MIB, MIB + PAGE - 1])
def test_cut_off(path: Path, left: int) -> None:
    """K2: also in the middle of a page."""
    store(path, noise(MIB))
    os.truncate(path, left)
    assert load(path, MIB) is False


def test_no_file(path: Path) -> None:
    """None says that there is nothing to look at."""
    assert load(path, MIB) is None
    assert load(path / "below", MIB) is None


def _link(path: Path) -> None:
    store(path.with_name("elsewhere"), noise(MIB))
    path.symlink_to("elsewhere")


def _foreign(path: Path) -> None:
    store(path, noise(MIB))
    os.chown(path, 65534, 65534)


NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    "make", [_link, os.mkfifo, Path.mkdir, pytest.param(_foreign, marks=NEEDS_ROOT)]
)
def test_something_else(path: Path, make: Callable[[Path], None]) -> None:
    """K2, K6: what is no file of the user's own is not read, and nothing waits for it."""
    make(path)
    assert load(path, MIB) is False


def test_use_is_noted_once_a_minute(path: Path) -> None:
    """K3: what was read lately, or has a time to come, is noted as used now."""
    store(path, noise(MIB))
    now = time.time()
    for age, is_noted in ((30, False), (90, True), (-90, True)):
        os.utime(path, (now - age, now - age))
        load(path, MIB)
        assert (abs(path.stat().st_mtime - now) < 25) == is_noted
    os.utime(path, (0, 0))
    direct_io.load(str(path), IDENTITY, noise(MIB), touch=False)
    assert path.stat().st_mtime == 0


# --- what cannot be stored --------------------------------------------------------


def test_memory_that_does_not_begin_at_a_page(path: Path) -> None:
    """It goes step by step, by a copy in the page cache."""
    data = os.urandom(MIB)
    assert store(path, data) == 0
    assert block_file.write(str(path), IDENTITY, data)
    assert block_file.read(str(path), IDENTITY, MIB, BufferPool(), touch=True) == data
    assert os.listdir(path.parent) == ["block"]


def test_an_address_that_is_refused(path: Path) -> None:
    """What the kernel refuses for its address is left to the steps, and nothing stays of it. Some
    file systems take any address: then the block is whole.
    """
    made = mmap.mmap(-1, 2 * MIB)
    odd = memoryview(made)[1 : MIB + 1]
    seal = block_format.seal(IDENTITY, odd)
    size = _pages.store(bytes(path) + b".tmp", bytes(path), odd, seal, PAGE)
    assert (size, os.listdir(path.parent)) in [(0, []), (MIB + PAGE, ["block"])]
    assert not size or load(path, MIB) == odd


_WITHOUT_DIRECT_IO = """
import os, sys
from skymount.content import blockfile, pages
from skymount.content.cache.buffer_pool import BufferPool

path, identity, buffers = sys.argv[1], bytes(range(32)), BufferPool()
data = buffers.take(1 << 20)
data[:] = os.urandom(len(data))
assert pages.is_aligned(data)
assert pages.store(path + ".tmp", path, identity, data) == 0
assert os.listdir(os.path.dirname(path)) == []
assert blockfile.write(path, identity, data) >= len(data) + pages.PAGE
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
assert pages.load(path, identity, buffers.take(len(data)), touch=True) is False
assert blockfile.read(path, identity, len(data), buffers, touch=True) == data
"""


def test_a_page_cache_that_cannot_be_passed_by(path: Path) -> None:
    """K2: A file system that refuses it, as ramfs does, is written and read step by step."""
    with new_namespace(network=False) as place:
        place.do("mount", "-t", "ramfs", "none", path.parent)
        assert place.python(_WITHOUT_DIRECT_IO, path) == ""


@pytest.mark.parametrize(("room", "stored"), [(0, OSError), (MIB // 2, 0)])
def test_no_room(path: Path, room: int, stored: int | type[OSError]) -> None:
    """K4: nothing is left of what was not written whole."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        if stored == 0:
            assert store(path, noise(MIB)) == 0
        else:
            with pytest.raises(OSError, match="File too large"):
                store(path, noise(MIB))
        assert not os.listdir(path.parent)
        with pytest.raises(OSError, match="File too large"):
            block_file.write(str(path), IDENTITY, noise(MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not os.listdir(path.parent)


def test_in_the_way(path: Path) -> None:
    """K2: a directory is an error that `blockfile` mends, and so is one that is missing."""
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        store(path, noise(MIB))
    with pytest.raises(FileNotFoundError):
        store(path / "a" / "b", noise(MIB))
    assert os.listdir(path.parent) == ["block"]
    assert not os.listdir(path)
    assert block_file.write(str(path), IDENTITY, noise(MIB)) is None
    assert block_file.write(str(path / "a" / "b"), IDENTITY, noise(MIB)) == MIB + PAGE


def test_what_is_no_page(path: Path) -> None:
    """Sizes that the compiled part is not made for are refused, not written beyond."""
    name, data = bytes(path), bytearray(KIB)
    for seal, page in ((64, 0), (64, -1), (64, 1 << 20), (PAGE + 1, PAGE)):
        with pytest.raises(ValueError, match="no page with a seal"):
            _pages.store(name, name, bytes(data), bytes(seal), page)
        with pytest.raises(ValueError, match="no page with a seal"):
            _pages.load(name, data, seal, page, False)
    with pytest.raises(ValueError, match="no page with a seal"):
        _pages.load(name, data, -1, PAGE, False)
    with pytest.raises(ValueError, match="null"):
        _pages.store(b"a\0b", name, bytes(data), bytes(64), PAGE)
    with pytest.raises((TypeError, BufferError)):
        _pages.load(name, bytes(data), 64, PAGE, False)
    assert not os.listdir(path.parent)


# --- how it runs ------------------------------------------------------------------


def test_other_threads_run_meanwhile(path: Path) -> None:
    """One call is one time that the interpreter is given up, and it is."""
    data = noise(4 * MIB)
    gate, ran = threading.Lock(), []

    def other() -> None:
        with gate:
            ran.append(True)

    interval = sys.getswitchinterval()
    gate.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    sys.setswitchinterval(1000)
    try:
        gate.release()
        for _ in range(100):
            store(path, data)
            if ran:
                break
        in_time = bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert in_time

"""The file of a block: what was written is read, or it is an error."""

import mmap
import os
import resource
import signal
from pathlib import Path

import pytest

from skymount.content.cache import block_file, block_format
from skymount.content.cache.block_file import PAGE
from skymount.content.cache.buffer_pool import BufferPool
from tests.mount.namespaces import new_namespace

KIB, MIB = 1 << 10, 1 << 20
IDENTITY = bytes(range(32))
LENGTHS = [256 * KIB, 256 * KIB + PAGE, MIB, 4 * MIB]


def noise(length: int) -> memoryview:
    """Return content that begins at a page."""
    made = mmap.mmap(-1, length)
    made[:] = os.urandom(length)
    return memoryview(made)


def write(path: Path, data: memoryview | bytes) -> bool:
    return block_file.write(str(path), IDENTITY, data)


def read(path: Path, length: int, identity: bytes = IDENTITY, *, touch: bool = True) -> bytes:
    """Read a block of which some length is expected; b"" for none."""
    found = block_file.read(str(path), identity, length, BufferPool(), touch=touch)
    return b"" if found is None else bytes(found)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "block"


def test_what_bypasses_the_page_cache() -> None:
    """Large blocks of whole pages."""
    assert all(map(block_file.is_direct, LENGTHS))
    packed = [0, PAGE, 256 * KIB - PAGE, 256 * KIB + 1, MIB - 64]
    assert not any(map(block_file.is_direct, packed))


@pytest.mark.parametrize("length", LENGTHS)
def test_memory_that_does_not_begin_at_a_page(path: Path, length: int) -> None:
    """K2: it goes by the page cache, and the file is the same."""
    data = noise(length)
    assert write(path, data)
    direct = path.read_bytes()
    assert write(path, bytes(data))
    assert path.stat().st_size == length + PAGE
    assert path.read_bytes() == direct
    assert direct[:length] == data
    assert direct[-block_format.SEAL :] == block_format.seal(IDENTITY, data)
    assert os.listdir(path.parent) == ["block"]
    assert read(path, length) == data


@pytest.mark.parametrize("expected", [0, PAGE, MIB - PAGE, MIB, 2 * MIB])
@pytest.mark.parametrize("length", [100, 256 * KIB, MIB])
def test_another_length_than_expected(path: Path, length: int, expected: int) -> None:
    """K2: it is the block all the same."""
    data = noise(length)
    write(path, data)
    assert read(path, expected) == data


# --- what cannot be written -------------------------------------------------------


_WITHOUT_DIRECT_IO = """
import os, sys
from skymount.content.cache import block_file
from skymount.content.cache.buffer_pool import BufferPool

path, identity, buffers = sys.argv[1], bytes(range(32)), BufferPool()
try:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
except OSError:
    os.unlink(path)
else:
    print("it can be bypassed")
data = buffers.take(1 << 20)
data[:] = os.urandom(len(data))
assert block_file.write(path, identity, data)
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
assert block_file.read(path, identity, len(data), buffers, touch=True) == data
"""


def test_a_page_cache_that_cannot_be_bypassed(path: Path) -> None:
    """K2: on a file system that refuses it, as ramfs does, the page cache is used."""
    with new_namespace(network=False) as place:
        place.do("mount", "-t", "ramfs", "none", path.parent)
        assert place.python(_WITHOUT_DIRECT_IO, path) == ""


@pytest.mark.parametrize("room", [0, MIB // 2])
@pytest.mark.parametrize("is_aligned", [True, False])
def test_no_room(path: Path, room: int, is_aligned: bool) -> None:
    """K4: nothing is left of what was not written whole."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    data = noise(MIB)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(path, data if is_aligned else bytes(data))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not os.listdir(path.parent)

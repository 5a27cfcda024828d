"""Drives the C sources at the edges of what they are given: a program for `test_c_sources.py`.

Each buffer ends, or begins, where memory ends that may be touched. What a sanitizer or the kernel
finds ends the process; a wrong answer is an AssertionError.
"""

import ctypes
import mmap
import os
import resource
import signal
import sys
import threading
from pathlib import Path

from skymount.content.cache import _pages, block_format
from skymount.wire import _merkle
from skymount.wire.merkle import plain_groups, plain_join

PAGE = mmap.PAGESIZE
GROUP = 256 * 64
NOISE = bytes(range(1, 256)) * 100
SIZES = (
    *(0, 1, 7, 63, 64, 65, 127, 128, 129, 511, 512, 513, 575, 4095, 4096),
    *(GROUP - 65, GROUP - 64, GROUP - 1, GROUP, GROUP + 1, GROUP + 64, GROUP + 65),
)
STRIDES = (64, 65, 128, 640, 4096, sys.maxsize, sys.maxsize - 63)


def walled(data: bytes, *, at_end: bool) -> memoryview:
    """Return a copy of data beside a page that nobody may touch."""
    pages = -(-len(data) // PAGE) + 1
    memory = mmap.mmap(-1, (pages + 1) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    wall = address + (pages * PAGE if at_end else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(PAGE), 0)
    start = pages * PAGE - len(data) if at_end else PAGE
    view = memoryview(memory)[start : start + len(data)]
    view[:] = data
    return view


def raises(error: type[Exception], function: object, *args: object) -> None:
    """Call what must fail."""
    try:
        function(*args)  # type: ignore[operator]
    except error:
        return
    raise AssertionError(f"{args!r:.200} was taken")


def hash_trees(form: int) -> None:
    """Groups and roots of buffers at both walls, of all sizes, starts and strides."""
    for size in SIZES:
        data = NOISE[:size]
        views = [walled(data, at_end=end) for end in (False, True)]
        for stride in STRIDES:
            for start in (0, 1, 63, 64, size - 1, size, size + 1, sys.maxsize):
                if start < 0 or (size > GROUP and start > 1 and stride < 4096):
                    continue
                found = [_merkle.groups(view, start, stride, form) for view in views]
                assert found[0] == found[1]
                if start % 64 == stride % 64 == 0:  # the only ones that there are
                    assert found[0] == plain_groups(data, start, stride)
    for count in (0, 1, 2, 3, 127, 128, 255, 256):
        roots = NOISE[: count * 32]
        for end in (False, True):
            assert _merkle.join(walled(roots, at_end=end), form) == plain_join(roots)
    full = walled(NOISE[:64] * (1 << 16), at_end=True)
    assert len(_merkle.groups(full, 0, 64, form)) == 256 * 32


def refuse_trees() -> None:
    """What no sector can be."""
    for args in ((b"x", -1, 64), (b"x", 0, 63), (bytes((4 << 20) + 1), 0, 64), (b"x", 0, -64)):
        raises(ValueError, _merkle.groups, *args)
    for form in (-1, len(_merkle.FORMS), 1 << 30):
        raises(ValueError, _merkle.groups, b"x", 0, 64, form)
        raises(ValueError, _merkle.join, bytes(32), form)
    for roots in (bytes(31), bytes(33), bytes(257 * 32)):
        raises(ValueError, _merkle.join, roots)
    for wrong in (None, "text", 7, memoryview(b"abcd")[::2]):
        raises((TypeError, BufferError), _merkle.groups, wrong, 0, 64)  # type: ignore[arg-type]
        raises((TypeError, BufferError), _merkle.join, wrong)  # type: ignore[arg-type]
    raises(OverflowError, _merkle.groups, b"x", 1 << 70, 64)


def hash_at_once() -> None:
    """Threads, which run side by side."""
    expected = plain_groups(NOISE, 0, 64)
    wrong: list[bytes] = []

    def hash_often() -> None:
        found = [_merkle.groups(NOISE, 0, 64) for _ in range(50)]
        wrong.extend(one for one in found if one != expected)

    threads = [threading.Thread(target=hash_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def store_and_load(directory: Path) -> None:
    """Blocks of odd lengths and in odd places, with every size of a page and of a seal."""
    names = [os.fsencode(directory / name) for name in ("new", "block", "none", "sub/block")]
    new, path, none, below = names
    (directory / "dir").mkdir()
    in_the_way = os.fsencode(directory / "dir")
    for page in (4096, 8192, 65536):
        for length in (0, 1, block_format.SEAL, page):
            seal = NOISE[:1] * length
            for size in (0, 1, 4095, 4096, 4097, 65536):
                data = NOISE[: size % len(NOISE)]
                for end in (False, True):
                    view = walled(data, at_end=end)
                    stored = _pages.store(new, path, view, seal, page)
                    assert not os.path.exists(new)
                    if not stored:
                        continue
                    assert stored >= len(data) + page
                    assert os.path.getsize(path) == len(data) + page
                    into = walled(bytes(len(data)), at_end=end)
                    found = _pages.load(path, into, length, page, True)
                    assert found is False or (found == seal and into == data)
                    less = walled(bytes(max(0, len(data) - 1)), at_end=True)
                    if data:
                        assert _pages.load(path, less, length, page, False) is False
    for page, length in ((0, 0), (4095, 0), (65537, 0), (4096, 4097), (-1, 0), (4096, -1)):
        raises(ValueError, _pages.load, path, bytearray(1), length, page, True)
    for page in (0, 1, 4095, 65537, -4096):
        raises(ValueError, _pages.store, new, path, b"x", b"", page)
    raises(ValueError, _pages.store, new, path, b"x", bytes(4097), 4096)
    raises(OSError, _pages.store, below, path, mmap.mmap(-1, PAGE), b"", 4096)
    assert _pages.load(none, bytearray(1), 1, 4096, True) is None
    assert _pages.load(in_the_way, bytearray(1), 1, 4096, True) is False
    for wrong in (None, "text", b"read-only"):
        raises((TypeError, BufferError), _pages.load, path, wrong, 1, 4096, True)  # type: ignore[arg-type]
    raises(ValueError, _pages.load, b"a\0b", bytearray(1), 1, 4096, True)
    _fail_to_write(new, path, in_the_way)


def _fail_to_write(new: bytes, path: bytes, in_the_way: bytes) -> None:
    """A file system that refuses: what was begun is gone."""
    data = mmap.mmap(-1, 16 * PAGE)
    if _pages.store(new, path, data, b"", PAGE):  # else it has no way past the page cache
        raises(OSError, _pages.store, new, in_the_way, data, b"", PAGE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, PAGE, 4 * PAGE):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            assert not _pages.store(new, path, data, b"", PAGE)
        except OSError:
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not os.path.exists(new)


def main() -> None:
    """Drive the modules that are below a directory, and no others."""
    modules, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    for module in (_merkle, _pages):
        assert Path(str(module.__file__)).is_relative_to(modules), module.__file__
    for form in range(len(_merkle.FORMS)):
        hash_trees(form)
    refuse_trees()
    hash_at_once()
    store_and_load(scratch)


if __name__ == "__main__":
    main()

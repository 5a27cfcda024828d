"""Drives the C sources at the edges of what they are given: a program for `test_c_sources.py`.

Each buffer ends, or begins, where memory ends that may be touched. What a sanitizer or the kernel
finds ends the process; a wrong answer is an AssertionError.
"""

import ctypes
import mmap
import sys
import threading
from pathlib import Path

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


def main() -> None:
    """Drive the module below a directory, and no other."""
    assert Path(str(_merkle.__file__)).is_relative_to(sys.argv[1]), _merkle.__file__
    for form in range(len(_merkle.FORMS)):
        hash_trees(form)
    refuse_trees()
    hash_at_once()


if __name__ == "__main__":
    main()

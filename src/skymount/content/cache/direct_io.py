"""Owns the short way to store and to load a large block: sealed, and then in one call of _pages.c,
past the page cache, while other threads run. Each system call of Python's own would give the
interpreter up and have to wait for it again, which takes longer than the disk does while the event
loop is busy.

It is a short way only: where it could not be compiled, or anything is not as usual, it says so, and
`blockfile` does the same step by step. The files are the same.
"""

import mmap
import os

from skymount.content.cache import block_format

try:
    from skymount.content.cache import _pages
except ImportError:  # installed without a C compiler
    COMPILED = False
else:
    COMPILED = True
    """Whether there is a short way."""

PAGE = mmap.PAGESIZE

_LARGE = 256 << 10
"""Bytes of a block from which on the page cache is a burden."""


def fit(length: int) -> bool:
    """Whether a block of so many bytes of content is stored as pages: they and one for the seal."""
    return length >= _LARGE and length % PAGE == 0


def store(temporary: str, path: str, identity: bytes, data: bytes | memoryview) -> int:
    """Write a block that fits, first under another name; return the bytes that it takes on disk.

    0: it has to be done step by step, and nothing is left. OSError: the disk refuses.
    """
    if not COMPILED or not is_aligned(data):
        return 0
    seal = block_format.seal(identity, data)
    return _pages.store(os.fsencode(temporary), os.fsencode(path), data, seal, PAGE)


def load(path: str, identity: bytes, data: memoryview, *, touch: bool) -> bool | None:
    """Read a block that fits into memory for its content; None: there is no such file.

    False: whatever is there has to be looked at step by step. `touch` notes that it was used.
    """
    if not COMPILED:
        return False
    seal = _pages.load(os.fsencode(path), data, block_format.SEAL, PAGE, touch)
    return seal == block_format.seal(identity, data) if isinstance(seal, bytes) else seal


def is_aligned(data: bytes | memoryview) -> bool:
    """Whether memory begins at a page, as that of a map does."""
    owner = data.obj if isinstance(data, memoryview) else None
    return isinstance(owner, mmap.mmap) and len(owner) == len(data)

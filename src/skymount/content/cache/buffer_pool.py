"""Owns the memory that content is received into: page-aligned, and used again once nobody looks.

Aligned, because the kernel copies to and from pages, and some processors (AMD Zen) copy five times
more slowly when the destination lies a few bytes behind the source modulo a page, where the buffers
of Python's own types happen to lie. Used again, because fresh memory costs a page fault for each
4 KiB.
"""

import mmap
import sys
import threading

_KEPT = 16 << 20
"""Bytes of buffers that are kept for their next use. Those that are still looked at do not count:
they are somebody's memory all the same.
"""

_LEAST = 256 << 10
"""Bytes from which on a buffer has pages of its own."""

_REFERENCES = 2
"""What sys.getrefcount counts for an object that only one list holds."""


class BufferPool:
    """Hands out buffers, in any thread. Which ones nobody looks at any more, the interpreter itself
    knows.
    """

    def __init__(self) -> None:
        self._idle: list[mmap.mmap] = []  # what came back first is the first
        self._lock = threading.Lock()  # held for some microseconds, so that the loop may wait

    @property
    def idle(self) -> int:
        """Bytes that are kept for their next use, and that nobody looks at."""
        with self._lock:
            return self._unused()

    def take(self, size: int) -> memoryview:
        """Return a writable buffer of `size` bytes; what it holds is anything."""
        if size < _LEAST:
            return memoryview(bytearray(size))
        with self._lock:
            idle = self._idle
            for at in reversed(range(len(idle))):
                if len(idle[at]) == size and self._is_free(at):
                    return memoryview(idle.pop(at))
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def give_back(self, view: memoryview) -> None:
        """Take a buffer back from which nothing will be read any more, but where it is used now.

        It is not handed out again as long as any view of it exists. Those that wait for longest
        make room for it; odd sizes, of the ends of payloads, hardly come again and are not kept.
        """
        owner = view.obj
        if not isinstance(owner, mmap.mmap) or len(owner).bit_count() > 1 or len(owner) > _KEPT:
            return
        with self._lock:
            if any(each is owner for each in self._idle):
                return
            self._let_go(_KEPT - len(owner))
            self._idle.append(owner)

    def trim(self) -> None:
        """Free what is more than is kept: for who was the last to look at buffers given back."""
        with self._lock:
            self._let_go(_KEPT)

    def _let_go(self, limit: int) -> None:
        """Free those that wait for longest, until no more than so many bytes are kept."""
        held, at = self._unused(), 0
        while held > limit:
            if self._is_free(at):
                held -= len(self._idle.pop(at))
            else:
                at += 1

    def _unused(self) -> int:
        return sum(len(self._idle[at]) for at in range(len(self._idle)) if self._is_free(at))

    def _is_free(self, at: int) -> bool:
        """Whether nobody looks at one of those that came back."""
        return sys.getrefcount(self._idle[at]) == _REFERENCES

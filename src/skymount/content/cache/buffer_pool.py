"""Reusable, page-aligned memory that content is received into.

Buffers are aligned because some processors (AMD Zen) copy five times more slowly when the
destination lies a few bytes behind the source modulo a page, as it does with Python's own types.
They are reused because fresh memory costs a page fault for each 4 KiB.
"""

import mmap
import sys
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BufferPoolConfig:
    """Limits of a pool, in bytes."""

    max_idle: int = 16 << 20
    """Idle buffers kept for reuse. A buffer that still has views does not count: its memory is in
    use."""
    min_pooled: int = 256 << 10
    """Smaller buffers are plain bytearrays and are not reused."""


_UNREFERENCED = 2
"""What sys.getrefcount returns for an object that only one list holds."""


class BufferPool:
    """Hands out buffers, to any thread. A buffer is reusable once no view of it exists."""

    def __init__(self, config: BufferPoolConfig | None = None) -> None:
        self._config = config or BufferPoolConfig()
        self._returned: list[mmap.mmap] = []  # oldest first; some may still have views
        self._lock = threading.Lock()  # held for microseconds, so the event loop may wait for it

    @property
    def idle(self) -> int:
        """Bytes of buffers that are kept for reuse and have no views."""
        with self._lock:
            return self._idle_bytes()

    def take(self, size: int) -> memoryview:
        """Return a writable buffer of `size` bytes with arbitrary content."""
        if size < self._config.min_pooled:
            return memoryview(bytearray(size))
        with self._lock:
            for at in reversed(range(len(self._returned))):
                if len(self._returned[at]) == size and self._is_idle(at):
                    return memoryview(self._returned.pop(at))
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def give_back(self, view: memoryview) -> None:
        """Return a buffer. It is not handed out again while any view of it exists.

        The longest-idle buffers are freed to make room for it. Odd sizes, such as ends of payloads,
        hardly recur and are not kept.
        """
        owner, limit = view.obj, self._config.max_idle
        if not isinstance(owner, mmap.mmap) or len(owner).bit_count() > 1 or len(owner) > limit:
            return
        with self._lock:
            if any(each is owner for each in self._returned):
                return
            self._free_down_to(limit - len(owner))
            self._returned.append(owner)

    def trim(self) -> None:
        """Free what exceeds the limit. Call it after dropping the last view of returned buffers."""
        with self._lock:
            self._free_down_to(self._config.max_idle)

    def _free_down_to(self, limit: int) -> None:
        """Free the longest-idle buffers until at most `limit` idle bytes remain."""
        idle, at = self._idle_bytes(), 0
        while idle > limit:
            if self._is_idle(at):
                idle -= len(self._returned.pop(at))
            else:
                at += 1

    def _idle_bytes(self) -> int:
        returned = self._returned
        return sum(len(returned[at]) for at in range(len(returned)) if self._is_idle(at))

    def _is_idle(self, at: int) -> bool:
        return sys.getrefcount(self._returned[at]) == _UNREFERENCED

"""How the C library allocates large buffers, which decides what a long-running process occupies.

What threads take is decided here, too.

By default glibc takes buffers of up to 32 MiB from its heap once one of that size was freed. Many
buffers of many sizes leave holes there, and the heap grows to a multiple of what is in use.
"""

import trio

OWN_PAGES_FROM = 1 << 20
"""Bytes from which a buffer has pages of its own, which go back to the system when it is freed.
Smaller ones come from the heap, which is faster.
"""

_TRIM_AFTER = 64 << 20  # bytes that went through buffers before free memory is given back
_TRIM_FROM = 4 << 20  # bytes free at the end of the heap before they go back to the system

_ARENAS = 2  # heaps of all threads, each of which takes 64 MiB of addresses
_STACK = 1 << 20  # bytes of a thread's stack

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of <malloc.h>


def give_own_pages() -> bool:
    """Let large buffers have pages of their own in this process; False without glibc."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, OWN_PAGES_FROM) and mallopt(_M_TRIM_THRESHOLD, _TRIM_FROM)
    )


def limit_addresses() -> None:
    """Let the threads of this process take few addresses, as where RLIMIT_AS is small."""
    import ctypes
    import threading

    threading.stack_size(_STACK)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)


def return_free_memory() -> None:
    """Give free pages of the heap back to the system. Takes milliseconds; for a thread."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class BufferUse:
    """Gives memory back once many bytes went through buffers, and none of them is in use."""

    def __init__(self) -> None:
        self._in_use = 0
        self._size = 0

    def begin(self) -> None:
        self._in_use += 1

    async def end(self, size: int) -> None:
        """Take note that something ended whose buffers had so many bytes, one after the other."""
        self._in_use -= 1
        self._size += size
        if self._size >= _TRIM_AFTER and not self._in_use:
            self._size = 0
            await trio.to_thread.run_sync(return_free_memory)

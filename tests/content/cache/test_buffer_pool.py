"""Memory for content: at page boundaries, used again when nobody looks at it any more."""

import ctypes
import mmap
import threading

import pytest

from skymount.content.cache.buffer_pool import BufferPool

MIB = 1 << 20


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.parametrize("size", [256 << 10, MIB, MIB + 1, 40 * MIB])
def test_begins_at_a_page_boundary(size: int) -> None:
    """R5: copies of what is read in order are not slow."""
    memory = BufferPool().take(size)
    assert len(memory) == size
    assert address(memory) % mmap.PAGESIZE == 0


def test_used_again_when_the_last_view_is_gone() -> None:
    """R1: what somebody still reads stays as it is."""
    buffers = BufferPool()
    memory = buffers.take(MIB)
    where = address(memory)
    part = memory[10:20].toreadonly()
    buffers.give_back(memory)
    del memory
    other = buffers.take(MIB)
    assert address(other) != where
    buffers.give_back(part)
    del part
    assert address(buffers.take(MIB)) == where


def test_odd_sizes_do_not_displace_what_comes_again() -> None:
    """R4: what is kept for its next use has a bound, and goes by age; what hardly comes again is
    not kept.
    """
    buffers = BufferPool()
    for size in (MIB + 1, 32 * MIB):
        buffers.give_back(buffers.take(size))
    assert buffers.idle == 0
    old = [buffers.take(MIB) for _ in range(16)]
    while old:
        buffers.give_back(old.pop())
    assert buffers.idle == 16 * MIB
    new = [buffers.take(4 * MIB) for _ in range(3)]
    places = {address(memory) for memory in new}
    while new:
        buffers.give_back(new[-1])
        buffers.give_back(new.pop())  # twice is once
        assert buffers.idle == 16 * MIB
    assert {address(each) for each in [buffers.take(4 * MIB) for _ in range(3)]} == places


def test_what_is_looked_at_displaces_nothing() -> None:
    """R5: what waits to be written to disk is used again after that, however much it is."""
    buffers = BufferPool()
    buffers.give_back(buffers.take(MIB))
    queue = [buffers.take(MIB) for _ in range(40)]
    for memory in queue:
        buffers.give_back(memory)
    assert buffers.idle == 0
    places = {address(memory) for memory in queue}
    del queue, memory
    assert buffers.idle == 40 * MIB
    buffers.give_back(mine := buffers.take(MIB))
    assert buffers.idle == 15 * MIB
    assert address(mine) in places


def test_what_was_looked_at_is_freed_in_the_end() -> None:
    """Who looked at many of them last can have all but those that are kept freed."""
    buffers = BufferPool()
    views = [buffers.take(MIB) for _ in range(40)]
    for view in views:
        buffers.give_back(view)
    views.clear()
    del view
    buffers.trim()
    assert buffers.idle == 16 * MIB


def test_threads_never_share_memory() -> None:
    """R1: whichever thread takes it, and whichever gives it back."""
    buffers = BufferPool()
    mixed: list[int] = []

    def use(number: int) -> None:
        for turn in range(300):
            memory = buffers.take(MIB)
            mark = (number * 1000 + turn).to_bytes(4, "big")
            memory[:4] = mark
            again = buffers.take(MIB)
            again[:4] = bytes(4)
            if memory[:4] != mark:
                mixed.append(turn)
            buffers.give_back(again)
            buffers.give_back(memory)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed

"""While there is much to do others have their turns."""

import gc
import random
import threading
import weakref
from functools import partial

import pytest
import trio

from skymount.concurrency import TURN, copied, in_order, in_thread, in_turns, off_loop, run_all


async def turns_of_others(done: list[int], stop: trio.Event) -> None:
    """Count the turns that another task has."""
    while not stop.is_set():
        done[0] += 1
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("count", [0, 1, TURN, 5 * TURN + 1])
async def test_in_turns(count: int):
    """Everything comes, in order; others have a turn after every so much of it."""
    async with trio.open_nursery() as nursery:
        others, stop = [0], trio.Event()
        nursery.start_soon(turns_of_others, others, stop)
        assert [one async for one in in_turns(range(count))] == list(range(count))
        assert others[0] >= (count - 1) // TURN - 1  # whose turn is first, trio leaves to chance
        stop.set()


@pytest.mark.parametrize("count", [0, 1000, 30_000])
async def test_in_order(count: int):
    """Names are sorted; others have turns while they are many."""
    names = {random.Random(n).randbytes(8) for n in range(count)}
    async with trio.open_nursery() as nursery:
        others, stop = [0], trio.Event()
        nursery.start_soon(turns_of_others, others, stop)
        assert await in_order(names) == sorted(names)
        assert others[0] >= 60 or count <= 1000
        stop.set()


@pytest.mark.parametrize("size", [0, 1000, (5 << 20) + 1])
async def test_copied(size: int):
    """A copy has all bytes; others have turns while they are many."""
    data = random.Random(size).randbytes(size)
    async with trio.open_nursery() as nursery:
        others, stop = [0], trio.Event()
        nursery.start_soon(turns_of_others, others, stop)
        copy = await copied(data)
        assert isinstance(copy, bytearray)
        assert copy == data
        assert others[0] >= (size >> 20) - 1
        stop.set()


async def test_run_all():
    """Functions run at once; the first error cancels the others and comes without a group."""
    ended: list[str] = []

    async def sleep(seconds: float) -> None:
        try:
            await trio.sleep(seconds)
        finally:
            ended.append(f"{seconds} s")

    async def fail() -> None:
        raise ZeroDivisionError

    await run_all(lambda: sleep(0.01), lambda: sleep(0))
    assert ended == ["0 s", "0.01 s"]
    with pytest.raises(ZeroDivisionError):
        await run_all(lambda: sleep(60), fail)
    assert ended[2:] == ["60 s"]


class Held(bytearray):
    """What a function holds."""


async def test_run_all_lets_go():
    """What a function held that failed is freed with the error, not by a garbage collection."""
    held: list[weakref.ref[Held]] = []

    async def fail() -> None:
        mine = Held(8)
        held.append(weakref.ref(mine))
        raise ZeroDivisionError

    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError):
            await run_all(fail)
        assert held[0]() is None
    finally:
        gc.enable()


async def test_work_in_threads():
    """Little work is done at once, much of it in a thread."""
    here = threading.get_ident()
    work = partial(threading.get_ident)
    assert await off_loop(work, 100) == here
    assert await off_loop(work, 1 << 20) != here
    assert await off_loop(work) != here
    assert await in_thread(threading.get_ident) != here


async def test_cancelled_work_is_left_behind():
    """A caller that is cancelled does not wait for CPU-bound work; its result is dropped."""
    go_on = threading.Event()
    with trio.move_on_after(0.01) as scope:
        await off_loop(partial(go_on.wait, 60))
    go_on.set()
    assert scope.cancelled_caught

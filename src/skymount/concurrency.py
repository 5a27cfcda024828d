"""Keeps the event loop responsive: long loops that yield to it, and work in threads."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from heapq import merge
from mmap import mmap
from typing import TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
_Args = TypeVarTuple("_Args")

TURN = 512
"""Items handled between two checkpoints; each takes some microseconds."""

_COPY_CHUNK = 1 << 20  # bytes copied between two checkpoints: half a millisecond
_SORT_CHUNK = 4096  # names sorted between two checkpoints: a millisecond

_CPU_THREADS = os.cpu_count() or 1
"""Threads for CPU-bound work. trio's default limiter is not used: name look-ups share it and can
block it for long.
"""

_INLINE_LIMIT = 16 << 10
"""Bytes that are hashed or parsed without a thread. They take at most a millisecond, which is about
what starting a thread takes.
"""

_cpu_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("cpu_limiter")


async def off_loop(work: partial[T], size: int = _INLINE_LIMIT + 1) -> T:
    """Run CPU-bound work on `size` bytes in a thread, or at once if they are few.

    A caller that is cancelled does not wait for the thread.
    """
    if size <= _INLINE_LIMIT:
        return work()
    try:
        limiter = _cpu_limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_CPU_THREADS)
        _cpu_limiter.set(limiter)
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)


async def in_thread(work: Callable[[], T]) -> T:
    """Run work in a thread that releases the GIL, such as a large copy. Never waits for a thread,
    and waits for the work to end even if cancelled.
    """
    return await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))


async def in_one_of(
    threads: trio.CapacityLimiter, patience: float, work: Callable[[*_Args], T], *args: *_Args
) -> T:
    """Run work in one of so many threads; trio.TooSlowError if none is free within `patience`
    seconds. Waits for the work to end even if cancelled.
    """
    request = object()  # one task may have several
    with trio.fail_after(patience):
        await threads.acquire_on_behalf_of(request)
    try:
        return await trio.to_thread.run_sync(work, *args, limiter=trio.CapacityLimiter(1))
    finally:
        threads.release_on_behalf_of(request)


async def in_turns(things: Sequence[T]) -> AsyncIterator[T]:
    """Yield things, with a checkpoint after each `TURN` of them."""
    for number, thing in enumerate(things):
        if number and not number % TURN:
            await trio.lowlevel.checkpoint()
        yield thing


async def in_order(names: Iterable[bytes]) -> list[bytes]:
    """Return names sorted, with checkpoints between."""
    found = list(names)
    if len(found) <= _SORT_CHUNK:
        return sorted(found)
    pieces: list[list[bytes]] = []
    for at in range(0, len(found), _SORT_CHUNK):
        pieces.append(sorted(found[at : at + _SORT_CHUNK]))
        await trio.lowlevel.checkpoint()
    ordered: list[bytes] = []
    for name in merge(*pieces):
        ordered.append(name)
        if len(ordered) % TURN == 0:
            await trio.lowlevel.checkpoint()
    return ordered


async def copied(data: bytes | bytearray | mmap) -> bytearray:
    """Return a mutable copy, made with checkpoints between; the data must not change meanwhile."""
    copy = bytearray(data[:_COPY_CHUNK])
    for at in range(_COPY_CHUNK, len(data), _COPY_CHUNK):
        await trio.lowlevel.checkpoint()
        copy += data[at : at + _COPY_CHUNK]
    return copy


async def run_all(*functions: Callable[[], Awaitable[None]]) -> None:
    """Run functions at once. The first exception cancels the others and is raised, not a group."""
    failure: Exception | None = None

    async def run(function: Callable[[], Awaitable[None]]) -> None:
        nonlocal failure
        try:
            await function()
        except Exception as error:  # noqa: BLE001 - raised again below
            failure = failure or error
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(run, function)
    try:
        if failure is not None:
            raise failure
    finally:
        failure = None  # it refers to the frame that refers to this: nothing would be freed soon

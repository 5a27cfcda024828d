"""Owns how the event loop gets its turn while there is much to do that has to be done on it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from heapq import merge
from mmap import mmap
from typing import TypeVar

import trio

T = TypeVar("T")

TURN = 512
"""Things that are done in one go; each takes some microseconds."""

_COPIED = 1 << 20  # bytes that are copied in one go: half a millisecond
_SORTED = 4096  # names that are sorted in one go: a millisecond


async def in_turns(things: Sequence[T], turn: int = TURN) -> AsyncIterator[T]:
    """Yield things; after every so many everybody else has a turn."""
    for at in range(0, len(things), turn):
        if at:
            await trio.lowlevel.checkpoint()
        for thing in things[at : at + turn]:
            yield thing


async def in_order(names: Iterable[bytes]) -> list[bytes]:
    """Return names sorted."""
    found = list(names)
    if len(found) <= _SORTED:
        return sorted(found)
    pieces: list[list[bytes]] = []
    for at in range(0, len(found), _SORTED):
        pieces.append(sorted(found[at : at + _SORTED]))
        await trio.lowlevel.checkpoint()
    ordered: list[bytes] = []
    for name in merge(*pieces):
        ordered.append(name)
        if len(ordered) % TURN == 0:
            await trio.lowlevel.checkpoint()
    return ordered


async def copied(data: bytes | bytearray | mmap) -> bytearray:
    """Return a copy, which can be changed, of what does not change meanwhile."""
    copy = bytearray(data[:_COPIED])
    for at in range(_COPIED, len(data), _COPIED):
        await trio.lowlevel.checkpoint()
        copy += data[at : at + _COPIED]
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
    if failure is not None:
        raise failure

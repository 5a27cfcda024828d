"""Hashes chunks while they arrive: in threads, while the next parts are received.

The caller compares the hashes. So a chunk can be used soon after its last byte.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import trio

from skymount.concurrency import off_loop
from skymount.errors import PortalError
from skymount.wire import base_sector
from skymount.wire.base_sector import Layout

Hashes = Sequence[tuple[bytes, ...]]
"""Of the parts of one chunk, by `base_sector.hash_part`."""

Receive = Callable[[Sequence[memoryview]], AsyncGenerator[int, None]]
"""Fills buffers in order, and yields the number of each when it is filled."""


async def receive_chunks(
    layout: Layout,
    size: int,
    views: Sequence[memoryview],
    receive: Receive,
    check: Callable[[int, Hashes], None],
) -> None:
    """Receive chunks into a buffer each; call `check` with the number and hashes of each, in order.

    `size` are the bytes of a part: a whole chunk, or `base_sector.part_size` if somebody waits. A
    PortalError of `check` ends it at once; one of `receive` is raised after what was received is
    checked.
    """
    parts = [
        (number, at // size, view[at : at + size])
        for number, view in enumerate(views)
        for at in range(0, len(view), size)
    ]
    unhashed = [-(-len(view) // size) for view in views]
    hashes: list[list[tuple[bytes, ...]]] = [[()] * count for count in unhashed]
    checked = 0
    failures: list[PortalError] = []

    async def hash_part(number: int, at: int, part: memoryview) -> None:
        nonlocal checked
        hashes[number][at] = await off_loop(partial(base_sector.hash_part, layout, part))
        unhashed[number] -= 1
        try:
            while checked < len(views) and not unhashed[checked]:
                check(checked, hashes[checked])
                checked += 1
        except PortalError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        try:
            async with aclosing(receive([part for *_, part in parts])) as filled:
                async for number in filled:
                    nursery.start_soon(hash_part, *parts[number])
        except PortalError as error:
            failures.append(error)
    if failures:
        raise failures[0]

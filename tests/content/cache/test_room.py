"""Room for content in flight: in turn, and no more than there is."""

import trio
import trio.testing

from skymount.content.cache.room import Room


async def test_who_waits_first_has_room_first():
    """R2: One who needs more than all gets its turn, however many small ones come after it."""
    room = Room(30)
    turns: list[int] = []

    async def wait(size: int) -> None:
        await room.reserve(size)
        turns.append(size)

    await room.reserve(20)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 40)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert turns == []
        assert not room.try_reserve(1)
        room.release(20)
        await trio.testing.wait_all_tasks_blocked()
        assert turns == [40]
        room.release(40)
    assert turns == [40, 1]
    assert room.try_reserve(29)


async def test_who_gives_up_lets_the_next_one_go():
    """R3: One who no longer waits is in nobody's way."""
    room = Room(30)
    await room.reserve(20)
    async with trio.open_nursery() as nursery:
        impatient = await nursery.start(_reserve_in_scope, room, 40)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(room.reserve, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert room.reserved == 20
        impatient.cancel()
    assert room.reserved == 30


async def _reserve_in_scope(
    room: Room, size: int, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await room.reserve(size)


def test_room_that_is_there_at_once():
    """Without waiting there is what is left, or anything if nothing is reserved."""
    room = Room(30)
    assert room.try_reserve(40)
    assert not room.try_reserve(1)
    room.release(40)
    assert not room.try_reserve(31, 30)
    assert room.try_reserve(20, 20)
    assert not room.try_reserve(1, 20)
    assert room.try_reserve(10)
    assert room.reserved == 30

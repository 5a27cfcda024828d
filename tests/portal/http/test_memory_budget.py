"""What is on its way to describe content has a bound, and nobody waits for long because of others.

A portal is a coroutine here that receives by `take`, as `transport` and `connection` do.
"""

import gc
import math
import weakref
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from skymount.errors import NotFoundError, PortalTimeoutError
from skymount.portal.http.memory_budget import FREE, TURN, MemoryBudget, NoRoomError, take

MIB = 1 << 20
STEP = 1 * MIB

Ask = Callable[[], Awaitable[str]]


class Portal:
    """What comes from a portal: so many bytes, a step each so many seconds."""

    def __init__(self, size: int, pause: float = 0.01) -> None:
        self.size = size
        self.pause = pause
        self.attempts = 0
        self.held = 0

    async def ask(self) -> str:
        """Receive all of it."""
        self.attempts += 1
        self.held = 0
        try:
            while self.held < self.size:
                await trio.sleep(self.pause)
                take(min(STEP, self.size - self.held))
                self.held += STEP
            await trio.sleep(self.pause)
            return "here"
        finally:
            self.held = 0


async def test_up_to_the_bound(autojump_clock: trio.testing.MockClock):
    """S11: What fits is received side by side, each once."""
    budget = MemoryBudget(128 * MIB)
    portals = [Portal(12 * MIB) for _ in range(10)]
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for each in portals:
            nursery.start_soon(budget.run, each.ask)
    assert [each.attempts for each in portals] == [1] * 10
    assert trio.current_time() - begun < 1
    assert budget.used == 0


@pytest.mark.parametrize(("count", "size"), [(40, 100), (40, 5), (8, 64), (3, 256)])
async def test_beyond_the_bound(autojump_clock: trio.testing.MockClock, count: int, size: int):
    """S11: All arrive, however many there are; never more than the bound and one more is held."""
    budget = MemoryBudget(128 * MIB)
    portals = [Portal(size * MIB) for _ in range(count)]
    found: list[str] = []

    async def run(each: Portal) -> None:
        found.append(await budget.run(each.ask))

    async with trio.open_nursery() as nursery:
        for each in portals:
            nursery.start_soon(run, each)
        while len(found) < count:
            held = sorted(each.held for each in portals)
            assert sum(held[:-1]) <= 128 * MIB + count * (FREE + STEP)
            await trio.sleep(0.05)
    assert found == ["here"] * count
    assert all(each.attempts <= 2 for each in portals)
    assert budget.used == 0


class Received(bytearray):
    """What a lookup has received."""


async def test_who_waits_holds_nothing(autojump_clock: trio.testing.MockClock):
    """S11: A lookup that waits for its turn has let go of all that it received."""
    budget = MemoryBudget(2 * MIB)
    held: list[weakref.ref[Received]] = []

    async def ask() -> str:
        received = Received(8)
        held.append(weakref.ref(received))
        take(4 * MIB)
        await trio.sleep(1)
        return f"{len(received)} bytes"

    def alive() -> int:
        return sum(each() is not None for each in held)

    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(budget.run, ask)
            await trio.sleep(0.5)
            assert len(held) == 3
            assert alive() == 1  # whoever has the turn
    finally:
        gc.enable()


async def test_larger_than_all_and_alone():
    """S11: What is larger than the bound is received at once when nobody else is in its way."""
    budget = MemoryBudget(8 * MIB)
    portal = Portal(100 * MIB, 0)
    assert await budget.run(portal.ask) == "here"
    assert portal.attempts == 1


async def test_slow_ones_hold_nobody_up(autojump_clock: trio.testing.MockClock):
    """S11: Those that fill the room and then drip keep others waiting for one turn at most."""
    budget = MemoryBudget(16 * MIB)
    slow = [Portal(1000 * MIB, 5.0) for _ in range(8)]
    honest = Portal(2 * MIB)
    async with trio.open_nursery() as nursery:
        for each in slow:
            nursery.start_soon(_ignoring_timeouts, budget, each.ask)
        await trio.sleep(8.0)
        for _ in range(20):
            begun = trio.current_time()
            assert await budget.run(honest.ask) == "here"
            assert trio.current_time() - begun < 2 * TURN * (len(slow) + 1)
            await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert budget.used == 0


async def _ignoring_timeouts(budget: MemoryBudget, ask: Ask) -> None:
    while True:
        try:
            await budget.run(ask)
        except PortalTimeoutError:
            await trio.sleep(0.1)


async def test_slow_turn(autojump_clock: trio.testing.MockClock):
    """S11: A turn ends after 10 s when others wait, and goes on as long as nobody does."""
    budget = MemoryBudget(2 * MIB)
    assert await budget.run(Portal(100 * MIB, 1.0).ask) == "here"
    ends: list[float] = []

    async def slow() -> None:
        with pytest.raises(PortalTimeoutError, match="others wait"):
            await budget.run(Portal(100 * MIB, 1.0).ask)
        ends.append(trio.current_time())

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow)
        await trio.sleep(5)
        assert await budget.run(Portal(20 * MIB).ask) == "here"
    assert TURN <= ends[0] - begun <= TURN + 5
    assert budget.used == 0


async def _stalling(dripped: float) -> str:
    """Receive what is beyond any bound for a while, and then nothing."""
    take(100 * MIB)
    with trio.move_on_after(dripped):
        while True:
            await trio.sleep(1.0)
            take(STEP)
    await trio.sleep_forever()
    return "never"


@pytest.mark.parametrize("waits_from", [0.5, 9.5, 30.0])
@pytest.mark.parametrize("dripped", [0, 8, 100])
async def test_turn_that_stalls(
    autojump_clock: trio.testing.MockClock, waits_from: float, dripped: float
):
    """S11: A turn that others wait for ends after 10 s when nothing more comes, too."""
    budget = MemoryBudget(2 * MIB)
    ends: list[float] = []
    begun = trio.current_time()

    async def slow() -> None:
        with pytest.raises(PortalTimeoutError, match="others wait"):
            await budget.run(partial(_stalling, dripped))
        ends.append(trio.current_time() - begun)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow)
        await trio.sleep(waits_from)
        assert await budget.run(Portal(5 * MIB).ask) == "here"
    assert ends == [pytest.approx(max(TURN, waits_from), abs=0.1)]
    assert budget.used == 0


async def test_turns_that_stall_one_after_another(autojump_clock: trio.testing.MockClock):
    """S11: Who waits already when a turn begins bounds that one as well."""
    budget = MemoryBudget(2 * MIB)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(_ignoring_one_timeout, budget, partial(_stalling, 0))
            await trio.sleep(0.1)
        assert await budget.run(Portal(5 * MIB).ask) == "here"
    assert trio.current_time() - begun == pytest.approx(3 * TURN, abs=0.5)


async def _ignoring_one_timeout(budget: MemoryBudget, ask: Ask) -> None:
    with pytest.raises(PortalTimeoutError):
        await budget.run(ask)


async def test_who_waited_and_gave_up(autojump_clock: trio.testing.MockClock):
    """S11: A turn goes on when nobody waits any more."""
    budget = MemoryBudget(2 * MIB)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(5):
            nursery.start_soon(budget.run, Portal(100 * MIB, 1.0).ask)
            await trio.sleep(1)
            await budget.run(Portal(5 * MIB).ask)
        await trio.sleep(50)
        assert budget.used == 0
        assert await budget.run(Portal(1 * MIB).ask) == "here"


async def test_small_ones_always_have_room():
    """S11: What most descriptions need is never in question."""
    budget = MemoryBudget(0)
    for _ in range(100):
        assert await budget.run(Portal(FREE, 0).ask) == "here"


async def test_failures_and_cancellation(autojump_clock: trio.testing.MockClock):
    """However it ends, nothing stays counted, and the turn is free."""
    budget = MemoryBudget(2 * MIB)

    async def failing() -> str:
        take(10 * MIB)
        raise NotFoundError("no")

    for _ in range(2):
        with pytest.raises(NotFoundError):
            await budget.run(failing)
        with trio.move_on_after(1):
            await budget.run(Portal(10 * MIB, math.inf).ask)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(budget.run, Portal(10 * MIB, 1.0).ask)
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    assert budget.used == 0
    assert await budget.run(Portal(10 * MIB).ask) == "here"


def test_nothing_else_is_counted():
    """What is not for a description has bounds of its own."""
    budget = MemoryBudget(MIB)
    take(1 << 40)
    assert budget.used == 0


async def test_no_room_within_a_turn(autojump_clock: trio.testing.MockClock):
    """What finds no room says so, for `run` to know: no portal is to blame."""
    budget = MemoryBudget(MIB)
    errors: list[NoRoomError] = []

    async def ask() -> str:
        try:
            take(4 * MIB)
        except NoRoomError as error:
            errors.append(error)
            raise
        return "here"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.run, Portal(4 * MIB).ask)
        await trio.sleep(0.025)
        nursery.start_soon(budget.run, ask)
    assert len(errors) == 1

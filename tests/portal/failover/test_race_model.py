"""Races over portals that do as they like, under a virtual clock, against what users are promised.

The model knows what the portals do and the bounds, and nothing of how health is kept.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import hypothesis.strategies as st
import trio
import trio.testing
from hypothesis import given, settings

from skymount.errors import (
    DisprovedError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.portal.failover.race import Race, enough
from skymount.portal.http.request_watch import current

IDLE = 10.0  # seconds after which a request to a silent portal fails
QUICK = 0.05  # seconds that a portal takes which works
FIRST = 2.3  # seconds that the first operation may take which meets a portal that fails
LATER = 0.4  # and later ones
RETURN = 5.0  # seconds that the only portal may take to be used again
RECOVERY = 61.0  # seconds within which a portal that works again is used

BEHAVIOURS = ("works", "slow", "silent", "refuses connections", "503", "lies", "has nothing")


@dataclass(eq=False)
class Portal:
    """A portal that answers by its behaviour; what it was asked is counted."""

    url: str
    behaviour: str = "works"
    asked: int = 0
    under_way: int = 0

    @property
    def http(self) -> "Portal":
        return self

    async def is_alive(self, on_connected: Callable[[], None] = lambda: None) -> bool:
        on_connected()
        if self.behaviour == "silent":
            await trio.sleep(IDLE)
        await trio.sleep(QUICK)
        return self.behaviour not in ("silent", "refuses connections")

    async def answer(self) -> str:
        self.asked += 1
        self.under_way += 1
        watch, request = current(), object()
        try:
            if watch is not None and self.behaviour != "refuses connections":
                watch.sent(request, trio.current_time())
            found = await self._answer()
            if watch is not None:
                watch.head_came(request, trio.current_time())
            return found
        finally:
            if watch is not None:
                watch.request_ended(request)
            self.under_way -= 1

    async def _answer(self) -> str:
        match self.behaviour:
            case "silent":
                await trio.sleep(IDLE)
                raise PortalTimeoutError("no answer in time", url=self.url)
            case "refuses connections":
                await trio.lowlevel.checkpoint()
                error = UnavailableError("cannot be reached", url=self.url)
                error.unreached = 0.0
                raise error
            case "slow":
                await trio.sleep(4.0)
            case _:
                await trio.sleep(QUICK)
        if self.behaviour == "503":
            raise UnavailableError("busy", status=503, url=self.url)
        if self.behaviour == "lies":
            raise DisprovedError("not the content", url=self.url)
        if self.behaviour == "has nothing":
            raise NotFoundError("not here", url=self.url)
        return self.url


@dataclass
class World:
    """Some portals, and operations on them."""

    fakes: list[Portal]
    portals: Portals
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The behaviours that each kind of operation has met last."""
    changed_at: float = -math.inf
    stood_still: float = 0.0
    """Seconds in which the program was suspended, which are nobody's fault."""

    def works(self) -> list[Portal]:
        return [each for each in self.fakes if each.behaviour == "works"]

    async def run(self, kind: str, patience: float = math.inf) -> None:
        """Make an operation; check its result, and how long it took."""
        works, behaviours = self.works(), tuple(each.behaviour for each in self.fakes)
        limit = LATER if self.known.get(kind) == behaviours else FIRST
        begun, result, still = trio.current_time(), "", self.stood_still
        failure: PortalError | None = None
        with trio.move_on_after(patience) as scope:
            try:
                with trio.fail_after(100):
                    result = await self._ask(kind)
            except PortalError as error:
                failure = error
        took = trio.current_time() - begun - (self.stood_still - still)
        if scope.cancelled_caught:
            return
        if isinstance(failure, NotFoundError):
            assert set(behaviours) == {"has nothing"}
        is_back = len(behaviours) == 1 and begun < self.changed_at + RETURN
        if works and not (failure and is_back):
            assert result, (kind, behaviours, failure)
            assert took <= limit, (kind, behaviours, took)
        self.known[kind] = behaviours

    async def _ask(self, kind: str) -> str:
        async def ask(client: PortalReader) -> str:
            return await cast(Any, client).answer()

        if kind == "first":
            return await self.portals.first(ask, probe=ask)
        if kind == "all":
            return (await self.portals.poll(ask))[0]
        race = Race(self.portals, ask, enough(1), is_late=_is_late, on_late=_forget)
        await race.run()
        race.handled.set()
        if not race.answers:
            raise race.error
        return next(iter(race.answers.values()))


def _is_late(runner: Any, now: float) -> bool:
    return bool(now - runner.begun >= runner.turn.health.hedge_delay)


async def _forget(client: PortalReader, result: object) -> None:
    await trio.lowlevel.checkpoint()


Step = Callable[[World], Awaitable[None]]


async def _becomes(place: int, behaviour: str, world: World) -> None:
    fake = world.fakes[place % len(world.fakes)]
    if fake.behaviour != behaviour:
        fake.behaviour = behaviour
        world.known.clear()
        world.changed_at = trio.current_time()
    await trio.lowlevel.checkpoint()


async def _ask(kind: str, times: int, world: World) -> None:
    for _ in range(times):
        await world.run(kind)


async def _give_up(kind: str, patience: float, world: World) -> None:
    await world.run(kind, patience)


async def _at_once(kind: str, count: int, world: World) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(world.run, kind)


async def _stand_still(kind: str, seconds: float, world: World) -> None:
    """Suspend the program while an operation is under way: that makes no portal late."""
    clock = cast(trio.testing.MockClock, trio.lowlevel.current_clock())
    lost = [each.hedges_lost for each in world.portals.figures()]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run, kind)
        await trio.sleep(QUICK / 2)
        world.stood_still += seconds
        clock.jump(seconds)
    if len(world.works()) == len(world.fakes):
        assert [each.hedges_lost for each in world.portals.figures()] == lost


async def _sleep(seconds: float, world: World) -> None:
    await trio.sleep(seconds)


_kinds = st.sampled_from(["first", "all", "enough"])
_steps = st.one_of(
    st.builds(
        lambda place, behaviour: partial(_becomes, place, behaviour),
        st.integers(0, 2),
        st.sampled_from(BEHAVIOURS),
    ),
    st.builds(lambda kind, times: partial(_ask, kind, times), _kinds, st.integers(1, 4)),
    st.builds(
        lambda kind, patience: partial(_give_up, kind, patience), _kinds, st.floats(0.01, 5.0)
    ),
    st.builds(lambda kind, count: partial(_at_once, kind, count), _kinds, st.integers(2, 6)),
    st.builds(
        lambda kind, seconds: partial(_stand_still, kind, seconds), _kinds, st.floats(0.5, 30.0)
    ),
    st.builds(lambda seconds: partial(_sleep, seconds), st.floats(0.01, 90.0)),
)


@settings(derandomize=True, database=None, max_examples=100, deadline=None)
@given(count=st.integers(1, 3), steps=st.lists(_steps, max_size=20))
def test_any_sequence(count: int, steps: list[Step]):
    """R10 to R12: the first good answer wins, and nobody waits twice for the same fault."""

    async def main() -> None:
        fakes = [Portal(f"http://p{place}.invalid") for place in range(count)]
        async with trio.open_nursery() as background:
            clients = [cast(PortalReader, each) for each in fakes]
            world = World(fakes, Portals(clients, background=background))
            for step in steps:
                await step(world)
            hedges = sum(each.hedges for each in world.portals.figures())
            asked = sum(each.asked for each in fakes)
            assert hedges <= 8 + asked / 10
            for fake in fakes:
                fake.behaviour = "works"
            await trio.sleep(RECOVERY)
            await world.run("first")
            await trio.sleep(1)
            before = [each.asked for each in fakes]
            await world.run("first")
            preferred = world.portals.ranked()[0]
            assert fakes[clients.index(preferred)].asked > before[clients.index(preferred)]
            background.cancel_scope.cancel()
        assert [each.under_way for each in fakes] == [0] * count

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

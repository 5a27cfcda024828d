"""Several portals of which one is silent, slow or broken: the others answer soon. Real sockets.

The clock also jumps when a busy machine holds up what was sent, so the times have room for that.
"""

import pytest
import trio
import trio.testing

from skymount.errors import DisprovedError, NotFoundError, UnavailableError
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.health import Rank, State
from tests.fakes import portal as fake
from tests.portal.failover.nets import (
    ABSENT,
    BROKEN,
    FIRST,
    LARGE,
    LATER,
    SMALL,
    net,
    seconds,
    small,
)


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_first_portal(name: str, clock: trio.testing.MockClock):
    """R11: the second one answers; the first operation is late once, later ones are not."""
    skylink = (LARGE if "body" in name or "KB" in name else SMALL).skylink
    async with net(BROKEN[name], None) as made:
        assert await seconds(lambda: made.base_sector(skylink)) < FIRST
        took = 0.0
        for _ in range(10):
            took += await seconds(lambda: made.base_sector(skylink))
            await trio.sleep(1)
        assert took < 10 * LATER
        assert 1 <= made.figures(0).hedges_lost <= 3
        assert 1 <= made.figures(1).hedges <= 3


async def test_several_wait_for_the_same_silent_portal(clock: trio.testing.MockClock):
    """R11: those that wait for a connection to it are not left behind."""
    async with net(fake.stalls_after(-1), None, connections=4) as made:
        found: list[float] = []

        async def one() -> None:
            found.append(await seconds(made.base_sector))

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(one)
        assert max(found) < FIRST
        assert 1 <= made.figures(1).hedges <= 8


async def test_time_in_which_nothing_runs(clock: trio.testing.MockClock):
    """R11: a portal is not late because this program stood still."""
    async with net(fake.waits(0.5), None) as made:
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(made.base_sector)
                await trio.sleep(0.25)
                clock.jump(10)
        assert made.figures(0).failure_rate == 0
        assert made.figures(1).hedges == 0


async def test_silent_portal_after_time_in_which_nothing_runs(clock: trio.testing.MockClock):
    """R11: only that time does not count."""
    async with net(fake.stalls_after(-1), None) as made, trio.open_nursery() as nursery:
        nursery.start_soon(made.base_sector)
        await trio.sleep(0.25)
        clock.jump(5)
        assert await seconds(made.base_sector) < FIRST


async def test_hedges_are_few(clock: trio.testing.MockClock):
    """R11: at most a tenth of the requests beyond a burst of eight is sent twice."""
    async with net(None, None) as made:
        count = 25
        for portal in made.fakes:
            portal.fault(fake.waits(2.5))
        for _ in range(count):
            await made.portals.first(small)
        hedges = sum(each.hedges for each in made.portals.figures())
        assert 5 <= hedges <= 8 + count // 10
        assert sum(len(portal.requests) for portal in made.fakes) == count + hedges


async def test_cancelled_requests_leave_nothing_behind(clock: trio.testing.MockClock):
    """R11: the connection of a request that lost is closed, and its place is free again."""
    async with net(fake.stalls_after(-1), None, connections=2) as made:
        silent, client = made.fakes[0], made.portals.clients[0]
        for _ in range(4):
            await made.base_sector()
            await trio.sleep(1.5)
        silent.heal()
        with trio.fail_after(30):
            while silent.connections > 1:  # of a probe
                await trio.sleep(0.1)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(client.base_sector, SMALL.skylink)
        assert silent.connections <= 2


async def test_one_portal_is_asked_once(clock: trio.testing.MockClock):
    """R11: with one portal alone there is nothing to hedge with."""
    async with net(fake.waits(3.0)) as made:
        for _ in range(3):
            assert await seconds(made.base_sector) == pytest.approx(3.0, abs=1.0)
        assert len(made.fakes[0].requests) == 3
        assert made.figures(0).latency == pytest.approx(3.0, abs=1.0)


async def test_no_hedge_for_what_must_not_be_sent_twice(clock: trio.testing.MockClock):
    """R11: the second portal is asked only when the first one failed."""
    async with net(fake.waits(3.0), None) as made:
        assert await seconds(lambda: made.portals.first(small, hedged=False)) > 2.9
        assert not made.fakes[1].requests


async def test_both_are_slow(clock: trio.testing.MockClock):
    """R11: the first good answer counts, whoever sends it."""
    async with net(fake.waits(4.0), fake.waits(4.0)) as made:
        assert await seconds(made.base_sector) == pytest.approx(4.0, abs=0.9)
        assert len(made.fakes[1].requests) == 1


# --- the healthy portal does not have it


@pytest.mark.parametrize("wait", [0, 3])
@pytest.mark.parametrize("failure", [fake.status(503), fake.resets_after(-1)])
async def test_the_other_portal_ends_when_the_silent_one_is_back(
    clock: trio.testing.MockClock, failure: fake.Fault, wait: float
):
    """R12: a silent one is asked for a sign of life if no portal has an answer, and tried again 2 s
    after its last failure.
    """
    async with net(fake.stalls_after(-1), None) as made:
        health = made.portals.health(made.portals.clients[0])
        while health.state(trio.current_time() + 20) is not State.OPEN:
            await made.base_sector()
            await trio.sleep(1)
        assert health.is_known_silent
        made.fakes[0].heal()
        made.fakes[1].fault(failure)
        await trio.sleep(wait)
        for _ in range(3):
            await made.base_sector()


async def test_the_other_portal_ends_while_the_silent_one_is_silent(clock: trio.testing.MockClock):
    """R12: the wait for a sign of life is a short one."""
    async with net(fake.stalls_after(-1), None) as made:
        while not made.portals.health(made.portals.clients[0]).is_known_silent:
            await made.base_sector()
            await trio.sleep(1)
        made.fakes[1].fault(fake.status(503))
        for _ in range(3):
            with trio.fail_after(15), pytest.raises(UnavailableError):
                await made.base_sector()


async def test_silent_portal_and_one_that_has_nothing(clock: trio.testing.MockClock):
    """R12, L4: that is no «not found», and known after two seconds, then at once."""
    async with net(fake.stalls_after(-1), None) as made:

        async def ask_all() -> None:
            for _ in range(3):
                with pytest.raises(UnavailableError):
                    await made.base_sector(ABSENT.skylink)

        assert await seconds(ask_all) < 5.0
        assert await seconds(made.base_sector) < LATER


async def test_slow_portal_and_one_that_has_nothing(clock: trio.testing.MockClock):
    """R12: a portal that gives signs of life is waited for."""
    async with net(fake.waits(4.0), None, pattern="basesector") as made:
        made.fakes[0].add(ABSENT)
        for _ in range(3):
            assert await made.base_sector(ABSENT.skylink) == ABSENT.base


@pytest.mark.parametrize("connections", [2, 8])
async def test_slow_portal_without_a_free_connection(
    clock: trio.testing.MockClock, connections: int
):
    """R12: it is waited for, however many requests wait for a connection to it."""
    slow, broken = fake.waits(4.0), fake.status(503)
    async with net(slow, broken, pattern="basesector", connections=connections) as made:
        found: list[bytes] = []

        async def one() -> None:
            found.append(await made.base_sector())

        async with trio.open_nursery() as nursery:
            for _ in range(2 * connections):
                nursery.start_soon(one)
        assert found == [SMALL.base] * 2 * connections


async def test_silent_portal_without_a_free_connection(clock: trio.testing.MockClock):
    """R12: it is left as soon as without: it is asked for a sign of life beside all requests."""
    async with net(fake.stalls_after(-1), None, connections=3) as made:

        async def one() -> None:
            with pytest.raises(UnavailableError):
                await made.base_sector(ABSENT.skylink)

        async def all_at_once() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(9):
                    nursery.start_soon(one)

        assert await seconds(all_at_once) < 4.0


@pytest.mark.parametrize("is_silent", [False, True])
async def test_signs_of_life_of_a_portal_without_a_free_connection(
    clock: trio.testing.MockClock, is_silent: bool
):
    """R13: A portal that is asked for a sign of life gives one unless it is silent."""
    fault, pattern = (fake.stalls_after(-1), "") if is_silent else (fake.waits(5), "basesector")
    async with net(fault, pattern=pattern, connections=2) as made, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(made.base_sector)
        await trio.sleep(3)
        asked = trio.current_time()
        assert not made.portals.may_answer(0)
        with trio.move_on_after(1) as scope:
            await made.portals.ask_for_signs()
        assert scope.cancelled_caught == is_silent
        assert made.portals.may_answer(asked) != is_silent
        nursery.cancel_scope.cancel()


async def test_all_say_not_found(clock: trio.testing.MockClock):
    """L4: also if one of them takes its time."""
    async with net(fake.waits(1.5), None, pattern="basesector") as made:
        with pytest.raises(NotFoundError):
            await made.base_sector(ABSENT.skylink)


# --- recovery


async def test_retry_after_is_obeyed(clock: trio.testing.MockClock):
    """R12: a portal that asks for a pause gets one."""

    def busy(_: fake.Request, __: fake.Reply) -> fake.Reply:
        return fake.error(429, "slow down").with_header(b"Retry-After", b"30")

    async with net(busy, None) as made:
        for _ in range(20):
            await made.base_sector()
            with pytest.raises(UnavailableError):
                await made.base_sector(ABSENT.skylink)
            await trio.sleep(1)
        assert len(made.fakes[0].requests) == 1
        await trio.sleep(11)
        await made.base_sector()
        await trio.sleep(1)
        assert len(made.fakes[0].requests) == 2


async def test_a_liar_goes_last(clock: trio.testing.MockClock):
    """R12: behind a portal that fails, also when it answers again."""

    async def ask(client: PortalClient) -> bytes:
        if client is made.portals.clients[0]:
            raise DisprovedError("it is not the content", url=client.url)
        return await client.base_sector(SMALL.skylink)

    async with net(None, None) as made:
        await made.portals.first(ask)
        made.fakes[1].fault(fake.status(503))
        await made.base_sector()
        await trio.sleep(5)
        assert made.figures(0).rank is Rank.LYING
        assert made.portals.ranked()[1] is made.portals.clients[0]


# --- proofs


async def test_silent_portal_costs_one_proof(clock: trio.testing.MockClock):
    """T3: a portal that is known to be silent is not asked for a proof."""
    async with net(fake.stalls_after(-1), None) as made:

        async def best() -> None:
            found, failed = await made.portals.best(small, lambda _: False)
            assert found == SMALL.base
            assert failed == {made.portals.clients[0]}

        assert await seconds(best) < FIRST
        took = 0.0
        for _ in range(5):
            took += await seconds(best)
            await trio.sleep(0.1)
        assert took < 5 * LATER


async def test_other_errors_come_as_they_are(clock: trio.testing.MockClock):
    """A bug is neither a portal's fault nor wrapped in a group."""
    async with net(None, None) as made:

        async def ask(client: PortalClient) -> bytes:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await made.portals.first(ask)
        assert made.figures(0).failure_rate == 0


async def test_whoever_asks_can_give_up(clock: trio.testing.MockClock):
    """A cancelled operation ends at once and is no failure of a portal."""
    async with net(fake.stalls_after(-1), fake.stalls_after(-1)) as made:
        with trio.move_on_after(1.5) as scope:
            await made.base_sector()
        assert scope.cancelled_caught
        assert all(made.figures(number).failure_rate == 0 for number in (0, 1))

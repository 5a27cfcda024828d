"""All portals that work are asked at once; those that are late are not waited for. Real sockets."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from skymount.errors import NotFoundError, PortalTimeoutError, UnavailableError
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.health import State
from tests.fakes import portal as fake
from tests.portal.failover.nets import ABSENT, BROKEN, FIRST, LATER, SMALL, Net, net, seconds, small


class Asked:
    """Asks portals for something small, and notes who answered."""

    def __init__(self, ask: Callable[[PortalClient], Awaitable[bytes]] = small) -> None:
        self._ask = ask
        self.answered: list[str] = []

    async def __call__(self, client: PortalClient) -> str:
        await self._ask(client)
        self.answered.append(client.url)
        return client.url


async def absent(client: PortalClient) -> bytes:
    """Ask for what no portal has."""
    return await client.base_sector(ABSENT.skylink)


def urls(made: Net) -> list[str]:
    """Return the addresses of the portals."""
    return [each.url for each in made.fakes]


async def test_all_are_asked_at_once(clock: trio.testing.MockClock):
    """G18: the answers of all portals that work count, also of one that says «not found»."""
    async with net(fake.waits(0.2), fake.waits(0.2), fake.status(404), fake.waits(0.2)) as made:
        begun = trio.current_time()
        found = await made.portals.poll(Asked())
        assert trio.current_time() < begun + 0.55
        assert sorted(found) == sorted(url for url in urls(made) if url != urls(made)[2])


async def test_one_portal(clock: trio.testing.MockClock):
    """G18: a single portal is asked once."""
    async with net(None) as made:
        assert await made.portals.poll(Asked()) == urls(made)
        assert len(made.fakes[0].requests) == 1


@pytest.mark.parametrize(
    "name", [name for name in BROKEN if "body" not in name and "KB" not in name]
)
async def test_broken_first_portal(name: str, clock: trio.testing.MockClock):
    """G18, R11: it is waited for until it is late, and later ones only once in a while."""
    async with net(BROKEN[name], None) as made:
        good = urls(made)[1]
        ask = Asked()
        assert await seconds(lambda: made.portals.poll(ask)) < FIRST
        took = 0.0
        for _ in range(10):
            took += await seconds(lambda: made.portals.poll(ask))
            await trio.sleep(1)
        assert took < 10 * LATER
        assert ask.answered.count(good) == 11
        assert made.figures(0).state is not State.CLOSED


async def test_late_answer_is_taken(clock: trio.testing.MockClock):
    """G18: what a late portal sends is taken note of; it still counts as late."""
    async with net(fake.waits(5.0), None) as made:
        ask = Asked()
        assert await made.portals.poll(ask) == urls(made)[1:]
        assert ask.answered == urls(made)[1:]
        await trio.sleep(4.5)
        assert ask.answered == [*urls(made)[1:], urls(made)[0]]
        assert made.figures(0).state is not State.CLOSED
        assert made.figures(0).hedges_lost == 1


async def test_late_attempts_are_few_and_end(clock: trio.testing.MockClock):
    """G18: a silent portal does not hold its connections for long."""
    async with net(fake.stalls_after(-1), None) as made:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(made.portals.poll, Asked())
        health = made.portals.health(made.portals.clients[0])
        assert health.late_attempts == 2
        await trio.sleep(11)
        assert health.late_attempts == 0


async def test_without_a_background(clock: trio.testing.MockClock):
    """G18: a command does not wait for late answers."""
    async with net(fake.waits(5.0), None) as made:
        ask = Asked()
        portals = replace(made.portals, background=None)
        assert await portals.poll(ask) == urls(made)[1:]
        await trio.sleep(6)
        assert ask.answered == urls(made)[1:]


async def test_portal_that_pauses_is_asked_last(clock: trio.testing.MockClock):
    """G18: only if no other one has a good answer."""
    async with net(fake.status(503), None) as made:
        first = made.fakes[0]
        assert await made.portals.poll(Asked()) == urls(made)[1:]
        asked = len(first.requests)
        assert await made.portals.poll(Asked()) == urls(made)[1:]
        assert len(first.requests) == asked
        first.heal()
        made.fakes[1].fault(fake.status(404))
        assert await made.portals.poll(Asked()) == urls(made)[:1]


async def test_only_all_say_not_found(clock: trio.testing.MockClock):
    """G3, L4: while one fails, nothing is known to be absent."""
    async with net(None, None) as made:
        with pytest.raises(NotFoundError):
            await made.portals.poll(absent)
        made.fakes[1].fault(fake.status(503))
        with pytest.raises(UnavailableError):
            await made.portals.poll(absent)


async def test_silent_portal_and_one_that_has_nothing(clock: trio.testing.MockClock):
    """R12: the silent one may have it; that is an error after a while, and then at once."""

    async def fails() -> None:
        with pytest.raises(PortalTimeoutError):
            await made.portals.poll(absent)

    async with net(fake.stalls_after(-1), None) as made:
        assert await seconds(fails) < 5.0
        assert await seconds(fails) < LATER


async def test_whoever_asks_can_give_up(clock: trio.testing.MockClock):
    """G18: nothing is left behind then, if no portal has answered."""
    async with net(fake.stalls_after(-1), fake.stalls_after(-1)) as made:
        with trio.move_on_after(0.5) as scope:
            await made.portals.poll(small)
        assert scope.cancelled_caught
        await trio.sleep(0.1)
        health = [made.portals.health(client) for client in made.portals.clients]
        assert [each.late_attempts for each in health] == [0, 0]
        with trio.fail_after(5):
            while made.fakes[0].connections + made.fakes[1].connections:
                await trio.sleep(0.1)


async def test_other_errors_come_as_they_are(clock: trio.testing.MockClock):
    """A bug is an error of who asks, unless there is an answer."""

    async def ask(client: PortalClient) -> bytes:
        if client is made.portals.clients[0]:
            raise ZeroDivisionError
        return await absent(client)

    async with net(None, None) as made:
        with pytest.raises(ZeroDivisionError):
            await made.portals.poll(ask)


async def test_late_bug_is_logged(clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture):
    """A bug that a late answer brings out ends nobody else's tasks."""

    async def ask(client: PortalClient) -> bytes:
        found = await small(client)
        if client is made.portals.clients[0]:
            raise ZeroDivisionError
        return found

    async with net(fake.waits(3.0), None) as made:
        assert await made.portals.poll(ask) == [SMALL.base]
        await trio.sleep(4)
        assert "late answer" in caplog.text
        assert await made.portals.poll(small) != []

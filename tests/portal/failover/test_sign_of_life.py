"""The only portal is silent: operations that begin then fail at once. Real sockets."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from skymount.errors import PortalTimeoutError, UnavailableError
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.portals import Portals
from skymount.settings import PortalOptions
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, running
from tests.portal.failover.nets import SMALL, Net, net, seconds, small

Work = Callable[[], Awaitable[object]]


def failing(made: Net, ask: Callable[[PortalClient], Awaitable[object]] = small) -> Work:
    """Return an operation that must fail for want of an answer."""

    async def fails() -> None:
        with pytest.raises(PortalTimeoutError) as caught:
            await made.portals.first(ask)
        assert made.fakes[0].url in str(caught.value)

    return fails


async def test_later_operations_fail_at_once(clock: trio.testing.MockClock):
    """R12: the first one waits for all its attempts, later ones for a sign of life."""
    async with net(fake.stalls_after(-1), idle_timeout=10) as made:
        fails = failing(made)
        assert await seconds(fails) > 20
        for _ in range(20):
            assert await seconds(fails) < 0.5
        await trio.sleep(60)  # then it gets a little longer
        assert await seconds(fails) < 2.5
        assert await seconds(fails) < 0.5


@pytest.mark.parametrize("timeout", [4, 6, 7.5])
async def test_short_timeout(clock: trio.testing.MockClock, timeout: float):
    """R12: the same holds with a timeout of at least 3 s."""
    async with net(fake.stalls_after(-1), idle_timeout=timeout / 3) as made:
        with trio.move_on_after(timeout):
            await made.portals.first(small)
        for _ in range(3):
            assert await seconds(failing(made)) < 1.0


async def test_timeout_too_short_for_silence(clock: trio.testing.MockClock):
    """R12: with less than 3 s each operation waits for the portal, and uses it once it answers."""
    async with net(fake.stalls_after(-1), idle_timeout=2.5 / 3) as made:
        for _ in range(3):
            assert await seconds(failing(made)) > 2.4
        made.fakes[0].heal()
        assert await made.portals.first(small) == SMALL.base


async def test_after_an_operation_that_ran_out_of_time(clock: trio.testing.MockClock):
    """R12: An operation waits for 0.25 s if others waited in vain in the last 5 s."""
    async with net(fake.stalls_after(-1), idle_timeout=10) as made:
        with trio.move_on_after(30):
            await made.portals.first(small)
        assert await seconds(failing(made)) < 0.5


async def test_portal_that_is_back_is_used(clock: trio.testing.MockClock):
    """R12: it is asked for a sign of life before an operation fails."""
    async with net(fake.stalls_after(-1), idle_timeout=10) as made:
        fails = failing(made)
        await fails()
        await fails()
        await trio.sleep(60)
        made.fakes[0].heal()
        assert await made.portals.first(small) == SMALL.base


async def test_slow_portal_is_waited_for(clock: trio.testing.MockClock):
    """R12: one that answers something is not silent, however long it takes for the rest."""
    async with net(fake.stalls_after(-1), idle_timeout=10) as made:
        await failing(made)()
        made.fakes[0].heal()
        made.fakes[0].fault(fake.waits(8.0), "^GET")
        assert await made.portals.first(small) == SMALL.base


async def test_portal_that_is_gone(clock: trio.testing.MockClock):
    """R10: what cannot be reached at all is an error of its own, at once."""
    portal = FakePortal()
    portal.fault(fake.stalls_after(-1))
    async with trio.open_nursery() as probes:
        async with running(portal):
            options = PortalOptions.parse(portal.url, retries=0)
            client = PortalClient.of(replace(options, idle_timeout=10))
            portals = Portals([client], background=probes)
            with pytest.raises(PortalTimeoutError):
                await portals.first(small)
        async with client:
            with trio.fail_after(5), pytest.raises(UnavailableError, match="cannot be reached"):
                await portals.first(small)
        probes.cancel_scope.cancel()


async def test_without_a_background(clock: trio.testing.MockClock):
    """R12: a single command waits, as it may have nothing else to do."""
    async with net(fake.stalls_after(-1), idle_timeout=10) as made:
        fails = failing(replace(made, portals=replace(made.portals, background=None)))
        await fails()
        assert await seconds(fails) > 9

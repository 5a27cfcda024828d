"""Portals whose pause is over are tried again in the background. Real sockets."""

import trio
import trio.testing

from skymount.portal.failover.health import BreakerState
from tests.fakes import portal as fake
from tests.portal.failover.nets import (
    LATER,
    net,
    seconds,
)


async def test_probe_finds_a_portal_that_is_back(clock: trio.testing.MockClock):
    """R12: a probe costs nobody time, and the portal takes its place again."""
    async with net(fake.stalls_after(-1), None) as made:
        first, second = made.fakes
        await made.base_sector()
        assert made.figures(0).state is BreakerState.OPEN
        await trio.sleep(1.1)
        assert made.figures(0).state is BreakerState.HALF_OPEN
        asked = len(first.requests)
        assert await seconds(made.base_sector) < LATER
        await trio.sleep(2.5)
        assert len(first.requests) > asked
        first.heal()
        with trio.fail_after(30):
            while made.figures(0).state is not BreakerState.CLOSED:
                await trio.sleep(1)
                assert await seconds(made.base_sector) < LATER
        asked = len(second.requests)
        await made.base_sector()
        assert len(second.requests) == asked


async def test_probes_become_rare(clock: trio.testing.MockClock):
    """R12: the pauses between two probes grow, up to a minute."""
    async with net(fake.status(503), None) as made:
        asked = []
        for _ in range(200):
            await made.base_sector()
            asked.append(len(made.fakes[0].requests))
            await trio.sleep(1)
        assert 5 <= asked[-1] <= 15

"""Races that want several things: trials with gaps, pauses, refusals, late writes, errors that are
no portal's. No sockets.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from skymount.errors import (
    AccessDeniedError,
    PortalError,
    PortalTimeoutError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import State
from skymount.portal.failover.portals import Portals
from skymount.portal.failover.race import Race, Runner, enough
from skymount.portal.http.request_watch import current
from tests.portal.failover.scripted import Script, portals


def busy(seconds: float) -> UnavailableError:
    error = UnavailableError("slow down", status=429)
    error.retry_after = seconds
    return error


def is_late(runner: Runner, now: float) -> bool:
    return now - runner.begun >= runner.turn.health.hedge_delay


def post(asked: Portals, ask: Callable[[PortalReader], Awaitable[str]], needed: int) -> Race[str]:
    """Return the race of a write."""
    return Race(asked, ask, enough(needed), is_late=is_late, insists=lambda: True)


@pytest.mark.parametrize("pause", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 2])
async def test_pauses_without_end(autojump_clock: object, count: int, pause: float):
    """R12: a portal that goes on asking for pauses is asked three times."""
    asked = portals(count)
    script = Script(asked, *[[busy(pause)]] * count)
    with pytest.raises(UnavailableError):
        await asked.first(script)
    assert max(script.counts.values()) == 3


async def test_a_proof_does_not_wait_for_a_pause(autojump_clock: object):
    """T3: a portal that asked for a pause counts as failed."""
    asked = portals(2)
    script = Script(asked, ["word"], [busy(8.0)])
    for _ in range(3):
        begun = trio.current_time()
        assert await asked.best(script, lambda _: False) == ("word", {asked.clients[1]})
        assert trio.current_time() < begun + 1


async def test_a_refusal_does_not_end_a_write(autojump_clock: object):
    """G19: another portal that asked for a short pause takes it after that."""
    asked = portals(2)
    script = Script(asked, [AccessDeniedError("denied", status=403)], [busy(2.0), "yes"])
    race = await post(asked, script, 1).run()
    assert list(race.answers.values()) == ["yes"]
    assert 2 <= trio.current_time() < 3


async def test_an_error_of_nobody_is_raised_while_too_few_have_it(autojump_clock: object):
    """A ledger that fails is no portal's fault, and not lost."""
    asked = portals(2)

    async def ask(client: PortalReader) -> str:
        if client is asked.clients[1]:
            await trio.sleep(0.1)
            raise StorageError("full")
        return "yes"

    with pytest.raises(StorageError):
        await post(asked, ask, 2).run()


async def test_a_late_write_is_no_fault_of_reads(autojump_clock: object):
    """R11: a portal that commits slowly and reads quickly is still read first."""
    async with trio.open_nursery() as nursery:
        asked = replace(portals(2), background=nursery)
        slow = asked.clients[0]

        async def write(client: PortalReader) -> str:
            await trio.sleep(3.0 if client is slow else 0.05)
            return "yes"

        for _ in range(5):
            race = await post(asked, write, 1).run()
            race.handled.set()
            assert slow in race.late
            assert asked.health(slow).state(trio.current_time()) is State.CLOSED
            await trio.sleep(4)
        nursery.cancel_scope.cancel()


async def test_a_write_that_a_portal_commits_slowly(autojump_clock: object):
    """G19: it is waited for if the other one fails."""
    asked = portals(2)

    async def write(client: PortalReader) -> str:
        if client is asked.clients[1]:
            raise UnavailableError("down", status=503)
        await trio.sleep(4.0)
        return "yes"

    race = await post(asked, write, 1).run()
    assert list(race.answers) == asked.clients[:1]


async def test_a_trial_with_a_gap(autojump_clock: object):
    """R12: a portal that works again is used, though it pauses between two requests."""
    asked_of: Counter[PortalReader] = Counter()
    async with trio.open_nursery() as nursery:
        asked = replace(portals(2), background=nursery)
        first, second = asked.clients
        is_down = True

        async def ask(client: PortalReader) -> str:
            asked_of[client] += 1
            watch = current()
            assert watch is not None
            for request in range(2):
                if client is first and is_down:
                    raise UnavailableError("down", status=503)
                watch.sent(request, trio.current_time())
                await trio.sleep(0.02)
                watch.head_came(request, trio.current_time())
                watch.request_ended(request)
                await trio.sleep(0.15)  # no request is under way
            return "yes"

        await asked.first(ask, probe=ask)
        is_down = False
        for _ in range(10):
            await trio.sleep(1)
            await asked.first(ask, probe=ask)
        before = asked_of[second]
        await asked.first(ask, probe=ask)
        assert asked_of[second] == before
        assert asked.hedges.take()
        nursery.cancel_scope.cancel()


async def test_late_failures_end_nobody(autojump_clock: object):
    """What comes of an attempt that was left is told, be it an error."""
    told: list[object] = []

    async def late(client: PortalReader, result: str | PortalError) -> None:
        told.append(result)

    async with trio.open_nursery() as nursery:
        asked = replace(portals(2), background=nursery)

        async def ask(client: PortalReader) -> str:
            if client is asked.clients[0]:
                await trio.sleep(5)
                raise PortalTimeoutError("no answer")
            return "yes"

        race = Race(asked, ask, enough(1), is_late=is_late, on_late=late)
        await race.run()
        assert told == []
        race.handled.set()
        await trio.sleep(10)
        assert [str(each) for each in told] == ["no answer"]
        nursery.cancel_scope.cancel()

"""Sending the same to several portals at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
import trio
import trio.testing

from skymount.errors import (
    AccessDeniedError,
    PortalError,
    PortalTimeoutError,
    UnavailableError,
)
from skymount.portal.broadcast import LATE_TIME, Broadcast, LatePortals, Outcome
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from tests.fakes.portal import status
from tests.portal.failover.nets import net, small


class Client:
    """Something that is sent to; it has a name only."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return self.url


Plan = float | str


@dataclass
class Rig:
    """Portals that do as planned: answer after so many seconds, "no", "down", "denied", "hang", or
    "busy3": not to be asked again for 3 seconds.
    """

    portals: Portals
    plans: dict[PortalReader, list[Plan]]
    asked: list[PortalReader] = field(default_factory=list)
    late: list[tuple[PortalReader, object]] = field(default_factory=list)
    late_portals: LatePortals = field(default_factory=LatePortals)

    async def ask(self, client: PortalReader) -> str:
        self.asked.append(client)
        plans = self.plans[client]
        plan = plans.pop(0) if len(plans) > 1 else plans[0]
        await trio.lowlevel.checkpoint()
        if isinstance(plan, float):
            await trio.sleep(plan)
            return "yes"
        if plan == "hang":
            await trio.sleep_forever()
        if plan == "silent":
            await trio.sleep(10)
            raise PortalTimeoutError("no answer", url=client.url)
        if plan.startswith("busy"):
            error = UnavailableError("busy", url=client.url)
            error.retry_after = float(plan.removeprefix("busy"))
            raise error
        if plan == "down":
            raise UnavailableError("down", url=client.url)
        if plan == "denied":
            raise AccessDeniedError("denied", status=403, url=client.url)
        return plan

    async def note_late(self, client: PortalReader, answer: str | PortalError) -> None:
        self.late.append((client, answer))

    async def send(self, needed: int) -> Outcome[str]:
        broadcast = Broadcast(
            self.portals,
            self.ask,
            lambda answer: answer == "yes",
            self.late_portals,
            self.note_late,
        )
        outcome = await broadcast.run(needed)
        outcome.handled.set()
        return outcome


@asynccontextmanager
async def rig(*plans: Plan | list[Plan], background: bool = True) -> AsyncIterator[Rig]:
    clients = [cast(PortalReader, Client(f"http://p{n}.invalid")) for n in range(len(plans))]
    async with trio.open_nursery() as nursery:
        portals = Portals(clients, probes=nursery if background else None)
        planned = [plan if isinstance(plan, list) else [plan] for plan in plans]
        yield Rig(portals, dict(zip(clients, planned, strict=True)))
        nursery.cancel_scope.cancel()


async def test_all_are_asked_at_once(autojump_clock: object):
    """All that answer in time have it."""
    async with rig(0.5, 0.5, 0.5) as found:
        outcome = await found.send(1)
        assert trio.current_time() < 1
        assert list(outcome.answers.values()) == ["yes"] * 3


async def test_late_portal_is_left_behind(autojump_clock: object):
    """It is waited for as long as is usual, and not at all the next time; its answer counts."""
    async with rig([0.1], [5.0, 0.1]) as found:
        begun = trio.current_time()
        outcome = await found.send(1)
        one, two = found.portals.clients
        assert list(outcome.answers) == [one]
        assert list(outcome.late) == [two]
        assert 0.9 < trio.current_time() - begun < 1.1  # nothing is known of its latency
        begun = trio.current_time()
        outcome = await found.send(1)  # while the first is still under way there
        assert list(outcome.errors) == [two]
        assert trio.current_time() - begun < 0.2
        await trio.sleep(10)
        assert found.late == [(two, "yes")]
        found.plans[one] = [0.2]
        outcome = await found.send(1)
        assert set(outcome.answers) == {one, two}
        assert not found.late_portals.is_late(two)


async def test_late_attempt_ends(autojump_clock: object):
    """A portal that never answers is given up, and that is told."""
    async with rig(0.1, "hang") as found:
        await found.send(1)
        await trio.sleep(LATE_TIME + 1)
        ((client, answer),) = found.late
        assert client is found.portals.clients[1]
        assert isinstance(answer, PortalTimeoutError)
        assert not found.late_portals.is_busy(client)


async def test_without_background_late_portals_are_cancelled(autojump_clock: object):
    """Nothing goes on after the call."""
    async with rig(0.1, 5.0, background=False) as found:
        outcome = await found.send(1)
        assert list(outcome.errors) == [found.portals.clients[1]]
        assert trio.current_time() < 2
        assert found.late == []


@pytest.mark.parametrize("needed", [2, 3])
async def test_enough_portals_must_take_it(needed: int, autojump_clock: object):
    """It ends when enough have, or cannot."""
    async with rig(0.1, 4.0, "denied") as found:
        outcome = await found.send(needed)
        assert len(outcome.answers) == 2
        assert 4 <= trio.current_time() < 5
        assert list(outcome.errors) == [found.portals.clients[2]]


async def test_failure_is_retried_only_while_it_matters(autojump_clock: object):
    """A portal that is down is asked in three rounds, unless enough others took it."""
    async with rig("down", "down") as found:
        outcome = await found.send(1)
        assert len(outcome.errors) == 2
        assert len(found.asked) == 6
    async with rig(["down", "down", 0.1], "down") as found:
        outcome = await found.send(1)
        assert list(outcome.answers) == [found.portals.clients[0]]
    async with rig(0.01, "down") as found:
        begun = trio.current_time()
        await found.send(1)
        assert trio.current_time() - begun < 0.1
        assert len(found.asked) == 2


async def test_portal_that_failed_lately_is_asked_if_needed(autojump_clock: object):
    """Otherwise it is not even asked, and the outcome says why."""
    async with rig([0.1], ["down", 0.1]) as found:
        one, two = found.portals.clients
        await found.send(1)
        outcome = await found.send(1)
        assert found.asked.count(two) == 1
        assert str(outcome.errors[two]).startswith("down")
        outcome = await found.send(2)
        assert set(outcome.answers) == {one, two}


async def test_failing_portal_is_asked_while_others_are_late(autojump_clock: object):
    """A silent portal does not keep the write from one that failed a moment ago."""
    async with rig([0.1, "silent"], ["down", 0.1]) as found:
        one, two = found.portals.clients
        await found.send(1)
        begun = trio.current_time()
        outcome = await found.send(1)
        assert list(outcome.answers) == [two]
        assert trio.current_time() - begun < 3
        assert list(outcome.late) == [one]


async def test_short_pause_is_waited_for(autojump_clock: object):
    """R12, G19: the first portal that may be asked again takes it; later writes do not wait."""
    async with rig(["busy3", 0.1], ["busy8", 0.1]) as found:
        one, two = found.portals.clients
        outcome = await found.send(1)
        assert (list(outcome.answers), list(outcome.errors)) == ([one], [two])
        assert 3 <= trio.current_time() < 4
        assert len(found.asked) == 3
        begun = trio.current_time()
        assert list((await found.send(1)).answers) == [one]
        assert trio.current_time() - begun < 0.2


async def test_pause_is_waited_for_while_others_are_silent(autojump_clock: object):
    """R12: a portal that says nothing does not keep the write from one that is busy."""
    async with rig(["busy3", 0.1], "hang") as found:
        outcome = await found.send(1)
        assert list(outcome.answers) == found.portals.clients[:1]
        assert trio.current_time() < 5


async def test_pause_is_waited_for_only_if_it_matters(autojump_clock: object):
    async with rig("busy3", 0.1) as found:
        outcome = await found.send(1)
        assert list(outcome.errors) == found.portals.clients[:1]
        assert trio.current_time() < 1


@pytest.mark.parametrize("plan", ["busy40", "busy4"])
async def test_long_pause_is_not_waited_for(plan: str, autojump_clock: object):
    """Nor pauses that last longer than 10 s together. The error says when to try again."""
    async with rig(plan, "denied") as found:
        outcome = await found.send(1)
        error = outcome.errors[found.portals.clients[0]]
        assert "http://p0.invalid may be asked again in " in error.advice
        assert (trio.current_time() < 1) == (plan == "busy40")
        assert trio.current_time() <= 10


async def test_busy_portal_that_fails_then(autojump_clock: object):
    """It is not asked for ever."""
    async with rig(["busy3", "down"], "denied") as found:
        outcome = await found.send(1)
        assert outcome.answers == {}
        assert trio.current_time() < 10
        assert len(found.asked) < 6


async def test_silent_portal_that_is_back_takes_it(clock: trio.testing.MockClock):
    """R12: it is asked for a sign of life if too few others take it."""
    async with net(None, None) as made, trio.open_nursery() as nursery:
        portals = replace(made.portals, probes=nursery)
        silent, broken = portals.clients
        error = PortalTimeoutError("no answer", url=silent.url)
        portals.health(silent).record_failure(error, trio.current_time(), waited=2)
        made.fakes[1].fault(status(503))
        asked: list[PortalReader] = []

        async def ask(client: PortalReader) -> bytes:
            asked.append(client)
            return await small(client)

        async def late(client: PortalReader, answer: bytes | PortalError) -> None:
            assert not answer

        outcome = await Broadcast(portals, ask, bool, LatePortals(), late).run(1)
        assert list(outcome.answers) == [silent]
        assert asked.count(silent) == 1
        assert list(outcome.errors) == [broken]


async def test_refutation_ends_it(autojump_clock: object):
    """One answer that says no is enough, whatever others say."""
    async with rig(0.1, "no", "hang") as found:
        outcome = await found.send(1)
        assert "no" in outcome.answers.values()
        assert outcome.late == {}
        assert trio.current_time() < 0.1


async def test_cancelled_broadcast_leaves_nothing(autojump_clock: object):
    """Who gives up wants nothing to go on."""
    async with rig(0.1, 0.3, background=True) as found:
        with trio.move_on_after(0.2):
            await found.send(2)
        await trio.sleep(100)
        assert found.late == []
        assert len(found.asked) == 2


async def test_bug_is_raised(autojump_clock: object):
    """Here, and not in the nursery that everybody shares."""

    async def ask(client: PortalReader) -> str:
        raise KeyError(client.url)

    async with rig(0.1, 0.1) as found:
        broadcast = Broadcast(found.portals, ask, bool, LatePortals(), found.note_late)
        with pytest.raises(KeyError):
            await broadcast.run(1)

"""Whom an operation that is out of time waited for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from skymount.errors import PortalTimeoutError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.wire.skylink import Skylink
from tests.fakes.portal import FakePortal, drips, running, stalls_after
from tests.fakes.skyfiles import noise, of_files
from tests.portal.failover.scripted import portals

LARGE = of_files({"f": noise(1 << 20, 1)})
PATIENCE = 30.0


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Portals, list[FakePortal]]]:
    async with running(FakePortal()) as one, running(FakePortal()) as other:
        fakes = [one, other]
        for each in fakes:
            each.add(LARGE)
        async with PortalReader(one.url) as first, PortalReader(other.url) as second:
            yield Portals([first, second]), fakes


async def fetch(client: PortalReader) -> object:
    return await client.base_sector(Skylink(LARGE.name))


async def until(asked: Portals, urls: list[str]) -> None:
    with trio.fail_after(PATIENCE):
        while asked.waited_for() != urls:
            await trio.sleep(0.05)


async def test_those_that_send_nothing():
    """E1: those that send nothing are named, each once, and else those that are slow."""
    async with two() as (asked, fakes), trio.open_nursery() as nursery:
        slow, silent = asked.clients
        assert asked.waited_for() == []
        fakes[0].fault(drips(1000, 0.1))
        nursery.start_soon(asked.attempt, slow, fetch)
        await until(asked, [slow.url])
        fakes[1].fault(stalls_after(-1))
        for _ in range(2):
            nursery.start_soon(asked.attempt, silent, fetch)
        await until(asked, [silent.url])
        nursery.cancel_scope.cancel()


async def test_own_attempts_were_cancelled():
    """E1: an operation that has cancelled its attempt names that portal, whatever others do."""
    async with two() as (asked, fakes), trio.open_nursery() as nursery:
        own, other = asked.clients
        for fake in fakes:
            fake.fault(stalls_after(-1))
        nursery.start_soon(asked.attempt, other, fetch)
        with trio.move_on_after(0.5):
            await asked.attempt(other, fetch)
        with trio.move_on_after(1.5):
            await asked.attempt(own, fetch)
        assert asked.waited_for() == [own.url]
        await until(asked, [other.url])
        nursery.cancel_scope.cancel()


async def test_between_two_attempts(autojump_clock: object):
    """E1: a portal that failed after a long time is named, though it is being asked anew."""
    asked = portals(1)
    [client] = asked.clients
    for waited, urls in ((0.5, []), (1.0, [client.url])):
        health = asked.health(client)
        health.failed(PortalTimeoutError("no answer"), trio.current_time(), waited=waited)
        await trio.sleep(1.5)
        assert asked.waited_for() == urls
    await trio.sleep(0.5)
    assert asked.waited_for() == []

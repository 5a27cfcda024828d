"""Portals that say `Retry-After`: short pauses are waited for. No sockets."""

from collections import Counter

import pytest
import trio

from skymount.errors import NotFoundError, PortalError, UnavailableError
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.portals import Portals


class BusyPortals:
    """Portals each of which asks for some seconds of pause whenever it is asked before a time."""

    def __init__(self, *until: float, pause: float | None = None) -> None:
        """`until` says of each portal when it is no longer busy; `pause` is what it asks for, if
        it is not the time that is left.
        """
        clients = [PortalClient(f"http://p{n}.invalid", retries=0) for n in range(len(until))]
        self.portals = Portals(clients)
        self._until = dict(zip(clients, until, strict=True))
        self._pause = pause
        self.counts = Counter[str]()
        self.begun = trio.current_time()

    async def ask(self) -> float:
        """Ask them; return the seconds until there is an answer."""
        begun = trio.current_time()
        await self.portals.first(self._answer)
        return trio.current_time() - begun

    async def _answer(self, client: PortalClient) -> str:
        await trio.lowlevel.checkpoint()
        self.counts[client.url] += 1
        left = self.begun + self._until[client] - trio.current_time()
        if left > 0:
            error = UnavailableError("slow down", status=429, url=client.url)
            error.retry_after = left if self._pause is None else self._pause
            raise error
        return "content"


@pytest.mark.parametrize("until", [(3.0, 8.0), (8.0, 3.0), (3.0,), (9.9, 50.0)])
async def test_first_one_that_may_be_asked_again(until: tuple[float, ...], autojump_clock: object):
    """R12: the operation waits for it; later ones use it at once."""
    busy = BusyPortals(*until)
    assert min(until) <= await busy.ask() < min(until) + 0.2
    assert await busy.ask() < 0.2
    assert busy.counts.total() == len(until) + 2


async def test_the_other_one_fails_meanwhile(autojump_clock: object):
    """R12: a portal that is left alone from the beginning is waited for too, and asked once."""
    busy = BusyPortals(3.0, 0.0)
    await busy.ask()
    first, second = busy.portals.clients

    async def ask(client: PortalClient) -> str:
        if client is second:
            raise UnavailableError("down")
        return await busy._answer(client)

    assert await busy.portals.first(ask) == "content"
    assert 3 <= trio.current_time() - busy.begun < 4
    assert busy.counts[first.url] == 2


async def test_operations_that_begin_meanwhile(autojump_clock: object):
    """R12: they ask nobody before the end of the pause."""
    busy = BusyPortals(3.0, 8.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy.ask)
        await trio.sleep(1)
        assert busy.counts.total() == 2
        for _ in range(5):
            nursery.start_soon(busy.ask)
        await trio.sleep(1.9)
        assert busy.counts.total() == 2
    assert trio.current_time() < busy.begun + 3.2
    assert busy.counts.total() == 8


async def test_pause_is_too_long(autojump_clock: object):
    """R12: the operation fails at once, and its error says when that will be over."""
    busy = BusyPortals(40.0, 50.0)
    begun = trio.current_time()
    for left in (40, 30):
        with pytest.raises(
            UnavailableError, match=rf"http://p0.invalid may be asked again in {left} s"
        ):
            await busy.ask()
        assert busy.counts.total() == 2
        assert trio.current_time() < begun + (40 - left) + 1
        await trio.sleep(10 - (trio.current_time() - begun) % 10)
    await trio.sleep_until(begun + 32)
    await busy.ask()
    assert busy.counts.total() == 3


async def test_portal_that_is_alone(autojump_clock: object):
    """R12: its pause is waited for only by the operation to which it said so, and no round before
    its end is made; one that is too long is an error at once.
    """
    busy = BusyPortals(40.0)
    for _ in range(2):
        begun = trio.current_time()
        with pytest.raises(UnavailableError, match="may be asked again in 40 s"):
            await busy.ask()
        assert trio.current_time() == begun
    assert busy.counts.total() == 2


async def test_portal_that_goes_on_saying_so(autojump_clock: object):
    """R12: after 10 s it is not waited for any more."""
    busy = BusyPortals(1000.0, 1000.0, pause=6.0)
    begun = trio.current_time()
    with pytest.raises(UnavailableError):
        await busy.ask()
    assert 6 <= trio.current_time() - begun < 7
    assert busy.counts.total() == 4


async def test_another_one_has_not_found_it(autojump_clock: object):
    """L4, R12: that is an error at once, not «not found»."""
    busy = BusyPortals(5.0, 0.0)
    second = busy.portals.clients[1]

    async def ask(client: PortalClient) -> str:
        if client is second:
            raise NotFoundError("not here")
        return await busy._answer(client)

    with pytest.raises(UnavailableError) as caught:
        await busy.portals.first(ask)
    assert trio.current_time() == busy.begun
    assert "may be asked again in 5 s" in str(caught.value)


async def test_not_found_is_no_pause(autojump_clock: object):
    """An answer of all portals stays what it is."""
    busy = BusyPortals(5.0, 5.0)

    async def ask(_: PortalClient) -> str:
        raise NotFoundError("not here")

    with pytest.raises(PortalError) as caught:
        await busy.portals.first(ask)
    assert str(caught.value) == "not here"

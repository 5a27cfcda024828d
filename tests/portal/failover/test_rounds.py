"""How often portals that fail are asked again, and when they count as away."""

import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from skymount.errors import (
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.contestants import FailoverConfig, Outages
from skymount.portal.failover.portals import Portals
from skymount.wire.skylink import Skylink
from tests.portal.failover.scripted import (
    DOWN,
    LIE,
    NOT_FOUND,
    REFUSED,
    SLOW,
    Away,
    Script,
    ask,
    portals,
    unreached,
)

CONFIG = FailoverConfig()


async def fails(asked: Portals, script: Callable[[PortalClient], Awaitable[object]]) -> float:
    """Ask in vain; return the seconds that it took."""
    begun = trio.current_time()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await ask(asked, script)
    return trio.current_time() - begun


async def test_failures_are_tried_in_rounds(autojump_clock: object):
    """Portals that fail are asked again, after pauses that grow."""
    asked = portals(2)
    times: list[float] = []

    async def down(client: PortalClient) -> object:
        times.append(trio.current_time())
        raise DOWN

    with pytest.raises(UnavailableError):
        await ask(asked, down)
    assert len(times) == 2 * CONFIG.rounds
    first, second = times[2] - times[1], times[4] - times[3]
    assert CONFIG.backoff / 2 <= first <= CONFIG.backoff * 1.5
    assert CONFIG.backoff <= second <= CONFIG.backoff * 3


@pytest.mark.parametrize("failure", [DOWN, SLOW, LIE])
async def test_recovery_within_the_rounds(failure: PortalError, autojump_clock: object):
    """A portal that fails twice and then answers is good enough."""
    asked = portals(1)
    assert await ask(asked, Script(asked, [failure, failure, "late"])) == "late"


@pytest.mark.parametrize("before", [[], [DOWN]])
async def test_nobody_asks_again_after_silence(before: list[PortalError], autojump_clock: object):
    """R14: of a command; after other failures it does."""
    asked = replace(portals(1), config=replace(CONFIG, after_silence=False))
    script = Script(asked, [*before, SLOW, "late"])
    with pytest.raises(PortalTimeoutError):
        await ask(asked, script)
    assert script.counts == {0: len(before) + 1}


async def test_refusals_are_final(autojump_clock: object):
    """A portal that refused is not asked again while others are retried."""
    asked = portals(3)
    script = Script(asked, [NOT_FOUND], [DOWN], [REFUSED])
    with pytest.raises(UnavailableError):
        await ask(asked, script)
    assert script.counts == {0: 1, 1: CONFIG.rounds, 2: 1}


async def test_all_refuse(autojump_clock: object):
    """When every portal has said its last word there is no second round and no pause."""
    asked = portals(2)
    script = Script(asked, [NOT_FOUND], [NOT_FOUND])
    with pytest.raises(NotFoundError):
        await ask(asked, script)
    assert script.counts == {0: 1, 1: 1}
    assert trio.current_time() == 0


async def test_cancelled_in_a_pause(autojump_clock: object):
    """Whoever asks can give up between two rounds."""
    asked = portals(1)
    with trio.move_on_after(CONFIG.backoff / 4) as scope:
        await asked.first(Script(asked, [DOWN]))
    assert scope.cancelled_caught


async def test_portal_that_is_away_is_tried_once(autojump_clock: object):
    """R10: each further operation tries it once, without pauses."""
    asked, away = portals(1), Away()
    await fails(asked, away)
    assert away.tried == CONFIG.rounds
    for more in range(1, 100):
        assert await fails(asked, away) == 0
        assert away.tried == CONFIG.rounds + more


async def test_away_for_a_while(autojump_clock: object):
    """R10: a portal counts as away for 5 s; then there are rounds again."""
    asked, away = portals(1), Away()
    await fails(asked, away)
    await trio.sleep(4.9)
    assert await fails(asked, away) == 0
    assert away.tried == CONFIG.rounds + 1
    await trio.sleep(5)
    assert await fails(asked, away) > 0
    assert away.tried == 2 * CONFIG.rounds + 1


async def test_portal_that_is_back_is_used_at_once(autojump_clock: object):
    """R10: what needs a portal works as soon as one is back, and then has its rounds again."""
    asked, away = portals(1), Away()
    await fails(asked, away)
    away.back = True
    assert await ask(asked, away) == "back"
    assert away.tried == CONFIG.rounds + 1
    await trio.sleep(61)  # later, operations do not wait for its return
    away.back = False
    await fails(asked, away)
    assert away.tried == 2 * CONFIG.rounds + 1


@pytest.mark.parametrize("word", [DOWN, SLOW, LIE, NOT_FOUND, REFUSED])
async def test_portal_that_answers_is_not_away(word: PortalError, autojump_clock: object):
    """R10: only a portal to which no connection could be made counts as away."""
    asked, away = portals(1), Away()
    await fails(asked, away)
    with pytest.raises(type(word)):
        await ask(asked, Script(asked, [word]))
    await trio.sleep(61)
    away.tried = 0
    await fails(asked, away)
    assert away.tried == CONFIG.rounds


async def test_portal_that_restarts(autojump_clock: object):
    """R10: operations wait for one that worked in the last minute, for 5 s of its outage."""
    asked, away = portals(1), Away()
    away.back = True
    await ask(asked, away)
    away.back = False
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask, asked, away)
        await trio.sleep(4)
        away.back = True
    assert trio.current_time() < 5
    away.back = False
    assert await fails(asked, away) == pytest.approx(5, abs=1)
    for _ in range(3):
        assert await fails(asked, away) == 0
    away.back = True
    await ask(asked, away)
    await trio.sleep(61)
    away.back = False
    assert await fails(asked, away) < 2


async def test_longer_wait_for_a_portal(autojump_clock: object):
    """R10, R2: `wait_for_portal` makes it longer, and operations may take their time after it."""
    asked = replace(portals(1), outages=Outages(60))
    away = Away()
    away.back = True
    await ask(asked, away)

    async def within_its_time(seconds: float) -> None:
        with asked.limit(seconds):
            await asked.first(away)

    async with trio.open_nursery() as nursery:
        away.back = False
        for _ in range(20):
            nursery.start_soon(within_its_time, 2)
        await trio.sleep(30)
        assert asked.may_answer(trio.current_time())  # so no reads are given up (R13)
        nursery.start_soon(within_its_time, 2)
        await trio.sleep(20)
        away.back = True
    assert trio.current_time() < 52
    with pytest.raises(trio.TooSlowError), asked.limit(2):
        await trio.sleep_forever()
    assert trio.current_time() < 54


async def test_outage_of_the_last_portal_that_works(autojump_clock: object):
    """R10: nobody waits for a portal while another one works."""
    asked = portals(2)
    plans = {client: Away() for client in asked.clients}

    async def one(client: PortalClient) -> object:
        return await plans[client](client)

    for each in plans.values():
        each.back = True
    await ask(asked, one)
    first, second = plans.values()
    first.back = False
    assert await ask(asked, one) == "back"
    assert trio.current_time() == 0
    second.back = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, asked, one)
        await trio.sleep(3)
        second.back = True
    assert trio.current_time() < 4


async def test_last_round_counts(autojump_clock: object):
    """A portal that was reached in the last round is not away."""
    asked = portals(1)
    script = Script(asked, [unreached(), unreached(), DOWN])
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await ask(asked, script)
    assert script.counts == {0: 2 * CONFIG.rounds}


async def test_portal_whose_absence_takes_less(autojump_clock: object):
    """R10: where an attempt takes less than a second there are all rounds, within seconds."""
    asked, away = portals(1), Away(takes=0.9)
    assert 3 * 0.9 < await fails(asked, away) < 5
    assert away.tried == CONFIG.rounds
    assert await fails(asked, away) == pytest.approx(0.9)


async def test_only_the_portal_that_is_away_is_tried_once(autojump_clock: object):
    """Of several portals the one that is there has its rounds."""
    asked = portals(2)
    away, there = asked.clients
    tried: list[str] = []

    async def try_one(client: PortalClient) -> object:
        tried.append(client.url)
        raise unreached() if client is away else DOWN

    for _ in range(2):
        with pytest.raises(UnavailableError):
            await ask(asked, try_one)
    assert Counter(tried) == {away.url: CONFIG.rounds + 1, there.url: 2 * CONFIG.rounds}


async def test_one_portal_is_away_and_the_other_has_nothing(autojump_clock: object):
    """L4: not ENOENT, unless all of them say so; also while one of them is not tried at all."""
    asked = portals(2)
    away, _ = asked.clients

    async def try_one(client: PortalClient) -> object:
        if client is away:
            await trio.sleep(1.0)
            raise unreached(1.0)
        raise NOT_FOUND

    for _ in range(2):
        with pytest.raises(UnavailableError):
            await ask(asked, try_one)


async def test_refused_connection_counts_as_away():
    """R10 with sockets: nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    async with PortalClient(f"http://{host}:{port}", retries=0) as client:
        asked = Portals([client])
        tried = []

        async def head(client: PortalClient) -> object:
            tried.append(client)
            return await client.head(Skylink.v1(bytes(32), 1))

        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                await ask(asked, head)
            assert caught.value.unreached is not None
        assert len(tried) == CONFIG.rounds + 1


async def test_no_portal():
    """Without portals everything is unavailable."""
    with pytest.raises(UnavailableError):
        await ask(Portals([]), Script(Portals([])))

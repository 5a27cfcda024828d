"""Answers that are proven, and what is asked where the first one is not. No sockets."""

import pytest
import trio

from skymount.errors import (
    PortalError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.failover.contestants import FailoverConfig
from skymount.portal.failover.portals import PROOF_TIMEOUT, Portals
from tests.portal.failover.scripted import (
    DOWN,
    LIE,
    NOT_FOUND,
    REFUSED,
    SLOW,
    WRONG,
    Away,
    Script,
    portals,
)

CONFIG = FailoverConfig()


def is_proven(answer: object) -> bool:
    return str(answer).startswith("proof")


async def best(asked: Portals, script: Script) -> tuple[object, set[int]]:
    """Ask for the best answer; return it, and which portals failed."""
    with trio.fail_after(60):
        found, failed = await asked.best(script, is_proven)
    return found, {asked.clients.index(client) for client in failed}


async def test_proof_of_the_first_portal(autojump_clock: object):
    """A proof is enough: nobody else is asked."""
    asked = portals(3)
    script = Script(asked, ["proof 0"], ["proof 1"], [DOWN])
    assert await best(asked, script) == ("proof 0", set())
    assert script.order == [0]


@pytest.mark.parametrize("failure", [DOWN, SLOW, LIE])
async def test_proof_after_failures(failure: PortalError, autojump_clock: object):
    """T3: those that fail are asked three times before a mere word is believed."""
    asked = portals(3)
    script = Script(asked, ["word"], [failure, failure, "proof"], ["word"])
    assert await best(asked, script) == ("proof", set())
    assert script.counts == {0: 1, 1: 3, 2: 1}


@pytest.mark.parametrize("failure", [DOWN, SLOW, LIE])
async def test_no_proof_and_a_failure(failure: PortalError, autojump_clock: object):
    """T6: a portal that failed might have proved it."""
    asked = portals(3)
    script = Script(asked, ["word 0"], [failure], ["word 2"])
    assert await best(asked, script) == ("word 0", {1})
    assert script.counts == {0: 1, 1: CONFIG.rounds, 2: 1}


@pytest.mark.parametrize(("refusal", "failed"), [(NOT_FOUND, set()), (REFUSED, {1}), (WRONG, {1})])
async def test_no_proof_and_refusals(
    refusal: PortalError, failed: set[int], autojump_clock: object
):
    """T6: a portal that refuses might have proved it; one that does not have it might not.

    Neither is asked again.
    """
    asked = portals(2)
    script = Script(asked, ["word"], [refusal])
    assert await best(asked, script) == ("word", failed)
    assert script.counts == {0: 1, 1: 1}


async def test_failed_a_moment_ago(autojump_clock: object):
    """T3: one that failed the last time is asked once."""
    asked = portals(2)
    script = Script(asked, ["word"], [DOWN])
    for more in range(20):
        assert await best(asked, script) == ("word", {1})
        assert script.counts[1] == CONFIG.rounds + more
    assert trio.current_time() < 2
    await trio.sleep(5)
    assert await best(asked, script) == ("word", {1})
    assert script.counts[1] == CONFIG.rounds + 20


async def test_other_errors_of_who_seeks_a_proof(autojump_clock: object):
    """What is not a PortalError comes as it is; a ledger that fails is no reason to give up."""
    asked = portals(2)
    found = [ZeroDivisionError(), StorageError("ledger")]

    async def answer(client: PortalClient) -> object:
        if client is asked.clients[0]:
            return "word"
        raise found[0]

    with pytest.raises(ZeroDivisionError):
        await asked.best(answer, is_proven)
    found.pop(0)
    assert await asked.best(answer, is_proven) == ("word", {asked.clients[1]})


async def test_failures_before_the_first_word_count(autojump_clock: object):
    """T6: also a portal that failed before another one answered might have proved it."""
    asked = portals(2)
    script = Script(asked, [DOWN], ["word"])
    assert await best(asked, script) == ("word", {0})
    await trio.sleep(5)
    script = Script(asked, [DOWN, "proof"], ["word"])
    assert await best(asked, script) == ("proof", set())


async def test_silent_portals_do_not_hold_up_a_proof(autojump_clock: object):
    """T3: all others are asked at once; one that has not answered within 10 s counts as failed."""
    asked = portals(3)
    _, silent, honest = asked.clients
    proves = True

    async def answer(client: PortalClient) -> object:
        if client is silent:
            await trio.sleep_forever()
        await trio.sleep(1)
        return "proof" if client is honest and proves else "word"

    with trio.fail_after(3):
        assert await asked.best(answer, is_proven) == ("proof", ())
    proves = False
    begun = trio.current_time()
    assert await asked.best(answer, is_proven) == ("word", {silent})
    assert trio.current_time() == begun + 1 + PROOF_TIMEOUT


async def test_portal_that_is_away_might_have_a_proof(autojump_clock: object):
    """R10, T6: one that no connection can be made to has no rounds; it counts as failed."""
    asked, away = portals(2), Away(takes=2 * 1.0)
    gone = asked.clients[1]

    async def answer(client: PortalClient) -> object:
        return await away(client) if client is gone else "word"

    for tried in (1, 1):
        assert await asked.best(answer, is_proven) == ("word", {gone})
        assert away.tried == tried


async def test_no_answer_at_all(autojump_clock: object):
    """Without any answer it is as with `first`."""
    asked = portals(2)
    with pytest.raises(UnavailableError):
        await best(asked, Script(asked, [NOT_FOUND], [DOWN]))

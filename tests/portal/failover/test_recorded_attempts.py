"""What the health of a portal learns of one attempt. No sockets."""

import pytest
import trio

from skymount.errors import PortalTimeoutError, UnavailableError
from skymount.portal.client.client import PortalClient
from tests.portal.failover.scripted import (
    NOT_FOUND,
    Script,
    ask,
    portals,
)


async def test_a_request_that_was_not_sent_is_no_fault(autojump_clock: object):
    """A portal keeps its place when only our own connections to it are all busy."""
    asked = portals(2)
    busy = PortalTimeoutError("every connection is busy")
    busy.is_unsent = True
    await ask(asked, Script(asked, [busy], ["b"]))
    script = Script(asked, ["a"], ["b"])
    await ask(asked, script)
    assert script.order == [0]


async def test_refusal_is_no_fault(autojump_clock: object):
    """A portal that does not have something keeps its place."""
    asked = portals(2)
    await ask(asked, Script(asked, [NOT_FOUND], ["b"]))
    script = Script(asked, ["a"], ["b"])
    await ask(asked, script)
    assert script.order == [0]


async def test_portal_that_answers_is_not_away_for_one_connection(autojump_clock: object):
    """R10: a connection that cannot be made, while others answer, is no reason to rest."""
    asked = portals(1)

    async def no_connection(_: PortalClient) -> object:
        await trio.sleep(10)
        error = UnavailableError("no connection")
        error.unreached = 10.0
        raise error

    async def answer(_: PortalClient) -> object:
        return "answer"

    async def one_more_connection() -> None:
        with pytest.raises(UnavailableError):
            await asked.first(no_connection)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_more_connection)
        await trio.sleep(9.9)
        assert await asked.first(answer) == "answer"
        await trio.sleep(0.2)
        assert await asked.first(answer) == "answer"
        nursery.cancel_scope.cancel()

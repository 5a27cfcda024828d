"""The order in which portals are asked. No sockets."""

import pytest
import trio

from skymount.errors import (
    PortalTimeoutError,
)
from tests.portal.failover.scripted import (
    DOWN,
    SLOW,
    Script,
    ask,
    portals,
)


async def test_portal_that_failed_is_asked_later(autojump_clock: object):
    """A portal with faults moves back behind one without, until it answers well again."""
    asked = portals(2)
    await ask(asked, Script(asked, [DOWN], ["b"]))
    script = Script(asked, ["a"], ["b"])
    await ask(asked, script)
    assert script.order == [1]
    script = Script(asked, ["a"], [DOWN])
    await ask(asked, script)
    assert script.order == [1, 0]
    assert [client.url for client in asked.ranked()] == ["http://p0.invalid", "http://p1.invalid"]


async def test_who_may_answer(autojump_clock: object):
    """R13: A single portal, if it has sent anything lately; one of several also if it works as far
    as is known.
    """
    for count in (1, 2):
        asked = portals(count)
        assert asked.may_answer(trio.current_time()) == (count > 1)
        with pytest.raises(PortalTimeoutError):
            await asked.first(Script(asked, *[[SLOW]] * count))
        await trio.sleep(1)
        begun = trio.current_time()
        assert not asked.may_answer(begun)
        await trio.sleep(100)
        assert await asked.first(Script(asked, *[["fine"]] * count)) == "fine"
        assert asked.may_answer(begun)
        await trio.sleep(10)
        assert asked.may_answer(trio.current_time()) == (count > 1)

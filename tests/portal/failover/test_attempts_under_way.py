"""Whom an operation that is out of time waited for. No sockets."""

from collections.abc import Callable

import pytest
import trio

from skymount.errors import PortalError
from skymount.portal.failover.contestants import AttemptsUnderWay
from skymount.portal.failover.health import Health
from skymount.portal.http.request_watch import RequestWatch

SILENT, DRIPPING, IDLE = "http://silent", "http://dripping", "http://idle"


def waits(watch: RequestWatch) -> None:
    """Let a request wait for its head."""
    watch.sent("request", trio.current_time())


def receives(watch: RequestWatch) -> None:
    """Let a body have sent something a moment ago."""
    watch.body_awaited("body", trio.current_time())


def does_nothing(watch: RequestWatch) -> None:
    """Let it have no connection yet."""


class Attempts:
    """Attempts that go on until they are cancelled."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.found = AttemptsUnderWay()
        self._nursery = nursery

    async def begin(self, url: str, begin: Callable[[RequestWatch], None]) -> trio.CancelScope:
        return await self._nursery.start(self._run, url, begin)

    async def _run(
        self,
        url: str,
        begin: Callable[[RequestWatch], None],
        task_status: trio.TaskStatus[trio.CancelScope],
    ) -> None:
        watch = RequestWatch(Health())
        with trio.CancelScope() as scope, self.found.noted(url, watch):
            begin(watch)
            task_status.started(scope)
            while True:
                await trio.sleep(0.5)
                if begin is receives:
                    watch.bytes_came("body", 1, trio.current_time())
                    receives(watch)


async def test_those_that_send_nothing(autojump_clock: object):
    """E1: those that send nothing are named, each once; without any those that are slow."""
    async with trio.open_nursery() as nursery:
        attempts = Attempts(nursery)
        assert attempts.found.waited_for() == []
        await attempts.begin(DRIPPING, receives)
        await trio.sleep(0.9)
        assert attempts.found.waited_for() == [], "that is no long time"
        await trio.sleep(1.0)
        await attempts.begin(IDLE, does_nothing)
        assert attempts.found.waited_for() == [DRIPPING]
        for _ in range(2):
            await attempts.begin(SILENT, waits)
        await trio.sleep(2.0)
        assert attempts.found.waited_for() == [SILENT]
        nursery.cancel_scope.cancel()


async def test_own_attempts_were_cancelled(autojump_clock: object):
    """E1: an operation that has cancelled its attempt names that portal, whatever others do."""
    async with trio.open_nursery() as nursery:
        attempts = Attempts(nursery)
        await attempts.begin(SILENT, waits)
        own = await attempts.begin(DRIPPING, receives)
        short = await attempts.begin(IDLE, waits)
        short.cancel()
        await trio.sleep(3.0)
        own.cancel()
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert attempts.found.waited_for() == [DRIPPING]
        await trio.sleep(2.0)
        assert attempts.found.waited_for() == [SILENT]
        nursery.cancel_scope.cancel()


async def test_between_two_attempts(autojump_clock: object):
    """E1: a portal that failed after a long time is named, though it is being asked anew."""
    found = AttemptsUnderWay()

    async def fail() -> None:
        with found.noted(SILENT, RequestWatch(Health())):
            await trio.sleep(1.0)
            raise PortalError("no answer in 1 s")

    with pytest.raises(PortalError):
        await fail()
    await trio.sleep(1.5)
    with found.noted(SILENT, RequestWatch(Health())):
        assert found.waited_for() == [SILENT]
        await trio.sleep(0.5)
        assert found.waited_for() == []


async def test_attempts_that_end():
    """What has ended, well or not, is not waited for."""
    found = AttemptsUnderWay()
    with found.noted(SILENT, RequestWatch(Health())):
        pass
    with pytest.raises(ZeroDivisionError), found.noted(SILENT, RequestWatch(Health())):
        raise ZeroDivisionError
    assert found.waited_for() == []

"""One round in which all portals that work are asked at once, to compare what they say.

It ends when all have answered, or those that have not are late and there is a good answer.
``hedged_race`` asks the portals that fail, one after the other, if there is none.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from skymount.errors import StorageError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import HedgeBudget, PortalHealth
from skymount.portal.failover.hedged_race import HedgedRace, Runner
from skymount.portal.failover.tally import Tally
from skymount.portal.http.request_watch import RequestWatch

T = TypeVar("T")

log = logging.getLogger(__name__)

LATE_TIME = 10.0
"""Seconds that a late attempt may still take, in the background."""

_LATE_LIMIT = 2  # such attempts at one portal, which has other uses for its connections


class Poll(HedgedRace[T]):
    """A round of one operation."""

    def __init__(
        self,
        attempt: Callable[[PortalReader, RequestWatch], Awaitable[T]],
        health_of: Callable[[PortalReader], PortalHealth],
        budget: HedgeBudget,
        tally: Tally,
        background: trio.Nursery | None,
    ) -> None:
        """Late attempts go on in the `background`; without one they are cancelled."""
        super().__init__(attempt, health_of, budget, tally, lambda: True)
        self._background = background
        self._at_once: list[PortalReader] = []
        self._has_ended = False

    async def ask(self, at_once: Sequence[PortalReader], others: Sequence[PortalReader]) -> list[T]:
        """Return the good answers; none if all failed. The `others` are asked if there is none."""
        self._at_once.extend(at_once)
        try:
            return list(await self.run(others))
        finally:
            self._has_ended = True
            for runner in self._running:
                self._leave(runner, trio.current_time())

    def _is_over(self) -> bool:
        if self._crash:
            return True
        return bool(self._answers) and all(runner.is_late for runner in self._running)

    def _go_on(self, nursery: trio.Nursery) -> None:
        if not self._at_once:
            super()._go_on(nursery)
        while self._at_once:
            self._budget.count()
            self._start(self._at_once.pop(0), nursery)

    def _start(self, client: PortalReader, nursery: trio.Nursery) -> None:
        super()._start(client, self._background or nursery)

    async def _run(self, runner: Runner) -> None:
        try:
            await super()._run(runner)
        finally:
            if runner.is_left:
                runner.health.late_attempts -= 1
        if self._has_ended and isinstance(self._crash, StorageError):
            log.info("%s: late answer: %s", runner.client.url, self._crash)
        elif self._has_ended and self._crash:  # a bug must not end everybody else's tasks
            log.error("%s: late answer", runner.client.url, exc_info=self._crash)

    def _leave(self, runner: Runner, now: float) -> None:
        """Let an attempt go on for a while, or cancel it."""
        health = runner.health
        if self._answers and not runner.is_given_up and health.late_attempts < _LATE_LIMIT:
            runner.is_left = True
            health.late_attempts += 1
            runner.scope.deadline = now + LATE_TIME
        else:
            runner.scope.cancel()

    def _is_next_healthy(self, now: float) -> bool:
        return bool(self._answers) or super()._is_next_healthy(now)

"""Rounds over the portals: how often those that fail are asked again, and when that ends."""

import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import trio

from skymount.errors import UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover import retry_after
from skymount.portal.failover.health_table import HealthTable
from skymount.portal.failover.reachability import Attempts
from skymount.portal.failover.tally import Tally

T = TypeVar("T")

AskRound = Callable[[list[PortalReader], Tally, int], Awaitable[list[T]]]
"""Asks portals in the round of a number; returns answers, or notes the failures in the tally."""


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """How often portals that fail are asked again."""

    rounds: int = 3
    """How often each portal is asked before a failure is reported."""
    backoff: float = 0.2
    """Seconds of pause before the second round, doubled for each further one, jittered."""
    longest_wait: float = 10.0
    """Seconds after its begin up to which an operation waits for portals that asked for a pause."""

    def pause(self, number: int) -> float:
        """Return the seconds of pause before a round; the first one has the number 0."""
        jitter = random.uniform(0.5, 1.5)
        return self.backoff * 2.0 ** (number - 1) * jitter


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of operations."""

    table: HealthTable
    config: FailoverConfig
    awake: Callable[[Collection[PortalReader]], Awaitable[list[PortalReader]]]
    """Returns those of some silent portals that give a sign of life."""

    async def until_answered(
        self, ask: AskRound[T], insists: Callable[[], bool] = lambda: False
    ) -> list[T]:
        """Ask the portals in rounds, until there are answers. PortalError if none has one.

        Those that were spared are asked in the end if all others failed; also if some refused, if
        it `insists`.
        """
        tally, begun = self._begin_tally(), trio.current_time()
        unasked = set(self.table.clients)
        for number in range(self.config.rounds):
            if not await self._may_begin(number, tally, begun):
                break
            asked = [client for client in self.table.ranked() if client not in tally.done]
            unasked.difference_update(asked)
            if answers := await ask(asked, tally, number):
                return answers
            tally.admit(self.table.spared())
        if unasked and self.config.rounds > 1 and (insists() or not tally.is_refused):
            asked = await self.available(unasked, begun)
            if asked and (answers := await ask(asked, tally, self.config.rounds - 1)):
                return answers
        raise retry_after.with_end(
            tally.error or UnavailableError("no portal is configured"),
            {client.url: self.table.of(client) for client in self.table.clients},
        )

    async def available(
        self, clients: Collection[PortalReader], begun: float
    ) -> list[PortalReader]:
        """Return which of some portals may be asked, as all others failed an operation that
        began at `begun`; wait for signs of life of silent ones, and for pauses that some asked for.
        """
        if self.table.is_alone:
            return []
        ranked = [each for each in self.table.ranked() if each in clients]
        if found := [each for each in ranked if self.table.attempts(each) is not Attempts.NONE]:
            return found
        if found := await self.awake(ranked):
            return found
        health = [self.table.of(each) for each in ranked]
        if not await retry_after.wait_for_one(health, begun, self.config.longest_wait):
            return []
        now = trio.current_time()
        return [each for each in ranked if begun < self.table.of(each).told_until <= now]

    async def pause_before(self, number: int) -> None:
        await trio.sleep(self.config.pause(number))

    def _begin_tally(self) -> Tally:
        """Begin with the portals that are not asked at all now."""
        spared = self.table.spared()
        errors = (self.table.of(each).known_error for each in self.table.clients if each in spared)
        return Tally(self.table.attempts, spared, next(filter(None, errors), None))

    async def _may_begin(self, number: int, tally: Tally, begun: float) -> bool:
        """Pause before a round; whether there is anybody left to ask."""
        clients = self.table.clients
        portals = [self.table.of(each) for each in clients]
        now = trio.current_time()
        is_told = self.table.is_alone and any(each.told_until > now for each in portals)
        if len(tally.done) < len(clients) and not (number and is_told):
            if number:
                await self.pause_before(number)
            return True
        longest = self.config.longest_wait
        if tally.is_refused or not await retry_after.wait_for_one(portals, begun, longest):
            return False
        now = trio.current_time()
        told = (each for each in clients if begun < self.table.of(each).told_until <= now)
        tally.done.difference_update(told)
        return True

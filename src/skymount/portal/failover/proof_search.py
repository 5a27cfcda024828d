"""The search for a proof, where the first good answer has none: all other portals are asked."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeVar

import trio

from skymount.concurrency import run_all
from skymount.errors import (
    BadContentError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import BreakerState
from skymount.portal.failover.health_table import HealthTable
from skymount.portal.failover.hedged_race import unless_late
from skymount.portal.failover.reachability import Attempts
from skymount.portal.failover.recorded_attempts import Ask, RecordedAttempts
from skymount.portal.failover.rounds import Rounds

T = TypeVar("T")

PROOF_TIMEOUT = 10.0
"""Seconds that all other portals together have to prove an answer that came without a proof."""


class ProofSearch(Generic[T]):
    """The search of one operation."""

    def __init__(
        self,
        table: HealthTable,
        attempts: RecordedAttempts,
        rounds: Rounds,
        ask: Ask[T],
        is_proven: Callable[[T], bool],
    ) -> None:
        self._table = table
        self._attempts = attempts
        self._rounds = rounds
        self._ask = ask
        self._is_proven = is_proven
        self._proofs: list[T] = []
        self._refused: set[PortalReader] = set()
        self.undecided: set[PortalReader] = set()
        """The portals that might have a proof: they failed, or refused."""

    async def run(self, clients: Iterable[PortalReader]) -> list[T]:
        """Ask portals in rounds, in each all of them at once, for `PROOF_TIMEOUT` seconds at most;
        return the proofs that they have sent until then.
        """
        self.undecided.update(clients)
        with trio.move_on_after(PROOF_TIMEOUT) as scope:
            await self._ask_in_rounds()
        now = trio.current_time()
        for client in self.undecided:
            health = self._table.of(client)
            health.reachability.record_no_proof(now)
            if scope.cancelled_caught and not health.showed_signs(now - PROOF_TIMEOUT):
                error = PortalTimeoutError(f"no answer in {PROOF_TIMEOUT:g} s", url=client.url)
                health.record_failure(error, now, waited=PROOF_TIMEOUT)
        return self._proofs

    async def _ask_in_rounds(self) -> None:
        for number in range(self._rounds.config.rounds):
            asked = self._worth_asking(number)
            if self._proofs or not asked:
                break
            if number:
                await self._rounds.pause_before(number)
            with trio.CancelScope() as proof_found:
                await run_all(*(partial(self._try, each, number, proof_found) for each in asked))

    def _worth_asking(self, number: int) -> list[PortalReader]:
        now = trio.current_time()
        wanted = (Attempts.ALL,) if number else (Attempts.ALL, Attempts.ONE)
        asked = self.undecided - self._refused
        return [each for each in asked if self._table.of(each).proof_attempts(now) in wanted]

    async def _try(self, client: PortalReader, number: int, proof_found: trio.CancelScope) -> None:
        """Ask one portal. If it answers it is decided; if it refuses it is not asked again."""
        try:
            answer = await self._attempt(client, number)
        except NotFoundError:
            self.undecided.discard(client)
        except (UnavailableError, BadContentError):
            pass
        except (PortalError, StorageError):
            self._refused.add(client)
        else:
            self.undecided.discard(client)
            if self._is_proven(answer):
                self._proofs.append(answer)
                proof_found.cancel()

    async def _attempt(self, client: PortalReader, number: int) -> T:
        """Ask for a proof; a portal that failed lately gets less time."""
        attempt = self._attempts.of_round(self._ask, number)
        health = self._table.of(client)
        if health.state(trio.current_time()) is BreakerState.CLOSED:
            return await attempt(client, None)
        return await unless_late(attempt, client, health)

"""One attempt at a portal, whose health takes note of how it ended."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from skymount.errors import BadContentError, PortalError, RolledBackError, UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.attempts_under_way import AttemptsUnderWay
from skymount.portal.failover.health import PortalHealth
from skymount.portal.http.request_watch import RequestWatch, watched

T = TypeVar("T")

Ask = Callable[[PortalReader], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class RecordedAttempts:
    """Makes attempts at portals."""

    health_of: Callable[[PortalReader], PortalHealth]
    under_way: AttemptsUnderWay
    rounds: int
    """How often a portal is asked; after the last time it may count as away."""

    async def make(
        self, client: PortalReader, watch: RequestWatch | None, ask: Ask[T], number: int
    ) -> T:
        """Ask a portal in the round `number`; the first one is 0."""
        health, begun = self.health_of(client), trio.current_time()
        watch = watch or RequestWatch(health)
        try:
            with self.under_way.noted(client.url, watch):
                answer = await watched(watch, ask(client))
        except RolledBackError:  # it works, and is only behind
            health.record_answer(trio.current_time(), begun)
            raise
        except (UnavailableError, BadContentError) as error:
            if not error.is_unsent:
                now, is_last_round = trio.current_time(), number == self.rounds - 1
                waited = now - begun
                health.record_failure(error, now, waited=waited, is_last_round=is_last_round)
            raise
        except PortalError:
            health.record_answer(trio.current_time(), begun)
            raise
        except trio.Cancelled:
            health.record_cancelled(trio.current_time(), begun)
            raise
        health.record_success(trio.current_time(), begun)
        return answer

    def of_round(
        self, ask: Ask[T], number: int
    ) -> Callable[[PortalReader, RequestWatch | None], Awaitable[T]]:
        return partial(self.make, ask=ask, number=number)

"""Whether a portal is worth a request now: the health decision of failover, without IO."""

import copy
import math
from dataclasses import dataclass
from enum import Enum, auto

from skymount.errors import PortalError

FAILURE_MEMORY = 30.0
"""Seconds after which a failure no longer counts, doubled for each further one in a row."""

HALF_OPEN_TIME = 5.0
"""Seconds for which a portal that could not be reached gets a single attempt for each request."""

SLOW_ATTEMPT = 1.0
"""Seconds after which an attempt to connect that fails is not repeated."""

OPEN_TIME = 2.0
"""Seconds for which a portal gets no attempt at all after a slow one."""

_MOST_FAILURES = 6  # that are counted in a row; they are remembered for half an hour


class BreakerState(Enum):
    """How many attempts a request makes at a portal: all, one or none."""

    CLOSED = auto()
    HALF_OPEN = auto()
    OPEN = auto()


@dataclass
class CircuitBreaker:
    """How a portal has done lately. Times are seconds of one clock."""

    failures: int = 0
    """In a row."""
    last_failure: float = 0.0
    last_answer: float = -math.inf
    half_open_until: float = -math.inf
    open_until: float = -math.inf
    connect_error: PortalError | None = None
    proof_retry_at: float = -math.inf
    """From when a proof is asked for in all rounds again, after all of them failed."""

    def record_success(self, now: float) -> None:
        self.failures = 0
        self.record_answer(now)

    def record_answer(self, now: float) -> None:
        """Record any answer, a refusal too."""
        self.last_answer, self.half_open_until = now, -math.inf

    def record_failure(self, error: PortalError, now: float, *, is_last_round: bool) -> None:
        """Record a failed attempt.

        The breaker stays closed if the portal was reached, or if it answered on another connection
        while this one was being made.
        """
        self.failures, self.last_failure = min(self.failures + 1, _MOST_FAILURES), now
        if error.unreached is None or self.last_answer > now - error.unreached:
            self.half_open_until = -math.inf
            return
        is_slow = error.unreached >= SLOW_ATTEMPT
        if is_slow or is_last_round:
            self.half_open_until = now + HALF_OPEN_TIME
        if is_slow:
            self.connect_error, self.open_until = copy.copy(error), now + OPEN_TIME

    def record_no_proof(self, now: float) -> None:
        self.proof_retry_at = now + HALF_OPEN_TIME

    def state(self, now: float) -> BreakerState:
        if now >= self.half_open_until:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.open_until else BreakerState.HALF_OPEN

    def proof_state(self, now: float) -> BreakerState:
        """The same of a request for a proof, of which one attempt is enough after a failure."""
        state = self.state(now)
        return (
            BreakerState.HALF_OPEN
            if state is BreakerState.CLOSED and now < self.proof_retry_at
            else state
        )

    def failures_at(self, now: float) -> int:
        """Return the failures in a row that still count; the fewer, the earlier it is asked."""
        memory = FAILURE_MEMORY * 2 ** (self.failures - 1)
        return self.failures if now < self.last_failure + memory else 0

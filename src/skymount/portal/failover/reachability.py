"""Whether a connection to a portal can be made, and how often that is tried (docs/semantics.md,
R10). No IO.
"""

import copy
import math
from dataclasses import dataclass
from enum import Enum, auto

from skymount.errors import PortalError

AWAY_TIME = 5.0
"""Seconds for which a portal that could not be reached gets a single attempt for each request."""

SLOW_ATTEMPT = 1.0
"""Seconds after which an attempt to connect that fails is not repeated."""

REST_TIME = 2.0
"""Seconds for which a portal gets no attempt at all after a slow one."""


class Attempts(Enum):
    """How many attempts an operation makes at a portal."""

    ALL = auto()
    ONE = auto()
    NONE = auto()


@dataclass
class Reachability:
    """Whether a portal can be reached. Times are seconds of one clock."""

    last_answer: float = -math.inf
    away_until: float = -math.inf
    rests_until: float = -math.inf
    connect_error: PortalError | None = None
    proof_retry_at: float = -math.inf
    """From when a proof is asked for in all rounds again, after all of them failed."""

    def record_answer(self, now: float) -> None:
        """Record any answer, a refusal too."""
        self.last_answer, self.away_until = now, -math.inf

    def record_failure(self, error: PortalError, now: float, *, is_last_round: bool) -> None:
        """Record a failed attempt.

        The portal is not away if it was reached, or if it answered on another connection while
        this one was being made.
        """
        if error.unreached is None or self.last_answer > now - error.unreached:
            self.away_until = -math.inf
            return
        is_slow = error.unreached >= SLOW_ATTEMPT
        if is_slow or is_last_round:
            self.away_until = now + AWAY_TIME
        if is_slow:
            self.connect_error, self.rests_until = copy.copy(error), now + REST_TIME

    def record_no_proof(self, now: float) -> None:
        self.proof_retry_at = now + AWAY_TIME

    def attempts(self, now: float) -> Attempts:
        if now >= self.away_until:
            return Attempts.ALL
        return Attempts.NONE if now < self.rests_until else Attempts.ONE

    def is_proof_paused(self, now: float) -> bool:
        """Whether one attempt is enough for a proof, since none came a moment ago."""
        return now < self.proof_retry_at

"""How long to wait before a request is repeated."""

import random
from dataclasses import dataclass

REPEATABLE_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses that may soon be another one (docs/wire.md 9: a timed-out handler is a 503)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off. Times in seconds."""

    backoff: float = 0.2
    """The longest pause before the first repetition, doubled for each further one."""
    longest_backoff: float = 5.0
    longest_wait: float = 60.0
    """What a portal may ask us to wait. Asked for more, we give up at once."""
    after_silence: bool = True
    """Whether what nobody answered in time is asked again."""

    def pause_before(self, repetition: int, retry_after: float | None = None) -> float | None:
        """Return the pause before the n-th repetition, counted from 1; None to give up.

        Full jitter, so that clients that failed together do not come back together. Never less
        than the portal asks for.
        """
        if retry_after is not None and retry_after > self.longest_wait:
            return None
        longest = min(self.longest_backoff, self.backoff * 2 ** (repetition - 1))
        return max(random.uniform(0, longest), retry_after or 0.0)

"""How a portal has done lately, and what follows from it: its rank, how often an operation may ask
it, and how long it may take before another one is asked as well. No IO; the times are seconds of
one clock.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from skymount.errors import DisprovedError, PortalError, PortalTimeoutError
from skymount.portal.failover.reachability import AWAY_TIME, REST_TIME, Attempts, Reachability


class BreakerState(Enum):
    """Whether a portal is used as configured, or behind those that are."""

    CLOSED = "closed"
    OPEN = "open"
    """It failed: it pauses."""
    HALF_OPEN = "half open"
    """The pause is over: one attempt shows whether it works again."""


class Rank(Enum):
    """The order in which portals are asked; those of one rank as they are configured."""

    HEALTHY = auto()
    FAILING = auto()
    LYING = auto()


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """Limits; times in seconds, rates in bytes a second."""

    first_pause: float = 1.0
    longest_pause: float = 60.0
    """Also of what a portal may ask for with Retry-After."""
    forgiven_after: float = 120.0
    """Without a failure, after which the next pause is a short one again."""
    lie_memory: float = 300.0
    """For which a portal that sent disproved content comes last."""
    silence: float = 1.0
    """An attempt that ends without an answer after so long shows that a portal is silent."""

    least_delay: float = 0.25
    longest_delay: float = 2.0
    default_delay: float = 1.0
    """While nothing is known of a portal's latency."""
    latency_factor: float = 3.0
    least_stall: float = 1.0
    """Between two pieces of a body."""
    slow_fraction: float = 0.25
    """Of the rate of another portal, below which a body is late."""
    default_rate: float = 256 << 10
    """Of a portal that is not known."""
    measured_body: int = 64 << 10
    """Bytes; the rate of a shorter body says nothing."""

    smoothing: float = 0.2
    """Weight of the latest latency, failure and rate in their moving averages."""


@dataclass(frozen=True, slots=True)
class HealthFigures:
    """The health of a portal at one moment, to be shown."""

    url: str
    state: BreakerState
    rank: Rank
    latency: float | None
    """Seconds to the head of a response, as a moving average."""
    failure_rate: float
    body_rate: float | None
    hedges: int
    """Requests that were sent to it because another portal was late."""
    hedges_lost: int
    """Requests that it was late for, and another portal answered."""
    last_error: str
    last_error_age: float | None
    """Seconds."""


@dataclass(eq=False, slots=True)
class PortalHealth:
    """The health of one portal."""

    config: HealthConfig = field(default_factory=HealthConfig)
    reachability: Reachability = field(default_factory=Reachability)
    latency: float | None = None
    failure_rate: float = 0.0
    body_rate: float | None = None
    hedges: int = 0
    hedges_lost: int = 0
    error: PortalError | None = None
    """The last one."""
    is_probed: bool = False
    """Whether a probe is under way."""
    late_attempts: int = 0
    """That go on in the background."""
    told_until: float = -math.inf
    """Until when it asked to be left alone (Retry-After)."""
    watchers: set[Callable[[], None]] = field(default_factory=set)
    """Called when it begins to pause."""
    _bodies: int = 0  # being received
    _level: int = 0  # of the pause: failures that each made it longer
    _failed_at: float = -math.inf
    _is_closed: bool = True
    _pause_until: float = -math.inf
    _is_silent: bool = False
    _is_late: bool = False  # it lost a hedge, and has answered nothing since
    _late_at: float = -math.inf
    _lied_at: float = -math.inf
    _sign_at: float = -math.inf
    _unanswered_at: float = -math.inf

    # --- what happens

    def record_success(self, now: float, begun: float = math.inf) -> None:
        """Record a good answer to what was asked at `begun`."""
        if begun > self._late_at:
            self._is_closed, self._is_silent, self._is_late = True, False, False
        self.record_answer(now, begun)

    def record_answer(self, now: float, begun: float = math.inf) -> None:
        """Record any answer, a refusal too. A portal that was silent or late is so no more, and one
        whose pause is over works again; but not if it was late with this very answer.
        """
        if begun <= self._late_at:
            self.record_sign(now)
            return
        self.reachability.record_answer(now)
        self._sign_at = now
        if self.failure_rate:
            self._average_failure(0.0)
        if self._is_closed:
            return
        if self._is_silent or self._is_late or self.state(now) is BreakerState.HALF_OPEN:
            self._is_closed, self._is_silent, self._is_late = True, False, False

    def record_failure(
        self, error: PortalError, now: float, *, waited: float = 0.0, is_last_round: bool = False
    ) -> None:
        """Record an attempt that failed after so many seconds."""
        self.reachability.record_failure(error, now, is_last_round=is_last_round)
        is_timeout = isinstance(error, PortalTimeoutError)
        if is_timeout and waited >= self.config.silence and self._sign_at <= now - waited:
            self._is_silent = True
        if isinstance(error, DisprovedError):
            self._lied_at = now
        if error.retry_after is not None:
            self.told_until = now + min(error.retry_after, self.config.longest_pause)
        self.error = copy.copy(error)
        self._open(now)

    def record_lost_hedge(self, waited: float, now: float) -> None:
        """Record that another portal was asked because this one was late, and answered."""
        self.hedges_lost += 1
        self._is_late, self._late_at = True, now
        self._average_latency(waited)
        self.error = PortalTimeoutError(f"no answer in {waited:.1f} s; another portal had one")
        self._open(now)

    def _open(self, now: float) -> None:
        self._average_failure(1.0)
        state = self.state(now)
        if now - self._failed_at > self.config.forgiven_after:
            self._level = 0
        self._failed_at = now
        if state is BreakerState.OPEN:  # others of the same time: they make no longer pause
            return
        pause = min(self.config.first_pause * 2**self._level, self.config.longest_pause)
        self._level = min(self._level + 1, 16)
        self._is_closed, self._pause_until = False, now + pause
        for watcher in tuple(self.watchers):
            watcher()

    def head_came(self, seconds: float, now: float) -> None:
        self._sign_at = now
        self._average_latency(seconds)

    def bytes_came(self, now: float) -> None:
        self._sign_at = now

    def record_sign(self, now: float) -> None:
        """Record that it lives, whatever it does with requests."""
        self._sign_at = now

    def record_awake(self, now: float) -> None:
        """Record that it is silent no more; it still pauses."""
        self._sign_at, self._is_silent = now, False

    def record_cancelled(self, now: float, begun: float) -> None:
        """Record an attempt that somebody gave up. It may have been one more that was in vain."""
        waited_long = now - begun >= self.config.silence
        if self._is_silent and waited_long and not self.showed_signs(begun):
            self._unanswered_at = now

    def record_no_sign(self, now: float) -> None:
        """Record that it was asked for a sign of life, and gave none."""
        self._unanswered_at = now

    def body_opened(self) -> None:
        self._bodies += 1

    def body_closed(self, size: int, seconds: float) -> None:
        if size >= self.config.measured_body and seconds:
            rate = self._bodies * size / seconds
            self.body_rate = rate if self.body_rate is None else self._mean(self.body_rate, rate)
        self._bodies -= 1

    def _average_latency(self, seconds: float) -> None:
        self.latency = seconds if self.latency is None else self._mean(self.latency, seconds)

    def _average_failure(self, failed: float) -> None:
        self.failure_rate = self._mean(self.failure_rate, failed)

    def _mean(self, average: float, latest: float) -> float:
        return average + self.config.smoothing * (latest - average)

    # --- what follows

    def state(self, now: float) -> BreakerState:
        if self._is_closed:
            return BreakerState.CLOSED
        paused = now < max(self._pause_until, self.told_until)
        return BreakerState.OPEN if paused else BreakerState.HALF_OPEN

    def rank(self, now: float, *, is_probed: bool) -> Rank:
        """Return its rank. `is_probed`: a portal whose pause is over comes first again only after
        a probe; otherwise the next operation is the probe.
        """
        if now < self._lied_at + self.config.lie_memory:
            return Rank.LYING
        state = self.state(now)
        is_healthy = state is BreakerState.CLOSED
        is_due = state is BreakerState.HALF_OPEN and not is_probed
        return Rank.HEALTHY if is_healthy or is_due else Rank.FAILING

    def attempts(self, now: float, *, is_alone: bool) -> Attempts:
        """Return how many attempts an operation makes at it; `is_alone` if there is no other one.

        Others spare the user the wait for a portal that is known to be silent, and it is left in
        peace when it asked for that.
        """
        found = self.reachability.attempts(now)
        if is_alone or found is Attempts.NONE:
            return found
        if now < self.told_until:
            return Attempts.NONE
        if not self._is_silent or self._is_closed:
            return found
        is_open = self.state(now) is BreakerState.OPEN
        return Attempts.NONE if is_open or self.is_probed else Attempts.ONE

    def proof_attempts(self, now: float) -> Attempts:
        """The same of a request for a proof, of which one attempt is enough after a failure. A
        portal that was late a moment ago is not asked: it might cost the user seconds.
        """
        found = self.attempts(now, is_alone=False)
        if self._is_late and self.state(now) is BreakerState.OPEN:
            return Attempts.NONE
        once = found is Attempts.ALL and self.reachability.is_proof_paused(now)
        return Attempts.ONE if once else found

    def may_be_tried(self, now: float) -> bool:
        """Whether it gets an attempt because no other portal works either."""
        is_due = now >= max(self._failed_at + REST_TIME, self.told_until)
        return is_due and self.reachability.attempts(now) is not Attempts.NONE

    def may_awake(self, now: float) -> bool:
        """Whether it is not asked only because it was silent."""
        is_reachable = self.reachability.attempts(now) is not Attempts.NONE
        return self._is_silent and is_reachable and now >= self.told_until

    @property
    def known_error(self) -> PortalError | None:
        """Why no attempt is made, if none is."""
        return copy.copy(self.reachability.connect_error or self.error)

    def showed_signs(self, since: float) -> bool:
        """Whether anything came from it since."""
        return self._sign_at >= since

    def showed_no_sign(self, since: float) -> bool:
        """Whether somebody found since that it gives no sign of life."""
        return self._unanswered_at >= since

    @property
    def is_known_silent(self) -> bool:
        """Whether nothing has come from it since it was silent for the whole of an attempt."""
        return self._is_silent and not self.showed_signs(self._failed_at)

    def ping_patience(self, now: float) -> float:
        """Return the seconds that an operation waits for a sign of life from a silent portal."""
        known_at = max(self._failed_at, self._unanswered_at)
        is_recent = now < known_at + AWAY_TIME
        return self.config.least_delay if is_recent else self.config.longest_delay

    @property
    def hedge_delay(self) -> float:
        """Seconds that a request may wait for its head before another portal is asked as well."""
        config = self.config
        if self.latency is None:
            return config.default_delay
        usual = config.latency_factor * self.latency
        return min(max(usual, config.least_delay), config.longest_delay)

    @property
    def stall_limit(self) -> float:
        """The same between two pieces of a body."""
        return max(self.hedge_delay, self.config.least_stall)

    def is_slow(self, rate: float, other: float | None) -> bool:
        """Whether a body comes too slowly at that rate; `other` is what another portal gives."""
        known = self.config.default_rate if other is None else other
        return rate * max(1, self._bodies) < self.config.slow_fraction * known

    def figures(self, url: str, now: float, *, is_probed: bool) -> HealthFigures:
        return HealthFigures(
            url=url,
            state=self.state(now),
            rank=self.rank(now, is_probed=is_probed),
            latency=self.latency,
            failure_rate=self.failure_rate,
            body_rate=self.body_rate,
            hedges=self.hedges,
            hedges_lost=self.hedges_lost,
            last_error="" if self.error is None else str(self.error),
            last_error_age=None if self.error is None else now - self._failed_at,
        )


@dataclass(eq=False)
class HedgeBudget:
    """How many requests may go to a second portal: a fraction of all, beyond a burst."""

    burst: float = 8.0
    fraction: float = 0.1
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.burst

    def count(self) -> None:
        """Count an attempt that is no hedge."""
        self._left = min(self.burst, self._left + self.fraction)

    def take(self) -> bool:
        """Whether one more hedge may be sent; it counts."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

"""How one portal does, and what follows from it: whether it may be asked, and what is late.

No IO; all times are seconds of one clock, and `now` is a parameter. docs/semantics.md, R10 to R12.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from skymount.errors import DisprovedError, PortalError, PortalTimeoutError
from skymount.portal.http.request_watch import RequestWatch

# Limits; times in seconds, rates in bytes a second.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Also of what a portal may ask for with Retry-After."""
FORGIVEN_AFTER = 120.0
"""Without a failure, after which the next pause is a short one again."""
LIE_MEMORY = 300.0
"""For which a portal that sent disproved content comes last."""
SILENCE = 1.0
"""An attempt that ends without an answer after so long shows that a portal is silent."""
AWAY = 5.0
"""For which a portal that could not be reached gets one attempt of each operation; for which
nobody waits for long for a sign of life that others waited for in vain."""
OUTAGE = 5.0
"""For which operations wait at least for a portal that refuses connections."""
LATELY = 60.0
"""In which it must have worked before."""
REST = 2.0
"""After its last failure a silent portal is tried again, if none works."""

LEAST_DELAY = 0.25
LONGEST_DELAY = 2.0
DEFAULT_DELAY = 1.0
"""While nothing is known of a portal's latency."""
LATENCY_FACTOR = 3.0
LEAST_STALL = 1.0
"""Between two pieces of a body."""
SLOW_FRACTION = 0.25
"""Of the rate of another portal, below which a body is late."""
DEFAULT_RATE = 256 << 10
"""Of a portal that is not known."""
MEASURED_BODY = 64 << 10
"""Bytes; the rate of a shorter body says nothing, unless that took `LEAST_STALL`."""
SMOOTHING = 0.2
"""Weight of the latest latency, failure and rate in their moving averages."""


class State(Enum):
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


class May(Enum):
    """Whether an operation may ask a portal."""

    YES = auto()
    PROBE = auto()
    """Once it has given a sign of life."""
    NO = auto()


@dataclass(frozen=True, slots=True)
class HealthFigures:
    """The health of a portal at one moment, to be shown."""

    url: str
    state: State
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
class Health:
    """The health of one portal."""

    outage: float = OUTAGE
    """For which operations wait for it when it refuses connections."""
    latency: float | None = None
    failure_rate: float = 0.0
    body_rate: float | None = None
    hedges: int = 0
    hedges_lost: int = 0
    error: PortalError | None = None
    """The last one."""
    told_until: float = -math.inf
    """Until when it asked to be left alone (Retry-After)."""
    is_tried: bool = False
    """Whether a trial is under way that shows whether it works again."""
    late_attempts: int = 0
    """That go on in the background."""
    given_up_at: float = -math.inf
    """When an attempt that took long was last cancelled."""
    failed_late_at: float = -math.inf
    """When one last failed."""
    watchers: set[Callable[[], None]] = field(default_factory=set)
    """Called when it begins to pause."""
    _is_closed: bool = True
    _pause_until: float = -math.inf
    _level: int = 0  # of the pause: failures that each made it longer
    _failed_at: float = -math.inf
    _is_silent: bool = False
    _late_at: float = -math.inf  # when another portal was quicker
    _lied_at: float = -math.inf
    _sign_at: float = -math.inf
    _no_sign_at: float = -math.inf  # when somebody waited for one in vain
    _answer_at: float = -math.inf
    _away_until: float = -math.inf
    _told_of: float | None = None  # the outage that the log has told of, by its begin
    _refused_at: float | None = None  # when it first refused a connection since its last answer
    _slow_until: float = -math.inf  # as a body came slowly
    _bodies: int = 0  # being received

    # --- what happens

    def answered(self, now: float, begun: float = math.inf, *, is_good: bool = True) -> None:
        """Note an answer to what was asked at `begun`; a refusal is no good one.

        A portal that answers was not late with this very answer works again. A refusal shows that
        only of one that was silent or late, or whose pause is over. One whose bodies come slowly
        works again when one has come in time, or after `LONGEST_PAUSE`, whatever heads it sends.
        """
        self._sign_at = now
        if begun <= self._late_at:
            return
        self._answer_at, self._away_until, self._refused_at = now, -math.inf, None
        if self.failure_rate or not is_good:
            self._average_failure(0.0)
        if self._is_late and now < self._slow_until:
            return
        was_slow = self._is_silent or self._is_late
        if is_good or was_slow or self.state(now) is State.HALF_OPEN:
            self._is_closed, self._is_silent, self._late_at = True, False, -math.inf

    def failed(
        self, error: PortalError, now: float, *, waited: float = 0.0, is_last: bool = False
    ) -> None:
        """Note an attempt that failed after so many seconds; `is_last` if no other one follows.

        A portal is away if no connection to it can be made, unless it answered on another one
        meanwhile. It is silent if nothing came from it for long.
        """
        if error.unreached is None or self._answer_at > now - error.unreached:
            self._away_until, self._refused_at = -math.inf, None
        else:
            is_slow = error.unreached >= SILENCE
            if not is_slow and self._refused_at is None:
                self._refused_at = now
            is_outage_over = -math.inf < self.outage_until <= now
            if is_slow or is_last or is_outage_over:
                self._away_until = now + AWAY
        if waited >= SILENCE:
            self.failed_late_at = now
        is_mute = isinstance(error, PortalTimeoutError) or error.unreached is not None
        if is_mute and waited >= SILENCE and self._sign_at <= now - waited:
            self._is_silent = True
        if isinstance(error, DisprovedError):
            self._lied_at = now
        if error.retry_after is not None:
            self.told_until = now + min(error.retry_after, LONGEST_PAUSE)
        self.error = copy.copy(error)
        self._open(now)

    def lost(self, waited: float, now: float) -> None:
        """Note that it was late, and another portal answered."""
        self.hedges_lost += 1
        self._late_at = now
        self._average_latency(waited)
        self.error = PortalTimeoutError(f"no answer in {waited:.1f} s; another portal had one")
        self._open(now)

    def _open(self, now: float) -> None:
        self._average_failure(1.0)
        state = self.state(now)
        if now - self._failed_at > FORGIVEN_AFTER:
            self._level = 0
        self._failed_at = now
        if state is State.OPEN:  # others of the same time: they make no longer pause
            return
        pause = min(FIRST_PAUSE * 2**self._level, LONGEST_PAUSE)
        self._level = min(self._level + 1, 16)
        self._is_closed, self._pause_until = False, now + pause
        for watcher in tuple(self.watchers):
            watcher()

    def given_up(self, now: float, begun: float) -> None:
        """Note an attempt that somebody cancelled. It may have been one more that was in vain."""
        if now - begun < SILENCE:
            return
        self.given_up_at = now
        if self._is_silent and self._sign_at < begun:
            self._no_sign_at = now

    def gave_sign(self, now: float, *, is_awake: bool = False) -> None:
        """Note that it lives, whatever it does with requests. `is_awake`: it may be asked again."""
        self._sign_at = now
        if is_awake:
            self._is_silent = False

    def gave_no_sign(self, now: float) -> None:
        """Note that it was asked for a sign of life in vain."""
        self._no_sign_at = now

    def head_came(self, seconds: float, now: float) -> None:
        self._sign_at = now
        self._average_latency(seconds)

    def bytes_came(self, now: float) -> None:
        self._sign_at = now

    def body_opened(self) -> None:
        self._bodies += 1

    def body_closed(self, size: int, seconds: float) -> None:
        if (size >= MEASURED_BODY and seconds) or seconds >= LEAST_STALL:
            rate = self._bodies * size / seconds
            self.body_rate = rate if self.body_rate is None else self._mean(self.body_rate, rate)
            is_slow = self.is_slow(size / seconds, None)
            self._slow_until = self._sign_at + LONGEST_PAUSE if is_slow else -math.inf
        self._bodies -= 1

    def _average_latency(self, seconds: float) -> None:
        self.latency = seconds if self.latency is None else self._mean(self.latency, seconds)

    def _average_failure(self, failed: float) -> None:
        self.failure_rate = self._mean(self.failure_rate, failed)

    def _mean(self, average: float, latest: float) -> float:
        return average + SMOOTHING * (latest - average)

    # --- whether it is asked

    def state(self, now: float) -> State:
        if self._is_closed:
            return State.CLOSED
        paused = now < max(self._pause_until, self.told_until)
        return State.OPEN if paused else State.HALF_OPEN

    def rank(self, now: float, *, has_trials: bool) -> Rank:
        """Return its rank. `has_trials`: a portal whose pause is over comes first again only after
        a trial; otherwise the next operation is the trial.
        """
        if now < self._lied_at + LIE_MEMORY:
            return Rank.LYING
        state = self.state(now)
        is_due = state is State.HALF_OPEN and not has_trials
        return Rank.HEALTHY if state is State.CLOSED or is_due else Rank.FAILING

    def may_ask(self, now: float, *, is_alone: bool, has_working: bool = True) -> May:
        """Return whether an operation may ask it. `is_alone`: there is no other portal.

        Others spare the user the wait for one that is known to be silent, unless none works; and
        it is left in peace when it asked for that.
        """
        if is_alone:
            return May.PROBE if self.is_known_silent else May.YES
        if now < self.told_until:
            return May.NO
        if not self._is_silent or self._is_closed:
            return May.YES
        if self.state(now) is State.HALF_OPEN and not self.is_tried:
            return May.YES
        is_rested = now >= self._failed_at + REST
        return May.YES if is_rested and not has_working else May.PROBE

    @property
    def outage_until(self) -> float:
        """Until when operations wait for it: it refuses connections, and may be restarting."""
        refused_at = self._refused_at
        if refused_at is None or self._answer_at < refused_at - LATELY:
            return -math.inf
        return refused_at + self.outage

    def begins_outage(self) -> bool:
        """Whether nobody has been told of this outage; the caller tells of it."""
        is_new = self._told_of != self._refused_at
        self._told_of = self._refused_at
        return is_new

    def is_away(self, now: float) -> bool:
        """Whether no connection to it could be made a moment ago: one more attempt is enough."""
        return now < self._away_until

    @property
    def is_silent(self) -> bool:
        """Whether its last attempts ended without a sign of life."""
        return self._is_silent and not self._is_closed

    def pauses_for_lateness(self, now: float) -> bool:
        """Whether it pauses because it was late or silent: to ask it may cost seconds."""
        return self.state(now) is State.OPEN and (self._is_silent or self._is_late)

    @property
    def _is_late(self) -> bool:
        return self._late_at > -math.inf

    @property
    def is_known_silent(self) -> bool:
        """Whether nothing has come from it since it was silent for the whole of an attempt."""
        return self._is_silent and self._sign_at < self._failed_at

    @property
    def known_error(self) -> PortalError | None:
        """Why it is not asked, if it is not; the reason may be of another operation."""
        return self.error and self.error.explained(before="it failed a moment ago: ")

    def showed_signs(self, since: float) -> bool:
        """Whether anything came from it since."""
        return self._sign_at >= since

    def showed_no_sign(self, since: float) -> bool:
        """Whether somebody waited since for a sign of life in vain."""
        return self._no_sign_at >= since

    def sign_patience(self, now: float) -> float:
        """Return the seconds that an operation waits for a sign of life from a silent portal."""
        known_at = max(self._failed_at, self._no_sign_at)
        is_recent = now < known_at + AWAY
        return LEAST_DELAY if is_recent else LONGEST_DELAY

    # --- what is late

    @property
    def hedge_delay(self) -> float:
        """Seconds that a request may wait for its head before another portal is asked as well."""
        if self.latency is None:
            return DEFAULT_DELAY
        usual = LATENCY_FACTOR * self.latency
        return min(max(usual, LEAST_DELAY), LONGEST_DELAY)

    @property
    def stall_limit(self) -> float:
        """The same between two pieces of a body."""
        return max(self.hedge_delay, LEAST_STALL)

    def is_slow(self, rate: float, other: float | None) -> bool:
        """Whether a body comes too slowly at that rate; `other` is what another portal gives."""
        known = DEFAULT_RATE if other is None else other
        return rate * max(1, self._bodies) < SLOW_FRACTION * known

    def is_late(self, watch: RequestWatch, other_rate: float | None, now: float) -> bool:
        """Whether what is watched takes so long that another portal should be asked."""
        if watch.head_wait(now) >= self.hedge_delay or watch.stall(now) >= self.stall_limit:
            return True
        rate = watch.slowest_body(now, self.stall_limit)
        return rate is not None and self.is_slow(rate, other_rate)

    def figures(self, url: str, now: float, *, has_trials: bool) -> HealthFigures:
        return HealthFigures(
            url=url,
            state=self.state(now),
            rank=self.rank(now, has_trials=has_trials),
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

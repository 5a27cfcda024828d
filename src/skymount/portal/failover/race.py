"""One operation over several portals: who is asked, when another one is asked as well, and when it
is over. It does not know what is asked.

A portal is asked as soon as its turn comes (`_Turn`): the best one first, the next one when those
before it fail or are late. `Health` says who may be asked and what is late. An attempt that nobody
needs is cancelled, or goes on in the background for a while if the race `leaves` it.
"""

import copy
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from skymount.errors import (
    BadContentError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.contestants import Ask, Contestants
from skymount.portal.failover.health import LEAST_DELAY, Health, May, Rank, State
from skymount.portal.http.advice import again_in
from skymount.portal.http.request_watch import RequestWatch

T = TypeVar("T")
E = TypeVar("E", bound=PortalError)

log = logging.getLogger(__name__)

CHECK_TIME = 0.1
"""Seconds between two looks at what is late."""

_SIGN_LASTS = 1.0  # seconds after which a late upload needs another sign of life
_MOST_TRIES = 3  # of a portal that goes on asking for pauses
_OUTAGE_PAUSE = 0.2, 0.5  # seconds between two attempts at a portal that may be restarting
_OTHER = "; another portal had one"
_LATE_LIMIT = 2  # attempts that go on at one portal, which has other uses for its connections


@dataclass(frozen=True, slots=True)
class Want:
    """What a race is for."""

    width: int = 1
    """Portals that are asked at once, before any is late."""
    needed: int = 1
    """Good answers; the race then only `waits`."""
    waits: bool = False
    """For all others that are not late."""
    leaves: float = 0.0
    """Seconds for which late attempts go on in the background."""
    is_hedged: bool = True
    """Whether another portal is asked while one is late; else only after a failure."""
    once: bool = False
    """Portals that failed before are asked once, if another one works."""
    gives_up: bool = False
    """Late attempts at portals that failed before, though no other one has answered; these are
    asked once."""


def enough(needed: int) -> Want:
    """Want so many portals to take something; all are sent it at once."""
    return Want(EVERYBODY, needed, waits=True, leaves=30.0)


FIRST = Want()
EVERYBODY = 1 << 30
ALL = Want(EVERYBODY, waits=True, leaves=10.0, once=True)
"""To compare what they say."""
PROOF = Want(EVERYBODY, gives_up=True)
"""Of those who have not answered yet."""


@dataclass(eq=False)
class _Turn:
    """When a portal is asked next in a race."""

    client: PortalReader
    health: Health
    place: int
    worked: bool
    """Whether it worked when the race began."""
    tries: int = 0
    due: float = -math.inf
    asked_at: float = -math.inf
    again_at: float | None = None
    """When it is asked again that may be restarting."""
    has_sent: bool = False
    """Whether part of a body came in the last attempt, so that the next one may go on."""
    is_over: bool = False
    """Whether it has said its last word, or is being asked."""


@dataclass(eq=False)
class Runner:
    """An attempt under way."""

    turn: _Turn
    begun: float
    watch: RequestWatch
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_late: bool = False
    pinged: float | None = None
    """Since when the portal is to give a sign of life."""
    is_given_up: bool = False
    is_left: bool = False


class Race(Generic[T]):
    """One operation. Call `run` once."""

    def __init__(
        self,
        portals: Contestants,
        ask: Ask[T],
        want: Want = FIRST,
        *,
        is_good: Callable[[T], bool] = lambda _: True,
        urgent: Callable[[], bool] = lambda: True,
        insists: Callable[[], bool] = lambda: False,
        ends: Callable[[T], bool] = lambda _: False,
        is_late: Callable[["Runner", float], bool] | None = None,
        is_quiet: Callable[["Runner", float], bool] | None = None,
        on_late: Callable[[PortalReader, T | PortalError], Awaitable[None]] | None = None,
        is_fatal: Callable[[PortalError], bool] = lambda _: False,
    ) -> None:
        """`urgent` says whether somebody waits: otherwise nothing is late at a portal that works.
        `insists` says whether it matters so much that silent portals are asked in the end even if
        another one refused. `ends` says whether an answer ends the race, whatever others say.
        `is_late` says what is late, if that is not what reads wait for. `is_quiet` says which
        portals are asked for a sign of life, and left without one, though no other one has
        answered. `on_late` is awaited in the background with what comes of an attempt that was
        left, once `handled` is set. `is_fatal` says of an error whether every portal would say the
        same.
        """
        self.answers: dict[PortalReader, T] = {}
        """The good ones, in the order in which they came."""
        self.doubtful: dict[PortalReader, T] = {}
        """The others."""
        self.errors: dict[PortalReader, PortalError] = {}
        """Of portals whose last attempt failed."""
        self.late: dict[PortalReader, PortalError] = {}
        """Of portals that are still at it, in the background."""
        self.left: list[PortalReader] = []
        """That were left while they were late."""
        self.handled = trio.Event()
        """To be set once the outcome is recorded."""
        self._portals = portals
        self._ask = ask
        self._want = want
        self._is_good = is_good
        self._urgent = urgent
        self._insists = insists
        self._ends = ends
        self._judge = is_late
        self._is_quiet = is_quiet
        self._on_late = on_late
        self._is_fatal = is_fatal
        self._has_ended_early = False
        self._is_closed = False  # whether nobody else is asked
        self._begun = trio.current_time()
        self._waits_until: float | None = None
        self._turns = [
            _Turn(client, health, place, health.state(self._begun) is State.CLOSED)
            for place, client in enumerate(portals.clients)
            for health in [portals.health(client)]
        ]
        self._is_alone = portals.is_alone
        self._is_watched = (
            want.gives_up or is_quiet is not None or (want.is_hedged and not self._is_alone)
        )
        self._running: list[Runner] = []
        self._pauses: dict[int, float] = {}
        self._news = trio.Event()
        self._due = math.inf
        self._crash: Exception | None = None
        self._failure: PortalError | None = None
        self._refusal: PortalError | None = None
        self._is_over = False

    async def run(self) -> "Race[T]":
        """Ask, until there are enough good answers, or nobody is left who might have one."""
        if self._want.width == 1 and not self._is_watched:  # one after the other
            await self._run(None)
        else:
            async with trio.open_nursery() as local:
                self._nursery = local
                background = self._portals.background if self._want.leaves else None
                is_cancelled = True
                try:
                    await self._run(background or local)
                    is_cancelled = False
                finally:
                    self._end(in_background=background is not None and not is_cancelled)
                    local.cancel_scope.cancel()
        if self._crash is not None and len(self.answers) < self._want.needed:
            raise self._crash
        return self

    @property
    def error(self) -> PortalError:
        """Why there are too few good answers: wrong content, else the last failure, else a
        refusal, else «not found»; and when a portal may be asked again.
        """
        for turn in self._turns:
            if turn.tries == 0 and self._failure is None:
                self._failure = turn.health.known_error
        found = self._failure or self._refusal or UnavailableError("no portal is configured")
        if self._failure is not None and self._refusal is not None:
            found.is_contradicted = True
        return with_end(found, {turn.client.url: turn.health for turn in self._turns})

    def shortfalls(self) -> dict[PortalReader, PortalError]:
        """Return why portals gave no good answer, those that were not asked included."""
        found = {}
        for turn in self._turns:
            if turn.client not in self.answers and turn.client not in self.late:
                unasked = UnavailableError("it failed a moment ago", url=turn.client.url)
                error = self.errors.get(turn.client) or turn.health.known_error or unasked
                found[turn.client] = with_end(error, {turn.client.url: turn.health})
        return found

    @property
    def asked(self) -> list[PortalReader]:
        return [turn.client for turn in self._turns if turn.tries]

    @property
    def has_next(self) -> bool:
        """Whether another portal may be asked now."""
        now = trio.current_time()
        turn = self._next(now)
        return turn is not None and self._due_of(turn, now) <= now

    # --- who is asked

    async def _run(self, nursery: trio.Nursery | None) -> None:
        is_last_resort = False
        while not self._has_ended():
            now = trio.current_time()
            if await self._start_due(nursery, now):
                continue  # time has passed
            if not self._running and self._next_due(now) == math.inf:
                if is_last_resort or not await self._wake_silent():
                    return
                is_last_resort = True
                continue
            await self._wait(now)
            self._look(trio.current_time())

    def _has_ended(self) -> bool:
        if self._crash is not None or self._has_ended_early:
            return True
        if len(self.answers) < self._want.needed:
            return False
        return not self._want.waits or all(each.is_late for each in self._running)

    async def _start_due(self, nursery: trio.Nursery | None, now: float) -> bool:
        """Ask those whose turn has come, as many as are wanted; whether one was waited for."""
        want = self._want
        while True:
            turn = self._next(now)
            if turn is None or self._due_of(turn, now) > now:
                return False
            in_time = sum(
                not (each.is_late if want.is_hedged else each.is_given_up) for each in self._running
            )
            lacks = want.needed - in_time - len(self.answers)
            room = EVERYBODY if want.width == EVERYBODY else min(want.width - in_time, lacks)
            is_at_once = turn.tries == 0 and self._portals.rank(turn.client) is Rank.HEALTHY
            if (room if is_at_once else min(room, lacks)) <= 0:
                return False
            late = [each for each in self._running if each.is_late]
            is_wide = want.width > 1  # they are asked at once, which is no hedge
            if not (late and want.is_hedged) or is_wide or self._leave_failing(late, turn, now):
                self._portals.hedges.count()
            elif self._portals.hedges.take():
                turn.health.hedges += 1
            else:
                return False
            runner = self._begin(turn, now)
            if nursery is None:
                await self._attempt(runner)
                return True
            nursery.start_soon(self._attempt, runner)

    def _next(self, now: float) -> _Turn | None:
        """Return who is asked next: who was asked least, and is in the best health."""
        waiting = [] if self._is_closed else [each for each in self._turns if not each.is_over]
        if len(waiting) > 1:
            waiting.sort(key=lambda each: self._order(each, now))
        return waiting[0] if waiting and self._due_of(waiting[0], now) < math.inf else None

    def _order(self, turn: _Turn, now: float) -> tuple[float, int, int, int]:
        rank = turn.health.rank(now, has_trials=self._portals.has_trials).value
        return max(now, self._due_of(turn, now)), turn.tries, rank, turn.place

    def _next_due(self, now: float) -> float:
        waiting = [] if self._is_closed else [each for each in self._turns if not each.is_over]
        return min((self._due_of(each, now) for each in waiting), default=math.inf)

    def _due_of(self, turn: _Turn, now: float) -> float:
        """Return when a portal may be asked; inf for not at all."""
        health = turn.health
        if turn.again_at is not None:
            return turn.again_at
        if turn.tries == 0 and turn.worked and health.told_until <= self._begun:
            return now
        if turn.asked_at < health.told_until and health.told_until > self._begun:
            if turn.tries == 0 and self._is_alone:
                return now
            if turn.tries >= max(_MOST_TRIES, self._portals.config.rounds):
                return math.inf
            waits_until = self._waits_until or self._begun + self._portals.config.longest_wait
            is_soon = health.told_until <= waits_until
            may_wait = self._may_insist or health.told_until <= now
            due = max(health.told_until, turn.due)
            return due if is_soon and may_wait else math.inf
        if turn.tries:
            return turn.due if turn.tries < self._limit(turn, now) else math.inf
        has_working = self._portals.has_working()
        may = health.may_ask(now, is_alone=self._is_alone, has_working=has_working)
        if may is May.PROBE and self._is_alone and self._portals.background is None:
            return now  # a single command may wait
        return now if may is May.YES else math.inf

    def _limit(self, turn: _Turn, now: float) -> int:
        want, has_failed = self._want, not turn.worked
        is_spared = has_failed and (want.gives_up or (want.once and self._portals.has_working()))
        is_spared = is_spared or turn.health.is_away(now)
        may_wait = self._is_alone and turn.worked
        is_spared = is_spared or (turn.health.is_silent and not may_wait)
        config = self._portals.config
        was_silent = isinstance(self.errors.get(turn.client), PortalTimeoutError)
        is_spared = is_spared or (was_silent and not (config.after_silence or turn.has_sent))
        return 1 if is_spared else config.rounds

    @property
    def _may_insist(self) -> bool:
        """Whether portals that are not to be asked are asked after all, if no other has it."""
        return self._refusal is None or self._insists()

    async def _wake_silent(self) -> bool:
        """See whether a portal that was not asked because it is silent gives a sign of life."""
        if not self._portals.config.wakes or not self._may_insist:
            return False
        unasked = [each.client for each in self._turns if each.tries == 0]
        awake = await self._portals.awake(unasked)
        return bool(awake)

    def _begin(self, turn: _Turn, now: float) -> Runner:
        turn.is_over = True
        turn.again_at = None
        turn.tries += 1
        turn.asked_at = now
        is_fresh = isinstance(self.errors.get(turn.client), BadContentError)
        runner = Runner(turn, now, RequestWatch(turn.health, self._wake, is_fresh=is_fresh))
        self._running.append(runner)
        turn.health.watchers.add(self._wake)
        return runner

    # --- what becomes of it

    async def _attempt(self, runner: Runner) -> None:
        turn, client = runner.turn, runner.turn.client
        result: T | PortalError = PortalTimeoutError("no answer in time", url=client.url)
        is_done = False
        try:
            with runner.scope:
                is_last = turn.tries >= self._portals.config.rounds
                result = await self._portals.attempt(
                    client, self._ask, runner.watch, is_last=is_last
                )
                is_done = True
        except PortalError as error:
            result, is_done = error, True
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._crashed(client, error)
        finally:
            self._running.remove(runner)
            turn.has_sent = runner.watch.has_received
            turn.health.watchers.discard(self._wake)
            if runner.is_left:
                turn.health.late_attempts -= 1
            elif is_done and not self._is_over:
                self._take(turn, result)
            self._wake()
        if runner.is_left and self._on_late is not None:
            await self.handled.wait()
            await self._on_late(client, result)

    def _take(self, turn: _Turn, result: T | PortalError) -> None:
        if isinstance(result, PortalError):
            self._note(turn, result)
            return
        good = self.answers if self._is_good(result) else self.doubtful
        good[turn.client] = result
        self.errors.pop(turn.client, None)
        self._has_ended_early = self._has_ended_early or self._ends(result)

    def _crashed(self, client: PortalReader, error: Exception) -> None:
        if not self._is_over:
            self._crash = error
        elif isinstance(error, StorageError):
            log.info("%s: late answer: %s", client.url, error)
        else:  # a bug must not end everybody else's tasks
            log.error("%s: late answer", client.url, exc_info=error)

    def _note(self, turn: _Turn, error: PortalError) -> None:
        self.errors.pop(turn.client, None)  # the last failure is the last one there
        found = self.errors[turn.client] = _bare(error)
        self._is_closed = self._is_closed or self._is_fatal(error)
        if isinstance(error, UnavailableError | BadContentError):
            if not isinstance(self._failure, BadContentError):
                self._failure = found
            turn.is_over = False
            now = trio.current_time()
            turn.due = now + self._pause(turn.tries)
            if now < turn.health.outage_until and not self._portals.has_working():
                turn.tries -= 1  # which counts no attempt
                turn.again_at = now + random.uniform(*_OUTAGE_PAUSE)
                if turn.health.begins_outage():
                    self._portals.outages.begin(turn.health.outage_until)
                    log.warning(
                        "%s: it may be restarting, so operations wait: %s", turn.client.url, error
                    )
            if error.retry_after is not None and self._waits_until is None:
                self._waits_until = now + self._portals.config.longest_wait
        elif self._refusal is None or isinstance(self._refusal, NotFoundError):
            self._refusal = found

    def _pause(self, number: int) -> float:
        """Return the seconds before the next attempts of a number, which are made at once."""
        return self._pauses.setdefault(number, self._portals.config.pause(number))

    def _end(self, *, in_background: bool) -> None:
        """Leave behind who has not answered."""
        self._is_over = True
        now = trio.current_time()
        has_enough = len(self.answers) >= self._want.needed and not self._has_ended_early
        has_succeeded = has_enough and self._crash is None
        for runner in [*self._running]:
            health = runner.turn.health
            is_loser = has_succeeded and runner.is_late and not runner.is_given_up
            if is_loser and self._judge is None:
                health.lost(max(runner.watch.wait(now), health.hedge_delay), now)
            elif is_loser and not self._want.leaves:
                health.failed(_no_answer(runner, now, _OTHER), now)
            is_left = in_background and has_succeeded and not runner.is_given_up
            if is_left and health.late_attempts < _LATE_LIMIT:
                runner.is_left = True
                health.late_attempts += 1
                runner.scope.deadline = now + self._want.leaves
                self.late[runner.turn.client] = _no_answer(runner, now, _OTHER)
            else:
                runner.scope.cancel()
                self.errors.setdefault(runner.turn.client, _no_answer(runner, now, _OTHER))

    # --- what is late

    async def _wait(self, now: float) -> None:
        """Wait until an attempt ends, or time has passed in which it waits."""
        is_idle = self._judge is None and all(each.watch.is_idle for each in self._running)
        self._due = math.inf if is_idle or not self._is_watched else now + CHECK_TIME
        due = self._next_due(now)  # somebody who may be asked already is when there is need
        with trio.move_on_at(min(self._due, due if due > now else math.inf)):
            await self._news.wait()
        self._news = trio.Event()

    def _wake(self) -> None:
        self._due = min(self._due, trio.current_time())
        self._news.set()

    def _look(self, now: float) -> None:
        """See which attempts are late. Time in which this program stood still does not count."""
        stood_still = now - self._due
        if not self._is_watched:
            return
        for runner in [*self._running]:
            if stood_still > CHECK_TIME:
                runner.watch.skip(stood_still, now)
            runner.is_late = self._is_late(runner, now)
            if runner.is_given_up:
                continue
            is_quiet = self._is_quiet is not None and self._is_quiet(runner, now)
            if runner.is_late and self._want.gives_up and not runner.turn.worked:
                self._give_up(runner, now)
            elif is_quiet or (
                runner.is_late
                and self._judge is None
                and self._has_words
                and self._next_due(now) == math.inf
            ):
                self._give_up_silent(runner, now)

    @property
    def _has_words(self) -> bool:
        return bool(self.errors or self.doubtful)

    def _is_late(self, runner: Runner, now: float) -> bool:
        health, watch = runner.turn.health, runner.watch
        if self._judge is not None:
            return self._judge(runner, now)
        following = self._next(now)
        is_failing = health.state(now) is not State.CLOSED
        if watch.is_idle:  # it may wait for a connection, behind requests that are late
            return is_failing and not self._want.gives_up
        is_waiting = watch.head_wait(now) >= LEAST_DELAY
        has_better = bool(self.answers) or (
            following is not None and following.health.state(now) is State.CLOSED
        )
        if is_failing and is_waiting and has_better:
            return True
        rate = None if following is None else following.health.body_rate
        return self._urgent() and health.is_late(watch, rate, now)

    def _leave_failing(self, late: Sequence[Runner], turn: _Turn, now: float) -> bool:
        """Leave late attempts at portals that others found failing, if the next portal works;
        whether there are any. That one is then asked in their place, which is no hedge.
        """
        if turn.health.state(now) is not State.CLOSED:
            return False
        failing = [each for each in late if each.turn.health.state(now) is not State.CLOSED]
        for runner in failing:
            self._give_up(runner, now)
        return bool(failing)

    def _give_up_silent(self, runner: Runner, now: float) -> None:
        """Leave a late attempt at a portal that gives no sign of life, as others have answered."""
        health = runner.turn.health
        if self._judge is None and runner.watch.is_idle:  # nothing was sent that it could answer
            if health.may_ask(now, is_alone=False) is not May.YES:
                self._give_up(runner, now)
        elif runner.pinged is None:
            runner.pinged = now
            self._portals.ask_for_sign(runner.turn.client)
        elif health.showed_signs(runner.pinged):
            if self._is_quiet is not None and now >= runner.pinged + _SIGN_LASTS:
                runner.pinged = None
        elif health.showed_no_sign(runner.pinged):
            self._give_up(runner, now)
        else:
            self._portals.ask_for_sign(runner.turn.client)  # unless it is being asked

    def _give_up(self, runner: Runner, now: float) -> None:
        if runner.is_given_up:
            return
        runner.is_given_up = True
        self.left.append(runner.turn.client)
        waited = runner.watch.wait(now)
        if runner.pinged is not None:  # the question for a sign may be an earlier one
            waited = max(waited, now - runner.pinged)
        error = _no_answer(runner, now)
        if not runner.watch.is_idle or self._judge is not None:
            runner.turn.health.failed(error, now, waited=waited)
        self._note(runner.turn, error)
        runner.scope.cancel()


def _no_answer(runner: Runner, now: float, why: str = "") -> PortalError:
    text = f"no answer in {now - runner.begun:.1f} s{why}"
    return PortalTimeoutError(text, url=runner.turn.client.url)


def with_end(error: PortalError, portals: Mapping[str, Health]) -> PortalError:
    """Return an error that also says when a portal, by its address, may be asked again."""
    now = trio.current_time()
    told = [(each.told_until, url) for url, each in portals.items() if each.told_until > now]
    if not told or not isinstance(error, UnavailableError):
        return error
    until, url = min(told)
    found = copy.copy(error)
    known = error.advice
    if error.retry_after is not None:
        known = known.removesuffix(again_in(error.retry_after)).removesuffix("; ")
    found.advice = "; ".join(filter(None, (known, again_in(until - now, url))))
    return found


def _bare(error: E) -> E:
    """Return the error without its traceback and causes, whose frames hold what was received."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)

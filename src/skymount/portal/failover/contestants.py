"""The portals that take part in races: how each does, one attempt at one of them, signs of life,
and how long operations wait for one that may be restarting.

A portal is known to be silent if it let a whole attempt pass without a sign of life. It is asked
for one whenever an operation needs it, and is used again as soon as it gives one.
"""

import math
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self, TypeVar

import trio

from skymount.concurrency import run_all
from skymount.errors import (
    BadContentError,
    PortalError,
    PortalTimeoutError,
    ReadOnlyPortalError,
    RolledBackError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import (
    OUTAGE,
    SILENCE,
    Health,
    HealthFigures,
    HedgeBudget,
    May,
    Rank,
    State,
)
from skymount.portal.http.memory_budget import MemoryBudget
from skymount.portal.http.request_watch import RequestWatch, watched

T = TypeVar("T")

_SIGN_TIME = 1.25  # seconds that a portal has for a sign of life, and before for the connection
_ALONE_SIGN_TIME = 4.0  # seconds that the only portal has for both
_GRACE = 0.1  # seconds in which this program takes note of what came, if it stood still


Ask = Callable[[PortalReader], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """How often portals that fail are asked again."""

    rounds: int = 3
    """How often each portal is asked before a failure is reported."""
    backoff: float = 0.2
    """Seconds of pause before the second attempt, doubled for each further one, jittered."""
    longest_wait: float = 10.0
    """Seconds that an operation waits for portals that asked for a pause, from its begin on, or
    from when the first one did."""
    after_silence: bool = True
    """Whether a portal that did not answer in time is asked again."""
    wakes: bool = True
    """Whether silent portals are asked for a sign of life when no other one has an answer."""

    def pause(self, number: int) -> float:
        """Return the seconds of pause before an attempt; the first one has the number 0."""
        return self.backoff * 2.0 ** (number - 1) * random.uniform(0.5, 1.5)


_RECENT = 2.0
"""Seconds after an attempt failed in which the next one may not have lasted long yet."""


class Outages:
    """How long operations wait for portals that may be restarting, and how long they may take."""

    def __init__(self, wait: float = 0.0) -> None:
        """`wait` is `wait_for_portal` in seconds: operations may take so much longer."""
        self.longest = max(OUTAGE, wait)
        self._is_longer = wait > 0
        self._is_on = False
        self._limits: dict[trio.CancelScope, float] = {}

    @contextmanager
    def limit(self, seconds: float, until: float) -> Iterator[None]:
        """Let an operation take so many seconds from now on, or from the end of an outage on;
        TooSlowError.
        """
        begun = max(trio.current_time(), until if self._is_longer else 0.0)
        with trio.fail_at(begun + seconds) as scope:
            self._limits[scope] = seconds
            try:
                yield
            finally:
                del self._limits[scope]

    def begin(self, until: float) -> None:
        """Let the operations that are under way take longer."""
        self._is_on = self._is_longer
        for scope, seconds in self._limits.items() if self._is_on else ():
            scope.deadline = max(scope.deadline, until + seconds)

    def end(self) -> None:
        """Let them take their time from now on: a portal answers."""
        now = trio.current_time()
        for scope, seconds in self._limits.items() if self._is_on else ():
            scope.deadline = min(scope.deadline, now + seconds)
        self._is_on = False


@dataclass(slots=True)
class _Question:
    """A question for a sign of life, which any answer is."""

    awaited_until: float
    ended: trio.Event = field(default_factory=trio.Event)


@dataclass(frozen=True)
class Contestants:
    """Portals in the order of preference, and how each of them does."""

    clients: Sequence[PortalReader]
    config: FailoverConfig = field(default_factory=FailoverConfig)
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    """For descriptions of content while they are received."""
    background: trio.Nursery | None = None
    """Where portals that failed are tried again, while others do the work, and late answers are
    waited for. Without it the next operation after the pause tries them.
    """
    hedges: HedgeBudget = field(default_factory=HedgeBudget)
    outages: Outages = field(default_factory=Outages)
    is_part: bool = False
    """Whether there are others, which take no part."""
    _health: dict[PortalReader, Health] = field(default_factory=dict)
    _questions: dict[PortalReader, _Question] = field(default_factory=dict)

    @property
    def writable_clients(self) -> list[PortalReader]:
        return [client for client in self.clients if not client.http.options.read_only]

    def writable(self) -> Self:
        """Return those that are not read-only; ReadOnlyPortalError when all are."""
        if self.clients and not self.writable_clients:
            raise ReadOnlyPortalError("all portals are read-only in the configuration")
        return replace(self, clients=self.writable_clients)

    # --- how they do

    def health(self, client: PortalReader) -> Health:
        found = self._health.get(client)
        if found is None:
            found = self._health[client] = Health(self.outages.longest)
        return found

    @property
    def is_alone(self) -> bool:
        return len(self.clients) < 2 and not self.is_part

    @property
    def has_trials(self) -> bool:
        """Whether portals that failed are tried again in the background."""
        return self.background is not None and not self.is_alone

    def has_working(self) -> bool:
        """Whether a portal works as far as is known."""
        now = trio.current_time()
        return any(self.health(each).state(now) is State.CLOSED for each in self.clients)

    def rank(self, client: PortalReader) -> Rank:
        return self.health(client).rank(trio.current_time(), has_trials=self.has_trials)

    def ranked(self) -> list[PortalReader]:
        """Return the portals in the order in which they are asked."""
        if self.is_alone:
            return list(self.clients)
        return sorted(self.clients, key=lambda client: self.rank(client).value)

    @property
    def outage_until(self) -> float:
        """Until when operations wait for a portal that may be restarting; -inf if there is none, or
        another one works.
        """
        if not self.is_alone and self.has_working():
            return -math.inf
        return max((self.health(each).outage_until for each in self.clients), default=-math.inf)

    def limit(self, seconds: float) -> AbstractContextManager[None]:
        """Let an operation take so many seconds; TooSlowError. A wait that `wait_for_portal`
        allows does not count (R2).
        """
        return self.outages.limit(seconds, self.outage_until)

    def may_answer(self, since: float) -> bool:
        """Return whether a portal has sent anything since a time, may be restarting, or is one of
        several that works as far as is known.
        """
        if self.outage_until > trio.current_time():
            return True
        if any(self.health(each).showed_signs(since) for each in self.clients):
            return True
        return not self.is_alone and self.has_working()

    def figures(self) -> list[HealthFigures]:
        now, has_trials = trio.current_time(), self.has_trials
        return [
            self.health(each).figures(each.url, now, has_trials=has_trials) for each in self.clients
        ]

    def waited_for(self) -> Sequence[str]:
        """Return the portals for which an operation waited that is out of time now: those of long
        attempts that were just cancelled, else those that send nothing, else those that are busy;
        and those that failed a moment ago, after a while.
        """
        now = trio.current_time()
        health = {client: self.health(client) for client in self.clients}
        given_up = [each.url for each in health if now < health[each].given_up_at + SILENCE]
        if given_up:
            return given_up
        silent = [
            client.url
            for client in health
            if any(now >= wait.since + SILENCE for wait in client.http.waits)
        ]
        busy = [client.url for client in health if client.http.in_flight]
        failed = [each.url for each in health if now < health[each].failed_late_at + _RECENT]
        return list(dict.fromkeys([*(silent or busy), *failed]))

    # --- signs of life

    def ask_for_sign(self, client: PortalReader) -> _Question | None:
        """Ask a portal in the background for a sign of life, unless it is being asked; its health
        takes note. None without a background.
        """
        question = self._questions.get(client)
        if question is None and self.background is not None:
            now = trio.current_time()
            question = _Question(now + self.health(client).sign_patience(now))
            self._questions[client] = question
            self.background.start_soon(self._ask_for_sign, client, question)
        return question

    async def _ask_for_sign(self, client: PortalReader, question: _Question) -> None:
        def connected() -> None:
            if not self.is_alone:
                scope.deadline = trio.current_time() + _SIGN_TIME

        is_alive = False
        try:
            with trio.move_on_after(_ALONE_SIGN_TIME if self.is_alone else _SIGN_TIME) as scope:
                is_alive = await client.http.is_alive(connected)
        finally:
            del self._questions[client]
            question.ended.set()
        health, now = self.health(client), trio.current_time()
        if is_alive:
            health.gave_sign(now)
        elif now < scope.deadline + SILENCE / 2:  # else this program stood still
            health.gave_no_sign(now)

    async def ask_for_signs(self) -> None:
        """Ask all portals for a sign of life, and wait for the answers."""
        for question in [self.ask_for_sign(client) for client in self.clients]:
            if question is not None:
                await question.ended.wait()

    async def silence(self, ended: trio.Event, seconds: float) -> PortalError | None:
        """Wait for the end of something, for so long at most; return the error that nothing came
        from any portal in that time. Those that may be restarting are waited for.
        """
        begun = trio.current_time()
        with trio.move_on_at(begun + seconds / 4):
            await ended.wait()
        if not ended.is_set():
            for client in self.clients:
                if not self.health(client).showed_signs(begun):
                    self.ask_for_sign(client)
            with trio.move_on_at(begun + seconds):
                await ended.wait()
            with trio.move_on_after(_GRACE):
                await ended.wait()
        is_alive = any(self.health(each).showed_signs(begun) for each in self.clients)
        if ended.is_set() or is_alive or self.outage_until > trio.current_time():
            return None
        errors = [self.note_silence(client, seconds) for client in self.clients]
        return errors[0] if errors else None

    def note_silence(self, client: PortalReader, seconds: float) -> PortalError:
        """Note that an operation waited for a portal for so long, unless that has sent anything."""
        error = PortalTimeoutError(f"no answer in {seconds:g} s", url=client.url)
        health, now = self.health(client), trio.current_time()
        if not health.showed_signs(now - seconds):
            health.failed(error, now, waited=seconds)
        return error

    async def awake(self, clients: Collection[PortalReader]) -> list[PortalReader]:
        """Return those of some portals that may be asked after all, because no other one has an
        answer: silent ones that are first to give a sign of life within a moment (R12).
        """
        awake: list[PortalReader] = []

        async def wait(client: PortalReader) -> None:
            if self.health(client).is_known_silent:
                question = self.ask_for_sign(client)
                if question is None:
                    return
                with trio.move_on_at(question.awaited_until) as scope:
                    await question.ended.wait()
                if scope.cancelled_caught:
                    return
            awake.append(client)
            first.cancel()

        now, is_alone = trio.current_time(), self.is_alone
        silent = [
            client
            for client in clients
            if self.health(client).may_ask(now, is_alone=is_alone) is May.PROBE
        ]
        with trio.CancelScope() as first:
            await run_all(*(partial(wait, client) for client in silent))
        for client in awake:
            self.health(client).gave_sign(trio.current_time(), is_awake=True)
        return awake

    async def attempt(
        self,
        client: PortalReader,
        ask: Ask[T],
        watch: RequestWatch | None = None,
        *,
        is_last: bool = True,
    ) -> T:
        """Return what one portal answers to one attempt; its health takes note. `is_last` if it is
        asked no more if this fails.
        """
        health, begun = self.health(client), trio.current_time()
        watch = watch or RequestWatch(health)
        try:
            answer = await watched(watch, ask(client))
        except RolledBackError:  # it works, and is only behind
            health.answered(trio.current_time(), begun, is_good=False)
            raise
        except (UnavailableError, BadContentError) as error:
            if not error.is_unsent:
                now = trio.current_time()
                health.failed(error, now, waited=now - begun, is_last=is_last)
            raise
        except PortalError:
            health.answered(trio.current_time(), begun, is_good=False)
            raise
        except trio.Cancelled:
            health.given_up(trio.current_time(), begun)
            raise
        health.answered(trio.current_time(), begun)
        self.outages.end()
        return answer

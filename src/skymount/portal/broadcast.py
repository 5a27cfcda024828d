"""Sends the same to several portals at once, until enough of them have taken it.

Portals that are late then are left behind: their attempts go on in the background.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from skymount.errors import BadContentError, PortalError, PortalTimeoutError, UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover import retry_after
from skymount.portal.failover.health import Rank
from skymount.portal.failover.portals import Portals
from skymount.portal.failover.reachability import Attempts
from skymount.portal.failover.recorded_attempts import Ask

LATE_TIME = 30.0
"""Seconds that an attempt may still take after it was left behind."""

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Outcome(Generic[T]):
    """What became of a broadcast."""

    answers: dict[PortalReader, T] = field(default_factory=dict)
    errors: dict[PortalReader, PortalError] = field(default_factory=dict)
    """Of portals that failed, or were not asked because they failed a moment ago."""
    late: dict[PortalReader, PortalError] = field(default_factory=dict)
    """Of portals that are still at it, in the background."""
    handled: trio.Event = field(default_factory=trio.Event)
    """To be set once the outcome is recorded; what comes late is told after that."""


@dataclass(eq=False)
class _Runner:
    client: PortalReader
    usual_until: float
    """Until when an answer is in time."""
    awaited_until: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_left: bool = False


class LatePortals:
    """Which portals were late with what was last sent to them: they are not waited for again."""

    def __init__(self) -> None:
        self._late: set[PortalReader] = set()
        self._busy: set[PortalReader] = set()

    def is_late(self, client: PortalReader) -> bool:
        return client in self._late

    def is_busy(self, client: PortalReader) -> bool:
        """Whether an attempt that was left behind is still under way there."""
        return client in self._busy

    def left(self, client: PortalReader) -> None:
        self._late.add(client)
        self._busy.add(client)

    def ended(self, client: PortalReader) -> None:
        self._busy.discard(client)

    def was_in_time(self, client: PortalReader) -> None:
        self._late.discard(client)


class Broadcast(Generic[T]):
    """One thing to send."""

    def __init__(
        self,
        portals: Portals,
        ask: Ask[T],
        counts: Callable[[T], bool],
        late_portals: LatePortals,
        late_answer: Callable[[PortalReader, T | PortalError], Awaitable[None]],
    ) -> None:
        """`ask` sends it to one portal; `counts` says whether an answer means that the portal took
        it. Any other answer ends the broadcast. `late_answer` is awaited in the background.
        """
        self._portals = portals
        self._ask = ask
        self._counts = counts
        self._late_portals = late_portals
        self._late_answer = late_answer
        self._outcome: Outcome[T] = Outcome()
        self._running: list[_Runner] = []
        self._needed = 0
        self._begun = 0.0
        self._asked_at: dict[PortalReader, float] = {}
        self._is_refuted = self._is_over = False
        self._crash: Exception | None = None
        self._news, self._enough = trio.Event(), trio.Event()

    async def run(self, needed: int, without: Collection[PortalReader] = ()) -> Outcome[T]:
        """Send to all portals but some, until so many have taken it and no other one is expected
        within its hedge delay, or all have failed.

        Portals that failed lately are asked only if they are needed, and so are those that asked
        for a pause that ends soon.
        """
        self._needed, self._begun = needed, trio.current_time()
        clients = [each for each in self._portals.ranked() if each not in without]
        async with trio.open_nursery() as local:
            nursery = self._portals.probes or local
            try:
                await self._send_to(clients, nursery)
            except BaseException:
                self._leave(in_background=False)
                raise
            self._leave(in_background=nursery is not local and self._has_succeeded)
        if self._crash is not None:
            raise self._crash
        for client in clients:
            if client not in self._outcome.answers and client not in self._outcome.late:
                error = self._portals.health(client).known_error
                default = UnavailableError("it did not answer the last time", url=client.url)
                self._outcome.errors.setdefault(client, error or default)
        if not self._is_enough:
            self._say_when()
        return self._outcome

    def _say_when(self) -> None:
        """Add to errors when the portals may be asked again."""
        for client, error in self._outcome.errors.items():
            health = {client.url: self._portals.health(client)}
            self._outcome.errors[client] = retry_after.with_end(error, health)

    async def _send_to(self, clients: Collection[PortalReader], nursery: trio.Nursery) -> None:
        healthy = [each for each in clients if self._is_healthy(each)]
        failing = [each for each in clients if each not in healthy]
        self._start(healthy, nursery)
        while not (self._crash or self._is_refuted):
            now = trio.current_time()
            in_time = [each.usual_until for each in self._running if now < each.usual_until]
            is_short = len(self._outcome.answers) + len(in_time) < self._needed
            if failing and is_short:
                self._start(self._worth_asking(failing), nursery)
                failing = []
            pausing = self._pausing(clients) if is_short else {}
            self._start([each for each, due in pausing.items() if due <= now], nursery)
            if not self._running and not pausing:
                if not await self._start_awake(clients, nursery):
                    break
                continue
            until = min(pausing.values(), default=math.inf)
            if self._is_enough:
                until = max(each.awaited_until for each in self._running)
                if now >= until:
                    break
            elif not is_short:
                until = min(in_time)
            with trio.move_on_at(until):
                await self._news.wait()
            self._news = trio.Event()

    async def _start_awake(self, clients: Collection[PortalReader], nursery: trio.Nursery) -> bool:
        """Ask portals that were silent and give a sign of life, if too few others took it; whether
        there are any.
        """
        if self._is_enough:
            return False
        unasked = [each for each in clients if each not in self._asked_at]
        awake = await self._portals.awake(unasked)
        self._start(awake, nursery)
        return bool(awake)

    def _pausing(self, clients: Collection[PortalReader]) -> dict[PortalReader, float]:
        """Return portals that said when they may be asked again, and when that is, if it is soon;
        only those that were not asked since.
        """
        done = self._outcome.answers.keys() | {each.client for each in self._running}
        latest = self._begun + self._portals.config.longest_wait
        due = {each: self._portals.health(each).told_until for each in clients if each not in done}
        return {
            client: time
            for client, time in due.items()
            if self._asked_at.get(client, self._begun) < time <= latest
        }

    @property
    def _is_enough(self) -> bool:
        return len(self._outcome.answers) >= self._needed

    @property
    def _has_succeeded(self) -> bool:
        return self._is_enough and not (self._is_refuted or self._crash)

    def _is_healthy(self, client: PortalReader) -> bool:
        now, is_probed = trio.current_time(), self._portals.probes is not None
        rank = self._portals.health(client).rank(now, is_probed=is_probed)
        return rank is Rank.HEALTHY and not self._late_portals.is_busy(client)

    def _worth_asking(self, failing: Collection[PortalReader]) -> list[PortalReader]:
        """Return which of the portals that failed lately are asked: not those known to be silent,
        unless all are.
        """
        now = trio.current_time()
        health = self._portals.health
        found = [each for each in failing if self._attempts(each) is not Attempts.NONE]
        if found or self._running or self._outcome.answers:
            return found
        return [each for each in failing if health(each).may_be_tried(now)]

    def _attempts(self, client: PortalReader) -> Attempts:
        health = self._portals.health(client)
        return health.attempts(trio.current_time(), is_alone=False)

    def _start(self, clients: Collection[PortalReader], nursery: trio.Nursery) -> None:
        for client in clients:
            now = self._asked_at[client] = trio.current_time()
            usual = now + self._portals.health(client).hedge_delay
            runner = _Runner(client, usual, now if self._late_portals.is_late(client) else usual)
            self._running.append(runner)
            nursery.start_soon(self._run, runner)

    def _leave(self, *, in_background: bool) -> None:
        """Leave behind who has not answered; without a background they are cancelled."""
        self._is_over = True
        for runner in self._running:
            error = PortalTimeoutError("no answer in time", url=runner.client.url)
            if in_background:
                runner.is_left = True
                runner.scope.deadline = trio.current_time() + LATE_TIME
                self._outcome.late[runner.client] = error
                self._late_portals.left(runner.client)
            else:
                runner.scope.cancel()
                self._outcome.errors.setdefault(runner.client, error)

    async def _run(self, runner: _Runner) -> None:
        client = runner.client
        result: T | PortalError = PortalTimeoutError("no answer in time", url=client.url)
        try:
            with runner.scope:
                result = await self._send(client)
        except Exception as error:  # a bug must not end everybody else's tasks
            if runner.is_left:
                log.exception("%s: a late attempt failed", client.url)
            self._crash = error
        finally:
            self._ended(runner, result)
        if runner.is_left:
            await self._outcome.handled.wait()
            await self._late_answer(client, result)

    def _ended(self, runner: _Runner, result: T | PortalError) -> None:
        client = runner.client
        self._running.remove(runner)
        if trio.current_time() < runner.usual_until:
            self._late_portals.was_in_time(client)
        if runner.is_left:
            self._late_portals.ended(client)
        elif not self._is_over:
            if isinstance(result, PortalError):
                self._outcome.errors[client] = result
            else:
                self._outcome.errors.pop(client, None)
                self._outcome.answers[client] = result
                self._is_refuted = self._is_refuted or not self._counts(result)
                if self._is_enough:
                    self._enough.set()
        self._news.set()

    async def _send(self, client: PortalReader) -> T | PortalError:
        """Return the portal's answer, or its error; it is asked again while that is needed."""
        config, number = self._portals.config, 0
        while True:
            is_last = number == config.rounds - 1
            try:
                return await self._portals.ask_once(client, self._ask, is_last_round=is_last)
            except PortalError as error:
                is_final = not isinstance(error, UnavailableError | BadContentError)
                is_known = self._attempts(client) is not Attempts.ALL
                if is_final or is_known or is_last or self._is_over:
                    return error
                failure = error
            number += 1
            with trio.move_on_after(config.pause(number)):
                await self._enough.wait()
                return failure

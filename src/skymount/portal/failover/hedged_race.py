"""One round over several portals: the next one is asked as well while those before it are late.

The first good answer wins, and the attempts that it leaves behind are cancelled. ``health`` says
what is late, ``portals`` what an attempt is and what failures mean together.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from skymount.concurrency import run_all
from skymount.errors import PortalError, PortalTimeoutError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import BreakerState, HedgeBudget, PortalHealth
from skymount.portal.failover.reachability import Attempts
from skymount.portal.failover.tally import Tally
from skymount.portal.http.request_watch import RequestWatch

T = TypeVar("T")

_CLOSED = BreakerState.CLOSED

CHECK_TIME = 0.1
"""Seconds between two looks at what is late."""


@dataclass(eq=False)
class Runner:
    """An attempt under way."""

    client: PortalReader
    health: PortalHealth
    begun: float
    watch: RequestWatch
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_late: bool = False
    pinged: float | None = None
    """Since when the portal is to give a sign of life."""
    ping_sent: float | None = None
    """When it was asked for one; before, its silence says nothing."""
    is_given_up: bool = False
    is_left: bool = False
    """Whether it goes on though nobody waits for it."""

    def skip(self, seconds: float, now: float) -> None:
        """Leave so many seconds out of account."""
        self.watch.skip(seconds, now)
        if self.ping_sent is not None:
            self.ping_sent = min(self.ping_sent + seconds, now)


class HedgedRace(Generic[T]):
    """A round of one operation."""

    def __init__(
        self,
        attempt: Callable[[PortalReader, RequestWatch], Awaitable[T]],
        health_of: Callable[[PortalReader], PortalHealth],
        budget: HedgeBudget,
        tally: Tally,
        urgent: Callable[[], bool],
    ) -> None:
        """`urgent` says whether somebody waits: otherwise nothing is late at a healthy portal."""
        self._attempt = attempt
        self._health_of = health_of
        self._budget = budget
        self._tally = tally
        self._urgent = urgent
        self._queue: deque[PortalReader] = deque()
        self._running: list[Runner] = []
        self._news = trio.Event()
        self._due = math.inf  # when there is to be the next look
        self._crash: Exception | None = None
        self._answers: list[T] = []

    async def run(self, clients: Iterable[PortalReader]) -> list[T]:
        """Ask portals in this order; return the answer, or nothing if all failed."""
        self._queue.extend(clients)
        async with trio.open_nursery() as nursery:
            while not self._is_over():
                if not self._running or all(each.is_late for each in self._running):
                    self._go_on(nursery)
                if not self._running:
                    break
                await self._wait()
                self._look(trio.current_time())
            self._count_losers(trio.current_time())
            nursery.cancel_scope.cancel()
        if self._crash is not None and not self._answers:
            raise self._crash
        return self._answers

    def _is_over(self) -> bool:
        return bool(self._answers or self._crash)

    async def _wait(self) -> None:
        """Wait until an attempt ends or begins to wait, or time has passed in which it waits."""
        is_idle = all(runner.watch.is_idle for runner in self._running)
        self._due = math.inf if is_idle else trio.current_time() + CHECK_TIME
        with trio.move_on_at(self._due):
            await self._news.wait()
        self._news = trio.Event()

    def _wake(self) -> None:
        self._due = min(self._due, trio.current_time())
        self._news.set()

    def _go_on(self, nursery: trio.Nursery) -> None:
        """Ask the next portal if nobody is asked, or if a hedge is allowed. If none is left, see
        whether what is late still lives.
        """
        if not self._queue:
            self._give_up_silent(nursery)
            return
        client = self._queue[0]
        health = self._health_of(client)
        if not self._running or self._leaves_failing():
            self._budget.count()
        elif self._budget.take():
            health.hedges += 1
        else:
            return
        self._queue.popleft()
        self._start(client, nursery)

    def _start(self, client: PortalReader, nursery: trio.Nursery) -> None:
        health = self._health_of(client)
        runner = Runner(client, health, trio.current_time(), RequestWatch(health, self._wake))
        health.watchers.add(self._wake)
        self._running.append(runner)
        nursery.start_soon(self._run, runner)

    async def _run(self, runner: Runner) -> None:
        try:
            with runner.scope:
                answer = await self._attempt(runner.client, runner.watch)
                self._answers.append(answer)
        except PortalError as error:
            if not self._answers:
                self._tally.note(runner.client, error)
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._crash = error
        finally:
            self._running.remove(runner)
            runner.health.watchers.discard(self._wake)
            self._wake()

    def _look(self, now: float) -> None:
        """See which attempts are late. Time in which this program stood still does not count."""
        stood_still = now - self._due
        for runner in self._running:
            if stood_still > CHECK_TIME:
                runner.skip(stood_still, now)
            runner.is_late = self._is_late(runner, now)

    def _is_late(self, runner: Runner, now: float) -> bool:
        health, watch = runner.health, runner.watch
        is_failing = health.state(now) is not _CLOSED
        if watch.is_idle:  # it may wait for a connection, behind requests that are late
            return is_failing
        is_waiting = watch.head_wait(now) >= health.config.least_delay
        if is_failing and is_waiting and self._is_next_healthy(now):
            return True
        return self._urgent() and is_late(watch, health, self._other_rate(), now)

    def _is_next_healthy(self, now: float) -> bool:
        return bool(self._queue) and self._health_of(self._queue[0]).state(now) is _CLOSED

    def _other_rate(self) -> float | None:
        return self._health_of(self._queue[0]).body_rate if self._queue else None

    def _leaves_failing(self) -> bool:
        """Leave late attempts at portals that others found failing, if the next portal is healthy;
        whether there are any. That one is then asked in their place, which is no hedge.
        """
        now = trio.current_time()
        if not self._is_next_healthy(now):
            return False
        failing = [each for each in self._running if each.health.state(now) is not _CLOSED]
        for runner in failing:
            self._give_up(runner, now)
        return bool(failing)

    def _give_up_silent(self, nursery: trio.Nursery) -> None:
        """Leave late attempts at portals that give no sign of life, if another one has answered."""
        if self._tally.is_empty:
            return
        now = trio.current_time()
        for runner in self._running:
            if runner.watch.is_idle:  # it has sent nothing that could be answered
                if runner.health.attempts(now, is_alone=False) is Attempts.NONE:
                    self._give_up(runner, now)
            elif runner.pinged is None:
                runner.pinged = now
                nursery.start_soon(_ping, runner)
            elif not runner.health.showed_signs(runner.pinged) and _is_silent(runner, now):
                self._give_up(runner, now)

    def _give_up(self, runner: Runner, now: float) -> None:
        if not runner.is_given_up:
            runner.is_given_up = True
            waited = runner.watch.wait(now) if runner.pinged is None else now - runner.pinged
            text = f"no answer in {now - runner.begun:.1f} s"
            error = PortalTimeoutError(text, url=runner.client.url)
            if not runner.watch.is_idle:
                runner.health.record_failure(error, now, waited=waited)
            self._tally.note(runner.client, error)
            runner.scope.cancel()

    def _count_losers(self, now: float) -> None:
        if self._answers:
            for runner in self._running:
                if runner.is_late and not runner.is_given_up:
                    waited = max(runner.watch.wait(now), runner.health.hedge_delay)
                    runner.health.record_lost_hedge(waited, now)


def is_late(
    watch: RequestWatch, health: PortalHealth, other_rate: float | None, now: float
) -> bool:
    """Whether something takes so long that another portal should be asked."""
    if watch.head_wait(now) >= health.hedge_delay or watch.stall(now) >= health.stall_limit:
        return True
    rate = watch.slowest_body(now, health.stall_limit)
    return rate is not None and health.is_slow(rate, other_rate)


async def unless_late(
    attempt: Callable[[PortalReader, RequestWatch], Awaitable[T]],
    client: PortalReader,
    health: PortalHealth,
) -> T:
    """Make one attempt, which fails as soon as it is late. For portals that failed before."""
    busy = trio.lowlevel.ParkingLot()
    watch = RequestWatch(health, busy.unpark_all)
    found: list[T] = []

    async def run() -> None:
        found.append(await attempt(client, watch))
        over.cancel()

    async def fail_when_late() -> None:
        while not is_late(watch, health, None, now := trio.current_time()):
            if watch.is_idle:
                await busy.park()
            due = trio.current_time() + CHECK_TIME
            await trio.sleep_until(due)
            stood_still = trio.current_time() - due
            if stood_still > CHECK_TIME:
                watch.skip(stood_still, trio.current_time())
        if not found:
            waited = watch.wait(now)
            error = PortalTimeoutError(f"no answer in {waited:.1f} s", url=client.url)
            health.record_failure(error, now, waited=waited)
            raise error

    with trio.CancelScope() as over:
        await run_all(run, fail_when_late)
    return found[0]


def _is_silent(runner: Runner, now: float) -> bool:
    """Whether a portal that was asked for a sign of life has had its time."""
    health, sent = runner.health, runner.ping_sent
    if sent is not None and now >= sent + health.config.silence:
        health.record_no_sign(now)
        return True
    return runner.pinged is not None and health.showed_no_sign(runner.pinged)


async def _ping(runner: Runner) -> None:
    """Ask a portal for a sign of life. Any response is one."""

    def sent() -> None:
        runner.ping_sent = trio.current_time()

    if await runner.client.http.is_alive(sent):
        runner.health.record_sign(trio.current_time())

"""The choice between portals: which one is asked next, how often, and what their answers mean
together. It does not know what is asked. ``health`` decides who is worth asking, and
``hedged_race`` asks several at a time.
"""

import logging
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import trio

from skymount.concurrency import run_all
from skymount.errors import (
    BadContentError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    ReadOnlyPortalError,
    RolledBackError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover import retry_after
from skymount.portal.failover.attempts_under_way import AttemptsUnderWay
from skymount.portal.failover.health import (
    BreakerState,
    HealthFigures,
    HedgeBudget,
    PortalHealth,
    Rank,
)
from skymount.portal.failover.hedged_race import HedgedRace, unless_late
from skymount.portal.failover.poll import Poll
from skymount.portal.failover.reachability import Attempts
from skymount.portal.failover.sign_of_life import SignsOfLife
from skymount.portal.failover.tally import Tally
from skymount.portal.http.memory_budget import MemoryBudget
from skymount.portal.http.request_watch import RequestWatch, watched
from skymount.portal.options import ClientOptions, PortalOptions

T = TypeVar("T")

log = logging.getLogger(__name__)

PROOF_TIMEOUT = 10.0
"""Seconds that all other portals together have to prove an answer that came without a proof."""

Ask = Callable[[PortalReader], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """How often portals that fail are asked again."""

    rounds: int = 3
    """How often each portal is asked before a failure is reported."""
    backoff: float = 0.2
    """Seconds of pause before the second round, doubled for each further one, jittered."""
    longest_wait: float = 10.0
    """Seconds after its begin up to which an operation waits for portals that asked for a pause."""

    def pause(self, number: int) -> float:
        """Return the seconds of pause before a round; the first one has the number 0."""
        jitter = random.uniform(0.5, 1.5)
        return self.backoff * 2.0 ** (number - 1) * jitter


@dataclass(frozen=True)
class Portals:
    """The configured portals, in the order of preference."""

    clients: Sequence[PortalReader]
    config: FailoverConfig = field(default_factory=FailoverConfig)
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    """For descriptions of content while they are received."""
    probes: trio.Nursery | None = None
    """Where portals that failed are tried again, while others do the work, and late answers are
    waited for. Without it the next operation after the pause tries them.
    """
    hedges: HedgeBudget = field(default_factory=HedgeBudget)
    _health: dict[PortalReader, PortalHealth] = field(default_factory=dict)
    _signs: SignsOfLife = field(default_factory=SignsOfLife)
    _under_way: AttemptsUnderWay = field(default_factory=AttemptsUnderWay)

    @property
    def writable_clients(self) -> list[PortalReader]:
        return [client for client in self.clients if not client.http.options.read_only]

    def writable(self) -> "Portals":
        """Return those that are not read-only; ReadOnlyPortalError when all are."""
        if self.clients and not self.writable_clients:
            raise ReadOnlyPortalError("all portals are read-only in the configuration")
        return replace(self, clients=self.writable_clients)

    def ranked(self) -> list[PortalReader]:
        """Return the portals in the order in which they are asked."""
        if self._is_alone:
            return list(self.clients)
        now, is_probed = trio.current_time(), self.probes is not None
        ranks = {each: self.health(each).rank(now, is_probed=is_probed) for each in self.clients}
        return sorted(self.clients, key=lambda client: ranks[client].value)

    def health(self, client: PortalReader) -> PortalHealth:
        found = self._health.get(client)
        return self._health.setdefault(client, PortalHealth()) if found is None else found

    def may_answer(self, since: float) -> bool:
        """Return whether a portal has sent anything since a time, or one of several works as far
        as is known.
        """
        now = trio.current_time()
        found = [self.health(client) for client in self.clients]
        if any(each.showed_signs(since) for each in found):
            return True
        return not self._is_alone and any(each.state(now) is BreakerState.CLOSED for each in found)

    async def ask_for_signs(self) -> None:
        """Ask all portals for a sign of life, which may take as long as any request."""

        async def ask(client: PortalReader) -> None:
            if await client.http.is_alive():
                self.health(client).record_sign(trio.current_time())

        await run_all(*(partial(ask, client) for client in self.clients))

    def waited_for(self) -> Sequence[str]:
        """Return the portals for which an operation waited that is out of time now."""
        return self._under_way.waited_for()

    def figures(self) -> list[HealthFigures]:
        """Return how each portal is doing, in the configured order."""
        now, is_probed = trio.current_time(), self.probes is not None and not self._is_alone
        return [
            self.health(each).figures(each.url, now, is_probed=is_probed) for each in self.clients
        ]

    @property
    def _is_alone(self) -> bool:
        return len(self.clients) < 2

    def _attempts(self, client: PortalReader) -> Attempts:
        return self.health(client).attempts(trio.current_time(), is_alone=self._is_alone)

    async def first(
        self,
        ask: Ask[T],
        *,
        hedged: bool = True,
        urgent: Callable[[], bool] = lambda: True,
        probe: Ask[object] | None = None,
    ) -> T:
        """Return the first good answer.

        A portal that fails or sends wrong content is asked again in the next round; its health may
        allow one attempt only, or none. A refusal or «not found» is final for that portal. If no
        portal has a good answer, the error is, in this order: wrong content, the last failure, a
        refusal, «not found».

        If `hedged`, the next portal is asked as well while a portal is late: `ask` may then run
        for several portals at once, and is cancelled where it is not needed. `urgent` returns
        whether somebody waits for the answer. `probe` is what is asked of a portal whose pause is
        over, in the background; it may outlast the call.
        """
        if self._is_alone:
            for client in self.clients:
                await self._signs.check(client, self.health(client), self.probes)
        elif probe is not None:
            self._start_probes(probe)

        async def hedge(asked: list[PortalReader], tally: Tally, number: int) -> list[T]:
            attempt = partial(self._attempt, ask=ask, number=number)
            return await HedgedRace(attempt, self.health, self.hedges, tally, urgent).run(asked)

        async def try_each(asked: list[PortalReader], tally: Tally, number: int) -> list[T]:
            for client in asked:
                try:
                    return [await self._attempt(client, None, ask, number)]
                except PortalError as error:
                    tally.note(client, error)
            return []

        is_hedged = hedged and not self._is_alone
        return (await self._in_rounds(hedge if is_hedged else try_each))[0]

    async def poll(self, ask: Ask[T]) -> list[T]:
        """Return the good answers of all portals that work and are not late; at least one.

        All of them are asked at once. The others, those that fail, are asked only if there is no
        good answer yet; then the rules of `first` hold. `ask` may run on in the background at
        portals that are late, and at portals whose pause is over.
        """
        if self._is_alone:
            return [await self.first(ask)]
        self._start_probes(ask)

        async def poll(asked: list[PortalReader], tally: Tally, number: int) -> list[T]:
            attempt = partial(self._attempt, ask=ask, number=number)
            now, is_probed = trio.current_time(), self.probes is not None
            ranks = [self.health(each).rank(now, is_probed=is_probed) for each in asked]
            healthy = ranks.count(Rank.HEALTHY)  # they come first
            race = Poll(attempt, self.health, self.hedges, tally, self.probes)
            return await race.ask(asked[:healthy], asked[healthy:])

        return await self._in_rounds(poll)

    async def _in_rounds(
        self, ask: Callable[[list[PortalReader], Tally, int], Awaitable[list[T]]]
    ) -> list[T]:
        """Ask the portals in rounds, until there are answers."""
        tally, begun = self._begin_tally(), trio.current_time()
        for number in range(self.config.rounds):
            if not await self._may_begin_round(number, tally, begun):
                break
            asked = [client for client in self.ranked() if client not in tally.done]
            if answers := await ask(asked, tally, number):
                return answers
            tally.admit(self._spared())
        raise retry_after.with_end(
            tally.error or UnavailableError("no portal is configured"),
            {client.url: self.health(client) for client in self.clients},
        )

    async def _may_begin_round(self, number: int, tally: Tally, begun: float) -> bool:
        """Pause before a round; whether there is anybody left to ask."""
        is_told = self._is_alone and any(
            self.health(each).told_until > trio.current_time() for each in self.clients
        )
        if len(tally.done) < len(self.clients) and not (number and is_told):
            if number:
                await self._pause_before(number)
            return True
        portals = [self.health(each) for each in self.clients]
        longest = self.config.longest_wait
        if tally.is_refused or not await retry_after.wait_for_one(portals, begun, longest):
            return False
        now = trio.current_time()
        told = (each for each in self.clients if begun < self.health(each).told_until <= now)
        tally.done.difference_update(told)
        return True

    async def ask_once(self, client: PortalReader, ask: Ask[T], *, is_last_round: bool = True) -> T:
        """Return what one portal answers to one attempt; its health takes note."""
        number = self.config.rounds - 1 if is_last_round else 0
        return await self._attempt(client, None, ask, number)

    def _begin_tally(self) -> Tally:
        """Begin with the portals that are not asked at all now."""
        spared = self._spared()
        errors = (self.health(each).known_error for each in self.clients if each in spared)
        return Tally(self._attempts, spared, next(filter(None, errors), None))

    def _spared(self) -> set[PortalReader]:
        """Return the portals that are not asked now. If none works, some of them are after all."""
        spared = {each for each in self.clients if self._attempts(each) is Attempts.NONE}
        if not spared or self._is_alone:
            return spared
        now = trio.current_time()
        if any(self.health(each).state(now) is BreakerState.CLOSED for each in self.clients):
            return spared
        return {each for each in spared if not self.health(each).may_be_tried(now)}

    async def best(
        self, ask: Ask[T], is_proven: Callable[[T], bool], *, probe: Ask[object] | None = None
    ) -> tuple[T, Collection[PortalReader]]:
        """Return the first proven answer, or without one the first good answer and the portals
        that failed: they might have had a proof.

        All portals but the one that gave the first good answer are asked for a proof at once, in
        rounds, for `PROOF_TIMEOUT` seconds at most. Only «not found» is final.
        """

        async def first(client: PortalReader) -> tuple[PortalReader, T]:
            return client, await ask(client)

        answered, found = await self.first(first, probe=probe)
        if is_proven(found):
            return found, ()
        proofs: list[T] = []
        undecided = {client for client in self.clients if client is not answered}
        with trio.move_on_after(PROOF_TIMEOUT) as scope:
            await self._seek_proof(ask, is_proven, undecided, proofs)
        now = trio.current_time()
        for client in undecided:
            self.health(client).reachability.record_no_proof(now)
            if scope.cancelled_caught and not self.health(client).showed_signs(now - PROOF_TIMEOUT):
                error = PortalTimeoutError(f"no answer in {PROOF_TIMEOUT:g} s", url=client.url)
                self.health(client).record_failure(error, now, waited=PROOF_TIMEOUT)
        return (proofs[0], ()) if proofs else (found, undecided)

    async def _seek_proof(
        self,
        ask: Ask[T],
        is_proven: Callable[[T], bool],
        undecided: set[PortalReader],
        proofs: list[T],
    ) -> None:
        """Ask portals in rounds, in each all of them at once, until one adds to `proofs`.

        Those that answer are removed from `undecided`; those that refuse stay in it, but are not
        asked again.
        """
        refused: set[PortalReader] = set()

        async def attempt(client: PortalReader, number: int, proof_found: trio.CancelScope) -> None:
            try:
                answer = await self._attempt_proof(client, ask, number)
            except NotFoundError:
                undecided.discard(client)
            except (UnavailableError, BadContentError):
                pass
            except (PortalError, StorageError):
                refused.add(client)
            else:
                undecided.discard(client)
                if is_proven(answer):
                    proofs.append(answer)
                    proof_found.cancel()

        for number in range(self.config.rounds):
            asked = self._worth_a_proof(undecided - refused, number)
            if proofs or not asked:
                break
            if number:
                await self._pause_before(number)
            with trio.CancelScope() as proof_found:
                await run_all(*(partial(attempt, client, number, proof_found) for client in asked))

    def _worth_a_proof(self, clients: Iterable[PortalReader], number: int) -> list[PortalReader]:
        now = trio.current_time()
        wanted = (Attempts.ALL,) if number else (Attempts.ALL, Attempts.ONE)
        return [each for each in clients if self.health(each).proof_attempts(now) in wanted]

    async def _attempt_proof(self, client: PortalReader, ask: Ask[T], number: int) -> T:
        """Ask for a proof; a portal that failed lately gets less time."""
        attempt = partial(self._attempt, ask=ask, number=number)
        health = self.health(client)
        if health.state(trio.current_time()) is BreakerState.CLOSED:
            return await attempt(client, None)
        return await unless_late(attempt, client, health)

    async def _attempt(
        self, client: PortalReader, watch: RequestWatch | None, ask: Ask[T], number: int
    ) -> T:
        health, begun = self.health(client), trio.current_time()
        watch = watch or RequestWatch(health)
        try:
            with self._under_way.noted(client.url, watch):
                answer = await watched(watch, ask(client))
        except RolledBackError:  # it works, and is only behind
            health.record_answer(trio.current_time(), begun)
            raise
        except (UnavailableError, BadContentError) as error:
            if not error.is_unsent:
                now, is_last_round = trio.current_time(), number == self.config.rounds - 1
                waited = now - begun
                health.record_failure(error, now, waited=waited, is_last_round=is_last_round)
            raise
        except PortalError:
            health.record_answer(trio.current_time(), begun)
            raise
        health.record_success(trio.current_time(), begun)
        return answer

    def _start_probes(self, ask: Ask[object]) -> None:
        """Try portals again whose pause is over, if others do the work. Each counts as a hedge."""
        if self.probes is None:
            return
        now = trio.current_time()
        ranks = [self.health(each).rank(now, is_probed=True) for each in self.clients]
        if Rank.HEALTHY not in ranks:
            return
        for client in self.clients:
            health = self.health(client)
            is_due = health.state(now) is BreakerState.HALF_OPEN and not health.is_probed
            if is_due and self.hedges.take():
                health.is_probed = True
                self.probes.start_soon(self._probe, client, ask)

    async def _probe(self, client: PortalReader, ask: Ask[object]) -> None:
        health = self.health(client)
        attempt = partial(self._attempt, ask=ask, number=0)
        try:
            await unless_late(attempt, client, health)
        except (PortalError, StorageError) as error:
            log.info("%s: still fails: %s", client.url, error)
        except Exception:  # a bug must not end everybody else's tasks
            log.exception("%s: the probe failed", client.url)
        finally:
            health.is_probed = False

    async def _pause_before(self, number: int) -> None:
        await trio.sleep(self.config.pause(number))


@asynccontextmanager
async def open_portals(
    portals: Mapping[str, ClientOptions], timeout: float
) -> AsyncIterator[Portals]:
    """Open a client for each URL, with its options and seconds of silence.

    They retry nothing: `Portals` asks the next portal instead.
    """
    async with AsyncExitStack() as stack:
        clients = []
        for url, options in portals.items():
            parsed = replace(PortalOptions.parse(url, **options), idle_timeout=timeout, retries=0)
            clients.append(await stack.enter_async_context(PortalReader.of(parsed)))
        async with trio.open_nursery() as probes:
            yield Portals(clients, probes=probes)
            probes.cancel_scope.cancel()

"""The choice between portals: which one is asked next, how often, and what their answers mean
together. It does not know what is asked. ``rounds`` decides how often, ``health_table`` who is
worth asking, and ``hedged_race`` asks several at a time.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import trio

from skymount.concurrency import run_all
from skymount.errors import PortalError, ReadOnlyPortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.attempts_under_way import AttemptsUnderWay
from skymount.portal.failover.health import HealthFigures, HedgeBudget, PortalHealth, Rank
from skymount.portal.failover.health_table import HealthTable
from skymount.portal.failover.hedged_race import HedgedRace
from skymount.portal.failover.poll import Poll
from skymount.portal.failover.probes import Probes
from skymount.portal.failover.proof_search import ProofSearch
from skymount.portal.failover.recorded_attempts import Ask, RecordedAttempts
from skymount.portal.failover.rounds import FailoverConfig, Rounds
from skymount.portal.failover.sign_of_life import SignsOfLife
from skymount.portal.failover.tally import Tally
from skymount.portal.http.memory_budget import MemoryBudget
from skymount.settings import PortalOptions

T = TypeVar("T")


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

    @cached_property
    def _table(self) -> HealthTable:
        return HealthTable(self.clients, self.probes is not None, self._health)

    @cached_property
    def _attempts(self) -> RecordedAttempts:
        return RecordedAttempts(self._table.of, self._under_way, self.config.rounds)

    @cached_property
    def _rounds(self) -> Rounds:
        return Rounds(self._table, self.config, self.awake)

    @cached_property
    def _probes(self) -> Probes:
        return Probes(self._table, self._attempts, self.hedges, self.probes)

    @property
    def writable_clients(self) -> list[PortalReader]:
        return [client for client in self.clients if not client.http.options.read_only]

    def writable(self) -> "Portals":
        """Return those that are not read-only; ReadOnlyPortalError when all are."""
        if self.clients and not self.writable_clients:
            raise ReadOnlyPortalError("all portals are read-only in the configuration")
        return replace(self, clients=self.writable_clients)

    def ranked(self) -> list[PortalReader]:
        return self._table.ranked()

    def health(self, client: PortalReader) -> PortalHealth:
        return self._table.of(client)

    def may_answer(self, since: float) -> bool:
        """Return whether a portal has sent anything since a time, or one of several works as far
        as is known.
        """
        return self._table.may_answer(since)

    async def ask_for_signs(self) -> None:
        """Ask all portals for a sign of life, which may take as long as any request."""

        async def ask(client: PortalReader) -> None:
            if await client.http.is_alive():
                self.health(client).record_sign(trio.current_time())

        await run_all(*(partial(ask, client) for client in self.clients))

    async def awake(self, clients: Collection[PortalReader]) -> list[PortalReader]:
        """Return those of some portals that may be asked after all, because no other one has an
        answer: silent ones that give a sign of life (R12).
        """
        now = trio.current_time()
        health = {each: self.health(each) for each in clients}
        silent = {each: found for each, found in health.items() if found.may_awake(now)}
        awake = await self._signs.awake(silent, self.probes)
        for client in awake:
            self.health(client).record_awake(trio.current_time())
        return awake

    async def available(
        self, clients: Collection[PortalReader], begun: float
    ) -> list[PortalReader]:
        """Return which of some portals may be asked, as all others failed an operation that
        began at `begun`; wait for some if that may help (R12).
        """
        return await self._rounds.available(clients, begun)

    def waited_for(self) -> Sequence[str]:
        """Return the portals for which an operation waited that is out of time now."""
        return self._under_way.waited_for()

    def figures(self) -> list[HealthFigures]:
        return self._table.figures()

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
        is_alone = self._table.is_alone
        if is_alone:
            for client in self.clients:
                await self._signs.check(client, self.health(client), self.probes)
        elif probe is not None:
            self._probes.start(probe)

        async def hedge(asked: list[PortalReader], tally: Tally, number: int) -> list[T]:
            attempt = self._attempts.of_round(ask, number)
            return await HedgedRace(attempt, self.health, self.hedges, tally, urgent).run(asked)

        async def try_each(asked: list[PortalReader], tally: Tally, number: int) -> list[T]:
            for client in asked:
                try:
                    return [await self._attempts.make(client, None, ask, number)]
                except PortalError as error:
                    tally.note(client, error)
            return []

        is_hedged = hedged and not is_alone
        return (await self._rounds.until_answered(hedge if is_hedged else try_each))[0]

    async def poll(self, ask: Ask[T], *, insists: Callable[[], bool] = lambda: False) -> list[T]:
        """Return the good answers of all portals that work and are not late; at least one.

        All of them are asked at once. The others, those that fail, are asked only if there is no
        good answer yet; then the rules of `first` hold, and `insists` says whether it matters so
        much that refusals do not end it while a portal was spared. `ask` may run on in the
        background at portals that are late, and at portals whose pause is over.
        """
        if self._table.is_alone:
            return [await self.first(ask)]
        self._probes.start(ask)

        async def poll(asked: list[PortalReader], tally: Tally, number: int) -> list[T]:
            attempt = self._attempts.of_round(ask, number)
            ranks = [self._table.rank(each) for each in asked]
            healthy = ranks.count(Rank.HEALTHY)  # they come first
            race = Poll(attempt, self.health, self.hedges, tally, self.probes)
            return await race.ask(asked[:healthy], asked[healthy:])

        return await self._rounds.until_answered(poll, insists)

    async def ask_once(self, client: PortalReader, ask: Ask[T], *, is_last_round: bool = True) -> T:
        """Return what one portal answers to one attempt; its health takes note."""
        number = self.config.rounds - 1 if is_last_round else 0
        return await self._attempts.make(client, None, ask, number)

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
        search = ProofSearch(self._table, self._attempts, self._rounds, ask, is_proven)
        proofs = await search.run(client for client in self.clients if client is not answered)
        return (proofs[0], ()) if proofs else (found, search.undecided)


@asynccontextmanager
async def open_portals(
    portals: Mapping[str, PortalOptions], timeout: float
) -> AsyncIterator[Portals]:
    """Open a client for each URL, with its options and seconds of silence.

    They retry nothing: `Portals` asks the next portal instead.
    """
    async with AsyncExitStack() as stack:
        clients = []
        for options in portals.values():
            made = PortalReader.of(replace(options, idle_timeout=timeout, retries=0))
            clients.append(await stack.enter_async_context(made))
        async with trio.open_nursery() as probes:
            yield Portals(clients, probes=probes)
            probes.cancel_scope.cancel()

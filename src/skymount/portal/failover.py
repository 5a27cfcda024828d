"""The choice between portals: which one is asked next, how often, and what their answers mean
together. It does not know what is asked; ``circuit_breaker`` decides who is worth asking.
"""

import copy
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
    ReadOnlyPortalError,
    StorageError,
    UnavailableError,
)
from skymount.portal.circuit_breaker import BreakerState, CircuitBreaker
from skymount.portal.client.base import PortalReader
from skymount.portal.http.memory_budget import MemoryBudget
from skymount.portal.options import ClientOptions, PortalOptions

T = TypeVar("T")
E = TypeVar("E", bound=PortalError)

PROOF_TIMEOUT = 10.0
"""Seconds that all other portals together have to prove an answer that came without a proof."""


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """How often portals that fail are asked again."""

    rounds: int = 3
    """How often each portal is asked before a failure is reported."""
    backoff: float = 0.2
    """Seconds of pause before the second round, doubled for each further one, jittered."""


@dataclass(frozen=True)
class Portals:
    """The configured portals, in the order of preference."""

    clients: Sequence[PortalReader]
    config: FailoverConfig = field(default_factory=FailoverConfig)
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    """For descriptions of content while they are received."""
    _breakers: dict[PortalReader, CircuitBreaker] = field(default_factory=dict)

    @property
    def writable_clients(self) -> list[PortalReader]:
        return [client for client in self.clients if not client.http.options.read_only]

    def writable(self) -> "Portals":
        """Return those that are not read-only; ReadOnlyPortalError when all are."""
        if self.clients and not self.writable_clients:
            raise ReadOnlyPortalError("all portals are read-only in the configuration")
        return replace(self, clients=self.writable_clients)

    def ranked(self) -> list[PortalReader]:
        now = trio.current_time()
        return sorted(self.clients, key=lambda client: self._breaker(client).failures_at(now))

    def _breaker(self, client: PortalReader) -> CircuitBreaker:
        return self._breakers.setdefault(client, CircuitBreaker())

    def _state(self, client: PortalReader) -> BreakerState:
        return self._breaker(client).state(trio.current_time())

    async def first(self, ask: Callable[[PortalReader], Awaitable[T]]) -> T:
        """Return the first good answer.

        A portal that fails or sends wrong content is asked again in the next round; its circuit
        breaker may allow one attempt only, or none. A refusal or «not found» is final for that
        portal. If no portal has a good answer, the error is, in this order: wrong content, the
        last failure, a refusal, «not found».
        """
        done = {client for client in self.clients if self._state(client) is BreakerState.OPEN}
        errors = (self._breaker(client).connect_error for client in self.clients if client in done)
        failure = next(map(copy.copy, filter(None, errors)), None)
        refusal: PortalError | None = None
        for number in range(self.config.rounds):
            await self._pause_before(number)
            for client in self.ranked():
                if client in done:
                    continue
                try:
                    return await self._attempt(client, ask, number)
                except (UnavailableError, BadContentError) as error:
                    if self._state(client) is not BreakerState.CLOSED:
                        done.add(client)
                    if not isinstance(failure, BadContentError):
                        failure = _bare(error)
                except PortalError as error:
                    done.add(client)
                    if refusal is None or isinstance(refusal, NotFoundError):
                        refusal = _bare(error)
            if len(done) == len(self.clients):
                break
        raise failure or refusal or UnavailableError("no portal is configured")

    async def best(
        self, ask: Callable[[PortalReader], Awaitable[T]], is_proven: Callable[[T], bool]
    ) -> tuple[T, Collection[PortalReader]]:
        """Return the first proven answer, or without one the first good answer and the portals
        that failed: they might have had a proof.

        All portals but the one that gave the first good answer are asked for a proof at once, in
        rounds, for `PROOF_TIMEOUT` seconds at most. Only «not found» is final.
        """
        answered: list[PortalReader] = []

        async def first(client: PortalReader) -> T:
            answer = await ask(client)
            answered.append(client)
            return answer

        found = await self.first(first)
        if is_proven(found):
            return found, ()
        proofs: list[T] = []
        undecided = set(self.clients).difference(answered)
        with trio.move_on_after(PROOF_TIMEOUT):
            await self._seek_proof(ask, is_proven, undecided, proofs)
        for client in undecided:
            self._breaker(client).record_no_proof(trio.current_time())
        return (proofs[0], ()) if proofs else (found, undecided)

    async def _seek_proof(
        self,
        ask: Callable[[PortalReader], Awaitable[T]],
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
                answer = await self._attempt(client, ask, number)
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
            await self._pause_before(number)
            with trio.CancelScope() as proof_found:
                await run_all(*(partial(attempt, client, number, proof_found) for client in asked))

    def _worth_a_proof(self, clients: Iterable[PortalReader], number: int) -> list[PortalReader]:
        now = trio.current_time()
        wanted = (BreakerState.CLOSED,) if number else (BreakerState.CLOSED, BreakerState.HALF_OPEN)
        return [each for each in clients if self._breaker(each).proof_state(now) in wanted]

    async def _attempt(
        self, client: PortalReader, ask: Callable[[PortalReader], Awaitable[T]], number: int
    ) -> T:
        breaker = self._breaker(client)
        is_last_round = number == self.config.rounds - 1
        try:
            answer = await ask(client)
        except (UnavailableError, BadContentError) as error:
            if not error.is_unsent:
                breaker.record_failure(error, trio.current_time(), is_last_round=is_last_round)
            raise
        except PortalError:
            breaker.record_answer(trio.current_time())
            raise
        breaker.record_success(trio.current_time())
        return answer

    async def _pause_before(self, number: int) -> None:
        if number:
            jitter = random.uniform(0.5, 1.5)
            await trio.sleep(self.config.backoff * 2 ** (number - 1) * jitter)


def _bare(error: E) -> E:
    """Return the error without its traceback and causes, whose frames hold what was received."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


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
        yield Portals(clients)

"""Owns the choice between portals: which one is asked next, how often, and what their answers
together mean. Knows nothing of what is asked.
"""

import copy
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, Unpack

import trio

from skymount.errors import (
    BadContentError,
    NotFoundError,
    PortalError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.http.memory_budget import MemoryBudget
from skymount.portal.options import ClientOptions, PortalOptions

T = TypeVar("T")

ROUNDS = 3
"""How often each portal is asked before a failure is reported."""

BACKOFF = 0.2
"""Seconds of pause before the second round, doubled for each further one, jittered."""

PROOF_WAIT = 10.0
"""Seconds that all portals together have to prove what one could only say."""

E = TypeVar("E", bound=PortalError)


def _bare(error: E) -> E:
    """Return an error that is kept for a while without what it holds on to: the frames that it
    passed, and in them all that was received until then.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


FAULT_MEMORY = 30.0
"""Seconds after which a fault no longer counts, doubled for each further one in a row."""

_FAULTS = 6  # in a row that are told apart: half an hour of memory is enough

AWAY = 5.0
"""Seconds for which a portal that could not be reached in all rounds of a request is tried once
for each further one.
"""

LONG = 1.0
"""Seconds after which one attempt to reach a portal in vain was enough: the pauses between the
rounds are shorter.
"""

REST = 2.0
"""Seconds for which a portal is not tried at all after such an attempt."""


@dataclass
class CircuitBreaker:
    """How a portal has done lately. Times are seconds of one clock."""

    faults: int = 0
    """In a row; the fewer, the earlier it is asked."""
    last: float = 0.0
    """When the last of them was."""
    answered: float = -math.inf
    """When it last answered."""
    away: float = -math.inf
    """Until when it counts as away."""
    rest: float = -math.inf
    """Until when it is not tried."""
    error: PortalError | None = None
    """Why it could not be reached."""
    unproving: float = -math.inf
    """Until when it is asked for a proof once, as it failed in all rounds just now."""

    def succeeded(self, now: float) -> None:
        """Record a good answer."""
        self.faults = 0
        self.refused(now)

    def refused(self, now: float) -> None:
        """Record an answer, whichever."""
        self.answered, self.away = now, -math.inf

    def failed(self, error: PortalError, now: float, *, is_last: bool) -> None:
        """Record a fault; `is_last` is whether the rounds of the request are over.

        It is not away for one connection more that cannot be made while it answers on others.
        """
        self.faults, self.last = min(self.faults + 1, _FAULTS), now
        if error.unreached is None or self.answered > now - error.unreached:
            self.away = -math.inf
            return
        took_long = error.unreached >= LONG
        if took_long or is_last:
            self.away = now + AWAY
        if took_long:
            self.error, self.rest = copy.copy(error), now + REST

    def counted(self, now: float) -> int:
        """Return the faults in a row, none once they are long enough ago."""
        return self.faults if now < self.last + FAULT_MEMORY * 2 ** (self.faults - 1) else 0

    def is_away(self, now: float) -> bool:
        """Whether a further round would be in vain."""
        return now < self.away

    def is_spared(self, now: float) -> bool:
        """Whether a further round for a proof would be in vain."""
        return self.is_away(now) or now < self.unproving

    def resting(self, now: float) -> PortalError | None:
        """Return why it cannot be reached, while it is not to be tried."""
        return self.error if self.is_away(now) and now < self.rest else None


@dataclass(frozen=True)
class Portals:
    """The configured portals, in the order of preference."""

    clients: Sequence[PortalReader]
    rounds: int = ROUNDS
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    """For what is on its way to describe content."""
    _standing: dict[PortalReader, CircuitBreaker] = field(default_factory=dict)

    def ranked(self) -> list[PortalReader]:
        """Return the portals in the order in which to ask them now."""
        now = trio.current_time()
        return sorted(self.clients, key=lambda client: self._of(client).counted(now))

    def _of(self, client: PortalReader) -> CircuitBreaker:
        return self._standing.setdefault(client, CircuitBreaker())

    def _resting(self) -> dict[PortalReader, PortalError]:
        """Return the portals that are not to be tried now, and why they could not be reached."""
        now = trio.current_time()
        known = ((client, self._of(client).resting(now)) for client in self.clients)
        return {client: error for client, error in known if error is not None}

    async def first(self, ask: Callable[[PortalReader], Awaitable[T]]) -> T:
        """Return the first good answer.

        A portal that fails or sends wrong content makes room for the next one, round after round.
        One that could not be reached in the rounds of another request just now is tried once.
        A refusal or a «not found» is a portal's last word, so it is not asked again; it is
        the result only if no portal is left that might answer otherwise. Otherwise the worst that
        happened is raised: content that was wrong, else the last failure.
        """
        resting = self._resting()
        done = set(resting)
        refusal: PortalError | None = None
        failure = next(map(copy.copy, resting.values()), None)
        for turn in range(self.rounds):
            await _pause_before(turn)
            for client in self.ranked():
                if client in done:
                    continue
                try:
                    return await self.ask_one(client, ask, turn)
                except (UnavailableError, BadContentError) as error:
                    if self._of(client).is_away(trio.current_time()):
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
        """Return the first answer that is proven; if there is none, the first good one, and the
        portals that failed, so that it is not known whether they could have proved another.

        All portals but the one that gave the first good answer are asked for a proof at once, in
        rounds, for `PROOF_WAIT` seconds at most. One that failed so just now is asked once. Only
        «not found» is a last word.
        """
        answered: list[PortalReader] = []

        async def first(client: PortalReader) -> T:
            answer = await ask(client)
            answered.append(client)
            return answer

        found = await self.first(first)
        if is_proven(found):
            return found, ()
        seeker = _Seeker(self, ask, is_proven, set(self.clients).difference(answered))
        with trio.move_on_after(PROOF_WAIT):
            await seeker.seek()
        for client in seeker.failed:
            self._of(client).unproving = trio.current_time() + AWAY
        return (seeker.proofs[0], ()) if seeker.proofs else (found, seeker.failed)

    def for_a_proof(self, failed: set[PortalReader], turn: int) -> Set[PortalReader]:
        """Return those to ask for a proof in a round, of the portals that have failed until now."""
        now = trio.current_time()
        found = failed.difference(self._resting())
        return {client for client in found if not turn or not self._of(client).is_spared(now)}

    async def ask_one(
        self, client: PortalReader, ask: Callable[[PortalReader], Awaitable[T]], turn: int
    ) -> T:
        """Ask one portal in one of the rounds, and take note of how it did."""
        standing = self._of(client)
        try:
            answer = await ask(client)
        except (UnavailableError, BadContentError) as error:
            standing.failed(error, trio.current_time(), is_last=turn == self.rounds - 1)
            raise
        except PortalError:
            standing.refused(trio.current_time())
            raise
        standing.succeeded(trio.current_time())
        return answer


class _Seeker(Generic[T]):
    """Asks portals for a proof of what another one could only say."""

    def __init__(
        self,
        portals: Portals,
        ask: Callable[[PortalReader], Awaitable[T]],
        is_proven: Callable[[T], bool],
        others: set[PortalReader],
    ) -> None:
        self._portals = portals
        self._ask = ask
        self._is_proven = is_proven
        self._refused: set[PortalReader] = set()
        self._surprises: list[Exception] = []
        self.failed = others
        """Portals that have not said what they know."""
        self.proofs: list[T] = []

    async def seek(self) -> None:
        """Ask those that fail in rounds, in each all of them at once, until one has a proof."""
        for turn in range(self._portals.rounds):
            asked = self._portals.for_a_proof(self.failed - self._refused, turn)
            if self.proofs or not asked:
                break
            await _pause_before(turn)
            async with trio.open_nursery() as nursery:
                for client in asked:
                    nursery.start_soon(self._seek_at, client, turn, nursery.cancel_scope)
            if self._surprises:
                raise self._surprises[0]

    async def _seek_at(self, client: PortalReader, turn: int, scope: trio.CancelScope) -> None:
        try:
            answer = await self._portals.ask_one(client, self._ask, turn)
        except NotFoundError:
            self.failed.discard(client)
        except (UnavailableError, BadContentError):
            pass
        except (PortalError, StorageError):
            self._refused.add(client)  # it may have a proof all the same
        except Exception as error:  # noqa: BLE001  # `seek` raises it, without a group around it
            self._surprises.append(error)
            scope.cancel()
        else:
            self.failed.discard(client)
            if self._is_proven(answer):
                self.proofs.append(answer)
                scope.cancel()


async def _pause_before(turn: int) -> None:
    """Wait before a round; not before the first, 0."""
    if turn:
        await trio.sleep(BACKOFF * 2 ** (turn - 1) * random.uniform(0.5, 1.5))


@asynccontextmanager
async def open_portals(
    urls: Sequence[str], **options: Unpack[ClientOptions]
) -> AsyncIterator[Portals]:
    """Open a client for each URL. They retry nothing: `Portals` asks the next portal instead."""
    async with AsyncExitStack() as stack:
        clients = []
        for url in urls:
            parsed = replace(PortalOptions.parse(url, **options), retries=0)
            clients.append(await stack.enter_async_context(PortalReader.of(parsed)))
        yield Portals(clients)

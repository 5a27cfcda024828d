"""Owns the choice between portals: which one is asked next, how often, and what their answers
together mean. Knows nothing of what is asked.
"""

import copy
import math
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from skymount.errors import BadContentError, NotFoundError, PortalError, UnavailableError
from skymount.portal.reading import PortalReader

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
class _Standing:
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

    def resting(self, now: float) -> PortalError | None:
        """Return why it cannot be reached, while it is not to be tried."""
        return self.error if self.is_away(now) and now < self.rest else None


@dataclass(frozen=True)
class Portals:
    """The configured portals, in the order of preference."""

    clients: Sequence[PortalReader]
    rounds: int = ROUNDS
    _standing: dict[PortalReader, _Standing] = field(default_factory=dict)

    def ranked(self) -> list[PortalReader]:
        """Return the portals in the order in which to ask them now."""
        now = trio.current_time()
        return sorted(self.clients, key=lambda client: self._of(client).counted(now))

    def _of(self, client: PortalReader) -> _Standing:
        return self._standing.setdefault(client, _Standing())

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
                    return await self._ask(client, ask, turn)
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
        rounds, for `PROOF_WAIT` seconds at most.
        """
        answered: list[PortalReader] = []

        async def first(client: PortalReader) -> T:
            answer = await ask(client)
            answered.append(client)
            return answer

        found = await self.first(first)
        proofs = [found] if is_proven(found) else []
        failed = set(self.clients).difference(answered)

        async def seek(client: PortalReader, turn: int) -> None:
            try:
                answer = await self._ask(client, ask, turn)
            except (UnavailableError, BadContentError):
                return
            except PortalError:
                pass
            else:
                if is_proven(answer):
                    proofs.append(answer)
                    nursery.cancel_scope.cancel()
            failed.discard(client)

        with trio.move_on_after(PROOF_WAIT):
            for turn in range(self.rounds):
                now = trio.current_time()
                asked = failed.difference(self._resting())
                if turn:
                    asked = {client for client in asked if not self._of(client).is_away(now)}
                if proofs or not asked:
                    break
                await _pause_before(turn)
                async with trio.open_nursery() as nursery:
                    for client in asked:
                        nursery.start_soon(seek, client, turn)
        return (proofs[0], ()) if proofs else (found, failed)

    async def _ask(
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


async def _pause_before(turn: int) -> None:
    """Wait before a round; not before the first, 0."""
    if turn:
        await trio.sleep(BACKOFF * 2 ** (turn - 1) * random.uniform(0.5, 1.5))

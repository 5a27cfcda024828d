"""Owns the choice between portals: which one is asked next, how often, and what their answers
together mean. Knows nothing of what is asked.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
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


@dataclass
class _Standing:
    """How a portal has done lately; the fewer faults in a row, the earlier it is asked."""

    faults: int = 0
    last: float = 0.0

    def failed(self, now: float) -> None:
        """Record a fault."""
        self.faults, self.last = min(self.faults + 1, _FAULTS), now

    def counted(self, now: float) -> int:
        """Return the faults in a row, none once they are long enough ago."""
        return self.faults if now < self.last + FAULT_MEMORY * 2 ** (self.faults - 1) else 0


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

    async def first(self, ask: Callable[[PortalReader], Awaitable[T]]) -> T:
        """Return the first good answer.

        A portal that fails or sends wrong content makes room for the next one, round after round.
        A refusal or a «not found» is a portal's last word, so it is not asked again; it is
        the result only if no portal is left that might answer otherwise. Otherwise the worst that
        happened is raised: content that was wrong, else the last failure.
        """
        silent: set[PortalReader] = set()
        refusal: PortalError | None = None
        failure: PortalError | None = None
        for turn in range(self.rounds):
            if turn:
                pause = BACKOFF * 2 ** (turn - 1)
                await trio.sleep(pause * random.uniform(0.5, 1.5))
            for client in self.ranked():
                if client in silent:
                    continue
                try:
                    answer = await ask(client)
                except (UnavailableError, BadContentError) as error:
                    self._of(client).failed(trio.current_time())
                    if not isinstance(failure, BadContentError):
                        failure = _bare(error)
                except PortalError as error:
                    silent.add(client)
                    if refusal is None or isinstance(refusal, NotFoundError):
                        refusal = _bare(error)
                else:
                    self._of(client).faults = 0
                    return answer
            if len(silent) == len(self.clients):
                break
        raise failure or refusal or UnavailableError("no portal is configured")

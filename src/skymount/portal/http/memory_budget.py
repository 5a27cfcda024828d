"""The bound on in-flight descriptions of content, of all lookups together (docs/semantics.md, S11).

No lookup waits while it holds bytes, so no two can wait for each other. One that finds no room
drops what it has, waits until it is the one lookup that may exceed the bound, and begins again.
"""

import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from skymount.errors import PortalError, PortalTimeoutError

T = TypeVar("T")

BUDGET = 128 << 20
"""Bytes."""

FREE = 128 << 10
"""Bytes that each lookup may always have: most descriptions are no longer."""

_SMALL = 16 << 20
"""Bytes that a lookup of ordinary content needs: a base sector and a head, twice. Lookups that
need more share three quarters of the budget.
"""

TURN = 10.0
"""Seconds that a lookup may exceed the bound while others wait for the turn."""


class NoRoomError(PortalError):
    """The budget is exhausted. `MemoryBudget.run` handles it."""


@dataclass(slots=True, eq=False)
class _Share:
    """The bytes of one lookup."""

    budget: "MemoryBudget"
    held: int = 0
    turn_since: float | None = None
    """When it took the turn. Its bytes do not count for the bound any more."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Ends the lookup when its turn has lasted too long."""


_current: ContextVar[_Share | None] = ContextVar("share", default=None)


def take(size: int) -> None:
    """Count received bytes, if they are for a description; NoRoomError if there is no room."""
    share = _current.get()
    if share is not None:
        share.budget.count(share, size)


class MemoryBudget:
    """The budget of one mount."""

    def __init__(self, size: int = BUDGET) -> None:
        self.size = size
        self.used = 0
        """Bytes held, without those of the lookup that has the turn."""
        self._turn = trio.Semaphore(1)
        self._waiting = 0
        self._has_turn: _Share | None = None

    async def run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Run a lookup, and count what it and its child tasks receive. It may be run twice.

        PortalTimeoutError if its turn lasts too long while others wait.
        """
        try:
            return await self._ask(ask, _Share(self))
        except NoRoomError:
            pass  # its traceback holds what was received: it must not outlast this block
        self._count_waiting(1)
        try:
            await self._turn.acquire()
        finally:
            self._count_waiting(-1)
        share = _Share(self)
        self._begin_turn(share)
        return await self._ask(ask, share)

    async def _ask(self, ask: Callable[[], Awaitable[T]], share: _Share) -> T:
        before = _current.set(share)
        try:
            with share.scope:
                return await ask()
        finally:
            _current.reset(before)
            if share.turn_since is None:
                self.used -= share.held
            else:
                self._has_turn = None
                self._turn.release()
        raise PortalTimeoutError(f"more than {TURN:g} s for a description others wait behind")

    def count(self, share: _Share, size: int) -> None:
        """Count bytes of a lookup, as `take`."""
        if share.turn_since is None:
            needed = share.held + size
            bound = self.size if needed <= _SMALL else self.size * 3 // 4
            if needed > FREE and self.used + size > bound:
                try:
                    self._turn.acquire_nowait()
                except trio.WouldBlock:
                    raise NoRoomError("too much is on its way to describe content") from None
                self._begin_turn(share)
            else:
                self.used += size
        share.held += size

    def _begin_turn(self, share: _Share) -> None:
        self.used -= share.held
        share.turn_since = trio.current_time()
        self._has_turn = share
        self._count_waiting(0)

    def _count_waiting(self, change: int) -> None:
        self._waiting += change
        share = self._has_turn
        if share is not None and share.turn_since is not None:
            share.scope.deadline = share.turn_since + TURN if self._waiting else math.inf

"""The bound on in-flight descriptions of content, of all lookups together (docs/semantics.md, S11).

No lookup waits while it holds bytes, so no two can wait for each other. One that finds no room
drops what it has, waits for the turn to exceed the bound, which one lookup has at a time, and
begins again.
"""

import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
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


class _Share:
    """The bytes of one lookup."""

    def __init__(self, budget: "MemoryBudget") -> None:
        self._budget = budget
        self._held = 0
        self._beyond_since: float | None = None
        self.scope = trio.CancelScope()
        """Ends the lookup when its turn has lasted too long."""

    def take(self, size: int) -> None:
        """Count received bytes."""
        budget = self._budget
        if self._beyond_since is None and not budget.has_room(self._held, size):
            if not budget.try_turn():
                raise NoRoomError("too much is on its way to describe content")
            self.go_beyond()
        self._held += size
        if self._beyond_since is None:
            budget.used += size

    def go_beyond(self) -> None:
        """Take the turn: the bytes do not count for the bound any more."""
        self._budget.used -= self._held
        self._beyond_since = trio.current_time()
        self._budget.begin_turn(self)

    def limit(self, is_wanted: bool) -> None:
        """Bound the turn if others wait for it."""
        if self._beyond_since is not None:
            self.scope.deadline = self._beyond_since + TURN if is_wanted else math.inf

    def close(self) -> None:
        """Free the bytes, or end the turn."""
        if self._beyond_since is None:
            self._budget.used -= self._held
        else:
            self._budget.end_turn()


_current: ContextVar[_Share | None] = ContextVar("share", default=None)


def take(size: int) -> None:
    """Count received bytes, if they are for a description; NoRoomError if there is no room."""
    share = _current.get()
    if share is not None:
        share.take(size)


class MemoryBudget:
    """The budget of one mount."""

    def __init__(self, size: int = BUDGET) -> None:
        self.size = size
        self.used = 0
        """Bytes held, without those of the lookup that has the turn."""
        self._turn = trio.Semaphore(1)
        self._waiting = 0
        self._beyond: _Share | None = None

    async def run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Run a lookup, and count what it and its child tasks receive. It may be run twice.

        PortalTimeoutError if others have waited for its turn for too long.
        """
        try:
            return await self._ask(ask, _Share(self))
        except NoRoomError:
            await self._wait_for_turn()
        share = _Share(self)
        share.go_beyond()
        return await self._ask(ask, share)

    async def _ask(self, ask: Callable[[], Awaitable[T]], share: _Share) -> T:
        before = _current.set(share)
        try:
            with share.scope:
                return await ask()
        finally:
            _current.reset(before)
            share.close()
        raise PortalTimeoutError(f"more than {TURN:g} s for a description others wait behind")

    async def _wait_for_turn(self) -> None:
        self._count_waiting(1)
        try:
            await self._turn.acquire()
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, change: int) -> None:
        self._waiting += change
        if self._beyond is not None:
            self._beyond.limit(self._waiting > 0)

    def has_room(self, held: int, size: int) -> bool:
        """Whether a lookup that holds some bytes may receive `size` more."""
        needed = held + size
        bound = self.size if needed <= _SMALL else self.size * 3 // 4
        return needed <= FREE or self.used + size <= bound

    def try_turn(self) -> bool:
        """Take the turn if nobody has it."""
        try:
            self._turn.acquire_nowait()
        except trio.WouldBlock:
            return False
        return True

    def begin_turn(self, share: _Share) -> None:
        """Note which lookup has the turn."""
        self._beyond = share
        share.limit(self._waiting > 0)

    def end_turn(self) -> None:
        """Pass the turn on."""
        self._beyond = None
        self._turn.release()

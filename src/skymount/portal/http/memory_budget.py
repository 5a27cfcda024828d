"""Owns the bound on the bytes that are on their way to describe content: those of all lookups
together, wherever they are kept until they are understood.

Nobody waits while holding anything. What finds no room is given up, waits with empty hands for its
turn to be beyond the bound, which one has at a time, and begins again. So however slowly a portal
sends, it holds up others for a limited time, and no two can wait for each other.
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
"""Bytes that each may have in any case: most descriptions are no longer."""

_SMALL = 16 << 20
"""Bytes that a lookup needs of ordinary content: a base sector and a head, twice. Those that need
more share three quarters of the room.
"""

TURN = 10.0
"""Seconds for which what is beyond the bound may arrive while others wait for that."""


class NoRoomError(PortalError):
    """There is no room for what a portal sends; `MemoryBudget.run` knows what to do."""


class _Share:
    """What one of those who share the room has of it."""

    def __init__(self, budget: "MemoryBudget") -> None:
        self._budget = budget
        self._held = 0
        self._beyond_since: float | None = None
        self.scope = trio.CancelScope()
        """Ends the asking when others have waited for this one's turn for long enough."""

    def take(self, size: int) -> None:
        """Count bytes that have come."""
        budget = self._budget
        if self._beyond_since is None and not budget.has_room(self._held, size):
            if not budget.try_turn():
                raise NoRoomError("too much is on its way to describe content")
            self.go_beyond()
        self._held += size
        if self._beyond_since is None:
            budget.used += size

    def go_beyond(self) -> None:
        """Count no more for the bound: it is this one's turn."""
        self._budget.used -= self._held
        self._beyond_since = trio.current_time()
        self._budget.begin_turn(self)

    def limit(self, is_wanted: bool) -> None:
        """End the turn in time if others wait for it."""
        if self._beyond_since is not None:
            self.scope.deadline = self._beyond_since + TURN if is_wanted else math.inf

    def close(self) -> None:
        """Give all of it back."""
        if self._beyond_since is None:
            self._budget.used -= self._held
        else:
            self._budget.end_turn()


_current: ContextVar[_Share | None] = ContextVar("share", default=None)


def take(size: int) -> None:
    """Count bytes that have come, if they are for a description; NoRoomError when there is none."""
    share = _current.get()
    if share is not None:
        share.take(size)


class MemoryBudget:
    """The room of one mount."""

    def __init__(self, size: int = BUDGET) -> None:
        self.size = size
        self.used = 0
        """Bytes held, without those that are beyond the bound."""
        self._turn = trio.Semaphore(1)
        self._waiting = 0
        self._beyond: _Share | None = None
        """Whose turn it is."""

    async def run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask a portal, and count what comes of it until the answer is understood.

        What the tasks that it starts receive counts as well. It may be asked twice.
        PortalTimeoutError when others have waited for its turn for too long.
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
        """Whether who holds so much may have so much more."""
        needed = held + size
        bound = self.size if needed <= _SMALL else self.size * 3 // 4
        return needed <= FREE or self.used + size <= bound

    def try_turn(self) -> bool:
        """Take the turn to be beyond the bound, if nobody has it."""
        try:
            self._turn.acquire_nowait()
        except trio.WouldBlock:
            return False
        return True

    def begin_turn(self, share: _Share) -> None:
        """Note who has the turn."""
        self._beyond = share
        share.limit(self._waiting > 0)

    def end_turn(self) -> None:
        """Give it to who waits for it."""
        self._beyond = None
        self._turn.release()

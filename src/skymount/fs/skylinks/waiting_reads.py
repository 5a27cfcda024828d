"""Reads that wait for a portal. While they wait they take up the few background requests that the
kernel sends at once, so that cached files have to wait as well.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import trio

from skymount.errors import PortalTimeoutError

T = TypeVar("T")

KERNEL_LIMIT = 12
"""Background requests that the kernel sends at once by default."""

_RESERVE = 2  # background requests that are left for others
_INTERVAL = 0.1  # seconds between two looks at reads that wait


@dataclass(frozen=True, slots=True)
class WaitingReadsConfig:
    """When too many reads wait for silent portals. Times in seconds."""

    silence: float = 3.5
    """For which no portal has sent anything."""
    answer_time: float = 1.0
    """Of it, that portals have at its end to give a sign of life."""
    patience: float = 0.05
    """That each further read gets then, to find out whether it needs a portal."""
    memory: float = 5.0
    """For which the portals count as silent then, unless one sends something."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    needs_portal: Callable[[], bool]
    since: float


class WaitingReads:
    """The reads of a mount that wait."""

    def __init__(
        self,
        may_answer: Callable[[float], bool],
        ask_for_signs: Callable[[], Awaitable[object]],
        portals: Sequence[str],
        config: WaitingReadsConfig | None = None,
    ) -> None:
        """`may_answer` returns false if no portal has sent anything since a time, and none that
        works is left. `ask_for_signs` asks all of them for something trivial.
        """
        self._may_answer = may_answer
        self._ask_for_signs = ask_for_signs
        self._portals = portals
        self._config = config or WaitingReadsConfig()
        self._reads: dict[trio.CancelScope, _Waiting] = {}
        self._wake = trio.Event()
        self._silent_since = self._silent_until = -math.inf
        self.limit = KERNEL_LIMIT
        """Background requests that the kernel sends at once."""

    async def wait(self, read: Callable[[], Awaitable[T]], needs_portal: Callable[[], bool]) -> T:
        """Wait for a read; PortalTimeoutError if it needs a portal, many reads do, and all portals
        are silent.
        """
        now = trio.current_time()
        with trio.CancelScope() as scope:
            self._reads[scope] = _Waiting(needs_portal, now)
            if self._is_watching(now):
                self._wake.set()
            try:
                return await read()
            finally:
                del self._reads[scope]
        if len(self._portals) == 1:
            text, url = "the portal sends nothing, and many reads wait", self._portals[0]
        else:
            text, url = "no portal sends anything, and many reads wait", ""
        raise PortalTimeoutError(text, url=url)

    def _is_watching(self, now: float) -> bool:
        return now < self._silent_until or len(self._reads) >= self.limit - _RESERVE

    def _is_silent(self, now: float) -> bool:
        return now < self._silent_until and not self._may_answer(self._silent_since)

    async def run(self) -> None:
        """Look at the reads that wait, while they are many or the portals are silent."""
        while True:
            if not self._reads or not self._is_watching(trio.current_time()):
                self._wake = trio.Event()
                await self._wake.wait()
            await trio.sleep(_INTERVAL)
            await self._look()

    async def _look(self) -> None:
        config, now = self._config, trio.current_time()
        if not self._is_silent(now):
            since = now - (config.silence - config.answer_time)
            if not self._are_stuck(since):
                return
            with trio.move_on_after(config.answer_time):
                await self._ask_for_signs()
                if not self._may_answer(since):
                    await trio.sleep_forever()
            if not self._are_stuck(since):
                return
            now = trio.current_time()
            self._silent_since, self._silent_until = now, now + config.memory
        for scope, read in self._reads.items():
            if read.since <= now - config.patience and read.needs_portal():
                scope.cancel()

    def _are_stuck(self, since: float) -> bool:
        """Whether too many reads have been waiting since then for portals, which sent nothing."""
        old = [read for read in self._reads.values() if read.since <= since]
        many = self.limit - _RESERVE
        if len(old) < many or sum(read.needs_portal() for read in old) < many:
            return False
        return not self._may_answer(since)

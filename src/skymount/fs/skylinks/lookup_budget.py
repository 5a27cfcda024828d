"""How long lookups in one directory may wait for portals, all of them together."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import trio

_PERIOD = 1.0  # seconds
_COUNTED = 0.001  # seconds; shorter lookups did not wait for a portal


class LookupBudget:
    """Allows lookups to wait for `grace` seconds in each second, not each of them for as long.

    The kernel sends one lookup at a time in a directory. Others queue behind it, also those that
    could be answered at once.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._waits: deque[tuple[float, float]] = deque()  # (when it ended, seconds)

    @contextmanager
    def waiting(self) -> Iterator[float]:
        """Count the seconds until the block is left; yields how many there may be."""
        begun = trio.current_time()
        while self._waits and self._waits[0][0] <= begun - _PERIOD:
            self._waits.popleft()
        try:
            yield max(0.0, self.grace - sum(seconds for _, seconds in self._waits))
        finally:
            ended = trio.current_time()
            if ended - begun >= _COUNTED:
                self._waits.append((ended, ended - begun))

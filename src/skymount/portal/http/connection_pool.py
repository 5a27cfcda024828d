"""The connections to one portal: which are idle, which are lent, and who waits for one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx
import trio

from skymount.portal.http.http11 import ConnectionState, HTTP11Connection
from skymount.portal.http.stream import Wait

PATIENCE = 1.0
"""Seconds that a speculative request lets all others go first."""


_is_background: ContextVar[bool] = ContextVar("background", default=False)


@contextmanager
def in_background() -> Iterator[None]:
    """Leave connections to others: what this task, and those that it starts, ask for is not asked
    for by anybody yet.
    """
    before = _is_background.set(True)
    try:
        yield
    finally:
        _is_background.reset(before)


def is_in_background() -> bool:
    """Whether nobody waits for what this task asks for."""
    return _is_background.get()


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits for a connection."""

    speculative: Callable[[], bool] | None
    is_background: bool
    since: float = field(default_factory=trio.current_time)
    lent: trio.Event = field(default_factory=trio.Event)

    def yields(self, now: float) -> bool:
        """Whether requests that came later go first."""
        return self.speculative is not None and now < self.since + PATIENCE and self.speculative()


class ConnectionPool:
    """Lends connections to many tasks at once."""

    def __init__(self, size: int, new: Callable[[], HTTP11Connection]) -> None:
        """`size` is how many connections there may be at a time."""
        self._new = new
        self._free = size
        self._most_background = max(1, size * 3 // 4)
        """How many of them requests in the background may have."""
        self._background = 0  # how many they have
        self._lent_in_background: set[HTTP11Connection] = set()
        self._waiting: list[_Waiting] = []  # the oldest first
        self._idle: list[HTTP11Connection] = []
        """The last one is used next: an open one, if there is any, and of these the last used."""
        self._lent: set[HTTP11Connection] = set()
        self.closings = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._lent)

    @property
    def waits(self) -> list[Wait]:
        return [wait for each in self._lent if (wait := each.wait)]

    @property
    def in_flight(self) -> int:
        """How many requests have a connection or wait for one."""
        return len(self._lent) + len(self._waiting)

    async def aclose(self) -> None:
        self.closings += 1
        connections = [*self._idle, *self._lent]
        self._idle.clear()
        for connection in connections:
            await connection.aclose()

    def lend_new(self) -> HTTP11Connection | None:
        """Lend a connection that was not used before; None if there is no room for one."""
        if not self._free:
            return None
        self._take_place(is_background=False)
        return self._lend(self._new(), is_background=False)

    async def lend(
        self, limit: float, *, speculative: Callable[[], bool] | None = None
    ) -> HTTP11Connection:
        """Lend a connection to one request.

        Requests are served in the order in which they came, but those `in_background` get at most
        three quarters of the connections. While `speculative` returns that nobody
        waits for the response, for `PATIENCE` seconds at most, all others go first.
        httpx.PoolTimeout after `limit` seconds, and httpx.NetworkError if all connections are
        closed meanwhile.
        """
        is_background = is_in_background()
        if self._free and self._may_have_one(is_background=is_background):
            self._take_place(is_background=is_background)
        else:
            closings = self.closings
            waiting = _Waiting(speculative, is_background)
            self._waiting.append(waiting)
            has_place = False
            try:
                with trio.move_on_after(limit):
                    await waiting.lent.wait()
                    has_place = True
            finally:
                if not has_place:
                    self._give_up(waiting)
            if not has_place:
                raise httpx.PoolTimeout(f"every connection is busy for {limit:g} s")
            if closings != self.closings:
                self._give_place_back(is_background=is_background)
                raise httpx.NetworkError("the client was closed")
        return self._lend(
            self._idle.pop() if self._idle else self._new(), is_background=is_background
        )

    def _lend(self, connection: HTTP11Connection, *, is_background: bool) -> HTTP11Connection:
        self._lent.add(connection)
        if is_background:
            self._lent_in_background.add(connection)
        return connection

    def take_back(self, connection: HTTP11Connection) -> None:
        """Take a connection back, and give its place to the next request."""
        self._lent.remove(connection)
        if connection.state is ConnectionState.IDLE:
            self._idle.append(connection)
        elif connection.state is not ConnectionState.CLOSED:
            self._idle.insert(0, connection)
        is_background = connection in self._lent_in_background
        self._lent_in_background.discard(connection)
        self._give_place_back(is_background=is_background)

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting.lent.is_set():  # it was cancelled just before it got a place
            self._give_place_back(is_background=waiting.is_background)
        else:
            self._waiting.remove(waiting)

    def _may_have_one(self, *, is_background: bool) -> bool:
        return not is_background or self._background < self._most_background

    def _take_place(self, *, is_background: bool) -> None:
        self._free -= 1
        self._background += is_background

    def _give_place_back(self, *, is_background: bool) -> None:
        """Let the next request have the place of one that is done."""
        self._free += 1
        self._background -= is_background
        waiting = [
            one for one in self._waiting if self._may_have_one(is_background=one.is_background)
        ]
        if waiting:
            now = trio.current_time()
            first = next((one for one in waiting if not one.yields(now)), waiting[0])
            self._waiting.remove(first)
            self._take_place(is_background=first.is_background)
            first.lent.set()

"""The connections to one portal: which are idle, which are lent, and who waits for one."""

from collections.abc import Callable

import httpx
import trio

from skymount.portal.http.http11 import ConnectionState, HTTP11Connection


class ConnectionPool:
    """Lends connections to many tasks at once."""

    def __init__(self, size: int, new: Callable[[], HTTP11Connection]) -> None:
        """`size` is how many connections there may be at a time."""
        self._new = new
        self._free = size
        self._demanded = trio.lowlevel.ParkingLot()
        self._speculative = trio.lowlevel.ParkingLot()
        self._idle: list[HTTP11Connection] = []
        """The last one is used next: an open one, if there is any, and of these the last used."""
        self._lent: set[HTTP11Connection] = set()
        self.closings = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._lent)

    async def aclose(self) -> None:
        """Close every connection. Requests under way fail; later ones get new connections."""
        self.closings += 1
        connections = [*self._idle, *self._lent]
        self._idle.clear()
        for connection in connections:
            await connection.aclose()

    def lend_new(self) -> HTTP11Connection | None:
        """Lend a connection that was not used before; None if there is no room for one."""
        if not self._free:
            return None
        self._free -= 1
        return self._lend(self._new())

    async def lend(self, limit: float, *, speculative: bool = False) -> HTTP11Connection:
        """Lend a connection to one request.

        A speculative request waits until no other request does. httpx.PoolTimeout after `limit`
        seconds, and httpx.NetworkError if all connections are closed meanwhile.
        """
        if self._free:
            self._free -= 1
        else:
            closings = self.closings
            with trio.move_on_after(limit) as scope:
                await (self._speculative if speculative else self._demanded).park()
            if scope.cancelled_caught:
                raise httpx.PoolTimeout(f"every connection is busy for {limit:g} s")
            if closings != self.closings:
                self._pass_on()
                raise httpx.NetworkError("the client was closed")
        return self._lend(self._idle.pop() if self._idle else self._new())

    def _lend(self, connection: HTTP11Connection) -> HTTP11Connection:
        self._lent.add(connection)
        return connection

    def take_back(self, connection: HTTP11Connection) -> None:
        """Take a connection back, and give its place to the next request."""
        self._lent.remove(connection)
        if connection.state is ConnectionState.IDLE:
            self._idle.append(connection)
        elif connection.state is not ConnectionState.CLOSED:
            self._idle.insert(0, connection)
        self._pass_on()

    def _pass_on(self) -> None:
        """Let the next request have the place of one that is done."""
        for waiting in (self._demanded, self._speculative):
            if waiting:
                waiting.unpark()
                return
        self._free += 1

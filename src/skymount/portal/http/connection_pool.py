"""The connections to one portal: which are idle, which are lent, and who waits for one."""

from contextlib import suppress

import httpx
import trio

from skymount.errors import PortalError
from skymount.portal.http.channel import Channel, ChannelMaker
from skymount.portal.options import PortalOptions


class ConnectionPool:
    """Lends connections to many tasks at once. Errors are those of httpx."""

    def __init__(self, url: str, options: PortalOptions) -> None:
        self._url = url
        self._connect_timeout = options.connect_timeout
        self._maker = ChannelMaker(url)
        self._free = options.connections
        self._demanded = trio.lowlevel.ParkingLot()
        self._speculative = trio.lowlevel.ParkingLot()
        self._idle: list[Channel] = []
        """The last one is used next: an open one, if there is any, and of these the last used."""
        self._lent: set[Channel] = set()
        self.closings = 0
        """How often all connections were closed."""

    def __len__(self) -> int:
        """Return how many connections there are."""
        return len(self._idle) + len(self._lent)

    async def aclose(self) -> None:
        """Close every connection. Requests under way fail; later ones get new connections."""
        self.closings += 1
        channels = [*self._idle, *self._lent]
        self._idle.clear()
        for channel in channels:
            await channel.aclose()

    async def connect(self, count: int = 1) -> None:
        """Open connections until there are `count`, as far as options allow; errors are ignored."""
        url = httpx.URL(self._url)

        async def open_one() -> None:
            if not self._free:
                return
            self._free -= 1
            with suppress(PortalError, httpx.HTTPError, UnicodeError):
                channel = await self._new()
                try:
                    await channel.connect(url, self._connect_timeout)
                finally:
                    self.take_back(channel)

        async with trio.open_nursery() as nursery:
            for _ in range(len(self), count):
                nursery.start_soon(open_one)

    async def lend(self, limit: float, closings: int, *, speculative: bool = False) -> Channel:
        """Lend a connection to one request, which waits for one `limit` seconds at most.

        A speculative request waits until no other request does. httpx.NetworkError if the
        connections were closed more often than `closings` by then.
        """
        if self._free:
            self._free -= 1
        else:
            with trio.move_on_after(limit) as scope:
                await (self._speculative if speculative else self._demanded).park()
            if scope.cancelled_caught:
                raise httpx.PoolTimeout(f"every connection is busy for {limit:g} s")
        if closings != self.closings:
            self._pass_on()
            raise httpx.NetworkError("the client was closed")
        if self._idle:
            channel = self._idle.pop()
            self._lent.add(channel)
            return channel
        return await self._new()

    async def _new(self) -> Channel:
        """Lend a new connection, for which there is room."""
        try:
            channel = await self._maker.make()
        except BaseException:
            self._pass_on()
            raise
        self._lent.add(channel)
        return channel

    def take_back(self, channel: Channel) -> None:
        """Have a connection for the next request."""
        self._lent.remove(channel)
        if channel.is_open:
            self._idle.append(channel)
        elif not channel.is_closed:
            self._idle.insert(0, channel)
        self._pass_on()

    def _pass_on(self) -> None:
        """Let the next request have the place of one that is done."""
        for waiting in (self._demanded, self._speculative):
            if waiting:
                waiting.unpark()
                return
        self._free += 1

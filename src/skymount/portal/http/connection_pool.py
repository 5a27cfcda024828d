"""Owns the connections to one portal: which are idle, which are lent to requests, and whether one
request may go behind another.
"""

import logging
import math
from contextlib import suppress

import httpx
import trio

from skymount.errors import PortalError
from skymount.portal.http.channel import Channel, ChannelMaker
from skymount.portal.options import PortalOptions

log = logging.getLogger(__name__)

_ALONE = 300.0
"""Seconds for which no request goes behind another after a portal did not answer one: it may have
been slow, or have closed a connection at its end. A portal that never does costs little.
"""

_MANY = 16  # connections that are busy before a patient request goes behind another


class ConnectionPool:
    """Lends connections, to many tasks at once. What goes wrong is raised as httpx names it."""

    def __init__(self, url: str, options: PortalOptions) -> None:
        self._url = url
        self._connect_timeout = options.connect_timeout
        self._maker = ChannelMaker(url)
        self._free = trio.Semaphore(options.connections)
        self._idle: list[Channel] = []
        """The last one is the next: the one that was used last, of those that still stand."""
        self._lent: dict[Channel, int] = {}
        """How many requests are on each; the one that was lent first is the first."""
        self._changed = trio.lowlevel.ParkingLot()
        """Where those wait who want to go behind another request."""
        self._goes_on: bool | None = None
        """Whether the portal's last answer let another follow, so the next one is likely to; None
        before any.
        """
        self._alone = -math.inf
        """Until when no request goes behind another, by trio's clock."""
        self.closings = 0
        """How often all connections were closed."""

    def __len__(self) -> int:
        """Return how many connections there are."""
        return len(self._idle) + len(self._lent)

    async def aclose(self) -> None:
        """Close every connection. Those under way fail; whoever asks later gets new ones."""
        self.closings += 1
        channels = [*self._idle, *self._lent]
        self._idle.clear()
        for channel in channels:
            await channel.aclose()

    async def connect(self, count: int = 1) -> None:
        """Have up to `count` connections in all before they are needed.

        What goes wrong is the error of each request, not of this.
        """
        url = httpx.URL(self._url)

        async def open_one() -> None:
            try:
                self._free.acquire_nowait()
            except trio.WouldBlock:
                return
            with suppress(PortalError, httpx.HTTPError, UnicodeError):
                channel = await self._new()
                try:
                    await channel.connect(url, self._connect_timeout)
                finally:
                    self.take_back(channel)

        async with trio.open_nursery() as nursery:
            for _ in range(len(self), count):
                nursery.start_soon(open_one)

    async def lend(self, limit: float, closings: int) -> Channel:
        """Lend a connection to one request, which waits for one so many seconds at most, and gets
        none if the connections were closed more often than `closings` by then.

        Each has a client of its own, behind a proxy too: httpcore's pool offers one connection
        to several requests that wait, all but one of which begin again, and looks through all of
        them each time. With 32 connections that takes as long as everything else.
        """
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(limit) as scope:
                await self._free.acquire()
            if scope.cancelled_caught:
                text = f"every connection is busy for {limit:g} s"
                raise httpx.PoolTimeout(text) from None
        if closings != self.closings:
            self._free.release()
            raise httpx.NetworkError("the client was closed")
        if self._idle:
            channel = self._idle.pop()
            self._lent[channel] = 1
            return channel
        return await self._new()

    async def _new(self) -> Channel:
        """Lend a new connection, for which there is room."""
        try:
            channel = await self._maker.make()
        except BaseException:
            self._free.release()
            raise
        self._lent[channel] = 1
        return channel

    def take_back(self, channel: Channel) -> None:
        """Have a connection for the next request, once none is on it."""
        self._lent[channel] -= 1
        if not self._lent[channel]:
            del self._lent[channel]
            self._free.release()
            self._changed.unpark_all()
            if channel.stands:
                self._idle.append(channel)
            elif not channel.is_closed:
                self._idle.insert(0, channel)

    # --- one behind another

    async def lend_behind(self, request: httpx.Request) -> Channel | None:
        """Return the connection that has been busy for longest, among those with room; None while
        few are busy, or when answers let no other follow. When all of many wait for the heads of
        their answers one is waited for.
        """
        while self.is_orderly and self._goes_on is not False and len(self._lent) >= _MANY:
            early = bool(self._goes_on)
            found = (one for one in self._lent if one.has_room_behind(request, early=early))
            channel = next(found, None)
            if channel is not None:
                self._lent[channel] += 1
                return channel
            await self._changed.park()
        return None

    def note(self, goes_on: bool) -> None:
        """Take note of an answer, and whether it let another follow."""
        self._goes_on = goes_on
        self._changed.unpark_all()

    @property
    def is_orderly(self) -> bool:
        """Whether the portal answers what is sent behind another request, as far as is known."""
        return trio.current_time() >= self._alone

    def distrust(self, error: Exception) -> None:
        """Send no request behind another for a while."""
        if self.is_orderly:
            self._changed.unpark_all()
            log.info("%s: requests are sent one at a time for %g s: %s", self._url, _ALONE, error)
        self._alone = trio.current_time() + _ALONE

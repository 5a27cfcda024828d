"""Fails operations at once while the only portal is known to be silent.

Of several portals one that is silent is asked for a sign of life when no other one has an answer.

A portal is known to be silent if it let a whole attempt pass without a sign of life. It is asked
for one in the background whenever an operation needs it, and is used again as soon as it gives one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

from skymount.concurrency import run_all
from skymount.errors import PortalError, UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import PortalHealth


@dataclass(frozen=True, slots=True)
class _Ping:
    """A question for a sign of life."""

    awaited_until: float
    ended: trio.Event = field(default_factory=trio.Event)


class SignsOfLife:
    """The questions under way."""

    def __init__(self) -> None:
        self._pings: dict[PortalReader, _Ping] = {}

    async def check(
        self,
        client: PortalReader,
        health: PortalHealth,
        background: trio.Nursery | None,
        limit: float = math.inf,
    ) -> None:
        """Raise the known error if a portal is silent; it gets a moment for a sign of life. The
        question lasts `limit` seconds at most.

        Nothing happens without a `background` for the question: a single command may wait.
        """
        if background is None or not health.is_known_silent:
            return
        ping = self._pings.get(client)
        if ping is None:
            now = trio.current_time()
            ping = self._pings[client] = _Ping(now + health.ping_patience(now))
            background.start_soon(self._ask, client, health, ping, limit)
        with trio.move_on_at(ping.awaited_until):
            await ping.ended.wait()
            return
        raise health.known_error or UnavailableError("it is silent", url=client.url)

    async def awake(
        self, portals: Mapping[PortalReader, PortalHealth], background: trio.Nursery | None
    ) -> list[PortalReader]:
        """Return those of some silent portals that are first to give a sign of life; without a
        `background`, none. The questions end soon, since others wait to ask the same.
        """
        found: list[PortalReader] = []

        async def check(client: PortalReader, health: PortalHealth) -> None:
            try:
                await self.check(client, health, background, health.config.longest_delay)
            except PortalError:
                return
            found.append(client)
            scope.cancel()

        with trio.CancelScope() as scope:
            if background is not None:
                await run_all(*(partial(check, *each) for each in portals.items()))
        return found

    async def _ask(
        self, client: PortalReader, health: PortalHealth, ping: _Ping, limit: float
    ) -> None:
        is_alive = False
        try:
            with trio.move_on_after(limit):
                is_alive = await client.http.is_alive()
        finally:
            del self._pings[client]
            ping.ended.set()
        record = health.record_sign if is_alive else health.record_no_sign
        record(trio.current_time())

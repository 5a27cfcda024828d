"""Fails operations at once while the only portal is known to be silent.

A portal is known to be silent if it let a whole attempt pass without a sign of life. It is asked
for one in the background whenever an operation needs it, and is used again as soon as it gives one.
"""

from dataclasses import dataclass, field

import trio

from skymount.errors import UnavailableError
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
        self, client: PortalReader, health: PortalHealth, background: trio.Nursery | None
    ) -> None:
        """Raise the known error if a portal is silent; it gets a moment for a sign of life.

        Nothing happens without a `background` for the question: a single command may wait.
        """
        if background is None or not health.is_known_silent:
            return
        ping = self._pings.get(client)
        if ping is None:
            now = trio.current_time()
            ping = self._pings[client] = _Ping(now + health.ping_patience(now))
            background.start_soon(self._ask, client, health, ping)
        with trio.move_on_at(ping.awaited_until):
            await ping.ended.wait()
            return
        raise health.known_error or UnavailableError("it is silent", url=client.url)

    async def _ask(self, client: PortalReader, health: PortalHealth, ping: _Ping) -> None:
        try:
            is_alive = await client.http.is_alive()
        finally:
            del self._pings[client]
            ping.ended.set()
        record = health.record_sign if is_alive else health.record_no_sign
        record(trio.current_time())

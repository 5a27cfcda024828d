"""How each of several portals is doing, and in which order they are asked."""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import BreakerState, HealthFigures, PortalHealth, Rank
from skymount.portal.failover.reachability import Attempts


@dataclass(frozen=True, slots=True)
class HealthTable:
    """The health of some portals, in the order of preference."""

    clients: Sequence[PortalReader]
    is_probed: bool
    """Whether portals that failed are tried again in the background."""
    known: dict[PortalReader, PortalHealth]
    """Shared by all tables; others may have further portals in it."""

    @property
    def is_alone(self) -> bool:
        return len(self.clients) < 2

    def of(self, client: PortalReader) -> PortalHealth:
        found = self.known.get(client)
        return self.known.setdefault(client, PortalHealth()) if found is None else found

    def rank(self, client: PortalReader) -> Rank:
        return self.of(client).rank(trio.current_time(), is_probed=self.is_probed)

    def ranked(self) -> list[PortalReader]:
        """Return the portals in the order in which they are asked."""
        if self.is_alone:
            return list(self.clients)
        return sorted(self.clients, key=lambda client: self.rank(client).value)

    def attempts(self, client: PortalReader) -> Attempts:
        return self.of(client).attempts(trio.current_time(), is_alone=self.is_alone)

    def spared(self) -> set[PortalReader]:
        """Return the portals that are not asked now. If none works, some of them are after all."""
        spared = {each for each in self.clients if self.attempts(each) is Attempts.NONE}
        if not spared or self.is_alone or self.has_working():
            return spared
        now = trio.current_time()
        return {each for each in spared if not self.of(each).may_be_tried(now)}

    def has_working(self) -> bool:
        """Return whether a portal works as far as is known."""
        now = trio.current_time()
        return any(self.of(each).state(now) is BreakerState.CLOSED for each in self.clients)

    def may_answer(self, since: float) -> bool:
        """Return whether a portal has sent anything since a time, or one of several works as far
        as is known.
        """
        if any(self.of(each).showed_signs(since) for each in self.clients):
            return True
        return not self.is_alone and self.has_working()

    def figures(self) -> list[HealthFigures]:
        now, is_probed = trio.current_time(), self.is_probed and not self.is_alone
        return [self.of(each).figures(each.url, now, is_probed=is_probed) for each in self.clients]

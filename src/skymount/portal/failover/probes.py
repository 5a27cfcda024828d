"""Tries portals again whose pause is over, in the background, while others do the work."""

import logging
from dataclasses import dataclass

import trio

from skymount.errors import PortalError, StorageError
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import BreakerState, HedgeBudget, Rank
from skymount.portal.failover.health_table import HealthTable
from skymount.portal.failover.hedged_race import unless_late
from skymount.portal.failover.recorded_attempts import Ask, RecordedAttempts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Probes:
    """The probes of portals. Each counts as a hedge."""

    table: HealthTable
    attempts: RecordedAttempts
    hedges: HedgeBudget
    nursery: trio.Nursery | None
    """Without it there are none: the next operation after the pause tries a portal."""

    def start(self, ask: Ask[object]) -> None:
        """Ask the portals whose pause is over, if a healthy one does the work."""
        if self.nursery is None:
            return
        clients = self.table.clients
        if not any(self.table.rank(each) is Rank.HEALTHY for each in clients):
            return
        now = trio.current_time()
        for client in clients:
            health = self.table.of(client)
            is_due = health.state(now) is BreakerState.HALF_OPEN and not health.is_probed
            if is_due and self.hedges.take():
                health.is_probed = True
                self.nursery.start_soon(self._probe, client, ask)

    async def _probe(self, client: PortalReader, ask: Ask[object]) -> None:
        health = self.table.of(client)
        try:
            await unless_late(self.attempts.of_round(ask, 0), client, health)
        except (PortalError, StorageError) as error:
            log.info("%s: still fails: %s", client.url, error)
        except Exception:  # a bug must not end everybody else's tasks
            log.exception("%s: the probe failed", client.url)
        finally:
            health.is_probed = False

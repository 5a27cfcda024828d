"""What domains lead to, by the word of upstream portals: nothing proves it."""

import logging
from functools import partial

from cachetools import LRUCache

from skymount.portal.client import hns
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.server.http_error import HttpError
from skymount.server.upstream.failures import upstream_errors
from skymount.wire.hns import DomainRecord

_REMEMBERED = 4096  # domains

_log = logging.getLogger(__name__)


class UpstreamNames:
    """The domains of upstream portals; the last answers are remembered while the portal runs."""

    def __init__(self, portals: Portals) -> None:
        self._portals = portals
        self._seen: LRUCache[str, DomainRecord] = LRUCache(_REMEMBERED)

    async def find(self, domain: str) -> DomainRecord | None:
        """Return the record of a domain in canonical form; None if upstream knows none."""
        try:
            with upstream_errors(""):
                record = await self._portals.first(partial(_record, domain=domain))
        except HttpError as error:
            if error.status == 404:
                self._seen.pop(domain, None)
                return None
            if domain not in self._seen:
                raise
            _log.warning("%s: the last good answer is served: %s", domain, error.message)
            return self._seen[domain]
        self._seen[domain] = record
        return record


async def _record(client: PortalReader, domain: str) -> DomainRecord:
    return (await hns.resolve(client.http, domain, client.options)).record

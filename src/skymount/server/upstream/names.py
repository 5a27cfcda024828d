"""What domains lead to, by the word of upstream portals: nothing proves it."""

import logging
from collections.abc import Callable
from functools import partial

from cachetools import LRUCache

from skymount.portal.client import hns
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.server.http_error import HttpError
from skymount.server.storage.interfaces import Names
from skymount.server.storage.zone_file import Zone
from skymount.server.upstream.failures import upstream_errors
from skymount.wire.hns import DomainRecord

_REMEMBERED = 4096  # domains

_log = logging.getLogger(__name__)


class UpstreamNames:
    """The names of a portal, and those of upstream portals, whose last answers are remembered."""

    def __init__(self, portals: Portals, own: Names) -> None:
        self._portals = portals
        self._own = own
        self._seen: LRUCache[str, DomainRecord] = LRUCache(_REMEMBERED)
        self._logged: LRUCache[str, None] = LRUCache(_REMEMBERED)
        """Domains that upstream did not answer for when they were last asked for."""

    def current(self) -> Zone:
        return self._own.current()

    def change(self, edit: Callable[[Zone], Zone]) -> None:
        self._own.change(edit)

    async def find(self, domain: str) -> DomainRecord | None:
        """Return the record of a domain, the portal's own before that of upstream; errors are those
        of `Names.find`, and HttpError if upstream cannot tell.
        """
        found = await self._own.find(domain)
        if found is not None:
            return found
        try:
            with upstream_errors(""):
                record = await self._portals.first(partial(_record, domain=domain))
        except HttpError as error:
            if error.status == 404:
                self._seen.pop(domain, None)
                return None
            if domain not in self._seen:
                raise HttpError(error.status, error.message, plain_text=True) from None
            if domain not in self._logged:
                self._logged[domain] = None
                _log.warning("%s: the last good answer is served: %s", domain, error.message)
            return self._seen[domain]
        self._logged.pop(domain, None)
        self._seen[domain] = record
        return record


async def _record(client: PortalReader, domain: str) -> DomainRecord:
    return (await hns.resolve(client.http, domain, client.options)).record

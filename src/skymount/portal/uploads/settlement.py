"""Finds out who is right when portals give the same upload different skylinks."""

import logging
from functools import partial

import trio

from skymount.concurrency import run_all
from skymount.errors import DisprovedError, PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody
from skymount.portal.failover.portals import Portals
from skymount.portal.uploads.copies import Copies
from skymount.portal.uploads.upload_check import check_upload

_log = logging.getLogger(__name__)


async def settle(portals: Portals, body: UploadBody, copies: Copies) -> None:
    """Have the portals prove their skylinks, if these differ.

    Once one is proven, those that are disproved count as failures, also of the portal's health. Of
    what a portal encrypted, or cannot be read again, nothing is proved. Errors of the sources are
    raised.
    """
    if copies.is_same or body.is_encrypted or body.unrepeatable:
        return
    lies: dict[PortalReader, DisprovedError] = {}

    async def check(client: PortalReader) -> None:
        try:
            if await check_upload(client, copies.results[client].skylink, body):
                copies.proven.add(client)
        except DisprovedError as error:
            lies[client] = error
        except PortalError as error:
            _log.info("%s", error)

    checks = [partial(check, client) for client in copies.results]
    if body.is_shared:
        await run_all(*checks)
    else:
        for each in checks:
            await each()
    for client in [each for each in copies.results if each in lies] if copies.proven else ():
        error = lies[client]
        del copies.results[client]
        copies.failures[client] = error
        portals.health(client).record_failure(error, trio.current_time())
        _log.warning("%s", error)

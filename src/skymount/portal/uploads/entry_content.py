"""Writes an entry whose content was uploaded. If the portals that have the content fail now, the
others get it after all, and then the entry.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import TypeVar

from skymount.errors import BadContentError, UnavailableError
from skymount.portal.client.upload import UploadBody
from skymount.portal.failover.portals import Portals
from skymount.portal.uploads.upload import upload_to_all
from skymount.wire.skylink import Skylink

T = TypeVar("T")


async def write_entry(
    write: Callable[[Collection[str]], Awaitable[T]],
    portals: Portals,
    body: UploadBody,
    skylink: Skylink,
    lacking: Collection[str],
    *,
    patience: float,
    extra: float = 0.0,
) -> T:
    """Call `write` with the addresses of the portals that lack the content of the entry.

    If it fails because portals do, upload to some that lack it, and call it once more. `patience`
    and `extra` are those of `upload_to_all`.
    """
    try:
        return await write(lacking)
    except (UnavailableError, BadContentError):
        writable = portals.writable()
        clients = [each for each in writable.clients if each.url in lacking]
        chosen = replace(writable, clients=clients)
        if not chosen.clients:
            raise
        copies = await upload_to_all(chosen, body, 1, patience=patience, extra=extra)
        takers = [each.url for each, found in copies.results.items() if found.skylink == skylink]
        if not takers:
            raise
    return await write([url for url in lacking if url not in takers])

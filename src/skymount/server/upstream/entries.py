"""The registry of a portal that has upstreams: what they say, never rolled back.

What upstream has is kept in the portal's own registry, which decides what is newer: an older
revision than one that was served before is never served.
"""

import logging
from collections.abc import Sequence
from functools import partial

from cachetools import LRUCache

from skymount.errors import (
    BadContentError,
    MalformedError,
    RequestRefusedError,
    RevisionError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.entries import EntryId
from skymount.portal.registry.entry_reader import EntryReader
from skymount.portal.registry.posting import Posting
from skymount.server.http_error import HttpError
from skymount.server.storage.interfaces import Entries
from skymount.server.upstream.failures import LONGEST_WAIT, upstream_errors
from skymount.wire.registry_entry import SignedEntry, check_update, entry_id
from skymount.wire.registry_proof import verified_hops
from skymount.wire.skylink import Skylink

_ABSENT = "registry entry not found"
_KEPT_WAIT = 5.0
"""Seconds until what was seen of an entry is served, if upstream does not answer."""

_NOW = 1e-6
"""Seconds: readers share only an answer that was asked for after they came."""

_LOGGED = 4096  # entries

_log = logging.getLogger(__name__)


class UpstreamEntries:
    """The entries of upstream portals, kept in a store."""

    def __init__(self, portals: Portals, store: Entries) -> None:
        self._portals = portals
        self._store = store
        self._reader = EntryReader(portals, None)
        self._posting = Posting(self._reader)
        self._logged: LRUCache[bytes, None] = LRUCache(_LOGGED)
        """Entries that upstream did not answer for when they were last read."""

    async def read(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        """Return the newest entry that upstream or the store has; None if nobody has one.

        If no upstream answers, it is that of the store; HttpError without one.
        """
        entry = entry_id(public_key, tweak)
        kept = await self._store.find(entry)
        longest = LONGEST_WAIT if kept is None else _KEPT_WAIT
        try:
            with upstream_errors(_ABSENT, longest):
                state = await self._reader.read(EntryId(public_key, tweak), _NOW, named=False)
        except HttpError as error:
            if kept is None:
                raise
            if entry not in self._logged:
                self._logged[entry] = None
                text = "registry entry %s: what was seen is served: %s"
                _log.warning(text, kept.link, error.message)
            return await self._store.find(entry)
        self._logged.pop(entry, None)
        await self._keep([state.signed] if state.signed else [])
        return await self._store.find(entry)

    async def find(self, entry: bytes) -> SignedEntry | None:
        """Return the newest entry of a 32-byte id, as `read`."""
        kept = await self._store.find(entry)
        if kept is not None:
            return await self.read(kept.public_key, kept.entry.tweak)
        link = Skylink.v2(entry)
        try:
            with upstream_errors(_ABSENT):
                answers = await self._portals.poll(partial(_hops, link=link))
        except HttpError as error:
            if error.status == 404:
                return None
            raise
        for hops in answers:
            await self._keep(hops)
        return await self._store.find(entry)

    async def keys(self, after: bytes, count: int) -> list[bytes]:
        return await self._store.keys(after, count)

    async def entries_of(self, public_key: bytes, after: bytes, count: int) -> list[SignedEntry]:
        return await self._store.entries_of(public_key, after, count)

    async def count(self) -> int:
        return await self._store.count()

    async def update(self, signed: SignedEntry) -> None:
        """Post an entry to upstream, and keep it once one of them has taken it.

        Errors are those of `Entries.update`; HttpError if upstream cannot take it now.
        """
        signed.verify()
        kept = await self._store.find(signed.id)
        if kept is not None and kept.entry != signed.entry:
            check_update(kept.entry, signed.entry)
        with upstream_errors(_ABSENT):
            is_taken = await self._post(signed)
        if is_taken:
            await self._keep([signed])
            return
        newest = await self.read(signed.public_key, signed.entry.tweak)
        check_update(newest.entry if newest else None, signed.entry)
        raise RevisionError("provided revision number is invalid")

    async def _post(self, signed: SignedEntry) -> bool:
        """Whether upstream took an entry; False if it has a newer one."""
        try:
            posted = await self._posting.post(self._portals.writable(), signed)
        except RequestRefusedError as error:
            raise HttpError(error.status or 403, f"upstream: {error.message}") from None
        if posted is not None:
            posted.recorded.set()  # there is no ledger
        return posted is not None

    async def _keep(self, entries: Sequence[SignedEntry]) -> None:
        """Store entries, unless something newer is there."""
        for signed in entries:
            kept = await self._store.find(signed.id)
            if kept is None or kept.entry != signed.entry:
                try:
                    await self._store.update(signed)
                except RevisionError as error:
                    _log.info("upstream: %s is behind: %s", signed.link, error)


async def _hops(client: PortalReader, link: Skylink) -> Sequence[SignedEntry]:
    """Let a portal resolve a v2 skylink; return the entries on the way, verified."""
    found = await client.resolve(link)
    if found.skylink is None or found.proof is None:
        raise BadContentError(f"{link}: where it leads is not proved", url=client.url)
    try:
        return verified_hops(link, found.skylink, found.proof)
    except MalformedError as error:
        raise BadContentError(f"{link}: {error}", url=client.url) from None

"""Posts what was written to an entry when its file is closed, synced or renamed."""

import errno
from contextlib import suppress
from typing import Generic

import trio

from skymount.errors import PortalError
from skymount.fs.registry.keyring_cache import KeyringCache
from skymount.fs.registry.nodes import EntryFile
from skymount.fs.registry.store import KeyFileStore, S, changed_ns
from skymount.fs.registry.write_buffer import FileData, WriteBuffer
from skymount.fs.subtree import os_error, refuse
from skymount.portal.ledger.entries import EntryId
from skymount.wire.key_pair import SigningKeyPair


class EntryPoster(Generic[S]):
    """Posts the content of entries, signed with keys of the keyring."""

    def __init__(self, store: KeyFileStore[S], keys: KeyringCache) -> None:
        self._store = store
        self._keys = keys

    def pair(self, public_key: bytes) -> SigningKeyPair:
        """Return the key pair that signs; EACCES when the keyring does not have it."""
        return self._keys.pair(public_key) or refuse(errno.EACCES)

    async def post(
        self, node: EntryFile, buffer: WriteBuffer[S], *, at_release: bool = False
    ) -> None:
        """Post what has been written to an entry, if that is due.

        After a failure, the close of each further descriptor fails likewise, without a new attempt.
        """
        async with node.lock:
            if buffer.error is not None:
                raise buffer.error
            if not buffer.is_due(at_release=at_release):
                return
            if node.is_new and not buffer.data and not await self._store.has_pending(node.entry_id):
                return  # it never got any content
            pair, data = self.pair(node.entry_id.public_key), buffer.take()
            try:
                await self._catch_up(node.entry_id, buffer)
                state = await self._put(node.entry_id, pair, data, buffer.base, buffer.stored)
            except Exception as error:  # whatever it is, a later close must not report success
                buffer.failed(error, data)
                raise
            except trio.Cancelled:
                buffer.failed(os_error(errno.ETIMEDOUT), data)
                raise
            node.is_new = False
            buffer.posted(state, data)
            buffer.changed_ns = changed_ns(state)

    async def _catch_up(self, entry_id: EntryId, buffer: WriteBuffer[S]) -> None:
        """Go on from content that was sent later, after its posting failed."""
        if buffer.base is not None and buffer.unposted is not None:
            state = await self._store.read(entry_id, fresh=True)
            if state.data == buffer.unposted:
                buffer.posted(state, buffer.unposted)

    async def replace(self, entry_id: EntryId, data: FileData) -> None:
        """Give an entry this content, whatever it has."""
        pair = self.pair(entry_id.public_key)
        known = self._store.recall(entry_id)
        await self._put(entry_id, pair, data, None, known.data if known else None)

    async def _put(
        self,
        entry_id: EntryId,
        pair: SigningKeyPair,
        data: FileData,
        base: S | None,
        stored: FileData | None,
    ) -> S:
        """Store content, unless it is stored already and no earlier write is pending.

        `stored` is what was there lately.
        """
        if stored == data and not await self._store.has_pending(entry_id):
            if base is not None:
                return base
            with suppress(PortalError):  # then it is posted, or kept
                state = await self._store.read(entry_id, fresh=True)
                if state.data == data:
                    return state
        return await self._store.write(entry_id, pair, data, base)

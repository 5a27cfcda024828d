"""Owns what is open in ``/registry`` and ``/skydb``, and the posting of what was written."""

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import trio

from skymount.content.worker.shared_memory import LongText
from skymount.errors import PortalError, SkymountError
from skymount.fs.registry.keyring_cache import KeyringCache
from skymount.fs.registry.nodes import EntryFile, Nodes, Scratch
from skymount.fs.registry.write_buffer import Buffer, Data, Due
from skymount.fs.subtree import OpenFile, os_error, refuse
from skymount.portal.registry.revision_marks import EntryId
from skymount.wire.key_pair import SigningKeyPair

log = logging.getLogger(__name__)

SCRATCH_SIZE = 1 << 20
"""Bytes of a scratch file at least; as many as an entry of the realm, if those can be larger."""


class FileState(Protocol):
    """What a file held at some time: `Entries` and `Documents` have one each."""

    @property
    def data(self) -> bytes | LongText | None:
        """The content; None when there is no such file."""

    @property
    def revision(self) -> int:
        """The entry's revision."""

    @property
    def requested_at(self) -> float:
        """When it was asked for, by trio's clock."""

    @property
    def seen_at(self) -> float:
        """When it changed, in seconds since 1970."""


S = TypeVar("S", bound=FileState)


class Store(Protocol[S]):
    """Where the files of a realm are."""

    @property
    def limit(self) -> int:
        """Bytes of one file."""

    def recall(self, ref: EntryId) -> S | None:
        """Return what is remembered of a file, however old."""

    async def read(self, ref: EntryId, max_age: float = 0.0) -> S:
        """Return a file's state, asked for now or at most so many seconds ago."""

    async def write(self, ref: EntryId, pair: SigningKeyPair, data: Data, base: S | None) -> S:
        """Store content made from `base`, or replacing whatever there is."""

    def check(self, ref: EntryId, base: S) -> None:
        """Raise what `write` would of content made from this, unless that can be signed."""

    async def delete(self, ref: EntryId, pair: SigningKeyPair) -> object:
        """Delete an entry."""

    async def has_pending(self, ref: EntryId) -> bool:
        """Whether something that was written before waits to be posted, and would be later."""

    async def public_keys(self) -> list[bytes]:
        """Return the public keys of which something is known."""

    async def names(self, public_key: bytes) -> list[EntryId]:
        """Return the entries of a key that are known."""


class Poster(Generic[S]):
    """Posts what was written, when it is due."""

    def __init__(self, store: Store[S], keys: KeyringCache) -> None:
        self._store = store
        self._keys = keys

    def pair(self, public_key: bytes) -> SigningKeyPair:
        """Return the key pair that signs; EACCES when the keyring does not have it."""
        return self._keys.pair(public_key) or refuse(errno.EACCES)

    async def post(self, node: EntryFile, buffer: Buffer[S], *, at_release: bool = False) -> None:
        """Post what has been written to an entry, if there is anything.

        What failed is not tried again by the next close of a duplicate; that fails likewise.
        """
        async with node.lock:
            if buffer.error is not None:
                raise buffer.error
            due = buffer.due
            if due is Due.NOTHING or (due is Due.AT_RELEASE and not at_release):
                return
            if node.is_new and not buffer.data and not await self._store.has_pending(node.ref):
                return  # it never got any content
            pair, data = self.pair(node.ref.public_key), buffer.take()
            try:
                await self._catch_up(node.ref, buffer)
                state = await self._put(node.ref, pair, data, buffer.base, buffer.stored)
            except Exception as error:  # whatever it is, a later close must not report success
                buffer.failed(error, data)
                raise
            except trio.Cancelled:
                buffer.failed(os_error(errno.ETIMEDOUT), data)
                raise
            node.is_new = False
            buffer.posted(state, data)
            buffer.changed_ns = changed_ns(state)

    async def _catch_up(self, ref: EntryId, buffer: Buffer[S]) -> None:
        """Base a change on what was posted by itself after its close had failed."""
        if buffer.base is not None and buffer.unposted is not None:
            state = await self._store.read(ref)
            if state.data == buffer.unposted:
                buffer.posted(state, buffer.unposted)

    async def replace(self, node: EntryFile, data: Data) -> None:
        """Let an entry have this content, whatever it has now; its open handles see that."""
        async with node.lock:
            pair = self.pair(node.ref.public_key)
            known = self._store.recall(node.ref)
            state = await self._put(node.ref, pair, data, None, known.data if known else None)
            node.is_new = False
            buffer = node.buffer
            if buffer is not None:
                buffer.replaced(state, data)
                buffer.changed_ns = changed_ns(state)

    async def _put(
        self, ref: EntryId, pair: SigningKeyPair, data: Data, base: S | None, stored: Data | None
    ) -> S:
        """Store content, unless a rewrite finds it there; `stored` is what was there lately.

        An edit that left its `base` as it was needs nothing stored. But what waits to be posted is
        superseded only by what is posted.
        """
        if stored == data and not await self._store.has_pending(ref):
            if base is not None:
                return base
            with suppress(PortalError):  # then it is posted, or kept on disk
                state = await self._store.read(ref)
                if state.data == data:
                    return state
        return await self._store.write(ref, pair, data, base)


def changed_ns(state: FileState | None) -> int:
    """Return when a file changed, in nanoseconds since 1970: now if that is not known."""
    return time.time_ns() if state is None else int(state.seen_at * 1e9)


class Snapshot(OpenFile):
    """A file open for reading: what the portal had at open.

    Who reads on behind the end, or from the beginning again, follows what was seen of the file
    since, as `tail` does; never does a reader get a part of one content and a part of another.
    """

    def __init__(self, data: Data, latest: Callable[[], Data | None]) -> None:
        self._data = data
        self._latest = latest

    async def read(self, offset: int, length: int) -> bytes:
        if offset == 0 or offset >= len(self._data):
            latest = self._latest()
            if latest is self._data:  # nearly always, and a document is long to compare
                pass
            elif latest is not None and (offset == 0 or latest.startswith(self._data)):
                self._data = latest
        return bytes(self._data[offset : offset + length])


class EntryHandle(OpenFile):
    """A file open for writing; its buffer is shared with every other such handle."""

    def __init__(self, nodes: Nodes, poster: Poster[Any], node: EntryFile, flags: int) -> None:
        self._nodes = nodes
        self._poster = poster
        self._node = node
        self._appends = bool(flags & os.O_APPEND)
        assert node.buffer is not None
        self._buffer = node.buffer
        self._buffer.writers += 1
        node.references += 1

    async def read(self, offset: int, length: int) -> bytes:
        return bytes(self._buffer.data[offset : offset + length])

    def write(self, offset: int, data: bytes) -> int:
        count = self._buffer.write(len(self._buffer.data) if self._appends else offset, data)
        self._buffer.changed_ns = time.time_ns()
        return count

    def resize(self, size: int) -> None:
        """Cut or extend with zeros."""
        self._buffer.resize(size)
        self._buffer.changed_ns = time.time_ns()

    async def flush(self) -> None:
        await self._poster.post(self._node, self._buffer)

    async def fsync(self) -> None:
        await self._poster.post(self._node, self._buffer, at_release=True)

    async def release(self) -> None:
        node, buffer = self._node, self._buffer
        try:
            if buffer.writers == 1 and buffer.error is None:
                await self._poster.post(node, buffer, at_release=True)
        except (OSError, SkymountError) as error:
            log.warning("%s: %s", node.name.decode(errors="backslashreplace"), error)
        finally:
            buffer.writers -= 1
            if node.buffer is buffer and not buffer.writers:
                node.buffer = None
                node.is_new = node.is_new and buffer.error is None
            self._nodes.forget(node.inode, 1)


class ScratchHandle(OpenFile):
    """An open scratch file."""

    def __init__(self, nodes: Nodes, node: Scratch, limit: int) -> None:
        self._release: Callable[[int, int], None] = nodes.forget
        self._node = node
        self._limit = limit
        node.references += 1

    async def read(self, offset: int, length: int) -> bytes:
        return bytes(self._node.data[offset : offset + length])

    def write(self, offset: int, data: bytes) -> int:
        self._node.write(offset, data, self._limit)
        return len(data)

    async def release(self) -> None:
        self._release(self._node.inode, 1)

"""`/registry` and `/skydb`: a directory for each public key, a file for each data key.

Here they are listed; `lookup`, `edit` and `rename` do the rest. Promises: docs/semantics.md.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import trio

from skymount.concurrency import in_order, in_turns
from skymount.errors import SkymountError
from skymount.fs.inode_space import ROOT
from skymount.fs.registry.file_names import is_scratch
from skymount.fs.registry.listing_readahead import ListingReadahead
from skymount.fs.registry.nodes import EntryFile, KeyDirectory, KeyNode
from skymount.fs.registry.rename import KeyTreeRename
from skymount.fs.registry.store import S
from skymount.fs.registry.write_buffer import WriteBuffer
from skymount.fs.subtree import DirectoryEntry, InodeAttributes, OpenDirectory, directory_entry

_LISTED_AT_ONCE = 128  # names: making their nodes takes 2 ms
_KEPT = 30.0  # seconds: a program may sort a long listing before it opens the first file


class RegistryDirectory(KeyTreeRename[S]):
    """A directory of public keys, and all below it."""

    def parent(self, inode: int) -> int:
        return ROOT if inode == self._root else self._root

    async def opendir(self, inode: int) -> OpenDirectory:
        await self._keys.refresh()
        directory, begun = None, trio.current_time()
        if inode == self._root:
            names, node_of = await self._key_names(), self._key
        else:
            directory = self.nodes.directory(inode)
            names, node_of = await self._file_names(directory), partial(self._child, directory)
        ordered = await in_order(names)
        if directory is not None:
            self._keep_for_readahead(directory, ordered, begun)
        return _KeyListing(ordered, node_of, self.referred, self.forget)

    def _keep_for_readahead(
        self, directory: KeyDirectory, names: Sequence[bytes], begun: float
    ) -> None:
        if self._nursery is None or not self._config.ttl:
            return
        if directory.readahead is None:
            self._nursery.start_soon(self._drop_readahead, directory)
        directory.readahead = ListingReadahead(names, begun, self._config.ttl)

    async def _drop_readahead(self, directory: KeyDirectory) -> None:
        """Drop it once nobody uses it: of 100,000 names it takes 10 MiB, and keeps the names."""
        while directory.readahead is not None:
            over = directory.readahead.used_at + _KEPT
            if trio.current_time() >= over:
                directory.readahead = None
            else:
                await trio.sleep_until(over)

    async def _key_names(self) -> set[bytes]:
        found = self.nodes.directory_names | set(self._keys.names())
        async for public_key in in_turns(await self._store.public_keys()):
            found.add(public_key.hex().encode())
        return found | {public_key.hex().encode() for public_key in self._keys.public_keys()}

    async def _file_names(self, directory: KeyDirectory) -> set[bytes]:
        found: set[bytes] = set()
        async for entry_id in in_turns(await self._store.names(directory.public_key)):
            name = self._names.of(entry_id.data_key, entry_id.tweak)
            state = self._store.recall(entry_id)
            if name not in directory.hidden and (state is None or state.data is not None):
                found.add(name)
        found.update(directory.scratch)
        found.update(
            name for name, node in directory.files.items() if node.is_new or node.buffer is not None
        )
        return found

    def _child(self, directory: KeyDirectory, name: bytes) -> KeyNode | None:
        if is_scratch(name):
            return directory.scratch.get(name)
        return self.nodes.entry_file(directory, name)

    async def close(self) -> None:
        """Post what is still unwritten, all at once: what is cancelled is kept."""

        async def post(node: EntryFile, buffer: WriteBuffer[S]) -> None:
            with suppress(OSError, SkymountError):
                await self._poster.post(node, buffer, at_release=True)

        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                if isinstance(node, EntryFile) and node.buffer is not None:
                    nursery.start_soon(post, node, node.buffer)


class _KeyListing(OpenDirectory):
    """A listing that may be very long: each name gets its node when it is read."""

    def __init__(
        self,
        names: Sequence[bytes],
        node_of: Callable[[bytes], KeyNode | None],
        refer: Callable[[KeyNode], InodeAttributes],
        forget: Callable[[int, int], None],
    ) -> None:
        self._names = names
        self._node_of = node_of
        self._refer = refer
        self._forget = forget
        self._held: dict[int, KeyNode] = {}  # by position, until the kernel has its references

    def readdir(self, position: int) -> Iterator[DirectoryEntry]:
        self.release()
        for at in range(position, len(self._names)):
            if len(self._held) == _LISTED_AT_ONCE:
                return
            name = self._names[at]
            node = self._node_of(name)
            if node is not None:  # else it was removed meanwhile
                self._held[at] = node
                yield directory_entry(name, self._refer(node), at + 1)

    def referred(self, start: int, stop: int, count: int) -> None:
        for at, node in self._held.items():
            if start <= at < stop:
                node.references += 1

    def release(self) -> None:
        for node in self._held.values():
            self._forget(node.inode, 1)
        self._held.clear()

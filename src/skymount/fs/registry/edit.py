"""Opens, creates, truncates and removes files in `/registry` and `/skydb`."""

import errno
import os
import time
from functools import partial

from skymount.concurrency import copied
from skymount.errors import FrozenEntryError
from skymount.fs.registry.file_names import VIM_PROBE, is_scratch
from skymount.fs.registry.handles import ReadHandle, ScratchHandle, WriteHandle
from skymount.fs.registry.lookup import KeyTreeLookup
from skymount.fs.registry.nodes import EntryFile, KeyDirectory, KeyNode, ScratchFile
from skymount.fs.registry.store import S, changed_ns
from skymount.fs.registry.write_buffer import FileData, WriteBuffer
from skymount.fs.subtree import InodeAttributes, OpenFile, refuse
from skymount.wire.registry_entry import MAX_REVISION

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC


class KeyTreeEdit(KeyTreeLookup[S]):
    """Opens files, and changes them for those who have the private key."""

    async def open(self, inode: int, flags: int) -> OpenFile:
        node = self._node(inode, errno.EISDIR)
        if isinstance(node, ScratchFile):
            if flags & os.O_TRUNC:
                node.resize(0)
            return ScratchHandle(self.nodes, node)
        if not isinstance(node, EntryFile):
            refuse(errno.EISDIR)
        if flags & _WRITING:
            await self._check_key(node)
            return await self._open_for_writing(node, flags)
        data: FileData | None = None
        if node.last is None:
            data, _ = await self._content(node, *self._open_in_turn(node))
        if node.last is not None:  # it has lost its name, or is about to
            data = node.last.data
        if data is None:
            refuse(errno.ESTALE)
        return ReadHandle(data, partial(self._latest, node))

    async def _open_for_writing(self, node: EntryFile, flags: int) -> WriteHandle:
        truncates = bool(flags & os.O_TRUNC)
        made = await self._new_buffer(node, truncates) if node.buffer is None else None
        if node.last is not None:
            async with node.lock:  # until it is removed, or was not
                pass
        buffer = node.buffer if made is None else node.share_buffer(made)
        if node.is_removed or buffer is None:
            refuse(errno.ESTALE)  # the kernel looks it up again
        if truncates:
            buffer.resize(0)
        return WriteHandle(self.nodes, self._poster, node, buffer, flags)

    async def _new_buffer(self, node: EntryFile, truncates: bool) -> WriteBuffer[S]:
        if await self._is_local(node):
            return self._buffer_of(None)
        entry_id = node.entry_id
        state = self._store.recall(entry_id) if truncates else await self._store.read(entry_id)
        if state is not None and state.revision == MAX_REVISION:
            raise FrozenEntryError("the entry has the last revision")
        if state is not None and state.data is None and not truncates:
            refuse(errno.ESTALE)  # the kernel looks it up again, and creates it if that is wanted
        buffer = self._buffer_of(state)
        if not truncates:
            buffer.data, buffer.is_lent = await copied(buffer.data), False
        return buffer

    def _buffer_of(self, state: S | None) -> WriteBuffer[S]:
        stored = None if state is None else state.data
        limit, changed = self._store.limit, changed_ns(state)
        return WriteBuffer(limit, stored or b"", state, stored, is_lent=True, changed_ns=changed)

    async def create(
        self, parent: int, name: bytes, flags: int
    ) -> tuple[InodeAttributes, OpenFile]:
        directory = self._directory(parent)
        await self._check_key(directory)
        if name == VIM_PROBE:
            refuse(errno.EPERM)
        if is_scratch(name):
            scratch = directory.scratch.get(name) or self.nodes.scratch_file(directory, name)
            return self.referred(scratch), ScratchHandle(self.nodes, scratch)
        with self._entry_file(directory, name, errno.EINVAL) as node:
            was_hidden = name in directory.hidden
            buffer = node.buffer
            if buffer is None:
                known = self._store.recall(node.entry_id)
                buffer = node.share_buffer(self._buffer_of(known))
                buffer.changed_ns = time.time_ns()
                node.is_new = not was_hidden and (known is None or known.data is None)
            if was_hidden or flags & os.O_TRUNC:
                buffer.resize(0)
            directory.hidden.discard(name)
            handle = WriteHandle(self.nodes, self._poster, node, buffer, flags)
            return self.referred(node), handle

    async def setattr(
        self, inode: int, size: int | None, opened: OpenFile | None
    ) -> InodeAttributes:
        node = self._node(inode, errno.EPERM)
        await self._check_key(node)
        if size is not None:
            await self._resize(node, size, opened)
        return await self.getattr(inode)

    async def _resize(self, node: KeyNode, size: int, opened: OpenFile | None) -> None:
        if isinstance(node, ScratchFile):
            node.resize(size)
        elif not isinstance(node, EntryFile):
            refuse(errno.EISDIR)
        elif isinstance(opened, WriteHandle):
            opened.resize(size)
        else:  # truncate(2), after which no close follows
            handle = await self._open_for_writing(node, os.O_TRUNC if size == 0 else os.O_WRONLY)
            try:
                handle.resize(size)
                await handle.fsync()
            finally:
                await handle.release()

    async def unlink(self, parent: int, name: bytes) -> None:
        directory = self._directory(parent)
        if is_scratch(name):
            self._remove_scratch(directory, directory.scratch.get(name) or refuse(errno.ENOENT))
            return
        await self._check_key(directory)
        pair = self._poster.pair(directory.public_key)
        with self._entry_file(directory, name, errno.ENOENT) as node:
            async with node.lock:
                is_pending = await self._store.has_pending(node.entry_id)
                is_local = await self._is_local(node)
                if not is_local and not is_pending:
                    is_there = await self._is_there(node, self._config.ttl, fresh=True)
                    is_there or refuse(errno.ENOENT)
                with self._removing(node):
                    if not is_local or is_pending:  # what is pending would come back
                        await self._store.delete(node.entry_id, pair)

    def _remove_scratch(self, directory: KeyDirectory, scratch: ScratchFile) -> None:
        """Remove it; with the last one, entries that were renamed to one show again."""
        self.nodes.remove_scratch(scratch)
        if not directory.scratch:
            directory.hidden.clear()

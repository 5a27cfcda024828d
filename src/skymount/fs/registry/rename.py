"""Renames files in `/registry` and `/skydb`: entries are posted, scratch files change names."""

import errno

from skymount.fs.registry.edit import KeyTreeEdit
from skymount.fs.registry.file_names import VIM_PROBE, is_scratch
from skymount.fs.registry.nodes import KeyDirectory, ScratchFile
from skymount.fs.registry.store import S
from skymount.fs.registry.write_buffer import FileData
from skymount.fs.subtree import refuse

_NOREPLACE = 1  # flag of renameat2(2)


class KeyTreeRename(KeyTreeEdit[S]):
    """Renames files, within one key's directory.

    | from    | to      |                                                                     |
    |---------|---------|---------------------------------------------------------------------|
    | scratch | scratch | the name changes                                                    |
    | scratch | entry   | the content is posted                                               |
    | entry   | scratch | the content is copied, and this mount hides the entry               |
    | entry   | entry   | the content is posted under the new data key, then the old one goes |
    """

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        directory = self._directory(parent)
        if self._directory(new_parent) is not directory:
            refuse(errno.EXDEV)
        if flags & ~_NOREPLACE:
            refuse(errno.EINVAL)
        await self._check_key(directory)
        if new_name == VIM_PROBE:
            refuse(errno.EPERM)
        to_scratch = is_scratch(new_name)
        if flags & _NOREPLACE and await self._exists(directory, new_name):
            refuse(errno.EEXIST)
        if is_scratch(name):
            scratch = directory.scratch.get(name) or refuse(errno.ENOENT)
            if to_scratch:
                self._move_scratch(directory, scratch, new_name)
            else:
                await self._publish(directory, scratch, new_name)
        elif to_scratch:
            await self._copy_to_scratch(directory, name, new_name)
        elif name != new_name:
            await self._move_entry(directory, name, new_name)

    def _move_scratch(self, directory: KeyDirectory, scratch: ScratchFile, new_name: bytes) -> None:
        replaced = directory.scratch.get(new_name)
        if replaced is scratch:
            return
        if replaced is not None:
            self.nodes.remove_scratch(replaced)
        del directory.scratch[scratch.name]
        scratch.name = new_name
        directory.scratch[new_name] = scratch

    async def _publish(
        self, directory: KeyDirectory, scratch: ScratchFile, new_name: bytes
    ) -> None:
        if len(scratch.data) > self._store.limit:
            refuse(errno.EFBIG)
        if scratch.is_publishing:
            refuse(errno.EBUSY)
        scratch.is_publishing = True  # what is written meanwhile would be lost
        try:
            await self._store_as(directory, new_name, scratch.data, is_new=True)
        finally:
            scratch.is_publishing = False
        self._remove_scratch(directory, scratch)

    async def _store_as(
        self, directory: KeyDirectory, name: bytes, data: FileData, *, is_new: bool
    ) -> None:
        """Give an entry this content; if it `is_new`, never posted, and empty, it stays local."""
        may_be_local = is_new and not data and name not in directory.hidden
        with self._entry_file(directory, name, errno.EINVAL) as node:
            is_local = may_be_local and not await self._exists(directory, name)
            async with node.lock:
                with self._removing(node):
                    if not is_local:
                        await self._poster.replace(node.entry_id, data)
        if is_local:
            with self._entry_file(directory, name, errno.EINVAL) as made:
                made.is_new = True
        directory.hidden.discard(name)

    async def _copy_to_scratch(self, directory: KeyDirectory, name: bytes, new_name: bytes) -> None:
        with self._entry_file(directory, name, errno.ENOENT) as node:
            data, _ = await self._content(node, fresh=True)
            is_new = node.is_new
            with self._removing(node):
                self.nodes.scratch_file(directory, new_name, data)
            if not is_new:
                directory.hidden.add(name)

    async def _move_entry(self, directory: KeyDirectory, name: bytes, new_name: bytes) -> None:
        pair = self._poster.pair(directory.public_key)
        with self._entry_file(directory, name, errno.ENOENT) as source:
            with self._entry_file(directory, new_name, errno.EINVAL) as target:
                if target.entry_id == source.entry_id:  # as two links to one file
                    return
            async with source.lock:
                data, base = await self._content(source, fresh=True)
                if base is not None:
                    self._store.check(source.entry_id, base)
                with self._removing(source):
                    await self._store_as(directory, new_name, data, is_new=source.is_new)
                    if not source.is_new or await self._store.has_pending(source.entry_id):
                        await self._store.delete(source.entry_id, pair)

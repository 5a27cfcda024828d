"""Owns ``/registry`` and ``/skydb``: a directory for each public key, a file for each data key.

What a file's content is, and how it is read, verified and stored, is the store's; what is being
edited is `buffer`'s. Promises: docs/semantics.md, Registry and SkyDB.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import trio

from skymount.concurrency import copied, in_order, in_turns
from skymount.errors import PortalError, RolledBackError, SkymountError
from skymount.fs.inode_space import DIRECTORY_INODES, InodeSpace
from skymount.fs.registry.file_names import PROBE, Names, is_scratch
from skymount.fs.registry.handles import (
    SCRATCH_SIZE,
    EntryHandle,
    Poster,
    S,
    ScratchHandle,
    Snapshot,
    Store,
    changed_ns,
)
from skymount.fs.registry.keyring_cache import KeyringCache
from skymount.fs.registry.nodes import (
    SCRATCH_MODE,
    EntryFile,
    KeyDirectory,
    KeyLink,
    Node,
    Nodes,
    Scratch,
)
from skymount.fs.registry.write_buffer import Buffer, Data
from skymount.fs.subtree import (
    MUTABLE_TIMEOUT,
    UNCACHED_NO_ENTRY,
    DirectoryEntry,
    InodeAttributes,
    OpenDirectory,
    OpenFile,
    Subtree,
    directory_entry,
    refuse,
)
from skymount.wire.registry_entry import MAX_REVISION

_LISTED = 128  # names that are listed at once: making their nodes takes two milliseconds
_LEAST_WAIT = 0.1  # of the grace: with less left, a lookup does not ask a portal at all
_NOREPLACE = 1  # flag of renameat2(2)
_PUBLIC_KEY = re.compile(rb"[0-9a-f]{64}")

_DIRECTORY = stat.S_IFDIR | 0o555
_OWN_DIRECTORY = stat.S_IFDIR | 0o755
_LINK = stat.S_IFLNK | 0o777
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC


@dataclass(frozen=True, slots=True)
class RegistryDirectoryConfig:
    """One of the realms. Times in seconds."""

    space: InodeSpace
    suffix: bytes = b""
    """Ends the names of its files."""
    ttl: float = 2.0
    """How old what stat says may be."""
    grace: float = 0.5
    """How long lookups in one directory may wait for a portal without a pause between them."""


class RegistryDirectory(Subtree, Generic[S]):
    """A directory of public keys, and all below it."""

    writable = True
    refusal = errno.EPERM

    def __init__(
        self,
        store: Store[S],
        keys: KeyringCache,
        config: RegistryDirectoryConfig,
        xattrs: Callable[[S], Mapping[str, str]],
    ) -> None:
        self._store = store
        self._keys = keys
        self._config = config
        self._xattrs = xattrs
        self._names = Names(config.suffix)
        self._nodes = Nodes(config.space, self._names)
        self._root = DIRECTORY_INODES[config.space]
        self._poster = Poster(store, keys)
        self._scratch_size = max(SCRATCH_SIZE, store.limit)

    def forget(self, inode: int, count: int) -> None:
        self._nodes.forget(inode, count)

    def _directory(self, inode: int) -> KeyDirectory:
        """Return a key's directory, in which something is to be made or removed."""
        return refuse(errno.EPERM) if inode == self._root else self._nodes.directory(inode)

    # What is told of nodes

    def entry(self, node: Node, *, ttl: float = 0.0) -> InodeAttributes:
        """Describe a node as far as is known without asking."""
        match node:
            case KeyLink():
                size = len(node.target)
                return InodeAttributes(node.inode, _LINK, size, MUTABLE_TIMEOUT, MUTABLE_TIMEOUT)
            case KeyDirectory():
                mode = _OWN_DIRECTORY if self._keys.pair(node.public_key) else _DIRECTORY
                return InodeAttributes(node.inode, mode, 0, MUTABLE_TIMEOUT, MUTABLE_TIMEOUT)
            case Scratch():
                size = len(node.data)
                return InodeAttributes(node.inode, SCRATCH_MODE, size, 0.0, 0.0, node.changed_ns)
            case EntryFile():
                return self._entry_of(node, ttl)
        raise AssertionError(node)

    def _entry_of(self, node: EntryFile, ttl: float) -> InodeAttributes:
        mode = stat.S_IFREG | (0o644 if self._keys.pair(node.ref.public_key) else 0o444)
        if node.buffer is not None:
            return InodeAttributes(
                node.inode, mode, len(node.buffer.data), 0.0, 0.0, node.buffer.changed_ns
            )
        state = self._store.recall(node.ref)
        if state is None:
            return InodeAttributes(node.inode, mode, 0, 0.0, 0.0)
        size = len(state.data or b"")
        # No time to live for the name: the kernel takes an inode along when it is renamed.
        return InodeAttributes(
            node.inode, mode, size, 0.0, min(ttl, MUTABLE_TIMEOUT), changed_ns(state)
        )

    def _time_left(self, state: S | None) -> float:
        """Return for how many seconds a state may still be told."""
        if state is None:
            return 0.0
        return max(0.0, state.requested_at + self._config.ttl - trio.current_time())

    async def _present(self, node: EntryFile, max_age: float = 0.0) -> S:
        """Return an entry's state, not older than that; ENOENT when it is not there."""
        state = await self._store.read(node.ref, max_age)
        return state if state.data is not None else refuse(errno.ENOENT)

    async def _is_local(self, node: EntryFile, max_age: float = 0.0) -> bool:
        """Whether a file is new and of this mount alone: nobody else has made it meanwhile."""
        if node.is_new and node.buffer is None:
            with suppress(PortalError):
                if (await self._store.read(node.ref, max_age)).data is not None:
                    node.is_new = False
        return node.is_new

    @contextmanager
    def _entry_file(
        self, directory: KeyDirectory, name: bytes, otherwise: int
    ) -> Iterator[EntryFile]:
        """Hold an entry's node, which the kernel need not know; OSError when it cannot be one."""
        node = self._nodes.entry_file(directory, name) or refuse(otherwise)
        node.references += 1
        try:
            yield node
        finally:
            self._nodes.forget(node.inode, 1)

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> InodeAttributes:
        await self._keys.refresh()
        if parent == self._root:
            return self._referred(self._key(name))
        directory = self._nodes.directory(parent)
        if is_scratch(name) or name == PROBE:
            return self._referred(directory.scratch.get(name))
        if name in directory.moved or not self._names.stands_for_a_key(name):
            return UNCACHED_NO_ENTRY
        with self._entry_file(directory, name, errno.ENOENT) as node:
            if await self._is_absent(node):
                return UNCACHED_NO_ENTRY
            node.references += 1
            return self.entry(node, ttl=self._time_left(self._store.recall(node.ref)))

    def _referred(self, node: Node | None) -> InodeAttributes:
        if node is None:
            return UNCACHED_NO_ENTRY
        node.references += 1
        return self.entry(node)

    def _key(self, name: bytes) -> Node | None:
        if _PUBLIC_KEY.fullmatch(name):
            return self._nodes.key_directory(name)
        public_key = self._keys.named(name)
        return None if public_key is None else self._nodes.key_link(name, public_key)

    async def _is_absent(self, node: EntryFile) -> bool:
        """Whether an entry is known not to be there; asks when nothing is known, but not for long.

        What nobody waited for counts as there, with no time to live: what is then done with it
        finds out. So lookups of many names at once do not queue for the portal.
        """
        if node.buffer is not None or node.is_new:
            return False
        state = self._store.recall(node.ref)
        if state is None or (state.data is None and not self._time_left(state)):
            state = await self._ask_a_little(node)
        return state is not None and state.data is None

    async def _ask_a_little(self, node: EntryFile) -> S | None:
        """Ask for an entry, within what is left of the time that lookups may wait.

        If that fails, what is then done with the name reports the failure.
        """
        found: S | None = None
        budget, grace = node.directory, self._config.grace
        begun = trio.current_time()
        left = min(grace, budget.left + begun - budget.spent_at)
        if left < grace * _LEAST_WAIT:
            return None
        with trio.move_on_after(left), suppress(SkymountError):
            found = await self._store.read(node.ref, self._config.ttl)
        budget.spent_at = trio.current_time()
        budget.left = left - (budget.spent_at - begun)
        return found

    async def getattr(self, inode: int) -> InodeAttributes:
        if inode == self._root:
            return InodeAttributes(inode, _DIRECTORY)
        await self._keys.refresh()
        node = self._nodes.get(inode)
        if isinstance(node, EntryFile) and node.buffer is None:
            ttl = self._config.ttl
            if not await self._is_local(node, ttl):
                return self.entry(node, ttl=self._time_left(await self._present(node, ttl)))
        return self.entry(node)

    async def access(self, inode: int, mode: int) -> bool:
        if mode & os.W_OK:
            if inode == self._root:
                refuse(errno.EACCES)
            await self._keys.refresh()
            self._check_owned(self._nodes.get(inode))
        return (await self.getattr(inode)).allows(mode)

    def _check_owned(self, node: Node) -> None:
        """EACCES for a node of a public key whose private key is not in the keyring."""
        if isinstance(node, KeyDirectory):
            self._poster.pair(node.public_key)
        elif isinstance(node, EntryFile):
            self._poster.pair(node.ref.public_key)

    async def readlink(self, inode: int) -> bytes:
        node = None if inode == self._root else self._nodes.get(inode)
        return node.target if isinstance(node, KeyLink) else refuse(errno.EINVAL)

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        node = None if inode == self._root else self._nodes.get(inode)
        if not isinstance(node, EntryFile) or node.is_new:
            return {}
        found = dict(self._xattrs(await self._present(node, self._config.ttl)))
        if node.ref.data_key is not None:
            found["data_key"] = node.ref.data_key
        return {
            f"user.skymount.{name}".encode(): value.encode("utf-8", "surrogatepass")
            for name, value in found.items()
        }

    # Directories

    async def opendir(self, inode: int) -> OpenDirectory:
        await self._keys.refresh()
        if inode == self._root:
            return _Listing(self, await in_order(await self._keys_listed()), self._key)
        directory = self._nodes.directory(inode)
        names = await in_order(await self._entries_listed(directory))
        return _Listing(self, names, partial(self._child, directory))

    async def _keys_listed(self) -> set[bytes]:
        found = self._nodes.directory_names | set(self._keys.names())
        async for public_key in in_turns(await self._store.public_keys()):
            found.add(public_key.hex().encode())
        return found | {public_key.hex().encode() for public_key in self._keys.public_keys()}

    async def _entries_listed(self, directory: KeyDirectory) -> set[bytes]:
        found: set[bytes] = set()
        async for ref in in_turns(await self._store.names(directory.public_key)):
            name = self._names.of(ref.data_key, ref.tweak)
            state = self._store.recall(ref)
            if name not in directory.moved and (state is None or state.data is not None):
                found.add(name)
        found.update(directory.scratch)
        found.update(
            name for name, node in directory.files.items() if node.is_new or node.buffer is not None
        )
        return found

    def _child(self, directory: KeyDirectory, name: bytes) -> Node | None:
        """Return the node of a name that was listed."""
        if is_scratch(name):
            return directory.scratch.get(name)
        return self._nodes.entry_file(directory, name)

    # Files

    async def open(self, inode: int, flags: int) -> OpenFile:
        if inode == self._root:
            refuse(errno.EISDIR)
        node = self._nodes.get(inode)
        if isinstance(node, Scratch):
            if flags & os.O_TRUNC:
                node.resize(0, self._scratch_size)
            return ScratchHandle(self._nodes, node, self._scratch_size)
        if not isinstance(node, EntryFile):
            refuse(errno.EISDIR)
        if flags & _WRITING:
            return await self._open_for_writing(node, flags)
        return Snapshot(await self._content(node), partial(self._latest, node))

    def _latest(self, node: EntryFile) -> Data | None:
        """Return the content as far as is known without asking; None when there is none."""
        if node.buffer is not None:
            return node.buffer.lend()
        state = self._store.recall(node.ref)
        return None if state is None else state.data

    async def _open_for_writing(self, node: EntryFile, flags: int) -> EntryHandle:
        await self._keys.refresh()
        self._check_owned(node)
        whole = bool(flags & os.O_TRUNC)
        if node.buffer is None:
            buffer = await self._new_buffer(node, whole)
            if node.buffer is None:  # nobody else opened it meanwhile
                node.buffer = buffer
        if whole:
            node.buffer.resize(0)
        return EntryHandle(self._nodes, self._poster, node, flags)

    async def _new_buffer(self, node: EntryFile, whole: bool) -> Buffer[S]:
        if await self._is_local(node):
            return self._buffer(None)
        state = self._store.recall(node.ref) if whole else await self._store.read(node.ref)
        if state is not None and state.revision == MAX_REVISION:
            refuse(errno.EPERM)
        if state is not None and state.data is None and not whole:
            refuse(errno.ESTALE)  # the kernel looks it up again, and makes it if that is wanted
        buffer = self._buffer(state)
        if not whole:  # a part of it is about to be changed
            buffer.data, buffer.is_lent = await copied(buffer.data), False
        return buffer

    def _buffer(self, state: S | None) -> Buffer[S]:
        stored = None if state is None else state.data
        limit, changed = self._store.limit, changed_ns(state)
        return Buffer(limit, stored or b"", state, stored, is_lent=True, changed_ns=changed)

    async def create(
        self, parent: int, name: bytes, flags: int
    ) -> tuple[InodeAttributes, OpenFile]:
        directory = self._directory(parent)
        await self._keys.refresh()
        self._check_owned(directory)
        if name == PROBE:
            refuse(errno.EPERM)
        if is_scratch(name):
            scratch = directory.scratch.get(name) or self._nodes.scratch(directory, name)
            opened = ScratchHandle(self._nodes, scratch, self._scratch_size)
            return self._referred(scratch), opened
        with self._entry_file(directory, name, errno.EINVAL) as node:
            was_moved = name in directory.moved
            if node.buffer is None:
                known = self._store.recall(node.ref)
                node.buffer = self._buffer(known)
                node.buffer.changed_ns = time.time_ns()
                node.is_new = not was_moved and (known is None or known.data is None)
            if was_moved or flags & os.O_TRUNC:
                node.buffer.resize(0)
            directory.moved.discard(name)
            return self._referred(node), EntryHandle(self._nodes, self._poster, node, flags)

    async def setattr(
        self, inode: int, size: int | None, opened: OpenFile | None
    ) -> InodeAttributes:
        if inode == self._root:
            refuse(errno.EPERM)
        await self._keys.refresh()
        node = self._nodes.get(inode)
        self._check_owned(node)
        if size is not None:
            await self._resize(node, size, opened)
        return await self.getattr(inode)

    async def _resize(self, node: Node, size: int, opened: OpenFile | None) -> None:
        if isinstance(node, Scratch):
            node.resize(size, self._scratch_size)
        elif not isinstance(node, EntryFile):
            refuse(errno.EISDIR)
        elif isinstance(opened, EntryHandle):
            opened.resize(size)
        else:  # truncate(2): nobody will close it
            handle = await self._open_for_writing(node, os.O_TRUNC if size == 0 else os.O_WRONLY)
            try:
                handle.resize(size)
                await handle.fsync()
            finally:
                await handle.release()

    # Removing and renaming

    async def unlink(self, parent: int, name: bytes) -> None:
        directory = self._directory(parent)
        if is_scratch(name):
            self._drop_scratch(directory, directory.scratch.get(name) or refuse(errno.ENOENT))
            return
        await self._keys.refresh()
        pair = self._poster.pair(directory.public_key)
        with self._entry_file(directory, name, errno.ENOENT) as node:
            async with node.lock:
                is_pending = await self._store.has_pending(node.ref)  # then it would come back
                is_local = await self._is_local(node)
                if not is_local and not is_pending:
                    with suppress(RolledBackError):  # it is there, and can be deleted
                        await self._present(node, self._config.ttl)
                if not is_local or is_pending:
                    await self._store.delete(node.ref, pair)
                _cut_off(node)

    def _drop_scratch(self, directory: KeyDirectory, scratch: Scratch) -> None:
        directory.scratch.pop(scratch.name, None)
        scratch.is_gone = True
        if not directory.scratch:  # no copy is left of what was moved away: it is seen again
            directory.moved.clear()
        self._nodes.drop_if_unused(scratch)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        directory = self._directory(parent)
        if self._directory(new_parent) is not directory:
            refuse(errno.EXDEV)
        if flags & ~_NOREPLACE:
            refuse(errno.EINVAL)
        await self._keys.refresh()
        self._check_owned(directory)
        if new_name == PROBE:
            refuse(errno.EPERM)
        if flags & _NOREPLACE and await self._exists(directory, new_name):
            refuse(errno.EEXIST)
        if is_scratch(name):
            scratch = directory.scratch.get(name) or refuse(errno.ENOENT)
            if is_scratch(new_name):
                self._move_scratch(directory, scratch, new_name)
            else:
                await self._publish(directory, scratch, new_name)
        elif is_scratch(new_name):
            await self._keep_copy(directory, name, new_name)
        elif name != new_name:
            await self._move_entry(directory, name, new_name)

    async def _exists(self, directory: KeyDirectory, name: bytes) -> bool:
        if is_scratch(name):
            return name in directory.scratch
        with self._entry_file(directory, name, errno.EINVAL) as node:
            if node.is_new or node.buffer is not None:
                return True
            return (await self._store.read(node.ref)).data is not None

    def _move_scratch(self, directory: KeyDirectory, scratch: Scratch, new_name: bytes) -> None:
        replaced = directory.scratch.pop(new_name, None)
        if replaced is not None and replaced is not scratch:
            replaced.is_gone = True
            self._nodes.drop_if_unused(replaced)
        directory.scratch.pop(scratch.name, None)
        scratch.name = new_name
        directory.scratch[new_name] = scratch

    async def _publish(self, directory: KeyDirectory, scratch: Scratch, new_name: bytes) -> None:
        """Post a scratch file's content as an entry, and end the scratch file."""
        if len(scratch.data) > self._store.limit:
            refuse(errno.EFBIG)
        if scratch.is_moving:
            refuse(errno.EBUSY)
        scratch.is_moving = True  # what is written meanwhile would be lost
        try:
            await self._let_have(directory, new_name, scratch.data, is_new=True)
        finally:
            scratch.is_moving = False
        self._drop_scratch(directory, scratch)

    async def _let_have(
        self, directory: KeyDirectory, name: bytes, data: Data, *, is_new: bool
    ) -> None:
        """Post content for an entry, whatever it has; none that `is_new` stays local where it can.

        It is new unless it was posted under another name.
        """
        is_local = is_new and not data and name not in directory.moved
        with self._entry_file(directory, name, errno.EINVAL) as node:
            if is_local and not await self._exists(directory, name):
                node.is_new = True
            else:
                await self._poster.replace(node, data)
        directory.moved.discard(name)

    async def _keep_copy(self, directory: KeyDirectory, name: bytes, new_name: bytes) -> None:
        """Copy an entry to a scratch file, and see the entry as gone in this mount."""
        with self._entry_file(directory, name, errno.ENOENT) as node:
            data = await self._content(node)
            scratch = directory.scratch.get(new_name) or self._nodes.scratch(directory, new_name)
            scratch.resize(0, self._scratch_size)
            scratch.write(0, data, self._scratch_size)
            if not node.is_new:
                directory.moved.add(name)
            _cut_off(node)

    async def _content(self, node: EntryFile) -> Data:
        return (await self._content_and_base(node))[0]

    async def _content_and_base(self, node: EntryFile) -> tuple[Data, S | None]:
        """Return the content, and the state that it was made from."""
        if node.buffer is not None:
            return node.buffer.lend(), node.buffer.base
        if await self._is_local(node):
            return b"", None
        state = await self._present(node)
        return state.data or b"", state

    async def _move_entry(self, directory: KeyDirectory, name: bytes, new_name: bytes) -> None:
        """Post an entry's content under another data key, then delete the first one.

        Two spellings of one data key are as two links to a file: then nothing is to be done.
        """
        pair = self._poster.pair(directory.public_key)
        with self._entry_file(directory, name, errno.ENOENT) as source:
            with self._entry_file(directory, new_name, errno.EINVAL) as target:
                if target.ref == source.ref:
                    return
            async with source.lock:
                data, base = await self._content_and_base(source)
                if base is not None:
                    self._store.check(source.ref, base)
                with _held_still(source.buffer):
                    await self._let_have(directory, new_name, data, is_new=source.is_new)
                    if not source.is_new or await self._store.has_pending(source.ref):
                        await self._store.delete(source.ref, pair)
                _cut_off(source)

    async def close(self) -> None:
        """Post what is still unwritten, at the end of the mount.

        All at once: when that takes too long and is cancelled, each of them is kept.
        """

        async def post(node: EntryFile, buffer: Buffer[S]) -> None:
            with suppress(OSError, SkymountError):
                await self._poster.post(node, buffer, at_release=True)

        async with trio.open_nursery() as nursery:
            for node in self._nodes:
                if isinstance(node, EntryFile) and node.buffer is not None:
                    nursery.start_soon(post, node, node.buffer)


@contextmanager
def _held_still(buffer: Buffer[Any] | None) -> Iterator[None]:
    """Let nothing be written to a buffer while its content gets another name: it would be lost."""
    if buffer is None:
        yield
        return
    buffer.is_cut_off = True
    try:
        yield
    except BaseException:
        buffer.is_cut_off = False
        raise


def _cut_off(node: EntryFile) -> None:
    """Let nothing that is open lead to an entry's name any more."""
    node.is_new = False
    if node.buffer is not None:
        node.buffer.is_cut_off = True
        node.buffer = None


class _Listing(OpenDirectory):
    """The listing of names, which may be very many: each gets its node when its turn comes."""

    def __init__(
        self,
        realm: RegistryDirectory[Any],
        names: Sequence[bytes],
        node_of: Callable[[bytes], Node | None],
    ) -> None:
        self._realm = realm
        self._names = names
        self._node_of = node_of
        self._held: dict[int, Node] = {}
        """What was listed last, by position: it stays until the kernel has its references."""

    def readdir(self, position: int) -> Iterator[DirectoryEntry]:
        self.release()
        for at in range(position, len(self._names)):
            if len(self._held) == _LISTED:
                return
            name = self._names[at]
            node = self._node_of(name)
            if node is not None:  # else it is gone by now
                node.references += 1
                self._held[at] = node
                yield directory_entry(name, self._realm.entry(node), at + 1)

    def referred(self, start: int, stop: int, count: int) -> None:
        for at, node in self._held.items():
            if start <= at < stop:
                node.references += 1

    def release(self) -> None:
        for node in self._held.values():
            self._realm.forget(node.inode, 1)
        self._held.clear()

"""The files, directories and links of `/registry` and `/skydb`, by inode number."""

import errno
import math
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from skymount.errors import MalformedError
from skymount.fs.inode_space import InodeSpace, entry_inode
from skymount.fs.registry.file_names import KeyFileNames
from skymount.fs.registry.listing_readahead import ListingReadahead
from skymount.fs.registry.write_buffer import FileData, WriteBuffer
from skymount.fs.subtree import InodeAttributes, refuse
from skymount.portal.ledger.entries import EntryId

SCRATCH_LIMIT = 256  # scratch files in one key's directory
_SCRATCH_TOTAL = 4  # scratch files of the largest size that a key's directory has room for

SCRATCH_MODE = stat.S_IFREG | 0o600


@dataclass(eq=False, slots=True)
class KeyNode:
    """A file, directory or link of one of the two subtrees."""

    inode: int
    name: bytes
    references: int = 0  # lookups that the kernel has not forgotten, and open handles


@dataclass(eq=False, slots=True)
class KeyLink(KeyNode):
    """A key of the keyring: a symbolic link to its public key's directory."""

    target: bytes = b""


@dataclass(eq=False, slots=True)
class ScratchFile(KeyNode):
    """An editor's file in memory, never posted under its own name."""

    directory: "KeyDirectory" = field(kw_only=True)
    limit: int = field(kw_only=True)  # bytes
    data: bytearray = field(default_factory=bytearray)
    changed_ns: int = 0
    is_removed: bool = False
    is_publishing: bool = False  # whether its content is being posted, to become an entry

    def write(self, offset: int, data: FileData) -> None:
        self._check_writable()
        if offset + len(data) > len(self.data):
            self.resize(offset + len(data))
        self.data[offset : offset + len(data)] = data
        self.changed_ns = time.time_ns()

    def _check_writable(self) -> None:
        if self.is_removed or self.is_publishing:  # what is written now would be lost
            refuse(errno.ESTALE)

    def resize(self, size: int) -> None:
        """Cut or extend with zeros; ENOSPC when all scratch files together are too large."""
        self._check_writable()
        if size > self.limit:
            refuse(errno.EFBIG)
        there = self.directory.scratch.values()
        others = sum(len(each.data) for each in there if each.name != self.name)
        if size > len(self.data) and others + size > _SCRATCH_TOTAL * self.limit:
            refuse(errno.ENOSPC)
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.changed_ns = time.time_ns()


@dataclass(frozen=True, slots=True)
class LastContent:
    """What a file was when this mount took its name away, for those who have it open."""

    attributes: InodeAttributes
    data: FileData | None  # none if it was not known
    xattrs: Mapping[bytes, bytes]


@dataclass(eq=False, slots=True)
class EntryFile(KeyNode):
    """The file of an entry."""

    directory: "KeyDirectory" = field(kw_only=True)
    entry_id: EntryId = field(kw_only=True)
    is_new: bool = False  # whether it was made here and nothing of it is known to be stored
    last: LastContent | None = None  # since it began to be removed, renamed or replaced
    is_removed: bool = False  # whether that is done: its name stands for another file, or for none
    buffer: WriteBuffer[Any] | None = None  # none when it is not open for writing
    _lock: trio.Lock | None = field(default=None, init=False)

    @property
    def lock(self) -> trio.Lock:
        """Held while its content is posted. Made when it is needed: it is larger than all else."""
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    def share_buffer(self, buffer: WriteBuffer[Any]) -> WriteBuffer[Any]:
        """Set the buffer; return the one to use, which is another if there was one already."""
        if self.buffer is None:
            self.buffer = buffer
        return self.buffer

    def remove_writer(self, buffer: WriteBuffer[Any]) -> None:
        """Count off a handle. With the last goes the buffer, and a new file that was not posted."""
        buffer.writers -= 1
        if self.buffer is buffer and not buffer.writers:
            self.buffer = None
            self.is_new = self.is_new and buffer.error is None and not buffer.overflowed

    def cut_off(self) -> None:
        """Refuse writes: they would be lost."""
        if self.buffer is not None:
            self.buffer.is_cut_off = True


@dataclass(eq=False, slots=True)
class KeyDirectory(KeyNode):
    """The directory of a public key."""

    public_key: bytes = b""
    files: dict[bytes, EntryFile] = field(default_factory=dict)  # referred to, or new
    scratch: dict[bytes, ScratchFile] = field(default_factory=dict)
    hidden: set[bytes] = field(default_factory=set)  # entries that were renamed to scratch files
    readahead: ListingReadahead | None = None  # of the last listing, while it is used
    silent_until: float = -math.inf  # by trio's clock; until then lookups in it ask no portal


class NodeTable:
    """The nodes of one subtree, and when they can be dropped."""

    def __init__(self, space: InodeSpace, names: KeyFileNames, scratch_limit: int) -> None:
        self._space = space
        self._scratch_limit = scratch_limit
        self._names = names
        self._nodes: dict[int, KeyNode] = {}
        self._directories: dict[bytes, KeyDirectory] = {}
        self._scratch_number = 0

    def __iter__(self) -> Iterator[KeyNode]:
        return iter(list(self._nodes.values()))

    def get(self, inode: int) -> KeyNode:
        return self._nodes.get(inode) or refuse(errno.ESTALE)

    def directory(self, inode: int) -> KeyDirectory:
        node = self.get(inode)
        return node if isinstance(node, KeyDirectory) else refuse(errno.ENOTDIR)

    def _free(self, inode: int) -> int:
        while inode in self._nodes:
            inode += 1
        return inode

    @property
    def directory_names(self) -> set[bytes]:
        return set(self._directories)

    def key_directory(self, name: bytes) -> KeyDirectory:
        found = self._directories.get(name)
        if found is None:
            inode = self._free(entry_inode(self._space, b"key", name))
            found = KeyDirectory(inode, name, public_key=bytes.fromhex(name.decode()))
            self._directories[name] = self._nodes[inode] = found
        return found

    def key_link(self, name: bytes, public_key: bytes) -> KeyLink:
        target = public_key.hex().encode()
        inode = entry_inode(self._space, b"link", name, public_key)
        while (node := self._nodes.get(inode)) is not None:
            if isinstance(node, KeyLink) and (node.name, node.target) == (name, target):
                return node
            inode += 1
        made = self._nodes[inode] = KeyLink(inode, name, target=target)
        return made

    def entry_file(self, directory: KeyDirectory, name: bytes) -> EntryFile | None:
        """Return the node of an entry's name; None when it stands for no data key."""
        found = directory.files.get(name)
        if found is None:
            try:
                key = self._names.parse(name)
            except MalformedError:
                return None
            entry_id = EntryId(directory.public_key, key.tweak, key.data_key)
            # It is taken if a file that was removed is still open.
            inode = self._free(entry_inode(self._space, b"entry", directory.public_key, name))
            found = EntryFile(inode, name, directory=directory, entry_id=entry_id)
            directory.files[name] = self._nodes[inode] = found
        return found

    def scratch_file(
        self, directory: KeyDirectory, name: bytes, data: FileData = b""
    ) -> ScratchFile:
        """Make a scratch file, in place of one that has the name."""
        replaced = directory.scratch.get(name)
        if replaced is None and len(directory.scratch) >= SCRATCH_LIMIT:
            refuse(errno.ENOSPC)
        self._scratch_number += 1
        number = b"%d" % self._scratch_number
        inode = self._free(entry_inode(self._space, b"scratch", directory.public_key, number))
        made = ScratchFile(inode, name, directory=directory, limit=self._scratch_limit)
        made.write(0, data)
        if replaced is not None:
            self.remove_scratch(replaced)
        directory.scratch[name] = self._nodes[inode] = made
        return made

    @contextmanager
    def removing(self, node: EntryFile, last: LastContent) -> Iterator[None]:
        """Take the name from an entry's file, unless the block fails; its open descriptors keep
        `last` from the beginning.
        """
        node.last = last
        node.cut_off()
        try:
            yield
        except BaseException:
            node.last = None
            if node.buffer is not None:
                node.buffer.is_cut_off = False
            raise
        node.cut_off()  # it may have been opened meanwhile
        node.buffer, node.is_new, node.is_removed = None, False, True
        if node.directory.files.get(node.name) is node:
            del node.directory.files[node.name]
        self.drop_if_unused(node)

    def remove_scratch(self, scratch: ScratchFile) -> None:
        """Take the name from a scratch file; who has it open keeps it."""
        del scratch.directory.scratch[scratch.name]
        scratch.is_removed = True
        self.drop_if_unused(scratch)

    def forget(self, inode: int, count: int) -> None:
        node = self._nodes.get(inode)
        if node is not None:
            node.references = max(0, node.references - count)
            self.drop_if_unused(node)

    def drop_if_unused(self, node: KeyNode) -> None:
        if node.references:
            return
        match node:
            case EntryFile():
                if node.is_new or node.buffer is not None:
                    return
                if node.directory.files.get(node.name) is node:
                    del node.directory.files[node.name]
                self.drop_if_unused(node.directory)
            case ScratchFile():
                if not node.is_removed:
                    return
                self.drop_if_unused(node.directory)
            case KeyDirectory():
                if node.files or node.scratch or node.hidden:
                    return
                self._directories.pop(node.name, None)
        self._nodes.pop(node.inode, None)

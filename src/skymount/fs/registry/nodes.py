"""Owns the nodes of ``/registry`` and ``/skydb``: which directories, entries, links and scratch
files the kernel knows by which numbers, and for how long.
"""

import errno
import math
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import trio

from skymount.errors import MalformedError
from skymount.fs.inode_space import InodeSpace, entry_inode
from skymount.fs.registry.file_names import Names
from skymount.fs.registry.write_buffer import Buffer, Data
from skymount.fs.subtree import refuse
from skymount.portal.registry.revision_marks import EntryId

SCRATCH_LIMIT = 256
"""Scratch files in one key's directory."""

SCRATCH_TOTAL = 4
"""So many times the bytes that one scratch file may have, they may have together."""

SCRATCH_MODE = stat.S_IFREG | 0o600


@dataclass(eq=False, slots=True)
class Node:
    """Something that the kernel knows by a number."""

    inode: int
    name: bytes
    references: int = 0
    """Lookups that the kernel has not forgotten, and open handles."""


@dataclass(eq=False, slots=True)
class KeyLink(Node):
    """A key of the keyring: a symbolic link to its public key's directory."""

    target: bytes = b""


@dataclass(eq=False, slots=True)
class Scratch(Node):
    """A file in memory, never posted under its own name."""

    directory: "KeyDirectory" = field(kw_only=True)
    data: bytearray = field(default_factory=bytearray)
    changed_ns: int = 0
    is_gone: bool = False
    """Whether it became an entry, or was removed: what is written now would be lost."""
    is_moving: bool = False
    """Whether its content is being posted, to become an entry: the same."""

    def write(self, offset: int, data: Data, limit: int) -> None:
        """Put bytes at an offset; OSError as of `resize`."""
        self.check_writable()
        if offset + len(data) > len(self.data):
            self.resize(offset + len(data), limit)
        self.data[offset : offset + len(data)] = data
        self.changed_ns = time.time_ns()

    def check_writable(self) -> None:
        """ESTALE when what is written now would be lost."""
        if self.is_gone or self.is_moving:
            refuse(errno.ESTALE)

    def resize(self, size: int, limit: int) -> None:
        """Cut or extend with zeros; EFBIG beyond the limit, ENOSPC when all are too large."""
        self.check_writable()
        if size > limit:
            refuse(errno.EFBIG)
        others = sum(len(each.data) for each in self.directory.scratch.values() if each is not self)
        if size > len(self.data) and others + size > SCRATCH_TOTAL * limit:
            refuse(errno.ENOSPC)
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.changed_ns = time.time_ns()


@dataclass(eq=False, slots=True)
class EntryFile(Node):
    """An entry."""

    directory: "KeyDirectory" = field(kw_only=True)
    ref: EntryId = field(kw_only=True)
    buffer: Buffer[Any] | None = None
    """There while it is open for writing."""
    is_new: bool = False
    """Whether it was made here and nothing of it is known to be stored."""
    _lock: trio.Lock | None = None

    @property
    def lock(self) -> trio.Lock:
        """Held while its content is posted. There are many entries, and few get any."""
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock


@dataclass(eq=False, slots=True)
class KeyDirectory(Node):
    """The directory of a public key."""

    public_key: bytes = b""
    files: dict[bytes, EntryFile] = field(default_factory=dict)
    """Entries that somebody refers to, or that are new."""
    scratch: dict[bytes, Scratch] = field(default_factory=dict)
    moved: set[bytes] = field(default_factory=set)
    """Names of entries that were renamed to scratch files: seen as gone, and kept."""
    spent_at: float = -math.inf
    """When a lookup in it last waited for a portal, by trio's clock."""
    left: float = 0.0
    """Seconds that lookups in it could still wait then."""


class Nodes:
    """The nodes of one subtree."""

    def __init__(self, space: InodeSpace, names: Names) -> None:
        self._space = space
        self._names = names
        self._nodes: dict[int, Node] = {}
        self._directories: dict[bytes, KeyDirectory] = {}
        self._scratch_number = 0

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def get(self, inode: int) -> Node:
        """Return a node; ESTALE when there is none of that number."""
        return self._nodes.get(inode) or refuse(errno.ESTALE)

    def directory(self, inode: int) -> KeyDirectory:
        """Return a key's directory; ENOTDIR when it is something else."""
        node = self.get(inode)
        return node if isinstance(node, KeyDirectory) else refuse(errno.ENOTDIR)

    @property
    def directory_names(self) -> set[bytes]:
        """The keys' directories that are in use."""
        return set(self._directories)

    def key_directory(self, name: bytes) -> KeyDirectory:
        """Return the directory of a public key of 64 hex digits."""
        found = self._directories.get(name)
        if found is None:
            inode = entry_inode(self._space, b"key", name)
            found = KeyDirectory(inode, name, public_key=bytes.fromhex(name.decode()))
            self._directories[name] = self._nodes[inode] = found
        return found

    def key_link(self, name: bytes, public_key: bytes) -> KeyLink:
        """Return the link of a name in the keyring."""
        inode = entry_inode(self._space, b"link", name, public_key)
        node = self._nodes.get(inode)
        if not isinstance(node, KeyLink):
            node = self._nodes[inode] = KeyLink(inode, name, target=public_key.hex().encode())
        return node

    def entry_file(self, directory: KeyDirectory, name: bytes) -> EntryFile | None:
        """Return the node of an entry's name; None when it stands for no data key."""
        found = directory.files.get(name)
        if found is None:
            try:
                key = self._names.parse(name)
            except MalformedError:
                return None
            ref = EntryId(directory.public_key, key.tweak, key.data_key)
            inode = entry_inode(self._space, b"entry", directory.public_key, name)
            found = EntryFile(inode, name, directory=directory, ref=ref)
            directory.files[name] = self._nodes[inode] = found
        return found

    def scratch(self, directory: KeyDirectory, name: bytes) -> Scratch:
        """Make a scratch file; ENOSPC when there are too many."""
        if len(directory.scratch) >= SCRATCH_LIMIT:
            refuse(errno.ENOSPC)
        self._scratch_number += 1
        inode = entry_inode(
            self._space, b"scratch", directory.public_key, b"%d" % self._scratch_number
        )
        made = Scratch(inode, name, directory=directory, changed_ns=time.time_ns())
        directory.scratch[name] = self._nodes[inode] = made
        return made

    def forget(self, inode: int, count: int) -> None:
        """Take back references to a node."""
        node = self._nodes.get(inode)
        if node is not None:
            node.references = max(0, node.references - count)
            self.drop_if_unused(node)

    def drop_if_unused(self, node: Node) -> None:
        """Drop a node that nobody refers to and that holds nothing."""
        if node.references:
            return
        match node:
            case EntryFile():
                if node.is_new or node.buffer is not None:
                    return
                if node.directory.files.get(node.name) is node:
                    del node.directory.files[node.name]
                self.drop_if_unused(node.directory)
            case Scratch():
                if not node.is_gone:
                    return
                self.drop_if_unused(node.directory)
            case KeyDirectory():
                if node.files or node.scratch or node.moved:
                    return
                self._directories.pop(node.name, None)
        self._nodes.pop(node.inode, None)

"""Owns which part of the tree answers a request, and the handles of what is open. Inode numbers,
names and bytes in; entries, bytes or an OSError out. Knows nothing of pyfuse3, nothing of URLs.

Promises: docs/semantics.md. What POSIX has a word for is raised as the OSError of that errno,
what a portal did wrong as the PortalError that it is. What can be answered from memory is a plain
function that returns an `Answer`.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast

from skymount.fs.skylinks.tree import NAME_LIMIT
from skymount.fs.static_tree import FIXED_LIMIT
from skymount.fs.subtree import (
    Answer,
    Changes,
    Child,
    Entry,
    OpenDirectory,
    OpenFile,
    Subtree,
    refuse,
    then,
)


class Opened(NamedTuple):
    """What the kernel is told of a file that was opened."""

    handle: int
    keep: bool
    """Whether it may keep the file's pages."""
    content: bytes | memoryview | None
    """All of it, to be given to the kernel before it asks; `OpenFile.offer` says when."""


class FileSystem:
    """The file system, seen from above.

    `directories` are the realms by the inode number of their directory in the root; every other
    inode number below `FIXED_LIMIT` is `fixed`'s, and `realm_of` knows the ones above.
    """

    def __init__(
        self,
        fixed: Subtree,
        directories: Mapping[int, Subtree],
        realm_of: Callable[[int], Subtree],
        usage: Callable[[], tuple[int, int]],
    ) -> None:
        self._fixed = fixed
        self._directories = directories
        self._realm_of = realm_of
        self.usage = usage
        """Returns (bytes, files) of what the mount knows."""
        self._handles: dict[int, OpenDirectory | OpenFile] = {}
        self._next_handle = 1

    def _realm(self, inode: int) -> Subtree:
        if inode >= FIXED_LIMIT:
            return self._realm_of(inode)
        return self._directories.get(inode, self._fixed)

    def is_writable(self, inode: int) -> bool:
        """Whether something can be written where this inode is."""
        return self._realm(inode).writable

    # Names and attributes

    def lookup(self, parent: int, name: bytes) -> Answer[Entry]:
        """Find a name in a directory, and count the kernel's reference to it."""
        if len(name) > NAME_LIMIT:
            refuse(errno.ENAMETOOLONG)
        return self._realm(parent).lookup(parent, name)

    def getattr(self, inode: int) -> Answer[Entry]:
        """Return the attributes of an inode."""
        return self._realm(inode).getattr(inode)

    async def setattr(self, inode: int, changes: Changes, handle: int | None) -> Entry:
        """Change attributes, through an open file where there is one."""
        opened = None if handle is None else cast(OpenFile, self._handles[handle])
        return await self._realm(inode).setattr(inode, changes, opened)

    def access(self, inode: int, mode: int) -> Answer[bool]:
        """Tell whether an inode may be used so (access(2))."""
        return self._realm(inode).access(inode, mode)

    def forget(self, inode: int, count: int) -> None:
        """Take note that the kernel dropped so many references."""
        self._realm(inode).forget(inode, count)

    async def readlink(self, inode: int) -> bytes:
        """Return where a symbolic link points."""
        return await self._realm(inode).readlink(inode)

    def xattrs(self, inode: int) -> Answer[Mapping[bytes, bytes]]:
        """Return the extended attributes of an inode."""
        return self._realm(inode).xattrs(inode)

    # Making and removing names

    async def create(self, parent: int, name: bytes, flags: int) -> tuple[Entry, int, bool]:
        """Make a file and open it; returns (entry, handle, whether pages may be kept)."""
        if len(name) > NAME_LIMIT:
            refuse(errno.ENAMETOOLONG)
        entry, opened = await self._realm(parent).create(parent, name, flags)
        return entry, self._new_handle(opened), opened.keep

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file."""
        await self._realm(parent).unlink(parent, name)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """Give a file another name; never across realms."""
        if len(new_name) > NAME_LIMIT:
            refuse(errno.ENAMETOOLONG)
        realm = self._realm(parent)
        if self._realm(new_parent) is not realm:
            refuse(errno.EXDEV)
        await realm.rename(parent, name, new_parent, new_name, flags)

    async def make(self, parent: int, name: bytes) -> None:
        """Make a directory, a link or a device: refused, each realm has its reason."""
        await self._realm(parent).make(parent, name)

    # Directories

    def opendir(self, inode: int) -> Answer[int]:
        """Open a directory; the listing is of this moment."""
        return then(self._realm(inode).opendir(inode), self._new_handle)

    def readdir(self, handle: int, position: int) -> Iterator[Child]:
        """Yield the listing from a position on; the caller counts references that it passes on."""
        return cast(OpenDirectory, self._handles[handle]).readdir(position)

    def referred(self, handle: int, start: int, stop: int, count: int) -> None:
        """Note that the kernel got references to so many names, those between two positions."""
        cast(OpenDirectory, self._handles[handle]).referred(start, stop, count)

    def releasedir(self, handle: int) -> None:
        """Close a directory."""
        cast(OpenDirectory, self._handles.pop(handle)).release()

    # Files

    def open(self, inode: int, flags: int) -> Answer[Opened]:
        """Open a file."""
        return then(self._realm(inode).open(inode, flags), self._new_file)

    def _new_file(self, opened: OpenFile) -> Opened:
        return Opened(self._new_handle(opened), opened.keep, opened.offer())

    def read(self, handle: int, offset: int, length: int) -> Answer[bytes | memoryview]:
        """Read; shorter than asked for only at the file's end."""
        return cast(OpenFile, self._handles[handle]).read(offset, length)

    def write(self, handle: int, offset: int, data: bytes) -> int:
        """Take bytes; return how many."""
        return cast(OpenFile, self._handles[handle]).write(offset, data)

    def flush(self, handle: int) -> Answer[None]:
        """Do what must be done before a close may succeed."""
        return cast(OpenFile, self._handles[handle]).flush()

    async def fsync(self, handle: int) -> None:
        """Do what must be done before the data counts as stored."""
        await cast(OpenFile, self._handles[handle]).fsync()

    def release(self, handle: int) -> Answer[None]:
        """Close a file."""
        return cast(OpenFile, self._handles.pop(handle)).release()

    def _new_handle(self, opened: OpenDirectory | OpenFile) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = opened
        return handle

"""Owns which part of the tree answers a request, and the handles of what is open. Inode numbers,
names and bytes in; entries, bytes or an OSError out. Knows nothing of pyfuse3, nothing of URLs.

Promises: docs/semantics.md. What POSIX has a word for is raised as the OSError of that errno,
what a portal did wrong as the PortalError that it is.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from skymount.fs.fixed import FIXED_LIMIT
from skymount.fs.realm import Changes, Child, Entry, OpenDirectory, OpenFile, Realm, refuse
from skymount.fs.tree import NAME_LIMIT


class Operations:
    """The file system, seen from above.

    `directories` are the realms by the inode number of their directory in the root; every other
    inode number below `FIXED_LIMIT` is `fixed`'s, and `realm_of` knows the ones above.
    """

    def __init__(
        self,
        fixed: Realm,
        directories: Mapping[int, Realm],
        realm_of: Callable[[int], Realm],
        usage: Callable[[], tuple[int, int]],
    ) -> None:
        self._fixed = fixed
        self._directories = directories
        self._realm_of = realm_of
        self.usage = usage
        """Returns (bytes, files) of what the mount knows."""
        self._handles: dict[int, OpenDirectory | OpenFile] = {}
        self._next_handle = 1

    def _realm(self, inode: int) -> Realm:
        if inode >= FIXED_LIMIT:
            return self._realm_of(inode)
        return self._directories.get(inode, self._fixed)

    def is_writable(self, inode: int) -> bool:
        """Whether something can be written where this inode is."""
        return self._realm(inode).writable

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name in a directory, and count the kernel's reference to it."""
        if len(name) > NAME_LIMIT:
            refuse(errno.ENAMETOOLONG)
        return await self._realm(parent).lookup(parent, name)

    async def getattr(self, inode: int) -> Entry:
        """Return the attributes of an inode."""
        return await self._realm(inode).getattr(inode)

    async def setattr(self, inode: int, changes: Changes, handle: int | None) -> Entry:
        """Change attributes, through an open file where there is one."""
        opened = None if handle is None else cast(OpenFile, self._handles[handle])
        return await self._realm(inode).setattr(inode, changes, opened)

    async def access(self, inode: int, mode: int) -> bool:
        """Tell whether an inode may be used so (access(2))."""
        return await self._realm(inode).access(inode, mode)

    def forget(self, inode: int, count: int) -> None:
        """Take note that the kernel dropped so many references."""
        self._realm(inode).forget(inode, count)

    async def readlink(self, inode: int) -> bytes:
        """Return where a symbolic link points."""
        return await self._realm(inode).readlink(inode)

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        """Return the extended attributes of an inode."""
        return await self._realm(inode).xattrs(inode)

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

    async def opendir(self, inode: int) -> int:
        """Open a directory; the listing is of this moment."""
        return self._new_handle(await self._realm(inode).opendir(inode))

    def readdir(self, handle: int, position: int) -> Iterator[Child]:
        """Yield the listing from a position on; the caller counts references that it passes on."""
        return cast(OpenDirectory, self._handles[handle]).readdir(position)

    def referred(self, handle: int, start: int, stop: int) -> None:
        """Count the references that a listing gave to the kernel, by their positions."""
        cast(OpenDirectory, self._handles[handle]).referred(start, stop)

    def releasedir(self, handle: int) -> None:
        """Close a directory."""
        cast(OpenDirectory, self._handles.pop(handle)).release()

    # Files

    async def open(self, inode: int, flags: int) -> tuple[int, bool]:
        """Open a file; returns (handle, whether the kernel may keep its pages)."""
        opened = await self._realm(inode).open(inode, flags)
        return self._new_handle(opened), opened.keep

    def read_now(self, handle: int, offset: int, length: int) -> bytes | memoryview | None:
        """Read what is in memory; None when `read` must wait for it."""
        return cast(OpenFile, self._handles[handle]).read_now(offset, length)

    async def read(self, handle: int, offset: int, length: int) -> bytes | memoryview:
        """Read what `read_now` did not have; shorter than asked for only at the file's end."""
        return await cast(OpenFile, self._handles[handle]).read(offset, length)

    def write(self, handle: int, offset: int, data: bytes) -> int:
        """Take bytes; return how many."""
        return cast(OpenFile, self._handles[handle]).write(offset, data)

    async def flush(self, handle: int) -> None:
        """Do what must be done before a close may succeed."""
        await cast(OpenFile, self._handles[handle]).flush()

    async def fsync(self, handle: int) -> None:
        """Do what must be done before the data counts as stored."""
        await cast(OpenFile, self._handles[handle]).fsync()

    async def release(self, handle: int) -> None:
        """Close a file."""
        await cast(OpenFile, self._handles.pop(handle)).release()

    def _new_handle(self, opened: OpenDirectory | OpenFile) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = opened
        return handle

"""What a subtree of the mount must be able to do, and the values in which it answers.

`FileSystem` finds the subtree of an inode number, `FuseAdapter` hands the request to it. What a
subtree does not implement is refused here, with the errno that fits a read-only tree.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, NoReturn, TypeAlias

Limit: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Ends an operation that takes too long, by TooSlowError (R2)."""

NAME_MAX = 255  # bytes of a file name
MTIME_NS = 1577836800 * 10**9  # 2020-01-01: a skylink has no time, and tools expect a sane one
IMMUTABLE_TIMEOUT = 365 * 86400.0  # seconds, the time-outs of what can never change

LIVE = "user.skymount."
"""Begins the names of attributes that say how a file is now. They are not listed: programs copy
what is listed, and of a copy it is not true.
"""

ATTRIBUTES = (
    *(
        LIVE + name
        for name in (
            *("skylink", "merkle_root", "portal", "verified", "stale", "content_type"),
            *("hidden", "hidden_names", "pid"),
            *("public_key", "data_key", "data_key_hash", "revision", "signature", "link"),
            *("points_to", "last_error"),
        )
    ),
    "user.mime_type",
    "user.xdg.origin.url",
)
"""The names of all attributes there are."""

COPIED = frozenset(name.encode() for name in ATTRIBUTES if not name.startswith(LIVE))
"""Those that are listed, and so copied."""

MUTABLE_TIMEOUT = 1.0
"""Seconds, the longest entry_timeout and attr_timeout of what may change.

The daemon never tells the kernel to drop a name: that call waits for the lock of the directory,
which a lookup holds until it is answered. A daemon killed meanwhile would never exit.
"""


class InodeAttributes(NamedTuple):
    """Attributes of an inode for the kernel: ``st_mode``, size in bytes, time-outs in seconds.

    An inode of 0 says that there is no such name, which the kernel may keep for `entry_timeout`.
    """

    inode: int
    mode: int = 0
    size: int = 0
    entry_timeout: float = IMMUTABLE_TIMEOUT
    attr_timeout: float = IMMUTABLE_TIMEOUT
    mtime_ns: int = MTIME_NS
    nlink: int = 1  # 0 of a file that is open, and has no name any more

    def allows(self, mode: int) -> bool:
        return not mode & os.X_OK or bool(self.mode & 0o111)


NO_ENTRY = InodeAttributes(0)  # there is no such name, and there never will be
UNCACHED_NO_ENTRY = InodeAttributes(0, entry_timeout=0.0)  # there is no such name at present

Validity: TypeAlias = tuple[float, float, int]  # (entry_timeout, attr_timeout, mtime_ns)
IMMUTABLE: Validity = (IMMUTABLE_TIMEOUT, IMMUTABLE_TIMEOUT, MTIME_NS)

DirectoryEntry: TypeAlias = tuple[bytes, int, int, int, int, Validity]
"""A name in a directory listing: (name, inode, mode, size, position, validity).

The position continues the listing behind it. A bare tuple, as a listing may have 100,000 of them.
"""


def directory_entry(name: bytes, found: InodeAttributes, position: int) -> DirectoryEntry:
    """Put a name into a listing."""
    return name, found.inode, found.mode, found.size, position, found[3:6]


def os_error(number: int) -> OSError:
    """Make the OSError of an errno."""
    return OSError(number, os.strerror(number))


class RefusalError(OSError):
    """A request that the rules of the tree do not allow; no failure."""


def refuse(number: int) -> NoReturn:
    """Refuse a request with an errno."""
    raise RefusalError(number, os.strerror(number))


class OpenDirectory:
    """A directory listing as it was when it was opened."""

    inode = 0  # of the directory
    parent = 0  # of the directory above

    def readdir(self, position: int) -> Iterator[DirectoryEntry]:
        raise NotImplementedError

    def referred(self, start: int, stop: int, count: int) -> None:
        """Count references that the kernel got to `count` names between two positions."""

    def release(self) -> None:
        """Close it."""


class OpenFile:
    """An open file. Writes are refused here."""

    keep_cache = False  # whether the kernel may keep its pages after it is closed

    has_own_deadline = False  # as in `Subtree`
    posts = False  # whether its close may post something
    inode = 0  # of the file

    def preload(self) -> bytes | memoryview | None:
        """Return the whole content if the kernel is to have it before it reads; asked once.

        None if anyone else has the file open: the kernel may be waiting for a page of it.
        """

    async def read(self, offset: int, length: int) -> bytes | memoryview:
        """Read; fewer bytes than asked for only at the file's end."""
        raise NotImplementedError

    def write(self, offset: int, data: bytes) -> int:
        refuse(errno.EBADF)

    async def flush(self) -> None:
        """Do what must be done before close(2) returns; called for each duplicate."""

    async def fsync(self) -> None:
        """Store the data."""

    async def release(self) -> None:
        """Close it. No program sees an error."""


class Subtree:
    """A part of the mounted tree.

    It raises OSError for what POSIX has an errno for, and a SkymountError for what else went wrong.
    """

    writable = False  # whether anything in it can be written; if so, by the mount's owner only
    refusal = errno.EROFS  # for a change, or for making a directory, link or device

    has_own_deadline = False
    """Whether it sets a deadline wherever it waits, so that the caller need not.

    With a deadline for every request, tar of small files takes a third longer.
    """

    def path(self, inode: int) -> bytes:
        """Return the path of a node below the mount point, for messages; b"" if it is unknown."""
        return b""

    def parent(self, inode: int) -> int:
        """Return the inode number of the directory above an open one."""
        raise NotImplementedError

    def child(self, parent: int, name: bytes) -> int:
        """Return the inode number of a name in a directory, 0 if it is not known without asking."""
        return 0

    def usage(self) -> tuple[int, int]:
        """Return the bytes and files that are known of it."""
        return 0, 0

    async def lookup(self, parent: int, name: bytes) -> InodeAttributes:
        """Find a name in a directory, and count the kernel's reference to it."""
        raise NotImplementedError

    async def getattr(self, inode: int) -> InodeAttributes:
        raise NotImplementedError

    def forget(self, inode: int, count: int) -> None:
        """Take back `count` references of the kernel."""

    async def opendir(self, inode: int) -> OpenDirectory:
        raise NotImplementedError

    async def open(self, inode: int, flags: int) -> OpenFile:
        raise NotImplementedError

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        return {}  # by their full names

    async def listed_xattrs(self, inode: int) -> Sequence[bytes]:
        """Return the names of those that a copy may keep: none that say how a file is now."""
        return ()

    async def readlink(self, inode: int) -> bytes:
        refuse(errno.EINVAL)

    async def access(self, inode: int, mode: int) -> bool:
        if mode & os.W_OK:
            refuse(errno.EROFS)
        return (await self.getattr(inode)).allows(mode)

    async def setattr(
        self, inode: int, size: int | None, opened: OpenFile | None
    ) -> InodeAttributes:
        """Truncate or extend; a `size` of None asks for another owner, mode or time."""
        refuse(self.refusal)

    async def create(
        self, parent: int, name: bytes, flags: int
    ) -> tuple[InodeAttributes, OpenFile]:
        refuse(self.refusal)

    async def unlink(self, parent: int, name: bytes) -> None:
        refuse(self.refusal)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        refuse(self.refusal)

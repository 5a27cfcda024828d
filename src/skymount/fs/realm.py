"""Owns what a part of the mounted tree must be able to do, and the values in which it answers.

`Operations` hands each request to the realm that an inode number belongs to. What a realm does not
do is refused here, with the errno that fits a read-only tree.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

FOREVER = 365 * 86400.0
"""Seconds for which the kernel keeps what can never change."""

MTIME_NS = 1577836800 * 10**9
"""Nanoseconds since the epoch, 2020-01-01: skylinks carry no time, and tools want a sane one."""


asker: ContextVar[int] = ContextVar("asker", default=0)
"""The thread whose request is handled, by its id; 0 when that is not known."""


class Entry(NamedTuple):
    """What the kernel is told of a name: ``st_mode``, size in bytes, times in seconds.

    An inode of 0 says that there is no such name, and for how long that holds.
    """

    inode: int
    mode: int = 0
    size: int = 0
    entry_ttl: float = FOREVER
    attr_ttl: float = FOREVER
    mtime_ns: int = MTIME_NS


class Child(NamedTuple):
    """A name in a directory listing; `position` continues the listing behind it."""

    name: bytes
    inode: int
    mode: int
    size: int
    position: int
    entry_ttl: float = FOREVER
    attr_ttl: float = FOREVER
    mtime_ns: int = MTIME_NS

    @classmethod
    def of(cls, name: bytes, entry: Entry, position: int) -> "Child":
        """Put an entry into a listing."""
        return cls(name, *entry[:3], position, *entry[3:])


@dataclass(frozen=True, slots=True)
class Changes:
    """What a program wants to change of an inode's attributes.

    Owner, permissions and times mean nothing here: it is only told that there was such a wish.
    """

    size: int | None = None
    """Bytes to truncate or extend to."""


def os_error(number: int) -> OSError:
    """Make the OSError of an errno."""
    return OSError(number, os.strerror(number))


def refuse(number: int) -> NoReturn:
    """Raise the OSError of an errno."""
    raise os_error(number)


class OpenDirectory:
    """A directory listing as it was when it was opened."""

    def readdir(self, position: int) -> Iterator[Child]:
        """Yield the listing from a position on."""
        raise NotImplementedError

    def referred(self, start: int, stop: int) -> None:
        """Count the references that the listing gave to the kernel, by their positions."""

    def release(self) -> None:
        """Close it."""


class OpenFile:
    """An open file. What is written to it goes where the realm says; here it is refused."""

    keep = False
    """Whether the kernel may keep its pages beyond this open."""

    def read_now(self, offset: int, length: int) -> bytes | memoryview | None:
        """Read what is in memory; None when `read` must wait for it."""
        raise NotImplementedError

    async def read(self, offset: int, length: int) -> bytes | memoryview:
        """Read what `read_now` did not have; shorter than asked for only at the file's end."""
        raise NotImplementedError

    def write(self, offset: int, data: bytes) -> int:
        """Take bytes; return how many."""
        refuse(errno.EBADF)

    async def flush(self) -> None:
        """Do what must be done before a close may succeed; called at each close of a duplicate."""

    async def fsync(self) -> None:
        """Do what must be done before the data counts as stored."""

    async def release(self) -> None:
        """Close it. What goes wrong reaches nobody."""


class Realm:
    """A part of the tree. Inode numbers and names in; entries, open files or an OSError out."""

    writable = False
    """Whether anything in it can be written, which only the owner of the mount may do then."""

    refusal = errno.EROFS
    """Why nothing can be made or removed here."""

    async def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name in a directory, and count the kernel's reference to it."""
        raise NotImplementedError

    async def getattr(self, inode: int) -> Entry:
        """Return the attributes of an inode."""
        raise NotImplementedError

    def forget(self, inode: int, count: int) -> None:
        """Take note that the kernel dropped so many references."""

    async def opendir(self, inode: int) -> OpenDirectory:
        """Open a directory; the listing is of this moment."""
        raise NotImplementedError

    async def open(self, inode: int, flags: int) -> OpenFile:
        """Open a file."""
        raise NotImplementedError

    async def xattrs(self, inode: int) -> Mapping[bytes, bytes]:
        """Return the extended attributes of an inode by their full names."""
        return {}

    async def readlink(self, inode: int) -> bytes:
        """Return where a symbolic link points."""
        refuse(errno.EINVAL)

    async def access(self, inode: int, mode: int) -> bool:
        """Tell whether an inode may be used so (access(2))."""
        if mode & os.W_OK:
            refuse(errno.EROFS)
        return not mode & os.X_OK or bool((await self.getattr(inode)).mode & 0o111)

    async def setattr(self, inode: int, changes: Changes, opened: OpenFile | None) -> Entry:
        """Change attributes, through an open file where there is one."""
        refuse(self.refusal)

    async def create(self, parent: int, name: bytes, flags: int) -> tuple[Entry, OpenFile]:
        """Make a file and open it."""
        refuse(self.refusal)

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file."""
        refuse(self.refusal)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """Give a file another name in this realm."""
        refuse(self.refusal)

    async def make(self, parent: int, name: bytes) -> None:
        """Make anything else: a directory, a link, a device. Never possible."""
        refuse(self.refusal)

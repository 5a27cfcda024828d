"""Owns what a part of the mounted tree must be able to do, and the values in which it answers.

`Operations` hands each request to the realm that an inode number belongs to. What a realm does not
do is refused here, with the errno that fits a read-only tree.
"""

import errno
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeGuard, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Answer: TypeAlias = T | Coroutine[Any, Any, T]
"""The answer itself where it is in memory, else a coroutine that waits for it.

Waiting needs a deadline, which costs as much as all else that is done for a small request: so it is
for those that wait. A method that always may have to is simply async.
"""

FOREVER = 365 * 86400.0
"""Seconds for which the kernel keeps what can never change."""

MOMENT = 1.0
"""Seconds for which the kernel keeps what may change, at most, however long the daemon holds it.

So what the daemon learns earlier is soon seen. It does not tell the kernel to drop a name: that
waits for the lock of the directory, which a lookup holds until it is answered, and nothing ends
that wait. A daemon that was killed just then would never be gone, nor whoever looks something up.
"""

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

    def allows(self, mode: int) -> bool:
        """Whether it may be read or executed (access(2)); the same for every user."""
        return not mode & os.X_OK or bool(self.mode & 0o111)


class Terms(NamedTuple):
    """How long what is said of a name holds, in seconds, and its time."""

    entry_ttl: float = FOREVER
    attr_ttl: float = FOREVER
    mtime_ns: int = MTIME_NS


UNCHANGING = Terms()
"""Of what can never change."""

Child: TypeAlias = tuple[bytes, int, int, int, int, Terms]
"""A name in a directory listing: (name, inode, mode, size, position, terms). The position continues
the listing behind it. A bare tuple: a listing of 100,000 names is made of as many.
"""


def child_of(name: bytes, entry: Entry, position: int) -> Child:
    """Put an entry into a listing."""
    terms = Terms(entry.entry_ttl, entry.attr_ttl, entry.mtime_ns)
    return name, entry.inode, entry.mode, entry.size, position, terms


@dataclass(frozen=True, slots=True)
class Changes:
    """What a program wants to change of an inode's attributes.

    Owner, permissions and times mean nothing here: it is only told that there was such a wish.
    """

    size: int | None = None
    """Bytes to truncate or extend to."""


def is_later(answer: Answer[T]) -> TypeGuard[Coroutine[Any, Any, T]]:
    """Whether an answer is still to be waited for."""
    return isinstance(answer, CoroutineType)


def then(answer: Answer[T], work: Callable[[T], R]) -> Answer[R]:
    """Do some work on an answer: now if it is there, else once it is."""
    return _after(answer, work) if is_later(answer) else work(answer)  # type: ignore[arg-type]


async def settled(answer: Answer[T]) -> T:
    """Return an answer, waiting for it if need be."""
    return await answer if is_later(answer) else answer  # type: ignore[return-value]


async def _after(answer: Coroutine[Any, Any, T], work: Callable[[T], R]) -> R:
    return work(await answer)


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

    def referred(self, start: int, stop: int, count: int) -> None:
        """Note that the kernel got references to so many names, those between two positions."""

    def release(self) -> None:
        """Close it."""


class OpenFile:
    """An open file. What is written to it goes where the realm says; here it is refused."""

    keep = False
    """Whether the kernel may keep its pages beyond this open."""

    def offer(self) -> bytes | memoryview | None:
        """Return all of it, if the kernel is to have it before it asks; called once, at the open.

        Only where nobody else has the file open: giving the kernel a page that it waits for would
        wait for the answer to that.
        """

    def read(self, offset: int, length: int) -> Answer[bytes | memoryview]:
        """Read; shorter than asked for only at the file's end."""
        raise NotImplementedError

    def write(self, offset: int, data: bytes) -> int:
        """Take bytes; return how many."""
        refuse(errno.EBADF)

    def flush(self) -> Answer[None]:
        """Do what must be done before a close may succeed; called at each close of a duplicate."""

    async def fsync(self) -> None:
        """Do what must be done before the data counts as stored."""

    def release(self) -> Answer[None]:
        """Close it. What goes wrong reaches nobody."""


class Subtree:
    """A part of the tree. Inode numbers and names in; entries, open files or an OSError out."""

    writable = False
    """Whether anything in it can be written, which only the owner of the mount may do then."""

    refusal = errno.EROFS
    """Why nothing can be made or removed here."""

    def lookup(self, parent: int, name: bytes) -> Answer[Entry]:
        """Find a name in a directory, and count the kernel's reference to it."""
        raise NotImplementedError

    def getattr(self, inode: int) -> Answer[Entry]:
        """Return the attributes of an inode."""
        raise NotImplementedError

    def forget(self, inode: int, count: int) -> None:
        """Take note that the kernel dropped so many references."""

    def opendir(self, inode: int) -> Answer[OpenDirectory]:
        """Open a directory; the listing is of this moment."""
        raise NotImplementedError

    def open(self, inode: int, flags: int) -> Answer[OpenFile]:
        """Open a file."""
        raise NotImplementedError

    def xattrs(self, inode: int) -> Answer[Mapping[bytes, bytes]]:
        """Return the extended attributes of an inode by their full names."""
        return {}

    async def readlink(self, inode: int) -> bytes:
        """Return where a symbolic link points."""
        refuse(errno.EINVAL)

    def access(self, inode: int, mode: int) -> Answer[bool]:
        """Tell whether an inode may be used so (access(2))."""
        if mode & os.W_OK:
            refuse(errno.EROFS)
        return then(self.getattr(inode), lambda entry: entry.allows(mode))

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

"""Owns what is being written to one registry entry before it is posted: the bytes, what they are
based on, and whether there is anything to post. Pure.
"""

import errno
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from skymount.fs.realm import refuse

B = TypeVar("B")


class Due(Enum):
    """What closing a file has to do."""

    NOTHING = auto()
    AT_RELEASE = auto()
    """It was only emptied: a shell flushes a duplicate before it writes."""
    NOW = auto()


@dataclass(slots=True)
class Buffer(Generic[B]):
    """The content of a file that is open for writing, shared by every handle on it."""

    limit: int
    """Bytes that it may hold."""
    data: bytearray
    base: B | None
    """What it was made from; None when it replaces whatever there is."""
    stored: bytes | None
    """The content that is stored as far as is known, None when there is none or it is unknown."""
    written: bool = False
    """Whether bytes were written since it was last posted."""
    emptied: bool = False
    """Whether it was emptied since then."""
    overflowed: bool = False
    """Whether more was written than it holds: then nothing is posted, until it is emptied."""
    error: Exception | None = None
    """Why its last posting failed. It is reported again until something new is written."""

    def write(self, offset: int, data: bytes) -> int:
        """Put bytes at an offset; EFBIG when it would hold more than its limit."""
        stop = offset + len(data)
        if stop > self.limit or self.overflowed:
            self.overflowed = True
            refuse(errno.EFBIG)
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset:stop] = data
        self.written, self.error = True, None
        return len(data)

    def resize(self, size: int) -> None:
        """Cut or extend with zeros; EFBIG as of `write`."""
        if size > self.limit:
            refuse(errno.EFBIG)
        if size == 0:
            self.base, self.written, self.emptied, self.overflowed = None, False, True, False
        elif size != len(self.data):
            self.written = True
        self.error = None
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))

    @property
    def due(self) -> Due:
        """What has to be posted, and when."""
        if self.overflowed:
            return Due.NOTHING
        if self.written:
            return Due.NOTHING if self.stored == bytes(self.data) else Due.NOW
        if self.emptied:
            return Due.NOTHING if self.stored == b"" else Due.AT_RELEASE
        return Due.NOTHING

    def posted(self, base: B) -> None:
        """Take note that the present content is stored, as this."""
        self.base, self.stored = base, bytes(self.data)
        self.written = self.emptied = False

    def failed(self, error: Exception) -> None:
        """Take note that the present content could not be posted; it is kept elsewhere."""
        self.error = error
        self.written = self.emptied = False

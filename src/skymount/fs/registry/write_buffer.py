"""Owns what is being written to one registry entry before it is posted: the bytes, what they are
based on, and whether there is anything to post. Pure.
"""

import errno
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from skymount.content.worker.shared_memory import LongText
from skymount.fs.subtree import refuse

Data = bytes | bytearray | LongText

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
    data: Data
    """Somebody else's as well while it `is_lent`: to copy a large document would hold all up."""
    base: B | None
    """What it was made from; None when it replaces whatever there is."""
    stored: Data | None
    """The content that was stored when it was last asked for, None when there was none."""
    written: bool = False
    """Whether bytes were written since it was last posted."""
    emptied: bool = False
    """Whether it was emptied since then."""
    overflowed: bool = False
    """Whether more was written than it holds: then nothing is posted, until it is emptied."""
    error: Exception | None = None
    """Why its last posting failed. It is reported again until something new is written."""
    unposted: Data | None = None
    """The content whose posting failed, which may be posted by itself later."""
    is_cut_off: bool = False
    """Whether its file was removed or renamed: it stands for nothing any more."""
    writers: int = 0
    """Handles that share it."""
    is_lent: bool = False
    """Whether somebody else has the content, so that a write goes into a copy."""
    changed_ns: int = 0
    """When its content changed, in nanoseconds since 1970."""

    def write(self, offset: int, data: bytes) -> int:
        """Put bytes at an offset; EFBIG when it would hold more than its limit."""
        if self.is_cut_off:
            refuse(errno.ESTALE)
        stop = offset + len(data)
        if stop > self.limit or self.overflowed:
            self.overflowed = True
            refuse(errno.EFBIG)
        own = self._own()
        if offset > len(own):
            own.extend(bytes(offset - len(own)))
        own[offset:stop] = data
        self.written, self.error = True, None
        return len(data)

    def resize(self, size: int) -> None:
        """Cut or extend with zeros; EFBIG as of `write`."""
        if self.is_cut_off:
            refuse(errno.ESTALE)
        if size > self.limit:
            refuse(errno.EFBIG)
        if size == 0:
            self.base, self.written, self.emptied, self.overflowed = None, False, True, False
        elif size != len(self.data):
            self.written = True
        self.error = None
        if size == 0:
            self.data = b""
        elif size != len(self.data):
            own = self._own()
            del own[size:]
            own.extend(bytes(size - len(own)))

    def _own(self) -> bytearray:
        """Return the content, which is nobody else's from now on."""
        if self.is_lent or not isinstance(self.data, bytearray):
            self.data, self.is_lent = bytearray(self.data), False
        return self.data

    def lend(self) -> Data:
        """Return the content, which does not change any more, whatever is written from now on."""
        self.is_lent = True
        return self.data

    @property
    def due(self) -> Due:
        """What has to be posted, and when.

        So is content that is stored already: that is what was stored some time ago, and something
        else may wait to be posted.
        """
        if self.overflowed or self.is_cut_off:
            return Due.NOTHING
        if self.written:
            return Due.NOW
        return Due.AT_RELEASE if self.emptied else Due.NOTHING

    def take(self) -> Data:
        """Return the content, to be posted; what is written from now on is due anew."""
        self.written = self.emptied = False
        return self.lend()

    def replaced(self, base: B, data: Data) -> None:
        """Take note that other content is stored now, which is the content from now on."""
        self.data, self.is_lent = data, True
        self.written = self.emptied = False
        self.posted(base, data)

    def posted(self, base: B, data: Data) -> None:
        """Take note that this content is stored, as `base`."""
        self.base, self.stored, self.unposted = base, data, None

    def failed(self, error: Exception, data: Data) -> None:
        """Take note that what was taken could not be posted, unless more was written since."""
        self.unposted = data
        if not (self.written or self.emptied):
            self.error = error

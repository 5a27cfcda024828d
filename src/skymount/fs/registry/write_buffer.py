"""What is written to an entry until it is posted, and whether there is anything to post. No IO."""

import errno
from dataclasses import dataclass
from typing import Generic, TypeVar

from skymount.fs.subtree import refuse

FileData = bytes | bytearray

B = TypeVar("B")


@dataclass(slots=True)
class WriteBuffer(Generic[B]):
    """The content of a file that is open for writing, shared by every handle on it."""

    limit: int  # bytes of the content at most
    data: FileData  # shared while it `is_lent` (copy-on-write): copying a large document takes long
    base: B | None  # the state it was made from; None when it replaces whatever there is
    stored: FileData | None  # what was stored when it was last asked for
    written: bool = False  # whether bytes were written since it was last posted
    emptied: bool = False  # whether it was emptied since then
    overflowed: bool = False  # more than `limit` was written: nothing is posted until it is emptied
    error: Exception | None = None  # why posting failed; each close raises it until the next write
    unposted: FileData | None = None  # what could not be posted, and may be sent later
    is_cut_off: bool = False  # whether its file lost its name: writes are ESTALE
    writers: int = 0  # handles that share it
    is_lent: bool = False  # whether `data` is shared, so that the next write copies it
    changed_ns: int = 0  # when its content changed, in nanoseconds since 1970

    def write(self, offset: int, data: bytes) -> int:
        """Put bytes at an offset; EFBIG beyond the limit, ESTALE when it is cut off."""
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
        if self.is_cut_off:
            refuse(errno.ESTALE)
        if size > self.limit:
            refuse(errno.EFBIG)
        self.error = None
        if size == 0:
            self.data, self.base = b"", None
            self.written, self.emptied, self.overflowed = False, True, False
        elif size != len(self.data):
            self.written = True
            own = self._own()
            del own[size:]
            own.extend(bytes(size - len(own)))

    def _own(self) -> bytearray:
        if self.is_lent or not isinstance(self.data, bytearray):
            self.data, self.is_lent = bytearray(self.data), False
        return self.data

    def lend(self) -> FileData:
        """Return the content, which later writes do not change."""
        self.is_lent = True
        return self.data

    def is_due(self, *, at_release: bool = False) -> bool:
        """Whether it has to be posted now; what was only emptied at its last close.

        A shell flushes a duplicate of an emptied file before it writes.
        """
        is_changed = self.written or (self.emptied and at_release)
        return is_changed and not (self.overflowed or self.is_cut_off)

    def take(self) -> FileData:
        """Return the content to post; later writes are due anew."""
        self.written = self.emptied = False
        return self.lend()

    def posted(self, base: B, data: FileData) -> None:
        """Note the state after a post. What was emptied meanwhile still replaces whatever there
        is.
        """
        self.stored, self.unposted = data, None
        if not self.emptied:
            self.base = base

    def failed(self, error: Exception, data: FileData) -> None:
        """Note that posting failed; `error` counts unless more was written since."""
        self.unposted = data
        if not (self.written or self.emptied):
            self.error = error

"""The operations that failed: the log's lines, ``status.json``, and the last error of each path."""

import errno
import logging
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import trio
from cachetools import LRUCache

from skymount.errors import PortalError
from skymount.wording import counted

log = logging.getLogger(__name__)

_SHOWN = 50  # operations in status.json
_REMEMBERED = 500  # paths with a last error
_LINES = 50  # in the log, in a minute
_TRACEBACKS = 10  # beyond these
_PATH_LIMIT = 1000  # characters
_REASON_LIMIT = 500

_READING = frozenset(
    {
        *("access", "getattr", "getxattr", "listxattr", "lookup"),
        *("open", "opendir", "read", "readdir", "readlink"),
    }
)
_DELIVERING = frozenset({"opendir", "read", "readlink"})  # after which reading works again
_POSTING = frozenset({"flush", "fsync", "rename", "unlink"})  # the same of writing


@dataclass(frozen=True, slots=True)
class Failure:
    """An operation that failed. `path` and `reason` are of printable characters."""

    operation: str
    path: str
    reason: str
    portal: str
    """The address of the portal that is to blame; empty if none is."""
    number: int
    """The errno."""
    seconds: float
    time: float = field(default_factory=time.time)

    @property
    def text(self) -> str:
        return f"{self.operation} failed after {self.seconds:.1f} s: {self.reason}"

    @property
    def when(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.time))

    @property
    def errno_name(self) -> str:
        return errno.errorcode.get(self.number, str(self.number))

    def to_json(self) -> dict[str, str | float]:
        return {
            "time": self.when,
            "operation": self.operation,
            "path": self.path,
            "errno": self.errno_name,
            "reason": self.reason,
            "portal": self.portal,
            "seconds": round(self.seconds, 3),
        }


class FailureLog:
    """Takes each failed operation of a mount."""

    def __init__(self, interval: float = 60.0) -> None:
        """`interval` is the seconds of a minute."""
        self._interval = interval
        self._recent: deque[Failure] = deque(maxlen=_SHOWN)
        self.counts = Counter[str]()
        """Failures by the names of their errno."""
        self._errors: LRUCache[int, Failure] = LRUCache(_REMEMBERED)  # by inode number
        self._lines = self._unlogged = 0
        """Failures of this minute with and without a line in the log."""

    def __bool__(self) -> bool:
        """Whether any path has a last error."""
        return bool(self._errors)

    def add(self, failure: Failure, inode: int, bug: Exception | None = None) -> None:
        """Take a failure; `inode` is 0 if it has none. A `bug` is logged with its traceback."""
        self._recent.append(failure)
        self.counts[failure.errno_name] += 1
        if inode:
            self._errors[inode] = failure
        if self._lines >= (_LINES if bug is None else _LINES + _TRACEBACKS):
            self._unlogged += 1
            return
        self._lines += 1
        if bug is None:
            log.warning("%s: %s", failure.path, failure.text)
        else:
            log.error("%s: %s", failure.path, failure.text, exc_info=bug)

    def succeeded(self, operation: str, inode: int) -> None:
        """Forget the last error of a path if this operation shows that it is over."""
        found = self._errors.get(inode)
        if found is None:
            return
        is_reading = found.operation in _READING
        proofs = _DELIVERING if is_reading else _POSTING
        if operation == found.operation or operation in proofs:
            del self._errors[inode]

    def last_error(self, inode: int) -> bytes | None:
        failure = self._errors.get(inode)
        if failure is None:
            return None
        place = f"{failure.path}: " if failure.operation == "lookup" else ""
        return f"{failure.when}: {place}{failure.text}".encode()

    def recent(self) -> list[dict[str, str | float]]:
        """Return the last failures, the oldest first."""
        return [failure.to_json() for failure in self._recent]

    async def run(self) -> None:
        """Say at the end of each minute how many operations it had no lines for."""
        try:
            while True:
                await trio.sleep(self._interval)
                self._end_minute()
        finally:
            self._end_minute()

    def _end_minute(self) -> None:
        if self._unlogged:
            more = counted(self._unlogged, "more operation")
            log.warning("and %s failed in %g s", more, self._interval)
        self._lines = self._unlogged = 0


def printable(text: str, limit: int) -> str:
    """Escape what is not printable, so that a name or a portal cannot forge a line of the log."""
    if len(text) > limit:
        text = f"{text[:limit]}..."
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def describe(
    operation: str, path: bytes, reason: str, error: Exception, number: int, seconds: float
) -> Failure:
    """Make the record of a failure."""
    return Failure(
        operation,
        printable(path.decode("utf-8", "surrogateescape"), _PATH_LIMIT),
        printable(reason, _REASON_LIMIT),
        _origin(error),
        number,
        seconds,
    )


def _origin(error: Exception) -> str:
    if not isinstance(error, PortalError) or not error.url:
        return ""
    scheme, address, *_ = urlsplit(error.url)
    return f"{scheme}://{address.rpartition('@')[2]}"

"""The operations that failed: the log's lines, ``status.json``, and the last error of each path."""

import errno
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import trio
from cachetools import LRUCache

from skymount.errors import PortalError

log = logging.getLogger(__name__)

_SHOWN = 50  # operations in status.json
_REMEMBERED = 500  # paths with a last error
_WINDOWS = 250  # different failures whose repetitions are counted at a time
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

    def to_json(self) -> dict[str, str | float]:
        return {
            "time": self.when,
            "operation": self.operation,
            "path": self.path,
            "errno": errno.errorcode.get(self.number, str(self.number)),
            "reason": self.reason,
            "portal": self.portal,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class _Window:
    """A time in which the same failure is not logged again."""

    failure: Failure
    ends: float
    repetitions: int = 0


class FailureLog:
    """Takes each failed operation of a mount."""

    def __init__(self, interval: float = 60.0) -> None:
        """`interval` is the seconds in which the same failure is logged once."""
        self._interval = interval
        self._recent: deque[Failure] = deque(maxlen=_SHOWN)
        self._errors: LRUCache[int, Failure] = LRUCache(_REMEMBERED)  # by inode number
        self._windows: dict[tuple[str, str, str], _Window] = {}  # the oldest first
        self._opened = trio.Event()

    def __bool__(self) -> bool:
        """Whether any path has a last error."""
        return bool(self._errors)

    def add(self, failure: Failure, inode: int, bug: Exception | None = None) -> None:
        """Take a failure; `inode` is 0 if its path has none. A `bug` is logged with its traceback.

        Call it in trio.
        """
        self._recent.append(failure)
        if inode:
            self._errors[inode] = failure
        now = trio.current_time()
        key = failure.operation, failure.path, failure.reason
        window = self._windows.get(key)
        if window is not None and now < window.ends:
            window.repetitions += 1
            return
        if window is not None or len(self._windows) >= _WINDOWS:
            self._close(key if window is not None else next(iter(self._windows)))
        self._windows[key] = _Window(failure, now + self._interval)
        self._opened.set()
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
        return None if failure is None else f"{failure.when}: {failure.text}".encode()

    def recent(self) -> list[dict[str, str | float]]:
        """Return the last failures, the oldest first."""
        return [failure.to_json() for failure in self._recent]

    async def run(self) -> None:
        """Say how often failures were repeated, each time that an interval is over."""
        try:
            while True:
                if not self._windows:
                    self._opened = trio.Event()
                    await self._opened.wait()
                key, window = next(iter(self._windows.items()))
                await trio.sleep_until(window.ends)
                if self._windows.get(key) is window:
                    self._close(key)
        finally:
            for key in list(self._windows):
                self._close(key)

    def _close(self, key: tuple[str, str, str]) -> None:
        window = self._windows.pop(key)
        if window.repetitions:
            failure = window.failure
            log.warning(
                "%s: %s failed, and %d more times in %g s: %s",
                failure.path,
                failure.operation,
                window.repetitions,
                self._interval,
                failure.reason,
            )


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

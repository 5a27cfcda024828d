"""The operations that failed: the log's lines, ``status.json``, and the last error of each path."""

import errno
import logging
import re
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
# What differs each time in a reason.
_AMOUNT = re.compile(r"(?<![\d.])[\d.]+ (?:s|bytes|B|[KMGT]iB)\b")

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


@dataclass(slots=True)
class _Logged:
    """A failure that has its line, and how often it came again."""

    failure: Failure
    repetitions: int = 0


@dataclass(slots=True)
class _Minute:
    """A time in which each failure is logged once, and not too many of them."""

    ends: float
    logged: dict[tuple[str, str, str], _Logged] = field(default_factory=dict)
    unlogged: int = 0  # failures without a line of their own


class FailureLog:
    """Takes each failed operation of a mount."""

    def __init__(self, interval: float = 60.0) -> None:
        """`interval` is the seconds of a minute."""
        self._interval = interval
        self._recent: deque[Failure] = deque(maxlen=_SHOWN)
        self.counts = Counter[str]()
        """Failures by the names of their errno."""
        self._errors: LRUCache[int, Failure] = LRUCache(_REMEMBERED)  # by inode number
        self._minute: _Minute | None = None
        self._begun = trio.Event()

    def __bool__(self) -> bool:
        """Whether any path has a last error."""
        return bool(self._errors)

    def add(self, failure: Failure, inode: int, bug: Exception | None = None) -> None:
        """Take a failure; `inode` is 0 if it has none. A `bug` is logged with its traceback.

        Call it in trio.
        """
        self._recent.append(failure)
        self.counts[failure.errno_name] += 1
        if inode:
            self._errors[inode] = failure
        if self._is_to_log(failure, _LINES if bug is None else _LINES + _TRACEBACKS):
            if bug is None:
                log.warning("%s: %s", failure.path, failure.text)
            else:
                log.error("%s: %s", failure.path, failure.text, exc_info=bug)

    def _is_to_log(self, failure: Failure, limit: int) -> bool:
        """Count a failure; return whether it is another one, and within the limit of lines."""
        now = trio.current_time()
        if self._minute is None or now >= self._minute.ends:
            self._end_minute()
            self._minute = _Minute(now + self._interval)
            self._begun.set()
        logged = self._minute.logged
        key = failure.operation, failure.path, _AMOUNT.sub("", failure.reason)
        if key in logged:
            logged[key].repetitions += 1
        elif len(logged) < limit:
            logged[key] = _Logged(failure)
            return True
        else:
            self._minute.unlogged += 1
        return False

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
        """Say at the end of each minute what it had no lines for."""
        try:
            while True:
                while (minute := self._minute) is None:
                    self._begun = trio.Event()
                    await self._begun.wait()
                await trio.sleep_until(minute.ends)
                if self._minute is minute:
                    self._end_minute()
        finally:
            self._end_minute()

    def _end_minute(self) -> None:
        minute, self._minute = self._minute, None
        if minute is None:
            return
        lines, more = len(minute.logged), minute.unlogged
        for each in minute.logged.values():
            if each.repetitions and lines >= _LINES:
                more += each.repetitions
            elif each.repetitions:
                lines += 1
                self._log_repetitions(each.failure, each.repetitions)
        if more:
            log.warning("and %s failed in %g s", counted(more, "more operation"), self._interval)

    def _log_repetitions(self, failure: Failure, count: int) -> None:
        log.warning(
            "%s: %s failed, and %s in %g s: %s",
            failure.path,
            failure.operation,
            counted(count, "more time"),
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

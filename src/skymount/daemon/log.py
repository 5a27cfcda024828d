"""Where the log goes, and its lines: one for each event, but for tracebacks."""

import logging
import os
import re
import stat
import sys
from contextlib import suppress
from typing import TextIO

from skymount.fs.failures import printable

MAX_SIZE = 1 << 20  # bytes after which a new log is begun; the one before is kept beside it

_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_LINE = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ", re.MULTILINE)
_LINE_SEARCH = 4096  # bytes at the start of a file that may be a log of ours
_PACKAGE = "skymount"
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))


class LineFormatter(logging.Formatter):
    """Puts each message on one line."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the library's name
        record.message = printable(record.message, MAX_SIZE)
        return super().formatMessage(record)


class JournalFormatter(LineFormatter):
    """Gives each line its priority, by which `journalctl -p` selects (sd-daemon(3)). The journal
    knows the time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._style = logging.PercentStyle("%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        number = next(number for level, number in _PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{number}>{line}" for line in text.split("\n"))


class _LogFile(logging.StreamHandler[TextIO]):
    """A file that standard error leads to as well: what is printed there is in the log."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open()
        # It stays open.
        stream = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
        super().__init__(stream)

    def emit(self, record: logging.LogRecord) -> None:
        self.reopen()
        if self._is_open() and _is_full():
            self._roll_over()
        super().emit(record)

    def reopen(self) -> None:
        """Open the file at the path if it is another one than before, as logrotate leaves it.

        As long as that cannot be done the log goes on in the one before.
        """
        self.acquire()
        try:
            if not self._is_open():
                with suppress(OSError):
                    self._open()
        finally:
            self.release()

    def _is_open(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.lstat(self._path), os.fstat(2))
        return False

    def _open(self) -> None:
        # Not blocking: a pipe without a reader is an error.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        file = os.open(self._path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.dup2(file, 2)
        os.close(file)

    def _roll_over(self) -> None:
        """Begin a new file. The one before replaces the one before that, but no other file."""
        kept = f"{self._path}.old"
        if _is_free(kept):
            with suppress(OSError):
                os.rename(self._path, kept)
            self.reopen()


def _is_full() -> bool:
    found = os.fstat(2)
    return stat.S_ISREG(found.st_mode) and found.st_size >= MAX_SIZE


def _is_free(path: str) -> bool:
    """Whether there is no file, or one that is a log of ours."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        return bool(_LINE.search(os.read(file, _LINE_SEARCH)))
    except OSError:
        return False
    finally:
        os.close(file)


def log_to(path: str, level: str) -> None:
    """Send the log and standard error to a file; standard input and output to nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    _begin(_LogFile(path), LineFormatter(), level)


def log_to_descriptor(number: int, level: str) -> None:
    """Send the log and standard error to an open file; standard input and output to nowhere."""
    os.dup2(number, 2)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    _begin(logging.StreamHandler(sys.stderr), LineFormatter(), level)


def log_to_stderr(level: str) -> None:
    """Send the log to standard error; lines have priorities if that is the journal."""
    formatter = JournalFormatter() if _is_journal(2) else LineFormatter()
    _begin(logging.StreamHandler(sys.stderr), formatter, level)


def _begin(handler: logging.Handler, formatter: logging.Formatter, level: str) -> None:
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    set_level(level)


def reopen_file() -> None:
    """Open the log file again if it is another one."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LogFile):
            handler.reopen()


def set_level(level: str) -> None:
    """Log from a level on: debug, info, warning or error. Libraries are never as talkative."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger(_PACKAGE).setLevel(number)
    logging.getLogger().setLevel(max(number, logging.INFO))


def _is_journal(descriptor: int) -> bool:
    """Whether a stream leads to the journal (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"

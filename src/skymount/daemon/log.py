"""Where the log goes, and its lines: one for each event, but for tracebacks."""

import logging
import os
import sys
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler

from skymount.daemon.journal import JournalHandler, priority
from skymount.fs.failures import printable

MAX_SIZE = 1 << 20  # bytes after which a new log is begun; the one before is kept beside it

_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_PACKAGE = "skymount"


class LineFormatter(logging.Formatter):
    """Puts each message on one line."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the library's name
        record.message = printable(record.message, MAX_SIZE)
        return super().formatMessage(record)


class MessageFormatter(LineFormatter):
    """Leaves the time and the level out: the journal knows them."""

    def __init__(self) -> None:
        super().__init__()
        self._style = logging.PercentStyle("%(message)s")


class JournalFormatter(MessageFormatter):
    """Gives each line its priority, by which `journalctl -p` selects (sd-daemon(3)), for where the
    journal's own socket is out of reach.
    """

    def format(self, record: logging.LogRecord) -> str:
        text, number = super().format(record), priority(record.levelno)
        return "\n".join(f"<{number}>{line}" for line in text.split("\n"))


class _LogFile(RotatingFileHandler):
    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=MAX_SIZE, backupCount=1)
        self._redirect_stderr()

    def doRollover(self) -> None:  # noqa: N802  # the library's name
        super().doRollover()
        self._redirect_stderr()

    def _redirect_stderr(self) -> None:
        assert self.stream is not None
        os.dup2(self.stream.fileno(), 2)


def log_to(path: str, level: str) -> None:
    """Send the log and standard error to a file; standard input and output to nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    _begin(_LogFile(path), LineFormatter(), level)


def log_to_stderr(level: str, fields: Mapping[str, str] | None = None) -> None:
    """Send the log to standard error; if that is the journal, to the journal, with `fields`."""
    if not _is_journal(2):
        _begin(logging.StreamHandler(sys.stderr), LineFormatter(), level)
        return
    try:
        _begin(JournalHandler(fields=fields), MessageFormatter(), level)
    except OSError:
        _begin(logging.StreamHandler(sys.stderr), JournalFormatter(), level)


def _begin(handler: logging.Handler, formatter: logging.Formatter, level: str) -> None:
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    set_level(level)


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

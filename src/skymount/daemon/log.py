"""The log file of a daemon in the background, which takes all that is printed too."""

import logging
import os
from logging.handlers import RotatingFileHandler

MAX_SIZE = 1 << 20  # bytes after which a new log is begun; the one before is kept beside it


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


def log_to(path: str, line_format: str) -> None:
    """Send the log and standard error to a file; standard input and output to nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    logging.basicConfig(level=logging.INFO, format=line_format, handlers=[_LogFile(path)])
    logging.getLogger("httpx").setLevel(logging.WARNING)

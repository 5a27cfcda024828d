"""Owns the log of a daemon in the background: a file that does not grow without bound, and in which
everything ends up that this process prints.
"""

import logging
import os
from logging.handlers import RotatingFileHandler

SIZE = 1 << 20
"""Bytes of a log; the one before is kept beside it."""


class _LogFile(RotatingFileHandler):
    """The log, which standard error leads to: to the new file as well once there is one."""

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=SIZE, backupCount=1)
        self._lead_here()

    def doRollover(self) -> None:  # noqa: N802  # the library's name
        """Begin a new file."""
        super().doRollover()
        self._lead_here()

    def _lead_here(self) -> None:
        assert self.stream is not None
        os.dup2(self.stream.fileno(), 2)


def log_to(path: str, line: str) -> None:
    """Send the log, and whatever else is printed, to a file; nothing comes in any more.

    `line` is the format of a line.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    logging.basicConfig(level=logging.INFO, format=line, handlers=[_LogFile(path)])
    logging.getLogger("httpx").setLevel(logging.WARNING)

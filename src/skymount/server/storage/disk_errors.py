"""Turns errors of the disk and of SQLite into our own."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from skymount.errors import StorageError


class DiskFullError(StorageError):
    """There is no room for what is to be written."""


class StorageUnavailableError(StorageError):
    """The database or the object store cannot be used now. Whether it has done what was asked is
    not known.
    """


@contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """StorageError ``cannot <action>: <reason>`` for an OSError or an error of SQLite.

    Also for a number that is too large for the system or for SQLite. Not for a pipe that nobody
    reads: that is no disk.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, sqlite3.Error, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        kind = DiskFullError if _is_full(error) else StorageError
        raise kind(f"cannot {action}: {reason or error}") from error


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL

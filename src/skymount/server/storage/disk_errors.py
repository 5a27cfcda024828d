"""Turns errors of the disk and of SQLite into our own."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from skymount.errors import StorageError


@contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """StorageError ``cannot <action>: <reason>`` for an OSError or an error of SQLite."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageError(f"cannot {action}: {reason or error}") from error

"""What fails on the disk is an error of ours, with the reason."""

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.disk_errors import DiskFullError, disk_errors


def absent_file() -> None:
    Path("/nonexistent/file").read_bytes()


def absent_table() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("SELECT * FROM absent")


def number_too_large() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("SELECT ?", (1 << 63,))


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (absent_file, "No such file or directory"),
        (absent_table, "no such table: absent"),
        (number_too_large, "Python int too large to convert to SQLite INTEGER"),
    ],
)
def test_failures_of_the_disk(work: Callable[[], None], reason: str) -> None:
    """The words are those of the system or of SQLite, without a path, which is the portal's own."""
    with pytest.raises(StorageError) as caught, disk_errors("read a thing"):
        work()
    assert str(caught.value) == f"cannot read a thing: {reason}"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_from_other_failures(number: int) -> None:
    """Of a file and of a database."""
    with pytest.raises(DiskFullError), disk_errors("write"):
        raise OSError(number, os.strerror(number))
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(DiskFullError), disk_errors("write"):
            db.execute("CREATE TABLE a (b)")
    with pytest.raises(StorageError) as caught, disk_errors("write"):
        raise OSError(errno.EIO, "broken")
    assert not isinstance(caught.value, DiskFullError)


def test_other_errors_pass() -> None:
    """What is not about the disk stays what it is."""
    with pytest.raises(MalformedError), disk_errors("read"):
        raise MalformedError("no")

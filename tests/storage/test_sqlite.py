"""SQLite connections and transactions; shared databases are tested with the ledger."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from skymount.errors import StorageError
from skymount.storage import sqlite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with one empty table."""
    found = tmp_path / "file.sqlite3"
    with closing(sqlite3.connect(found)) as database:
        database.execute("CREATE TABLE rows (value INTEGER)")
    return found


def test_a_missing_database_is_not_made(tmp_path: Path) -> None:
    """A directory of the user stays as it is."""
    with pytest.raises(sqlite3.OperationalError):
        sqlite.connect(tmp_path / "absent")
    assert not list(tmp_path.iterdir())


def test_settings_hold_for_the_connection(path: Path) -> None:
    """They are pragmas."""
    settings = {"journal_mode": "WAL", "journal_size_limit": 12345}
    with closing(sqlite.connect(path, settings=settings)) as database:
        found = {name: database.execute(f"PRAGMA {name}").fetchone()[0] for name in settings}
    assert found == {"journal_mode": "wal", "journal_size_limit": 12345}


def test_a_transaction_is_rolled_back_by_an_exception(path: Path) -> None:
    """The connection can be used afterwards."""
    with closing(sqlite.connect(path)) as database:
        with suppress(ZeroDivisionError), sqlite.transaction(database):
            database.execute("INSERT INTO rows VALUES (1)")
            raise ZeroDivisionError
        with sqlite.transaction(database):
            database.execute("INSERT INTO rows VALUES (2)")
    with closing(sqlite.connect(path)) as database:
        assert database.execute("SELECT value FROM rows").fetchall() == [(2,)]


def test_a_number_that_is_too_large_is_an_error_of_ours(tmp_path: Path) -> None:
    """SQLite has integers of 64 bits."""
    form = sqlite.Format(application=1, version=1, schema="CREATE TABLE rows (value INTEGER)")
    with closing(sqlite.Database.open(tmp_path / "new.sqlite3", form)) as database:
        with pytest.raises(StorageError, match=r"cannot write to .*too large"):
            database.write(lambda opened: opened.execute("INSERT INTO rows VALUES (?)", (1 << 63,)))
        assert database.read(lambda opened: list(opened.execute("SELECT * FROM rows"))) == []

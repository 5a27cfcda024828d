"""SQLite connections and transactions; shared databases are tested with the ledger."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

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

"""The shared database: connections, errors, migrations; the only importer of psycopg.

Everything blocks. Each statement is a transaction of its own unless `transaction` is used.
"""

import logging
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString, TypeAlias, TypeVar

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolTimeout

from skymount.errors import StorageError
from skymount.server.storage.cluster.migrations import OLDEST, STEPS, VERSION
from skymount.server.storage.disk_errors import DiskFullError

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

CONNECTIONS = 8  # of one process
PUBLISH_LOCK, SWEEP_LOCK, _MIGRATION_LOCK = 0x736B0001, 0x736B0002, 0x736B0003

_CONNECT_TIME = 5  # seconds
_WAIT = 5.0  # seconds for a free connection
_STATEMENT_TIME = 60_000  # milliseconds
_COUNT_PAUSE = 2.0  # seconds between two counts of the same rows
_COUNT_SHARE = 50  # a count may take the database at most one part in so many of the time

logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


@contextmanager
def _errors(action: str) -> Iterator[None]:
    try:
        yield
    except PoolTimeout:
        raise StorageError(f"cannot {action}: the database does not answer") from None
    except psycopg.Error as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        kind = DiskFullError if isinstance(error, psycopg.errors.DiskFull) else StorageError
        raise kind(f"cannot {action}: {reason}") from None


def _check_idle(connection: Connection) -> None:
    """Refuse a connection that the database closed meanwhile, without a request to it."""
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLRDHUP)
    if waiting.poll(0):
        connection.close()  # else the pool takes it for good
        raise psycopg.OperationalError("the database closed the connection")


class Database:
    """The database of some portals. Use `open` and `close`; every method raises StorageError."""

    def __init__(self, url: str) -> None:
        self.threads = trio.CapacityLimiter(CONNECTIONS)
        """For all that waits for the database, so that it leaves other threads to downloads."""
        self._url = url
        self._settings = _settings(url)
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url,
            min_size=1,
            max_size=CONNECTIONS,
            timeout=_WAIT,
            reconnect_timeout=_WAIT,
            kwargs=self._settings,
            check=_check_idle,
            open=False,
        )

    @classmethod
    def open(cls, url: str) -> "Database":
        """Connect, and bring the tables up to date; StorageError within some seconds."""
        database = cls(url)
        with _errors("use the database"):
            with psycopg.connect(url, **database._settings) as connection:
                _migrate(connection)
            database._pool.open()
        return database

    def close(self) -> None:
        self._pool.close(timeout=1)

    def write(self, action: str, work: Callable[[Connection], T]) -> T:
        """Run one statement or more; whether they were done is not known after some errors."""
        with _errors(action), self._pool.connection() as connection:
            return work(connection)

    def read(self, action: str, work: Callable[[Connection], T]) -> T:
        """Run statements that change nothing; once more when the connection was lost."""
        with _errors(action):
            try:
                with self._pool.connection() as connection:
                    return work(connection)
            except (PoolTimeout, psycopg.errors.QueryCanceled):
                raise
            except psycopg.OperationalError:
                with self._pool.connection() as connection:
                    return work(connection)

    def rows(self, action: str, query: LiteralString, values: tuple[Any, ...] = ()) -> list[Any]:
        return self.read(action, lambda connection: connection.execute(query, values).fetchall())

    def secret(self) -> bytes:
        """Return a secret that the portals of this database share."""
        ((found,),) = self.rows("use the database", "SELECT secret FROM shared_state")
        return bytes(found)

    @contextmanager
    def alone(self, lock: int) -> Iterator[bool]:
        """Hold a lock of which there is one in all processes; False if another one has it."""
        with (
            _errors("use the database"),
            psycopg.connect(self._url, **self._settings) as connection,
        ):
            found = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock,)).fetchone()
            yield bool(found and found[0])


class RowCount:
    """A count that walks a table. It is made again after a while: the longer it takes, the rarer.

    Any thread may call `read`.
    """

    def __init__(
        self, database: Database, action: str, numbers: LiteralString, table: LiteralString
    ) -> None:
        self._database = database
        self._action = action
        took = "extract(epoch FROM clock_timestamp() - statement_timestamp())::float8"
        self._query: LiteralString = f"SELECT {numbers}, {took} FROM {table}"
        self._found: tuple[int, ...] = ()
        self._due = 0.0
        self._lock = threading.Lock()

    def read(self) -> tuple[int, ...]:
        """Return the numbers; StorageError. Blocks."""
        with self._lock:
            if not self._found or time.monotonic() >= self._due:
                ((*found, took),) = self._database.rows(self._action, self._query)
                self._found = tuple(int(number) for number in found)
                self._due = time.monotonic() + max(_COUNT_PAUSE, _COUNT_SHARE * took)
            return self._found


def _settings(url: str) -> Any:
    """Return the settings of connections; StorageError for a malformed URL, not repeated."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        raise StorageError("cannot use the database: its URL is malformed") from None
    return {
        "autocommit": True,
        "connect_timeout": _CONNECT_TIME,
        "application_name": "skymount portal",
        "options": f"-c statement_timeout={_STATEMENT_TIME} {given.get('options') or ''}".strip(),
        "tcp_user_timeout": 15_000,
    }


def _migrate(connection: Connection) -> None:
    """Bring the tables to `VERSION`; StorageError if they are of a version that is too new."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        connection.execute(
            "CREATE TABLE IF NOT EXISTS skymount_schema (version integer, oldest integer)"
        )
        row = connection.execute("SELECT version, oldest FROM skymount_schema").fetchone()
        version, oldest = row or (0, 0)
        if oldest > VERSION:
            raise StorageError(
                f"cannot use the database: its tables are of version {version}, which a newer"
                f" skymount made; this one knows version {VERSION}"
            )
        if version >= VERSION:
            return
        for step in STEPS[version:]:
            connection.execute(step)
        connection.execute("DELETE FROM skymount_schema")
        connection.execute("INSERT INTO skymount_schema VALUES (%s, %s)", (VERSION, OLDEST))

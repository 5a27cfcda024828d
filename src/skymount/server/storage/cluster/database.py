"""The shared database: connections, errors, migrations; the only importer of psycopg.

Everything blocks. Each statement is a transaction of its own unless `transaction` is used.
"""

import logging
import select
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, LiteralString, TypeAlias, TypeVar, TypeVarTuple

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolTimeout

from skymount.concurrency import in_one_of
from skymount.errors import StorageError
from skymount.server.storage.cluster.migrations import OLDEST, STEPS, VERSION, Tables
from skymount.server.storage.disk_errors import DiskFullError, StorageUnavailableError

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")
_Args = TypeVarTuple("_Args")

CONNECTIONS = 8  # of one process
PUBLISH_LOCK, SWEEP_LOCK, _MIGRATION_LOCK = 0x736B0001, 0x736B0002, 0x736B0003
KEEP_LOCK = 0x736B0004

_CONNECT_TIME = 5  # seconds
_WAIT = 5.0  # seconds for a free connection
_THREAD_WAIT = 15.0  # seconds for a free thread
_STATEMENT_TIME = 20_000  # milliseconds after which the database breaks a statement off
_ANSWER_TIME = 25.0  # seconds after which a database that does not do that is given up
_FIRST_ANSWER_TIME = 10.0  # seconds, at the start
_MIGRATION_TIME = 600.0  # seconds that a change of the tables may take
_MIGRATION_PAUSE = 0.2  # seconds between two looks whether that of another process is done
_TELL_TIME = 1.0  # seconds after which the log says so
_COUNT_PAUSE = 2.0  # seconds between two counts of the same rows
_COUNT_SHARE = 50  # a count may take the database at most one part in so many of the time

_log = logging.getLogger(__name__)

logging.getLogger("psycopg").setLevel(logging.ERROR)


class _NoAnswerError(psycopg.OperationalError):
    """The database has not answered in time."""


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is given up, and closed, when the database does not answer."""

    answer_time = _ANSWER_TIME

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        try:
            return super().wait(_limited(gen, self.answer_time), *args, **options)
        except _NoAnswerError:
            self.close()
            raise


def _limited(steps: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """Pass on what psycopg waits for, some times a second, until the time is over."""
    end = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end:
                raise _NoAnswerError(f"no answer in {seconds:.0f} s")
            wanted = steps.send(ready)
    except StopIteration as done:
        found: T = done.value
        return found


@contextmanager
def _errors(action: str) -> Iterator[None]:
    try:
        yield
    except PoolTimeout:
        raise StorageUnavailableError(f"cannot {action}: the database does not answer") from None
    except psycopg.Error as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise _kind(error)(f"cannot {action}: {reason}") from None


def _kind(error: psycopg.Error) -> type[StorageError]:
    if isinstance(error, psycopg.errors.DiskFull):
        return DiskFullError
    # A standby that takes over is read-only for a while.
    passing = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)
    return StorageUnavailableError if isinstance(error, passing) else StorageError


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
        self._threads = trio.CapacityLimiter(CONNECTIONS)
        self._url = url
        self._settings = _settings(url)
        self._asked: _Connection | None = None
        self._asking = threading.Lock()
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url,
            min_size=1,
            max_size=CONNECTIONS,
            connection_class=_Connection,
            timeout=_WAIT,
            reconnect_timeout=_WAIT,
            kwargs=self._settings,
            check=_check_idle,
            open=False,
        )

    @classmethod
    def open(cls, url: str, tables: Tables, needed: int = VERSION) -> "Database":
        """Connect; StorageError within some seconds if the tables are older than needed, and must
        not be changed. It waits for minutes while another process changes them.
        """
        database = cls(url)
        with _errors("use the database"):
            with _Connection.connect(url, **database._settings) as connection:
                connection.answer_time = _FIRST_ANSWER_TIME
                _prepare(connection, tables, needed)
            database._pool.open()
        return database

    def close(self) -> None:
        self._pool.close(timeout=1)
        if self._asked is not None:
            self._asked.close()

    def check_reading(self) -> None:
        """StorageError unless the database answers now."""
        self._ask("SELECT true FROM shared_state")

    def check_writing(self) -> None:
        """StorageError unless it takes changes, too."""
        if self._ask("SELECT current_setting('transaction_read_only') = 'on'"):
            raise StorageUnavailableError("cannot change the database: it is read-only")

    def _ask(self, query: LiteralString) -> bool:
        """Ask without the pool, where one waits for others, and for a database that is away."""
        with _errors("use the database"), self._asking:
            with suppress(psycopg.Error):
                if self._asked is not None:
                    _check_idle(self._asked)
            if self._asked is None or self._asked.closed:
                self._asked = _Connection.connect(self._url, **self._settings)
            return self._asked.execute(query).fetchone() == (True,)

    async def run(self, work: Callable[[*_Args], T], *args: *_Args) -> T:
        """Run what blocks in a thread, of which there are so many that others stay free for
        downloads; StorageUnavailableError when it waits too long for one.
        """
        try:
            return await in_one_of(self._threads, _THREAD_WAIT, work, *args)
        except trio.TooSlowError:
            raise StorageUnavailableError("too many requests wait for the database") from None

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
            except (PoolTimeout, _NoAnswerError, psycopg.errors.QueryCanceled):
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
            _Connection.connect(self._url, **self._settings) as connection,
        ):
            found = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock,)).fetchone()
            is_alone = bool(found and found[0])
            try:
                yield is_alone
            finally:  # the database sees the end of the connection a little later
                if is_alone:
                    with suppress(psycopg.Error):
                        connection.execute("SELECT pg_advisory_unlock(%s)", (lock,))


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
        """Return the numbers, the last ones while another thread counts; StorageError. Blocks."""
        if not self._lock.acquire(timeout=0 if self._found else _WAIT):
            if not self._found:
                raise StorageUnavailableError(f"cannot {self._action}: it takes long")
            return self._found
        try:
            if not self._found or time.monotonic() >= self._due:
                ((*found, took),) = self._database.rows(self._action, self._query)
                self._found = tuple(int(number) for number in found)
                self._due = time.monotonic() + max(_COUNT_PAUSE, _COUNT_SHARE * took)
            return self._found
        finally:
            self._lock.release()


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


def _prepare(connection: _Connection, tables: Tables, needed: int) -> None:
    """Make sure that the tables are of a version that is needed, and not too new; StorageError."""
    version = _version(connection)
    if version >= needed:
        return
    if tables is Tables.KEEP and not version:
        raise StorageError(
            "cannot use the database: it has no tables of a portal; the first portal that starts "
            "makes them"
        )
    if tables is not Tables.UPDATE and version:
        raise StorageError(
            f"cannot use the database: its tables are of version {version}, and this command needs "
            f"version {needed}: start a portal of this skymount, which brings them up to date, or "
            "use the skymount of the portals that run"
        )
    began = time.monotonic()
    is_told = False
    while not _migrate(connection):
        waited = time.monotonic() - began
        if waited > _MIGRATION_TIME:
            raise StorageUnavailableError(
                "cannot use the database: another portal has not ended changing its tables"
            )
        if waited > _TELL_TIME and not is_told:
            _log.warning(
                "another portal changes the tables of the database; this one starts when that is "
                "done, and waits for %d minutes at most",
                _MIGRATION_TIME // 60,
            )
            is_told = True
        time.sleep(_MIGRATION_PAUSE)


def _version(connection: _Connection) -> int:
    """Return the version of the tables, 0 without any; StorageError if it is too new."""
    if connection.execute("SELECT to_regclass('skymount_schema')").fetchone() == (None,):
        return 0
    row = connection.execute("SELECT version, oldest FROM skymount_schema").fetchone()
    version, oldest = row or (0, 0)
    if oldest > VERSION:
        raise StorageError(
            f"cannot use the database: its tables are of version {version}, which a newer"
            f" skymount made; this one knows version {VERSION}"
        )
    return int(version)


def _migrate(connection: _Connection) -> bool:
    """Bring the tables to `VERSION`; False if another process is doing that."""
    with connection.transaction():
        lock = "SELECT pg_try_advisory_xact_lock(%s)"
        if connection.execute(lock, (_MIGRATION_LOCK,)).fetchone() != (True,):
            return False
        version = _version(connection)
        if version >= VERSION:
            return True
        connection.execute("SET LOCAL statement_timeout = 0")
        connection.answer_time = _MIGRATION_TIME
        connection.execute(
            "CREATE TABLE IF NOT EXISTS skymount_schema (version integer, oldest integer)"
        )
        for step in STEPS[version:]:
            connection.execute(step)
        connection.execute("DELETE FROM skymount_schema")
        connection.execute("INSERT INTO skymount_schema VALUES (%s, %s)", (VERSION, OLDEST))
        return True

"""SQLite: connections, transactions, and databases that several processes share.

Everything is synchronous, and any thread may call.
"""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self, TypeVar

from skymount import file_permissions
from skymount.errors import MalformedError, StorageError

_BUSY_TIME = 10.0  # seconds to wait for other processes; each holds the lock for milliseconds
_WAL_LIMIT = 4 << 20  # bytes that the log keeps on disk after a burst
_COMPANIONS = ("-wal", "-shm", "-journal")

T = TypeVar("T")


def connect(
    path: Path,
    *,
    timeout: float = _BUSY_TIME,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> sqlite3.Connection:
    """Open a database that is there, for any thread, without implicit transactions.

    `timeout` is the seconds to wait for other processes, `settings` are pragmas.
    """
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        for name, value in settings.items():
            database.execute(f"PRAGMA {name} = {value}")
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done meanwhile, or roll it back when an exception leaves the block."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")


@dataclass(frozen=True, slots=True)
class Format:
    """What tells one kind of database from another."""

    application: int
    """SQLite's application_id, 32 bits."""
    version: int
    """Its user_version; another one is refused."""
    schema: str
    settings: Mapping[str, object] = field(default_factory=dict)
    """Pragmas of a new database, which hold for good."""
    if_damaged: str = ""
    """What to do then, as the end of a message."""
    if_other_version: str = ""


class Database:
    """An open database. Every method may raise StorageError, which names the file."""

    def __init__(self, path: Path, form: Format) -> None:
        self.path, self._form = path, form
        self._read_lock, self._write_lock = threading.Lock(), threading.Lock()
        with ExitStack() as opened:
            self._reader = opened.enter_context(closing(_connect_checked(path, form)))
            self._writer = opened.enter_context(closing(_connect_checked(path, form)))
            opened.pop_all()

    @classmethod
    def open(cls, path: Path, form: Format) -> Self:
        """Open a database, for this user alone; it and its directory are made when absent."""
        with _translated(path, form, "use"):
            file_permissions.make_directory(path.parent)
            file_permissions.restrict_directory(path.parent)
            if not path.exists():
                _create(path, form)
            os.chmod(path, 0o600)  # SQLite gives its other files the same mode
            return cls(path, form)

    @staticmethod
    def peek(path: Path, form: Format, action: Callable[[sqlite3.Connection], T]) -> T | None:
        """Call a function that reads, where `open` fails because nothing can be written; None when
        there is no such database.
        """
        database = ReadOnlyDatabase.open(path, form)
        if database is None:
            return None
        with closing(database):
            return database.read(action)

    def close(self) -> None:
        """Wait for those who use it, and close it."""
        for lock, connection in ((self._read_lock, self._reader), (self._write_lock, self._writer)):
            with suppress(sqlite3.Error), lock:
                connection.close()

    def read(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Call a function that reads. Its ValueError means that the database is damaged."""
        with _translated(self.path, self._form, "read"), self._read_lock:
            return action(self._reader)

    def write(self, action: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """Call a function in a transaction; a durable one is synced to the disk."""
        with _translated(self.path, self._form, "write to"), self._write_lock:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with transaction(self._writer):
                return action(self._writer)


class ReadOnlyDatabase:
    """A database that others may write, open to read. Every method may raise StorageError."""

    def __init__(self, path: Path, form: Format, connection: sqlite3.Connection) -> None:
        self._path, self._form = path, form
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, form: Format) -> Self | None:
        """Open a database, also where nothing can be written; None when there is none."""
        with _translated(path, form, "read"), suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
            with ExitStack() as opened:
                connection = opened.enter_context(closing(_read_only(path)))
                _check(connection, form)
                opened.pop_all()
            return cls(path, form, connection)
        return None

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def read(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with _translated(self._path, self._form, "read"), self._lock:
            return action(self._connection)


def _connect_checked(path: Path, form: Format) -> sqlite3.Connection:
    with ExitStack() as opened:
        settings = {"journal_size_limit": _WAL_LIMIT}
        database = opened.enter_context(closing(connect(path, settings=settings)))
        _check(database, form)
        opened.pop_all()
    return database


@contextmanager
def _translated(path: Path, form: Format, doing: str) -> Iterator[None]:
    advice = f": {form.if_damaged}" if form.if_damaged else ""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        is_damage = type(error) is sqlite3.DatabaseError  # all others have classes of their own
        text = f"cannot {doing} {path}: {reason or error}{advice if is_damage else ''}"
        raise StorageError(text) from error
    except OverflowError as error:  # SQLite has integers of 64 bits
        raise StorageError(f"cannot {doing} {path}: {error}") from error
    except MalformedError:  # what was given
        raise
    except (TypeError, ValueError) as error:  # what a column holds
        raise StorageError(f"{path} is damaged: {error}{advice}") from error


def _create(path: Path, form: Format) -> None:
    """Make an empty database; the file appears whole."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        if path.exists():
            return
        new = path.with_name(f"{path.name}.new")
        stale = [Path(f"{file}{suffix}") for file in (path, new) for suffix in _COMPANIONS]
        for leftover in (new, *stale):  # of a database that was removed, or a maker that died
            leftover.unlink(missing_ok=True)
        file = file_permissions.create_file(new)
        try:
            _fill(new, form)
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(new, path)
        os.fsync(directory)
    finally:
        os.close(directory)


def _fill(path: Path, form: Format) -> None:
    with closing(connect(path, settings=form.settings)) as database:
        database.executescript(
            f"PRAGMA journal_mode = WAL; BEGIN; {form.schema};"
            f"PRAGMA application_id = {form.application};"
            f"PRAGMA user_version = {form.version}; COMMIT"
        )


def _read_only(path: Path) -> sqlite3.Connection:
    """Open a database without writing.

    SQLite's shared memory is made in this process if there is a file for it (``readonly_shm``).
    Where not even an empty file can be made nobody writes, so without a log the file is all there
    is (``immutable``).
    """
    log, shared = Path(f"{path}-wal"), Path(f"{path}-shm")
    options = "readonly_shm=1"
    try:
        for file in (log, shared):
            file.touch(0o600)
    except OSError:
        if not log.exists() or not log.stat().st_size:
            options = "immutable=1"
    uri = f"{path.absolute().as_uri()}?mode=ro&{options}"
    return sqlite3.connect(uri, uri=True, check_same_thread=False)


def _check(database: sqlite3.Connection, form: Format) -> None:
    """Refuse a database of another format. SQLite takes a file of no bytes for an empty one."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != form.application:
        raise sqlite3.DatabaseError("it is damaged, or was not made by skymount")
    if version != form.version:
        advice = f": {form.if_other_version}" if form.if_other_version else ""
        raise sqlite3.NotSupportedError(
            f"it is of version {version}, which another skymount made; this one knows "
            f"version {form.version}{advice}"
        )

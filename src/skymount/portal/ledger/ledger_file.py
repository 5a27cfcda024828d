"""The file of a ledger: opened when it is first used, and readable where nothing can be written."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skymount.errors import StorageError
from skymount.portal.ledger import ledger_schema as schema
from skymount.portal.ledger import posting_process
from skymount.portal.ledger.posting_process import Stamp

if TYPE_CHECKING:
    import sqlite3

    from skymount.storage.sqlite import Database

T = TypeVar("T")


class LedgerFile:
    """A database of the ledger's format. Every method raises StorageError when it fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opening = threading.Lock()
        self._opened: Database | None = None

    @property
    def database(self) -> Database:
        with self._opening:
            if self._opened is None:
                from skymount.storage.sqlite import Database

                self._opened = Database.open(self.path, schema.ledger_format())
            return self._opened

    def read(self, action: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Return `default` if there is no ledger. Works where the disk is full or read-only."""
        try:
            database = self.database
        except StorageError:
            from skymount.storage.sqlite import Database

            found = Database.peek(self.path, schema.ledger_format(), action)
            return default if found is None else found
        return database.read(action)

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self.read(lambda db: db.execute(query, values).fetchall(), [])

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class LedgerPart:
    """What the parts of a ledger have in common. Every method raises StorageError, which names the
    file, when it fails.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, process: int | None = None
    ) -> None:
        """Select a ledger; its first use opens it. `process` posts, by default this one."""
        self.path = path
        self.file = LedgerFile(path)
        self._clock = clock
        self._poster = posting_process.name_of(process or os.getpid())

    def stamp(self) -> Stamp:
        return Stamp(self._poster, self._clock())

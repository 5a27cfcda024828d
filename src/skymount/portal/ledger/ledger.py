"""What this machine knows of registry entries, on disk. All mounts and commands of a user share it.

Everything here is synchronous, and any thread may call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from skymount.errors import StorageError
from skymount.portal.ledger.owed_ledger import OwedLedger
from skymount.portal.ledger.seen_ledger import SeenLedger
from skymount.portal.ledger.spool_ledger import SpoolLedger
from skymount.user_directories import user_directory


def default_path() -> Path:
    """Return the path of a user's ledger; StorageError without a home."""
    return user_directory("state", StorageError) / "ledger.sqlite3"


class Ledger(SeenLedger, SpoolLedger, OwedLedger):
    """A ledger. Every method raises StorageError, which names the file, when it fails.

    A damaged ledger is refused, not replaced: what it knows prevents that a revision is signed for
    two contents, and that portals roll entries back.
    """

    @classmethod
    def of_user(cls) -> Self:
        return cls(default_path())

    @classmethod
    def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Self:
        """Open a ledger now, creating it and its directory if they are missing."""
        ledger = cls(path, clock)
        ledger.prepare()
        return ledger

    def prepare(self) -> None:
        """Open it now; StorageError when it cannot be written to."""
        assert self.file.database.path == self.path

    def close(self) -> None:
        self.file.close()

"""What is pinned, with a reason and a time: it is never swept away.

    <data>/v1/pins.sqlite3            with ``-wal`` and ``-shm`` beside it while a portal runs

Pins cannot be derived from anything, so they are not in the catalogue, which is made anew when it
is damaged. Every function blocks; StorageError from each.
"""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from skymount.errors import MalformedError
from skymount.server.storage.skyfile_store import FORMAT
from skymount.storage.sqlite import Database, Format
from skymount.wire.skylink import Skylink

PINS_FILE = f"{FORMAT}/pins.sqlite3"
REASON_LIMIT = 1024
"""Characters of a reason."""

_FORMAT = Format(
    application=0x736B7069,
    version=1,
    schema="""
CREATE TABLE pins (
    skylink TEXT PRIMARY KEY,
    reason TEXT NOT NULL,
    pinned REAL NOT NULL
) WITHOUT ROWID
""",
    if_damaged="restore it from a backup",
)
# A pin without a reason leaves that of an earlier one.
_PIN = """
INSERT INTO pins VALUES (?, ?, ?) ON CONFLICT (skylink) DO UPDATE SET
    reason = CASE excluded.reason WHEN '' THEN reason ELSE excluded.reason END,
    pinned = min(pinned, excluded.pinned)
"""


@dataclass(frozen=True, slots=True)
class Pin:
    """Why a skyfile is kept, and since when."""

    skylink: Skylink
    reason: str
    pinned: float
    """Seconds since 1970."""


def check_reason(reason: str) -> str:
    """Return the reason of a pin; MalformedError if it is too long or no text."""
    if len(reason) > REASON_LIMIT:
        raise MalformedError(f"a reason has at most {REASON_LIMIT} characters")
    if not reason.isprintable():
        raise MalformedError("a reason is one line of text")
    return reason


class PinStore:
    """The pins of one portal. Use `open` and `close`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, root: Path) -> Self:
        return cls(Database.open(root / PINS_FILE, _FORMAT))

    def close(self) -> None:
        self._database.close()

    def pin(self, skylink: Skylink, reason: str = "", pinned: float | None = None) -> bool:
        """Pin a skyfile, durable once this returns. An earlier time stays."""
        values = (str(skylink), reason, time.time() if pinned is None else pinned)
        self._database.write(lambda database: database.execute(_PIN, values))
        return True

    def unpin(self, skylink: Skylink) -> bool:
        def write(database: sqlite3.Connection) -> bool:
            asked = "DELETE FROM pins WHERE skylink = ?"
            return database.execute(asked, (str(skylink),)).rowcount > 0

        return self._database.write(write)

    def is_pinned(self, skylink: Skylink) -> bool:
        return bool(self._database.read(lambda database: _find(database, [skylink])))


def peek_pins(root: Path, skylinks: Iterable[Skylink]) -> dict[Skylink, Pin]:
    """Return the pins of these, read beside a portal that writes."""
    found = Database.peek(root / PINS_FILE, _FORMAT, lambda database: _find(database, skylinks))
    return found or {}


def peek_all(root: Path) -> Iterator[Pin]:
    """Yield all pins, read beside a portal that writes."""
    after = ""
    while found := Database.peek(root / PINS_FILE, _FORMAT, partial(_page, after=after)):
        yield from found
        after = str(found[-1].skylink)


def _page(database: sqlite3.Connection, after: str) -> list[Pin]:
    asked = "SELECT skylink, reason, pinned FROM pins WHERE skylink > ? ORDER BY skylink LIMIT 1000"
    return [_pin(row) for row in database.execute(asked, (after,))]


def _find(database: sqlite3.Connection, skylinks: Iterable[Skylink]) -> dict[Skylink, Pin]:
    found = dict[Skylink, Pin]()
    asked = "SELECT skylink, reason, pinned FROM pins WHERE skylink = ?"
    for skylink in skylinks:
        row = database.execute(asked, (str(skylink),)).fetchone()
        if row is not None:
            found[skylink] = _pin(row)
    return found


def _pin(row: tuple[str, str, float]) -> Pin:
    return Pin(Skylink(row[0]), str(row[1]), float(row[2]))

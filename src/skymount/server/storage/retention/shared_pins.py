"""The pins of portals that share a database. Everything blocks; StorageError."""

import time
from collections.abc import Iterable, Iterator

from skymount.errors import StorageError
from skymount.server.storage.cluster.database import Connection, Database
from skymount.server.storage.retention.pin_store import Pin
from skymount.wire.skylink import Skylink

_PAGE = 1000  # pins that are read at once
_COLUMNS = "skylink, reason, pinned"
# The lock waits for a removal, and one that comes later waits for it.
_LOCK = "SELECT true FROM skyfiles WHERE skylink = %s FOR KEY SHARE"
# One that broke off may still remove the object.
_IS_LEAVING = """
SELECT EXISTS (SELECT FROM removals WHERE skylink = %s AND until > clock_timestamp())
"""
# A pin without a reason leaves that of an earlier one.
_PIN = """
INSERT INTO pins AS p (skylink, reason, pinned) VALUES (%s, %s, %s)
ON CONFLICT (skylink) DO UPDATE SET
    reason = CASE excluded.reason WHEN '' THEN p.reason ELSE excluded.reason END,
    pinned = least(p.pinned, excluded.pinned)
"""


class SharedPins:
    """The pins in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pin(self, skylink: Skylink, reason: str = "", pinned: float | None = None) -> bool:
        """Pin a skyfile that has a row; return whether it has one. An earlier time stays."""
        values = (str(skylink), reason, time.time() if pinned is None else pinned)

        def work(connection: Connection) -> bool:
            with connection.transaction():
                if connection.execute(_LOCK, (str(skylink),)).fetchone() is None:
                    return False
                if connection.execute(_IS_LEAVING, (str(skylink),)).fetchone() == (True,):
                    raise StorageError("it is being removed; if not, pin it in five minutes")
                connection.execute(_PIN, values)
                return True

        return self._database.write("pin stored content", work)

    def unpin(self, skylink: Skylink) -> bool:
        query = "DELETE FROM pins WHERE skylink = %s"
        return self._database.write(
            "unpin stored content",
            lambda connection: connection.execute(query, (str(skylink),)).rowcount > 0,
        )

    def is_pinned(self, skylink: Skylink) -> bool:
        return bool(self.find([skylink]))

    def find(self, skylinks: Iterable[Skylink]) -> dict[Skylink, Pin]:
        query = f"SELECT {_COLUMNS} FROM pins WHERE skylink = ANY(%s)"
        rows = self._database.rows("read pins", query, ([str(link) for link in skylinks],))
        return {found.skylink: found for found in map(_pin, rows)}

    def all(self) -> Iterator[Pin]:
        after = ""
        query = f"SELECT {_COLUMNS} FROM pins WHERE skylink > %s ORDER BY skylink LIMIT %s"
        while rows := self._database.rows("read pins", query, (after, _PAGE)):
            yield from map(_pin, rows)
            after = rows[-1][0]


def _pin(row: tuple[str, str, float]) -> Pin:
    skylink, reason, pinned = row
    return Pin(Skylink(skylink), reason, pinned)

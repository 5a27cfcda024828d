"""The names of portals that share a database: one zone for all of them."""

import threading
from collections.abc import Callable

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.cluster.database import Connection, Database
from skymount.server.storage.zone_file import Zone
from skymount.wire.hns import DomainRecord

NAMES_VERSION = 1
"""The version of the tables since which names are in them as they are now."""


class SharedNames:
    """The zone in the database: read each time, and parsed when it has changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._raw = b""
        self._zone = Zone()
        self._lock = threading.Lock()

    def current(self) -> Zone:
        ((raw,),) = self._database.rows("read the names", "SELECT content FROM zone")
        with self._lock:
            if raw != self._raw:
                self._zone, self._raw = _parse(raw), raw
            return self._zone

    async def find(self, domain: str) -> DomainRecord | None:
        return (await self._database.run(self.current)).find(domain)

    def change(self, edit: Callable[[Zone], Zone]) -> None:
        """Replace the zone by an edited one, in one step; errors of `edit` pass through."""

        def work(connection: Connection) -> None:
            with connection.transaction():
                row = connection.execute("SELECT content FROM zone FOR UPDATE").fetchone()
                changed = edit(_parse(row[0] if row else b""))
                connection.execute("UPDATE zone SET content = %s", (changed.encode(),))

        self._database.write("change the names", work)


def _parse(raw: bytes) -> Zone:
    try:
        return Zone.parse(raw)
    except MalformedError as error:
        raise StorageError(f"the names in the database cannot be used: {error}") from None

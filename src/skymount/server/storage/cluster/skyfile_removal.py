"""Removes skyfiles of portals that share them. Everything blocks; StorageError.

The row of a skyfile is locked while its object is removed, so an upload or a pin of the same
skyfile waits. A portal may end in between, and its request to the object store may still arrive.
So the removal is written down first, by itself: until its lease ends, a trigger of the table
refuses uploads of this skyfile.
"""

import time

from skymount.errors import StorageError
from skymount.server.storage.cluster.database import Connection, Database
from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.cluster.skyfile_object import skyfile_name
from skymount.wire.skylink import Skylink

_LEASE = 300.0  # seconds; a request to the object store, with all attempts, ends in half of it
_BEGIN_TIME = 30.0  # seconds of the lease after which no removal is begun
_LOCK = "SELECT stored FROM skyfiles WHERE skylink = %s FOR UPDATE"
_IS_PINNED = "SELECT EXISTS (SELECT FROM pins WHERE skylink = %s)"
_BEGIN = """
INSERT INTO removals AS r (skylink, until)
VALUES (%s, clock_timestamp() + make_interval(secs => %s))
ON CONFLICT (skylink) DO UPDATE SET until = excluded.until WHERE r.until <= clock_timestamp()
RETURNING true
"""
_END = """
WITH ended AS (DELETE FROM removals WHERE skylink = %s) DELETE FROM skyfiles WHERE skylink = %s
"""


def remove(
    database: Database, objects: Objects, skylink: Skylink, stored_before: float | None
) -> bool:
    """Remove a skyfile that is not pinned; return whether there was one. With a time only if it
    was not stored since.
    """
    name = str(skylink)
    was_here = objects.exists(skyfile_name(skylink))

    def work(connection: Connection) -> bool:
        with connection.transaction():
            row = connection.execute(_LOCK, (name,)).fetchone()
            if stored_before is not None and (row is None or row[0] >= stored_before):
                return False
            if row is None and not was_here:  # nothing is locked: what comes now has to stay
                return False
            if connection.execute(_IS_PINNED, (name,)).fetchone() == (True,):
                return False
            _begin(database, name)
            connection.execute("SELECT 1")  # an error if the lock was lost before that
            objects.delete([skyfile_name(skylink)])
            connection.execute(_END, (name, name))
            return True

    return database.write("remove stored content", work)


def _begin(database: Database, name: str) -> None:
    """Write a removal down, in a transaction of its own."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    rows = database.write(
        "remove stored content",
        lambda connection: connection.execute(_BEGIN, (name, _LEASE)).fetchall(),
    )
    if not rows:
        raise StorageError(f"{name} is being removed already; if not, try again in five minutes")
    if time.clock_gettime(time.CLOCK_BOOTTIME) > began + _BEGIN_TIME:
        raise StorageError("cannot remove stored content: the database is too slow")

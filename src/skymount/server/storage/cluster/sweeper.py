"""Removes sectors that no skyfile has: what interrupted uploads and removed skyfiles left.

One process at a time does it, the one that gets the lock in the database. Objects of skyfiles are
what counts: rows are added and dropped after them. While that is not possible nothing is removed.

An upload may use a sector again while it is being removed. So the sectors are written down in
`swept` first, as removed at the end of a lease. An upload that began before that time is refused
when it wants to be published (`skyfile_rows.put`). Then they are removed, well within the lease,
and the true time is written down. So a sweeper that ends in between, or loses its lock, does no
harm.
"""

import logging
import time
from collections.abc import Container, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import islice

import trio

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.content_store import SECTORS, SharedContent
from skymount.server.storage.cluster.database import PUBLISH_LOCK, SWEEP_LOCK, Connection
from skymount.server.storage.cluster.objects import ListedObject, TooLargeError
from skymount.server.storage.cluster.sector_reader import sector_name
from skymount.server.storage.cluster.skyfile_object import SKYFILES, SkyfileObject
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

MIN_AGE = 86400.0
"""Seconds that a sector without a skyfile is kept."""

_PAUSE = 3600.0  # seconds between two runs
_BATCH = 500
_LEASE = 900.0  # seconds in which uploads with a sector are refused while it is being removed
_REMOVAL_TIME = 600.0  # seconds after which no removal of the same lease is begun
_LAST = "~"  # follows each skylink
_FORGET = "DELETE FROM swept WHERE removed < now() - interval '7 days'"
_RECENT = "SELECT swept > now() - make_interval(secs => %s) FROM shared_state"
_UNUSED = """
INSERT INTO swept AS s (root, removed)
SELECT root, now() + make_interval(secs => %s) FROM unnest(%s::bytea[]) AS listed (root)
WHERE NOT EXISTS (SELECT FROM sectors WHERE sectors.root = listed.root)
ON CONFLICT (root) DO UPDATE SET removed = excluded.removed WHERE (s.removed > now()) IS NOT TRUE
RETURNING root, removed
"""
_REMOVED = "UPDATE swept SET removed = clock_timestamp() WHERE root = ANY(%s) AND removed = %s"

_log = logging.getLogger(__name__)


async def keep_sweeping(content: SharedContent, pause: float = _PAUSE) -> None:
    """Sweep soon after the start and now and then, unless another process did it just before."""
    await trio.sleep(pause / 60)
    while True:
        try:
            await trio.to_thread.run_sync(
                partial(sweep, content, pause=pause / 2), abandon_on_cancel=True
            )
        except StorageError as error:  # the next run may do better
            _log.warning("sectors are not swept: %s", error)
        await trio.sleep(pause)


def sweep(content: SharedContent, min_age: float = MIN_AGE, pause: float = 0.0) -> int | None:
    """Return how many sectors were removed; None if another process is at it, or was within
    `pause` seconds. Blocks.
    """
    database = content.database
    with database.alone(SWEEP_LOCK) as is_alone:
        if not is_alone or database.rows("sweep", _RECENT, (pause,)) == [(True,)]:
            return None
        limit = skyfile_rows.now(database).timestamp() - min_age
        _repair_rows(content, limit)
        removed = 0
        listed = (found for found in content.objects.list(SECTORS) if found.modified < limit)
        for batch in _batches(listed):
            removed += _remove_unused(content, [found.name for found in batch])
        database.write("sweep", _finish)
        return removed


def _finish(connection: Connection) -> None:
    connection.execute(_FORGET)
    connection.execute("DELETE FROM removals WHERE until < now() - interval '1 day'")
    connection.execute("UPDATE shared_state SET swept = now()")


def _repair_rows(content: SharedContent, limit: float) -> None:
    """Add the rows that are missing, and drop old ones whose skyfile is not there."""
    after = ""
    for batch in _batches(content.objects.list(SKYFILES)):
        names = {found.name: found.modified for found in batch}
        for name in names.keys() - skyfile_rows.known(content.database, names):
            _add_row(content, name, names[name])
        until = max(after, *names)
        _drop_rows(content, names, after, until, limit)
        after = until
    _drop_rows(content, {}, after, _LAST, limit)


def _drop_rows(
    content: SharedContent, names: Container[str], after: str, until: str, limit: float
) -> None:
    """Drop old rows between two skylinks that are not among the objects there."""
    while rows := skyfile_rows.older_than(content.database, limit, after, until, _BATCH):
        absent = [name for name in rows if name not in names]
        gone = [name for name in absent if content.objects.get(f"{SKYFILES}/{name}") is None]
        if gone:
            skyfile_rows.remove(content.database, gone, limit)
        after = rows[-1]


def _add_row(content: SharedContent, name: str, stored: float) -> None:
    """Add the row of a skyfile. An error of the store passes: without the row, its sectors would
    be removed.
    """
    try:
        raw = content.objects.get(f"{SKYFILES}/{name}")
        if raw is None:  # it was removed meanwhile
            return
        skylink = Skylink(name)
        found = SkyfileObject.parse(raw)
        Layout.parse(found.base)
    except (MalformedError, TooLargeError) as error:
        _log.warning("object %s is no skyfile: %s", name, error)
        return
    spilled = content.open_sectors(found.spilled_roots)
    size = len(found.spilled_roots) * SECTOR_SIZE
    try:
        extension = b"".join(spilled.read(at, SECTOR_SIZE) for at in range(0, size, SECTOR_SIZE))
    except StorageError as error:
        _log.warning("metadata of skyfile %s cannot be read: %s", name, error)
        extension = b""
    sectors = len(found.payload_roots)
    row = skyfile_rows.describe(skylink, found.base, extension, stored, sectors)
    skyfile_rows.put(content.database, row, found.roots, None)


def _remove_unused(content: SharedContent, names: list[str]) -> int:
    roots = [root for name in names if (root := _root(name)) is not None]

    def mark(connection: Connection) -> list[tuple[bytes, datetime]]:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (PUBLISH_LOCK,))
            return connection.execute(_UNUSED, (_LEASE, roots)).fetchall()

    began = _clock()
    marked = content.database.write("sweep", mark)
    for root, _ in marked:
        if _clock() > began + _REMOVAL_TIME:
            raise StorageError("cannot remove sectors: the store is too slow")
        content.objects.delete([sector_name(root)])
    if marked:
        unused, end = [root for root, _ in marked], marked[0][1]  # of all the same
        removed = (unused, end)
        content.database.write("sweep", lambda connection: connection.execute(_REMOVED, removed))
    return len(marked)


def _clock() -> float:
    """Return seconds, those in which the machine sleeps included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _root(name: str) -> bytes | None:
    try:
        root = bytes.fromhex(name)
    except ValueError:
        return None
    return root if len(root) == ROOT_SIZE else None


def _batches(found: Iterable[ListedObject]) -> Iterator[list[ListedObject]]:
    remaining = iter(found)
    while batch := list(islice(remaining, _BATCH)):
        yield batch

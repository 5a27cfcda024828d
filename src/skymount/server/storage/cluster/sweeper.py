"""Removes sectors that no skyfile has: what interrupted uploads and removed skyfiles left.

One process at a time does it, the one that gets the lock in the database. Objects of skyfiles are
what counts: rows are added and dropped after them. An upload may use a sector again while it is
being removed. So the sectors are written down in `swept` first, and an upload that has put one
of them is refused when it wants to be published (`skyfile_rows.put`).
"""

import logging
import time
from collections.abc import Iterable, Iterator
from itertools import islice

import trio

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.content_store import SECTORS, SKYFILES, SharedContent
from skymount.server.storage.cluster.database import PUBLISH_LOCK, SWEEP_LOCK, Connection
from skymount.server.storage.cluster.objects import ListedObject
from skymount.server.storage.cluster.sector_reader import sector_name
from skymount.wire.base_sector import Layout
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

MIN_AGE = 86400.0
"""Seconds that a sector without a skyfile is kept."""

_PAUSE = 3600.0  # seconds between two runs
_BATCH = 500
_FORGET = "DELETE FROM swept WHERE removed < now() - interval '7 days'"
_UNUSED = """
INSERT INTO swept (root)
SELECT root FROM unnest(%s::bytea[]) AS listed (root)
WHERE NOT EXISTS (SELECT FROM sectors WHERE sectors.root = listed.root)
ON CONFLICT (root) DO UPDATE SET removed = NULL
RETURNING root
"""

_log = logging.getLogger(__name__)


async def keep_sweeping(content: SharedContent, pause: float = _PAUSE) -> None:
    """Sweep now and then."""
    while True:
        await trio.sleep(pause)
        try:
            await trio.to_thread.run_sync(sweep, content, abandon_on_cancel=True)
        except StorageError as error:  # the next run may do better
            _log.warning("sectors are not swept: %s", error)


def sweep(content: SharedContent, min_age: float = MIN_AGE) -> int | None:
    """Return how many sectors were removed; None if another process is at it. Blocks."""
    with content.database.alone(SWEEP_LOCK) as is_alone:
        if not is_alone:
            return None
        limit = time.time() - min_age
        _repair_rows(content, limit)
        removed = 0
        listed = (found for found in content.objects.list(SECTORS) if found.modified < limit)
        for batch in _batches(listed):
            removed += _remove_unused(content, [found.name for found in batch])
        content.database.write("sweep", lambda connection: connection.execute(_FORGET))
        return removed


def _repair_rows(content: SharedContent, limit: float) -> None:
    """Add the rows that are missing, and drop old ones whose skyfile is not there."""
    gone = set(skyfile_rows.older_than(content.database, limit))
    for batch in _batches(content.objects.list(SKYFILES)):
        names = {found.name: found.modified for found in batch}
        gone -= names.keys()
        for name in names.keys() - skyfile_rows.known(content.database, names):
            _add_row(content, name, names[name])
    if gone:
        skyfile_rows.remove(content.database, sorted(gone))


def _add_row(content: SharedContent, name: str, stored: float) -> None:
    try:
        skylink = Skylink.parse(name)
        found = content.load_known(skylink)
        Layout.parse(found.base)
    except (MalformedError, StorageError) as error:
        _log.warning("object %s is no skyfile: %s", name, error)
        return
    spilled = content.open_sectors(found.spilled_roots)
    size = len(found.spilled_roots) * SECTOR_SIZE
    extension = b"".join(spilled.read(at, SECTOR_SIZE) for at in range(0, size, SECTOR_SIZE))
    sectors = len(found.payload_roots)
    row = skyfile_rows.describe(skylink, found.base, extension, stored, sectors)
    skyfile_rows.put(content.database, row, found.roots, None)


def _remove_unused(content: SharedContent, names: list[str]) -> int:
    roots = [root for name in names if (root := _root(name)) is not None]

    def mark(connection: Connection) -> list[bytes]:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (PUBLISH_LOCK,))
            return [root for (root,) in connection.execute(_UNUSED, (roots,))]

    unused = content.database.write("sweep", mark)
    if unused:
        content.objects.delete([sector_name(root) for root in unused])

        def finish(connection: Connection) -> None:
            query = "UPDATE swept SET removed = clock_timestamp() WHERE root = ANY(%s)"
            connection.execute(query, (unused,))

        content.database.write("sweep", finish)
    return len(unused)


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

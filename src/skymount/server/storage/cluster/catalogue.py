"""The list of skyfiles that portals share, as pages and endpoints see it."""

import math
import time
from contextlib import suppress

import trio

from skymount.errors import StorageError
from skymount.server.storage.catalogue_rows import CatalogueRow, ListPage, NewSkyfile
from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.disk_errors import StorageUnavailableError
from skymount.wire.skylink import Skylink

_LOOK_PAUSE = 2.0  # seconds between two looks at the totals


class SharedCatalogue:
    """The list. Uploads record themselves before they are visible."""

    is_complete = True

    def __init__(self, database: Database, content: SharedContent) -> None:
        self._database = database
        self._content = content
        self._totals = (0, 0)
        self._counted = -math.inf  # when the query of the totals began
        self._failed = -math.inf
        self._counting = trio.Lock()
        self._run = database.run

    async def wait_complete(self) -> None:
        await trio.lowlevel.checkpoint()

    async def repair(self) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    async def add(self, new: NewSkyfile) -> None:
        await trio.lowlevel.checkpoint()

    async def find(self, skylink: Skylink) -> CatalogueRow | None:
        return await self._run(skyfile_rows.find, self._database, skylink)

    async def skylinks_with(self, root: bytes) -> list[Skylink]:
        return await self._run(skyfile_rows.with_sector, self._database, root)

    def note_stored(self, skylink: Skylink) -> None:
        pass

    async def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        return await trio.to_thread.run_sync(self._content.remove, skylink, stored_before)

    async def clock_ahead(self) -> float:
        now = await self._run(skyfile_rows.now, self._database)
        return now.timestamp() - time.time()

    async def older(
        self, before: float, after: tuple[float, Skylink] | None, count: int
    ) -> list[CatalogueRow]:
        """Return the next rows that are not pinned."""
        last = (after[0], str(after[1])) if after else None
        return await self._run(skyfile_rows.older, self._database, before, last, count)

    def totals(self) -> tuple[int, int]:
        return self._totals

    async def refresh_totals(self) -> None:
        """Count what all portals have stored by now. Callers who wait meanwhile share one query."""
        asked = trio.current_time()
        async with self._counting:
            began = trio.current_time()
            if asked <= self._counted:
                return
            if asked < self._failed:  # all who waited for it share the failure
                raise StorageUnavailableError("the database does not answer")
            try:
                self._totals = await self._run(skyfile_rows.totals, self._database)
            except StorageError:
                self._failed = trio.current_time()
                raise
            self._counted = began

    async def keep_counting(self) -> None:
        """Look at the totals again and again."""
        while True:
            with suppress(StorageError):  # the next time may do better
                await self.refresh_totals()
            await trio.sleep(_LOOK_PAUSE)

    async def page(self, search: str, start: int, count: int) -> ListPage:
        rows, total = await self._run(skyfile_rows.page, self._database, search, start, count)
        return ListPage(tuple(rows), total, True, 0)

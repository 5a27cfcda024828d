"""The list of skyfiles that portals share, as pages and endpoints see it."""

from contextlib import suppress
from functools import partial

import trio

from skymount.errors import StorageError
from skymount.server.storage.catalogue_rows import CatalogueRow, ListPage, NewSkyfile
from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.database import Database
from skymount.wire.skylink import Skylink

_LOOK_PAUSE = 2.0  # seconds between two looks at the totals


class KeepsAll:
    """Pins of everything: no portal removes what others may need."""

    def pin(self, skylink: Skylink, reason: str, pinned: float | None = None) -> None:
        pass

    def unpin(self, skylink: Skylink) -> bool:
        return False

    def is_pinned(self, skylink: Skylink) -> bool:
        return True


class SharedCatalogue:
    """The list. Uploads record themselves before they are visible."""

    is_complete = True

    def __init__(self, database: Database, content: SharedContent) -> None:
        self._database = database
        self._content = content
        self._count = skyfile_rows.totals(database)
        self._totals = (0, 0)
        self._run = partial(trio.to_thread.run_sync, limiter=database.threads)

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

    async def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        return await trio.to_thread.run_sync(self._content.remove, skylink, stored_before)

    async def older(
        self, before: float, after: tuple[float, Skylink] | None, count: int
    ) -> list[CatalogueRow]:
        """Return nothing: content is never too old in shared storage."""
        await trio.lowlevel.checkpoint()
        return []

    def totals(self) -> tuple[int, int]:
        return self._totals

    async def keep_counting(self) -> None:
        """Count what is stored, again and again."""
        while True:
            with suppress(StorageError):  # the next time may do better
                count, size = await self._run(self._count.read, abandon_on_cancel=True)
                self._totals = count, size
            await trio.sleep(_LOOK_PAUSE)

    async def page(self, search: str, start: int, count: int) -> ListPage:
        rows, total = await self._run(skyfile_rows.page, self._database, search, start, count)
        if total is None:
            known, _ = await self._run(self._count.read)
            total = max(known, start + len(rows) if rows else 0)
        return ListPage(tuple(rows), total, True, 0)

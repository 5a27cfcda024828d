"""The list of skyfiles that portals share, as pages and endpoints see it."""

from functools import partial

import trio

from skymount.server.storage.catalogue_rows import CatalogueRow, ListPage, NewSkyfile
from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.database import Database
from skymount.wire.skylink import Skylink


class SharedCatalogue:
    """The list. Uploads record themselves before they are visible."""

    is_complete = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def wait_complete(self) -> None:
        await trio.lowlevel.checkpoint()

    async def add(self, new: NewSkyfile) -> None:
        await trio.lowlevel.checkpoint()

    async def find(self, skylink: Skylink) -> CatalogueRow | None:
        return await trio.to_thread.run_sync(skyfile_rows.find, self._database, skylink)

    async def skylinks_with(self, root: bytes) -> list[Skylink]:
        return await trio.to_thread.run_sync(skyfile_rows.with_sector, self._database, root)

    async def totals(self) -> tuple[int, int]:
        return await trio.to_thread.run_sync(skyfile_rows.totals, self._database)

    async def page(self, search: str, start: int, count: int) -> ListPage:
        read = partial(skyfile_rows.page, self._database, search, start, count)
        rows, total = await trio.to_thread.run_sync(read)
        return ListPage(tuple(rows), total, True, 0)

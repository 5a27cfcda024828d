"""The list of skyfiles that portals share, as pages and endpoints see it."""

import trio

from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.skyfile_list import ListedSkyfile, ListPage
from skymount.wire.skylink import Skylink


class SharedCatalogue:
    """The list. Uploads record themselves before they are visible."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, skylink: Skylink) -> None:
        await trio.lowlevel.checkpoint()

    async def page(self, search: str, start: int, count: int) -> ListPage:
        rows, total = await trio.to_thread.run_sync(
            skyfile_rows.page, self._database, search, start, count
        )
        found = (
            ListedSkyfile(row.skylink, row.name, row.size, row.files, row.is_encrypted, row.stored)
            for row in rows
        )
        return ListPage(tuple(found), total, 0)

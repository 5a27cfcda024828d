"""Opens everything that a portal keeps on this disk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import trio

from skymount.server.storage.entry_store import EntryStore
from skymount.server.storage.local_catalogue import LocalCatalogue
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.storage.zone_file import ZoneFile


@asynccontextmanager
async def open_local(data: Path) -> AsyncIterator[PortalStorage]:
    """Lock the data directory and open what is in it; StorageError."""
    content = await trio.to_thread.run_sync(SkyfileStore.open, data)
    with closing(content):
        skykeys = await trio.to_thread.run_sync(SkykeyStore.open, data)
        entries = await trio.to_thread.run_sync(EntryStore.open, data)
        with closing(entries):
            catalogue = await trio.to_thread.run_sync(LocalCatalogue.open, data, content)
            with closing(catalogue):
                yield PortalStorage(
                    content, entries, skykeys, ZoneFile(data), catalogue, (catalogue.maintain,)
                )

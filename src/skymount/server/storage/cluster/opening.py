"""Opens what portals share: the object store and the database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial

import trio

from skymount.server.config import ClusterSettings
from skymount.server.storage.cluster.catalogue import KeepsAll, SharedCatalogue
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.entries import SharedEntries
from skymount.server.storage.cluster.names import SharedNames
from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.cluster.skykeys import SharedSkykeys
from skymount.server.storage.cluster.sweeper import keep_sweeping
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.retention.retention import Retention


@asynccontextmanager
async def open_cluster(settings: ClusterSettings) -> AsyncIterator[PortalStorage]:
    """Connect to both; StorageError within some seconds when one cannot be used."""
    objects = await trio.to_thread.run_sync(Objects, settings)
    await trio.to_thread.run_sync(objects.check)
    database = await trio.to_thread.run_sync(Database.open, settings.database)
    with closing(database), closing(SharedContent(objects, database)) as content:
        catalogue = SharedCatalogue(database, content)
        skykeys = SharedSkykeys(database, settings.key)
        await trio.to_thread.run_sync(skykeys.check)
        secret = await trio.to_thread.run_sync(database.secret)
        yield PortalStorage(
            content,
            SharedEntries(database),
            skykeys,
            SharedNames(database),
            catalogue,
            Retention(content, catalogue, KeepsAll()),
            (partial(keep_sweeping, content), catalogue.keep_counting),
            secret,
        )

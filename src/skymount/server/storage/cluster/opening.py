"""Opens what portals share: the object store and the database."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial

import trio

from skymount.server.config import ClusterSettings
from skymount.server.storage.cluster.catalogue import SharedCatalogue
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.database import KEEP_LOCK, Database
from skymount.server.storage.cluster.entries import SharedEntries
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.cluster.names import SharedNames
from skymount.server.storage.cluster.objects import WAITING, Objects
from skymount.server.storage.cluster.sector_reader import SECTORS_IN_MEMORY
from skymount.server.storage.cluster.skykeys import SharedSkykeys
from skymount.server.storage.cluster.sweeper import keep_sweeping
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.retention.retention import Retention
from skymount.server.storage.retention.shared_pins import SharedPins

_ABSENT = "health"
"""The name of an object that is asked for to see whether the store answers."""


@asynccontextmanager
async def open_cluster(
    settings: ClusterSettings, tables: Tables, keep: float = 0
) -> AsyncIterator[PortalStorage]:
    """Connect to both; StorageError within some seconds when one cannot be used.

    What is older than `keep` seconds is swept away; 0 keeps everything.
    """
    # Beyond those of the portal's own work, which goes on while the store does not answer.
    trio.to_thread.current_default_thread_limiter().total_tokens += WAITING + SECTORS_IN_MEMORY
    with ExitStack() as opened:
        shared = open_shared(settings, tables)
        content, skykeys = await trio.to_thread.run_sync(opened.enter_context, shared)
        database = content.database
        catalogue = SharedCatalogue(database, content)
        secret = await trio.to_thread.run_sync(database.secret)
        retention = Retention(content, catalogue, SharedPins(database))
        background: list[Callable[[], Awaitable[None]]] = [
            partial(keep_sweeping, content),
            catalogue.keep_counting,
        ]
        if keep:
            alone = partial(_alone, database)
            background.append(partial(retention.keep_sweeping, keep, alone))

        def check_reading() -> None:
            database.check_reading()
            content.objects.get(_ABSENT)

        yield PortalStorage(
            content,
            SharedEntries(database),
            skykeys,
            SharedNames(database),
            catalogue,
            retention,
            check_reading,
            database.check_writing,
            tuple(background),
            secret,
        )


@contextmanager
def open_shared(
    settings: ClusterSettings, tables: Tables
) -> Iterator[tuple[SharedContent, SharedSkykeys]]:
    """Connect to both; errors as above. Blocks."""
    objects = Objects(settings)
    objects.check()
    with (
        closing(Database.open(settings.database, tables)) as database,
        closing(SharedContent(objects, database)) as content,
    ):
        skykeys = SharedSkykeys(database, settings.key)
        skykeys.check()
        yield content, skykeys


@asynccontextmanager
async def _alone(database: Database) -> AsyncIterator[bool]:
    """Be the one process that sweeps what is old; False if another one is."""
    with ExitStack() as held:
        lock = database.alone(KEEP_LOCK)
        yield await trio.to_thread.run_sync(held.enter_context, lock)

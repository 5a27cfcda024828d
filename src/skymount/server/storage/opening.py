"""Opens what a portal keeps, wherever its configuration says that is."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from skymount.errors import ConfigError
from skymount.server.config import PortalConfig
from skymount.server.storage.entry_store import EntryStore
from skymount.server.storage.local_catalogue import LocalCatalogue
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.skyfile_store import SkyfileStore
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.storage.zone_file import ZoneFile

if TYPE_CHECKING:
    from skymount.server.storage.cluster.names import SharedNames


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


def open_storage(config: PortalConfig) -> AbstractAsyncContextManager[PortalStorage]:
    """Return what opens it; StorageError then, ConfigError at once if a library is missing."""
    if config.cluster is None:
        return open_local(config.data)
    with _libraries("--store"):
        from skymount.server.storage.cluster.opening import open_cluster
    return open_cluster(config.cluster)


@contextmanager
def open_names(database: str, environ: Mapping[str, str]) -> "Iterator[SharedNames]":
    """Open the names of portals that share a database; ConfigError, StorageError. Blocks."""
    from skymount.server.storage.cluster.settings import parse_database

    url = parse_database(database, environ)
    with _libraries("--database"):
        from skymount.server.storage.cluster.database import Database
        from skymount.server.storage.cluster.names import SharedNames
    with closing(Database.open(url)) as opened:
        yield SharedNames(opened)


@contextmanager
def _libraries(option: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("skymount"):
            raise
        raise ConfigError(
            f"{option} needs more libraries ({error.name} is missing): "
            "pip install 'skymount[cluster]'"
        ) from None

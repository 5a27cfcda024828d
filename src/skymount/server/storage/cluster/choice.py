"""Opens what a portal keeps, wherever its configuration says that is."""

from collections.abc import Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    closing,
    contextmanager,
)
from typing import TYPE_CHECKING

from skymount.errors import ConfigError
from skymount.server.config import PortalConfig
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.local_storage import open_local
from skymount.server.storage.portal_storage import PortalStorage
from skymount.server.storage.reading.local_reader import LocalReader
from skymount.server.storage.reading.storage_reader import StorageReader

if TYPE_CHECKING:
    from skymount.server.storage.cluster.names import SharedNames


def open_storage(
    config: PortalConfig, tables: Tables
) -> AbstractAsyncContextManager[PortalStorage]:
    """Return what opens it; StorageError then, ConfigError at once if a library is missing.

    `tables` is what may be done to those of a shared database.
    """
    if config.cluster is None:
        return open_local(config.data, config.keep)
    with _libraries("--store"):
        from skymount.server.storage.cluster.opening import open_cluster
    return open_cluster(config.cluster, tables, config.keep)


@contextmanager
def open_reader(config: PortalConfig) -> Iterator[StorageReader]:
    """Open what commands read, beside portals that run; ConfigError, StorageError. Blocks."""
    if config.cluster is None:
        with closing(LocalReader(config.data)) as reader:
            yield reader
        return
    with _libraries("--store"):
        from skymount.server.storage.cluster.opening import open_shared
        from skymount.server.storage.reading.shared_reader import SharedReader
    with open_shared(config.cluster, Tables.KEEP) as (content, skykeys):
        yield SharedReader(content, skykeys)


@contextmanager
def open_names(
    database: str, environ: Mapping[str, str], tables: Tables
) -> "Iterator[SharedNames]":
    """Open the names of portals that share a database; ConfigError, StorageError. Blocks."""
    from skymount.server.storage.cluster.settings import parse_database

    url = parse_database(database, environ)
    with _libraries("--database"):
        from skymount.server.storage.cluster.database import Database
        from skymount.server.storage.cluster.names import NAMES_VERSION, SharedNames
    with closing(Database.open(url, tables, NAMES_VERSION)) as opened:
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

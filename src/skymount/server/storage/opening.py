"""Opens what a portal keeps, wherever its configuration says that is."""

from contextlib import AbstractAsyncContextManager

from skymount.errors import ConfigError
from skymount.server.config import PortalConfig
from skymount.server.storage.local_storage import open_local
from skymount.server.storage.portal_storage import PortalStorage


def open_storage(config: PortalConfig) -> AbstractAsyncContextManager[PortalStorage]:
    """Return what opens it; StorageError then, ConfigError at once if a library is missing."""
    if config.cluster is None:
        return open_local(config.data)
    try:
        from skymount.server.storage.cluster.opening import open_cluster
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("skymount"):
            raise
        raise ConfigError(
            f"--store needs more libraries ({error.name} is missing): "
            "pip install 'skymount[cluster]'"
        ) from None
    return open_cluster(config.cluster)

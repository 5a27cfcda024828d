"""All that a portal keeps, wherever that is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from skymount.server.storage.interfaces import Catalogue, ContentStore, Entries, Names, Skykeys
from skymount.server.storage.retention.retention import Retention


@dataclass(frozen=True, slots=True)
class PortalStorage:
    """What a portal serves from and stores into."""

    content: ContentStore
    entries: Entries
    skykeys: Skykeys
    names: Names
    catalogue: Catalogue
    retention: Retention
    background: tuple[Callable[[], Awaitable[None]], ...] = ()
    """Run while the portal does."""

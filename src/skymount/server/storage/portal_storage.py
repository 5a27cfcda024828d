"""All that a portal keeps, wherever that is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

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
    check_reading: Callable[[], None]
    """Raises StorageError while what is stored cannot be read. Blocks, as the next one does."""
    check_storing: Callable[[], None]
    """Raises StorageError while nothing can be stored, DiskFullError if there is no room."""
    background: tuple[Callable[[], Awaitable[None]], ...] = ()
    """Run while the portal does."""
    secret: bytes = field(default=b"", repr=False)
    """What all processes of a portal share, and nobody else knows; empty if there is just one."""

"""What commands read of a portal's data, beside portals that run.

`local_reader` reads a data directory, `shared_reader` shared storage. Everything blocks;
StorageError.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from skymount.server.storage.catalogue_rows import CatalogueRow
from skymount.server.storage.retention.pin_store import Pin
from skymount.server.storage.stored_skyfile import StoredSkyfile
from skymount.wire.registry_entry import SignedEntry
from skymount.wire.skykey import Skykey
from skymount.wire.skylink import Skylink


class StorageReader(Protocol):
    """Reads all that a portal keeps."""

    def page(self, search: str, start: int, count: int) -> tuple[Sequence[CatalogueRow], int]:
        """Return rows as `Catalogue.page` does, and how many match in all."""

    def row(self, skylink: Skylink) -> CatalogueRow | None: ...

    def pins(self, skylinks: Iterable[Skylink]) -> dict[Skylink, Pin]:
        """Return the pins of these."""

    def all_pins(self) -> Iterator[Pin]: ...

    def skylinks(self) -> Iterator[Skylink]:
        """Yield what is stored, in no order."""

    def find(self, skylink: Skylink) -> StoredSkyfile | None: ...

    def has(self, skylink: Skylink) -> bool:
        """Whether anything of a skyfile is here now."""

    def entries(self) -> Iterator[SignedEntry]: ...

    def names(self) -> bytes:
        """Return the zone; empty if there is none."""

    def skykeys(self) -> Sequence[Skykey]: ...

"""Reads what portals share, beside them. Everything blocks; StorageError."""

from collections.abc import Iterable, Iterator, Sequence

from skymount.server.storage.catalogue_rows import CatalogueRow
from skymount.server.storage.cluster import skyfile_rows
from skymount.server.storage.cluster.content_store import SharedContent
from skymount.server.storage.cluster.entries import read_entries
from skymount.server.storage.cluster.names import SharedNames
from skymount.server.storage.cluster.skyfile_object import skyfile_name
from skymount.server.storage.cluster.skykeys import SharedSkykeys
from skymount.server.storage.retention.pin_store import Pin
from skymount.server.storage.retention.shared_pins import SharedPins
from skymount.server.storage.stored_skyfile import StoredSkyfile
from skymount.wire.registry_entry import SignedEntry
from skymount.wire.skykey import Skykey
from skymount.wire.skylink import Skylink


class SharedReader:
    """Reads one bucket and database."""

    def __init__(self, content: SharedContent, skykeys: SharedSkykeys) -> None:
        self._content = content
        self._database = content.database
        self._pins = SharedPins(content.database)
        self._skykeys = skykeys

    def page(self, search: str, start: int, count: int) -> tuple[Sequence[CatalogueRow], int]:
        return skyfile_rows.page(self._database, search, start, count)

    def row(self, skylink: Skylink) -> CatalogueRow | None:
        return skyfile_rows.find(self._database, skylink)

    def pins(self, skylinks: Iterable[Skylink]) -> dict[Skylink, Pin]:
        return self._pins.find(skylinks)

    def all_pins(self) -> Iterator[Pin]:
        return self._pins.all()

    def skylinks(self) -> Iterator[Skylink]:
        return self._content.skylinks()

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        return self._content.find(skylink)

    def has(self, skylink: Skylink) -> bool:
        return self._content.objects.exists(skyfile_name(skylink))

    def entries(self) -> Iterator[SignedEntry]:
        return read_entries(self._database)

    def names(self) -> bytes:
        return SharedNames(self._database).current().encode()

    def skykeys(self) -> Sequence[Skykey]:
        return self._skykeys.read()

"""Reads a data directory beside a portal that may run on it. Everything blocks."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from skymount.errors import StorageError
from skymount.server.storage import catalogue_database
from skymount.server.storage.catalogue_rows import CatalogueRow
from skymount.server.storage.disk_errors import disk_errors
from skymount.server.storage.entry_store import peek_entries
from skymount.server.storage.local_catalogue import catalogue_path
from skymount.server.storage.retention.pin_store import Pin, peek_all, peek_pins
from skymount.server.storage.skyfile_store import FORMAT, SHARDS, SkyfileStore
from skymount.server.storage.skykey_store import SkykeyStore
from skymount.server.storage.stored_skyfile import StoredSkyfile
from skymount.server.storage.zone_file import ZONE_FILE
from skymount.wire.registry_entry import SignedEntry
from skymount.wire.skykey import Skykey
from skymount.wire.skylink import Skylink


def check_data(data: Path) -> None:
    """StorageError unless a directory is that of a portal."""
    if not (data / FORMAT).is_dir():
        raise StorageError(f"{data}: no portal keeps its data there")


class LocalReader:
    """Reads one data directory; StorageError if it is none. Use `close`."""

    def __init__(self, data: Path) -> None:
        check_data(data)
        self._data = data
        self._store = SkyfileStore.beside(data)

    def close(self) -> None:
        self._store.close()

    def page(self, search: str, start: int, count: int) -> tuple[Sequence[CatalogueRow], int]:
        path = catalogue_path(self._data)
        found = catalogue_database.peek_page(path, search, start, count)
        if found is None:
            raise StorageError(f"{path} is missing: start a portal, which makes it")
        return found

    def row(self, skylink: Skylink) -> CatalogueRow | None:
        return catalogue_database.peek_row(catalogue_path(self._data), skylink)

    def pins(self, skylinks: Iterable[Skylink]) -> dict[Skylink, Pin]:
        return peek_pins(self._data, skylinks)

    def all_pins(self) -> Iterator[Pin]:
        return peek_all(self._data)

    def skylinks(self) -> Iterator[Skylink]:
        for shard in SHARDS:
            yield from self._store.skylinks(shard)

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        return self._store.find(skylink)

    def has(self, skylink: Skylink) -> bool:
        return self._store.has(skylink)

    def entries(self) -> Iterator[SignedEntry]:
        return peek_entries(self._data)

    def names(self) -> bytes:
        with disk_errors("read the names"), suppress(FileNotFoundError):
            return (self._data / ZONE_FILE).read_bytes()
        return b""

    def skykeys(self) -> Sequence[Skykey]:
        return SkykeyStore.open(self._data).current

"""The content of a portal that has upstreams: what is stored here, else what upstream has."""

from functools import partial

from skymount.server.http_error import HttpError
from skymount.server.storage.interfaces import (
    ContentStore,
    SmallUploads,
    Upload,
    UploadInParts,
)
from skymount.server.storage.stored_range import StoredRange
from skymount.server.storage.stored_skyfile import StoredSkyfile
from skymount.server.upstream.remote_bytes import SectorBytes
from skymount.server.upstream.remote_skyfile import RemoteSkyfile, RemoteSkyfiles
from skymount.wire.base_sector import LAYOUT_SIZE
from skymount.wire.skylink import SECTOR_SIZE, Skylink

_ABSENT = "failed to fetch skylink: root not found"
_ABSENT_ROOT = "failed to fetch root: root not found"


class UpstreamContent:
    """The skyfiles of a store, and those of upstream portals. Calls block, for threads.

    What is written is the store's.
    """

    def __init__(self, store: ContentStore, remote: RemoteSkyfiles) -> None:
        self._store = store
        self._remote = remote

    @property
    def memory_time(self) -> float:
        return self._store.memory_time

    def begin(self) -> Upload:
        return self._store.begin()

    def begin_in_parts(self) -> UploadInParts | None:
        return self._store.begin_in_parts()

    @property
    def small(self) -> SmallUploads | None:
        return self._store.small

    def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        return self._store.remove(skylink, stored_before)

    def find(self, skylink: Skylink) -> StoredSkyfile | None:
        """Return a skyfile; None if upstream has none, HttpError if that cannot be told."""
        found = self._store.find(skylink)
        if found is not None:
            return found
        get = partial(self._remote.sectors.base, skylink)
        try:
            base = self._remote.threads.run(get, _ABSENT)
        except HttpError as error:
            if error.status == 404:
                return None
            raise
        start, parts = bytes(base[:LAYOUT_SIZE]), RemoteSkyfile(self._remote, skylink)
        return StoredSkyfile.of(skylink, start, len(base), parts)

    def find_sector(self, root: bytes) -> StoredRange | None:
        """Return a sector by its Merkle root; as `find`."""
        found = self._store.find_sector(root)
        if found is not None:
            return found
        get = partial(self._remote.sectors.sector, root)
        try:
            self._remote.threads.run(get, _ABSENT_ROOT)
        except HttpError as error:
            if error.status == 404:
                return None
            raise
        return StoredRange(SectorBytes(root.hex(), self._remote.threads, get), 0, SECTOR_SIZE)

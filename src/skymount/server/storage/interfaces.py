"""What the portal needs of whatever keeps its data: content, entries, skykeys, names.

`skyfile_store`, `local_catalogue`, `entry_store`, `skykey_store` and `zone_file` keep them on this
disk. Functions that are not async block: async code calls them in a thread.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from skymount.server.storage.catalogue_rows import CatalogueRow, ListPage, NewSkyfile
from skymount.server.storage.stored_range import StoredRange
from skymount.server.storage.stored_skyfile import BuiltSkyfile, StoredSkyfile
from skymount.server.storage.zone_file import Zone
from skymount.wire.hns import DomainRecord
from skymount.wire.registry_entry import SignedEntry
from skymount.wire.skykey import Kind, Skykey
from skymount.wire.skylink import Skylink


class Upload(Protocol):
    """A skyfile on its way into a store. Nobody finds any of it before `publish`."""

    def put_sector(
        self,
        index: int,
        root: bytes,
        sector: bytes | bytearray,
        stored: Callable[[], None] | None = None,
    ) -> None:
        """Store a sector of the payload, the last one without padding. Any thread may call, and
        several at once; StorageError, DiskFullError. Unless it raises, `stored` is called when the
        sector is not needed any more, by any thread and maybe later.
        """

    def publish(self, skylink: Skylink, built: BuiltSkyfile) -> None:
        """Make the skyfile visible in one step, durable once this returns; errors as above."""

    def close(self) -> None:
        """Drop an upload that was not published."""


class UploadInParts(Upload, Protocol):
    """One whose payload comes in parts of sectors, so that less of it is in memory."""

    def put_part(self, offset: int, part: bytes | bytearray) -> None:
        """Store a part of the payload, as `put_sector` does."""

    def take_parts(self) -> bytes:
        """Return the payload so far, and drop it: it is part of the base sector after all."""


class SmallUploads(Protocol):
    """Skyfiles of at most `SMALL_SIZE`, which are all in their base sector."""

    async def put(self, skyfile: tuple[Skylink, bytes]) -> None:
        """Store one, durable once this returns; StorageError, DiskFullError."""


class ContentStore(Protocol):
    """The skyfiles of a portal: each complete or absent. StorageError from every method."""

    @property
    def memory_time(self) -> float:
        """Seconds for which what was found may stay in memory, as others may remove it."""

    def begin(self) -> Upload:
        """Begin an upload, to be closed. It takes no room before the first sector; never blocks."""

    def begin_in_parts(self) -> UploadInParts | None:
        """As `begin`; None where the store takes only whole sectors."""

    @property
    def small(self) -> SmallUploads | None:
        """What stores small skyfiles together; None where each is published by itself."""

    def find(self, skylink: Skylink) -> StoredSkyfile | None: ...

    def find_sector(self, root: bytes) -> StoredRange | None:
        """Return a sector that the catalogue does not have, by its Merkle root."""

    def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        """Remove a skyfile; return whether it was here. With a time only if it was stored before,
        and not stored again meanwhile.
        """


class Catalogue(Protocol):
    """What is stored. StorageError from every method but `add`."""

    @property
    def is_complete(self) -> bool:
        """Whether it has all that is stored; else what it does not have may be stored."""

    async def wait_complete(self) -> None: ...

    async def repair(self) -> bool:
        """Make it complete; False if that failed, which is logged."""

    async def add(self, new: NewSkyfile) -> None:
        """Record a skyfile that was stored just now. A failure is logged, and repaired later."""

    def note_stored(self, skylink: Skylink) -> None:
        """Have a skyfile that was stored without `add` recorded by the next `repair`."""

    async def find(self, skylink: Skylink) -> CatalogueRow | None: ...

    async def skylinks_with(self, root: bytes) -> list[Skylink]:
        """Return some skyfiles that have the sector of a Merkle root."""

    async def remove(self, skylink: Skylink, stored_before: float | None = None) -> bool:
        """Remove a skyfile from the store, by the rules there, and its row."""

    async def clock_ahead(self) -> float:
        """Return by how many seconds the clock of `stored` is ahead of that of this machine."""

    async def older(
        self, before: float, after: tuple[float, Skylink] | None, count: int
    ) -> list[CatalogueRow]:
        """Return the next rows stored before a time, the oldest first: those after a row. Pinned
        ones may be left out.
        """

    def totals(self) -> tuple[int, int]:
        """Return the number of skyfiles, and their bytes on disk."""

    async def refresh_totals(self) -> None:
        """Make the totals those of now, of all processes that share the store."""

    async def page(self, search: str, start: int, count: int) -> ListPage:
        """Return rows from `start` on, newest first, whose name contains a text, or whose skylink
        it is.
        """


class Entries(Protocol):
    """The registry of a portal: the latest entry of each id. StorageError from every method."""

    async def find(self, entry: bytes) -> SignedEntry | None:
        """Return the entry of a 32-byte id, as in a v2 skylink; None when there is none."""

    async def read(self, public_key: bytes, tweak: bytes) -> SignedEntry | None:
        """Return the entry of a public key and a hashed data key; None when there is none."""

    async def update(self, signed: SignedEntry) -> None:
        """Store an entry, durable once this returns; BadSignatureError, MalformedError, or
        RevisionError when it must not replace the stored one.
        """

    async def keys(self, after: bytes, count: int) -> list[bytes]:
        """Return the next public keys that have entries, in order."""

    async def entries_of(self, public_key: bytes, after: bytes, count: int) -> list[SignedEntry]:
        """Return the next entries of a public key, by their tweak."""

    async def count(self) -> int: ...


class Skykeys(Protocol):
    """The skykeys of a portal. StorageError from every method."""

    async def all(self) -> Sequence[Skykey]:
        """Return the keys as they are now; the same object as long as they are the same."""

    async def find(self, *, name: str = "", key_id: str = "") -> Skykey:
        """Return the key of that id, or else of that name; MalformedError when there is none."""

    async def create(self, name: str, kind: Kind) -> Skykey:
        """Make a new key and store it; MalformedError for a bad name or one that is taken."""

    async def add(self, skykey: Skykey) -> None:
        """Store a key; MalformedError when its name or id is taken."""

    async def delete(self, *, name: str = "", key_id: str = "") -> None: ...


class Names(Protocol):
    """The names of a portal."""

    def current(self) -> Zone:
        """Return the zone as it is now; blocks; StorageError."""

    def change(self, edit: Callable[[Zone], Zone]) -> None:
        """Replace the zone by an edited one, in one step; blocks; StorageError. Errors of `edit`
        pass through.
        """

    async def find(self, domain: str) -> DomainRecord | None:
        """Return the record of a domain in canonical form, None if there is none; StorageError, or
        MalformedError if it cannot be used.
        """

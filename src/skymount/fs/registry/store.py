"""What `/registry` and `/skydb` need of the store of their files."""

import math
import time
from typing import Protocol, TypeVar

from skymount.fs.registry.write_buffer import FileData
from skymount.portal.ledger.entries import EntryId
from skymount.wire.key_pair import SigningKeyPair


class KeyFileState(Protocol):
    """A file at some time: a `State` of the registry, or a `Document`."""

    @property
    def data(self) -> bytes | None: ...  # none when there is no such file
    @property
    def revision(self) -> int: ...
    @property
    def answered_at(self) -> float: ...  # when a portal's answer came, by trio's clock
    @property
    def seen_at(self) -> float: ...  # when it changed, in seconds since 1970


S = TypeVar("S", bound=KeyFileState)


class KeyFileStore(Protocol[S]):
    """Reads, verifies and posts the files of one subtree."""

    @property
    def limit(self) -> int: ...  # bytes of one file

    def recall(self, entry_id: EntryId, /) -> S | None:
        """Return what is remembered of a file, however old."""

    def recall_entry(self, entry_id: EntryId, /) -> S | None:
        """Return the same of its entry alone: what is known of a file that cannot be read."""

    async def read(
        self,
        entry_id: EntryId,
        /,
        max_age: float = 0.0,
        *,
        since: float = -math.inf,
        fresh: bool = False,
    ) -> S:
        """Return a file's state: by a new answer, or one that came at most `max_age` seconds ago,
        to a request that began at `since` or later, by trio's clock. Unless `fresh`, what was seen
        last counts if no portal has an answer.
        """

    async def fetch_ahead(self, entry_id: EntryId, /, max_age: float, since: float) -> None:
        """Ask for a file that `read` will be asked for, unless that takes much memory."""

    async def write(
        self, entry_id: EntryId, pair: SigningKeyPair, data: FileData, base: S | None, /
    ) -> S:
        """Store content made from `base`, or whatever there is now if that is None."""

    def check(self, entry_id: EntryId, base: S, /) -> None:
        """Raise what `write` would for content made from `base`, unless that may be signed."""

    async def delete(self, entry_id: EntryId, pair: SigningKeyPair, /) -> object: ...

    async def has_pending(self, entry_id: EntryId, /) -> bool:
        """Whether an earlier write is still to be posted."""

    async def public_keys(self) -> list[bytes]:
        """Return the public keys of which an entry is known."""

    async def names(self, public_key: bytes, /) -> list[EntryId]:
        """Return the known entries of a key."""


def changed_ns(state: KeyFileState | None) -> int:
    """Return when a file changed, in nanoseconds since 1970: now if that is not known."""
    return time.time_ns() if state is None else int(state.seen_at * 1e9)

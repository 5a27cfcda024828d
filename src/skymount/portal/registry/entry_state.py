"""What the registry held at some time, and the decisions about reading and changing it. No IO."""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from skymount.errors import FrozenEntryError, StaleEntryError, StorageError, UnavailableError
from skymount.portal.ledger.pending_write import PendingStatus
from skymount.portal.ledger.rollback import RevisionMark, is_rolled_back, raised
from skymount.wire.registry_entry import MAX_REVISION, SignedEntry


@dataclass(frozen=True, slots=True)
class EntryState:
    """What the registry held at some time."""

    signed: SignedEntry | None  # verified; None when there was no such entry
    requested_at: float  # when the request for this began, by trio's clock
    seen_at: float  # when this machine first saw this revision, in seconds since 1970
    answered_at: float  # when the answer came, by trio's clock

    @property
    def data(self) -> bytes | None:
        """None when the entry is absent or deleted."""
        if self.signed is None or self.signed.entry.is_deleted:
            return None
        return self.signed.entry.data

    @property
    def revision(self) -> int:
        """-1 when the entry is absent."""
        return -1 if self.signed is None else self.signed.entry.revision

    @property
    def mark(self) -> RevisionMark | None:
        return raised(None, self.signed.entry, self.seen_at) if self.signed else None


def is_same(one: EntryState, other: EntryState) -> bool:
    """Whether revision and content are the same; signatures may differ."""
    if one.signed is None or other.signed is None:
        return one.signed is other.signed
    return one.signed.entry == other.signed.entry


def is_news(old: EntryState | None, new: EntryState) -> bool:
    """Whether a state replaces the cached one, in whatever order the answers came."""
    if old is None or old.signed is None:
        return old is None or new.signed is not None or new.requested_at >= old.requested_at
    if new.signed is None or is_same(old, new):
        return new.requested_at >= old.requested_at
    return not is_rolled_back(old.mark, new.signed.entry)


def newest(states: Sequence[EntryState]) -> EntryState:
    """Return the state that the registry's rules prefer, of at least one."""
    found = states[0]
    for each in states[1:]:
        if is_behind(found, each):
            found = each
    return found


def is_behind(one: EntryState | None, other: EntryState) -> bool:
    """Whether a portal with one state, or without the entry, would take the other one."""
    if one is None or one.signed is None:
        return other.signed is not None
    if other.signed is None or one.signed.entry.revision == MAX_REVISION:
        return False
    return is_rolled_back(other.mark, one.signed.entry)


def next_revision(current: int, claimed: int | None) -> int:
    """Return a revision above `current` and all that were signed, or raise FrozenEntryError."""
    highest = max(current, -1 if claimed is None else claimed)
    check_not_frozen(highest)
    return highest + 1


def check_not_frozen(revision: int) -> None:
    """FrozenEntryError if nothing can follow a revision."""
    if revision >= MAX_REVISION:
        raise FrozenEntryError("the entry has the last revision there is, and cannot be changed")


def needs_post(base: EntryState | None, current: EntryState, wanted: bytes) -> bool:
    """Whether a change is to be posted: not if somebody else has written this content meanwhile.

    `base` is None for a whole rewrite. StaleEntryError when somebody else changed the entry,
    FrozenEntryError when nobody can any more.
    """
    if base is None or is_same(base, current):
        return True
    if current.signed is not None and current.signed.entry.data == wanted:
        return False
    check_not_frozen(current.revision)
    made_from = "nothing" if base.signed is None else f"revision {base.revision}"
    raise StaleEntryError(
        f"the entry was changed by somebody else: {described(current)}, "
        f"the change was made from {made_from}"
    )


def described(state: EntryState) -> str:
    """Return what has become of an entry, for a message."""
    return "it is gone" if state.signed is None else f"it has revision {state.revision}"


def status_after(error: BaseException, base: EntryState | None) -> PendingStatus:
    """Return the status of a write whose posting failed: WAITING unless it was refused."""
    if isinstance(error, UnavailableError | StorageError | trio.Cancelled):
        return PendingStatus.WAITING
    is_conflict = isinstance(error, StaleEntryError) and base is not None
    return PendingStatus.CONFLICT if is_conflict else PendingStatus.FAILED

"""Whether a registry entry from a portal is believed, for everything that reads entries.

The owner must have signed it, and nothing newer may have been seen before. What is believed is
recorded for the next time.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio
from cachetools import LRUCache

from skymount.errors import BadContentError, MalformedError, RolledBackError, StorageError
from skymount.portal.ledger.entries import (
    EntryId,
    RevisionMark,
    is_rolled_back,
    later,
    raised,
    rollback_reason,
)
from skymount.portal.ledger.ledger import Ledger
from skymount.wire.registry_entry import Entry, SignedEntry
from skymount.wire.skylink import Skylink

_ATTEMPTS = 3  # requests for one answer while this machine changes the entry at the same time
_UNSAVED_LIMIT = 10_000  # entries whose mark is in memory; the least recently used go first
_LEDGER_THREADS = 4  # at most; most of the time they wait for the disk

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerifiedEntry:
    """An entry from a portal that is believed."""

    signed: SignedEntry
    mark: RevisionMark
    requested_at: float  # when the request for it began, by trio's clock


@dataclass(frozen=True, slots=True)
class _UnsavedMark:
    mark: RevisionMark
    signed: SignedEntry
    data_key: str | None
    named: bool


class RevisionMarks:
    """The highest revision seen of each entry: on disk with a ledger, else in memory.

    A mark that cannot be written is kept in memory until it can. Every method raises StorageError
    when an existing ledger cannot be read.
    """

    def __init__(
        self, ledger: Ledger | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.ledger = ledger
        self._clock = clock
        self._unsaved: LRUCache[EntryId, _UnsavedMark] = LRUCache(_UNSAVED_LIMIT)
        self._threads = trio.CapacityLimiter(_LEDGER_THREADS)
        self.failure: StorageError | None = None  # why the ledger could not be written
        self._is_open = False
        self._opening = trio.Lock()

    async def open(
        self, ledger: Callable[[], Ledger], warn: Callable[[str], None], *, is_required: bool
    ) -> bool:
        """Open a ledger; one that cannot be used is warned of, and gone without, unless it
        `is_required`. Return whether it was opened now and can be written.
        """
        async with self._opening:
            if self._is_open:
                return False
            try:
                self.ledger = ledger()
                await self.in_thread(self.ledger.prepare)
            except StorageError as error:
                if is_required:
                    text = f"{error}; with verify require that must be mended first"
                    raise StorageError(text) from None
                warn(f"{error}; it may go unnoticed when a portal shows an old registry entry")
                is_writable = False
                if self.ledger is not None:
                    try:
                        await self.in_thread(self.ledger.public_keys)
                    except StorageError:
                        self.ledger = None  # not even readable
            else:
                is_writable = True
            self._is_open = True
            return is_writable

    async def in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(function, *args, limiter=self._threads)

    async def find(self, ref: EntryId) -> RevisionMark | None:
        saved = None
        if self.ledger is not None:
            saved = await self.in_thread(self.ledger.mark_of, ref.public_key, ref.tweak)
        return self.with_unsaved(ref, saved)

    async def newest(self, ref: EntryId) -> SignedEntry | None:
        """Return the entry that the mark is of; None if it is unknown, or was forgotten."""
        unsaved = self._unsaved.get(ref)
        if self.ledger is None:
            return unsaved.signed if unsaved else None
        saved = await self.in_thread(self.ledger.newest_entry, ref.public_key, ref.tweak)
        if unsaved and (saved is None or is_rolled_back(unsaved.mark, saved.entry)):
            return unsaved.signed
        return saved

    def with_unsaved(self, ref: EntryId, saved: RevisionMark | None) -> RevisionMark | None:
        """Return the later one of a mark of the ledger and the one in memory."""
        unsaved = self._unsaved.get(ref)
        return later(saved, unsaved.mark) if unsaved else saved

    async def record(
        self, ref: EntryId, signed: SignedEntry, *, named: bool = True, portal: str = ""
    ) -> RevisionMark:
        """Raise the mark as `Ledger.record_seen` does; return the mark then."""
        if self.ledger is not None:
            record = partial(
                self.ledger.record_seen, signed, ref.data_key, named=named, portal=portal
            )
            unsaved = self._unsaved.get(ref)
            try:
                mark = await self.in_thread(record)
            except StorageError as error:
                if self.failure is None:
                    _log.warning(
                        "%s; what portals show is kept in memory until it can be written", error
                    )
                self.failure = error
            else:
                return later(mark, unsaved.mark) if unsaved else mark
        mark = raised(await self.find(ref), signed.entry, self._clock())
        unsaved = self._unsaved.get(ref)
        if unsaved is None or mark is not unsaved.mark:
            self._unsaved[ref] = _UnsavedMark(mark, signed, ref.data_key, named)
        return mark

    async def save(self) -> None:
        """Write the marks that the ledger could not take before."""
        if self.ledger is None or self.failure is None:
            return
        for ref, unsaved in list(self._unsaved.items()):
            record = partial(
                self.ledger.record_seen, unsaved.signed, unsaved.data_key, named=unsaved.named
            )
            try:
                await self.in_thread(record)
            except StorageError:
                return
            if self._unsaved.get(ref) is unsaved:
                del self._unsaved[ref]
        if not self._unsaved:
            self.failure = None

    async def name_since(self, name: str, target: str) -> int:
        """Do as `Ledger.name_since`; StorageError where there is no ledger."""
        if self.ledger is None:
            raise StorageError("there is no ledger")
        return await trio.to_thread.run_sync(
            self.ledger.name_since, name, target, abandon_on_cancel=True, limiter=self._threads
        )

    async def name_target(self, name: str) -> str | None:
        """Return what `name_since` was last told; None where there is no ledger."""
        return None if self.ledger is None else await self.in_thread(self.ledger.name_target, name)

    async def find_entry(self, link: Skylink) -> EntryId | None:
        if self.ledger is None:
            unsaved = self._unsaved.items()
            return next((ref for ref, each in unsaved if each.signed.link == link), None)
        key = await trio.to_thread.run_sync(
            partial(self.ledger.find_entry, link), abandon_on_cancel=True, limiter=self._threads
        )
        return None if key is None else EntryId(*key)

    async def check(
        self, ref: EntryId, signed: SignedEntry, portal: str, *, named: bool
    ) -> RevisionMark:
        """Verify and record an entry that came with something else, such as a proof.

        BadContentError when its owner did not sign it, RolledBackError when it is rolled back.
        """
        try:
            signed.verify()
        except MalformedError as error:
            raise BadContentError(f"registry entry {ref}: {error}", url=portal) from None
        mark = await self.record(ref, signed, named=named, portal=portal)
        if is_rolled_back(mark, signed.entry):
            raise _rolled_back(ref, mark, signed.entry, portal)
        return mark

    async def read(
        self,
        ref: EntryId,
        fetch: Callable[[], Awaitable[SignedEntry | None]],
        portal: str,
        *,
        named: bool = True,
    ) -> VerifiedEntry | None:
        """Ask one portal for an entry with `fetch`, which verifies it; None when it has none.

        A change that this machine makes at the same time can make the answer look old; then the
        portal is asked again. RolledBackError when the answer is rolled back.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            begun, requested_at = self._clock(), trio.current_time()
            signed = await fetch()
            if signed is None:
                seen = await self.find(ref)
                if seen is None or seen.seen_at < begun or attempt == _ATTEMPTS:
                    break
                continue
            mark = await self.record(ref, signed, named=named, portal=portal)
            if not is_rolled_back(mark, signed.entry):
                return VerifiedEntry(signed, mark, requested_at)
            if mark.seen_at < begun or attempt == _ATTEMPTS:
                raise _rolled_back(ref, mark, signed.entry, portal)
        return None


def _rolled_back(ref: EntryId, mark: RevisionMark, entry: Entry, portal: str) -> RolledBackError:
    return RolledBackError(f"registry entry {ref}: {rollback_reason(mark, entry)}", url=portal)

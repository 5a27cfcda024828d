"""Owns what is believed of a registry entry that a portal sends, for every reader of entries: its
owner signed it, and nothing newer was seen before, on this machine or, without a ledger, by this
client. What is believed is remembered for the next time.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio
from cachetools import LRUCache

from skymount.errors import BadContentError, MalformedError, RolledBackError, StorageError
from skymount.portal.registry.ledger import Ledger, RevisionMark, is_rolled_back, raised
from skymount.wire.registry_entry import Entry, SignedEntry
from skymount.wire.skylink import Skylink

_RACES = 3  # requests for one answer, while this machine changes the entry meanwhile
_KEPT = 10_000  # entries whose mark is in memory, those that were used last
_THREADS = 4  # that use the ledger at once; most of the time they wait for the disk

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntryId:
    """Names an entry."""

    public_key: bytes
    tweak: bytes
    data_key: str | None = field(default=None, compare=False)
    """None when only its hash is known."""

    def __str__(self) -> str:
        name = self.tweak.hex() if self.data_key is None else ascii(self.data_key)
        return f"{self.public_key.hex()}/{name}"


@dataclass(frozen=True, slots=True)
class VerifiedEntry:
    """An entry that a portal sent, and that is believed."""

    signed: SignedEntry
    mark: RevisionMark
    asked: float
    """When the request for it was begun, by trio's clock."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A mark that is in memory alone, and what the ledger needs to take it later."""

    mark: RevisionMark
    signed: SignedEntry
    data_key: str | None
    named: bool


class RevisionMarks:
    """The highest revision of each entry that was seen.

    With a ledger they are on disk. What the disk does not take is kept in memory until it does.
    Every method raises StorageError when a ledger that is there cannot be read.
    """

    def __init__(
        self, ledger: Ledger | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` is the ledger's."""
        self.ledger = ledger
        self._clock = clock
        self._kept: LRUCache[EntryId, _Kept] = LRUCache(_KEPT)
        self._threads = trio.CapacityLimiter(_THREADS)
        self.failure: StorageError | None = None
        """Why the ledger did not take something that is in memory now, if that is so."""

    async def in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Use the ledger in a thread."""
        return await trio.to_thread.run_sync(function, *args, limiter=self._threads)

    async def find(self, ref: EntryId) -> RevisionMark | None:
        """Return the mark of an entry."""
        kept = self._kept.get(ref)
        if self.ledger is None:
            return kept.mark if kept else None
        seen = await self.in_thread(self.ledger.seen, ref.public_key, ref.tweak)
        return _later(seen, kept.mark) if kept else seen

    async def note(self, ref: EntryId, signed: SignedEntry, *, named: bool = True) -> RevisionMark:
        """Raise the mark to an entry whose signature was verified; return the mark then.

        It is never lowered: `is_rolled_back` tells whether the entry is behind it.
        """
        ledger = self.ledger
        kept = self._kept.get(ref)
        if ledger is not None:
            note = partial(ledger.note, signed, ref.data_key, named=named)
            try:
                mark = await self.in_thread(note)
            except StorageError as error:
                self._complain(error)
            else:
                return _later(mark, kept.mark) if kept else mark
        mark = raised(await self.find(ref), signed.entry, self._clock())
        if kept is None or mark is not kept.mark:
            self._kept[ref] = _Kept(mark, signed, ref.data_key, named)
        return mark

    def _complain(self, error: StorageError) -> None:
        if self.failure is None:
            _log.warning("%s; what portals show is remembered until it can be written", error)
        self.failure = error

    async def save(self) -> None:
        """Write down what is in memory only because the ledger did not take it at its time."""
        if self.ledger is None or self.failure is None:
            return
        for ref, kept in list(self._kept.items()):
            note = partial(self.ledger.note, kept.signed, kept.data_key, named=kept.named)
            try:
                await self.in_thread(note)
            except StorageError:
                return
            if self._kept.get(ref) is kept:
                del self._kept[ref]
        if not self._kept:
            self.failure = None

    async def key_of(self, link: Skylink) -> EntryId | None:
        """Return the entry that a v2 skylink names, if this machine knows it."""
        if self.ledger is None:
            return next((ref for ref, kept in self._kept.items() if kept.signed.link == link), None)
        key = await trio.to_thread.run_sync(
            partial(self.ledger.key_of, link), abandon_on_cancel=True, limiter=self._threads
        )
        return None if key is None else EntryId(*key)

    async def check(
        self, ref: EntryId, signed: SignedEntry, portal: str, *, named: bool
    ) -> RevisionMark:
        """Believe an entry that came with something else, such as in a proof; return the mark.

        BadContentError when its owner did not sign it, RolledBackError when it is behind.
        """
        try:
            signed.verify()
        except MalformedError as error:
            raise BadContentError(f"registry entry {ref}: {error}", url=portal) from None
        mark = await self.note(ref, signed, named=named)
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
        """Ask one portal for an entry; None when it has none. RolledBackError when it is behind.

        `fetch` asks, and verifies. What is changed here meanwhile may make the answer look old:
        then it is asked again.
        """
        for race in range(1, _RACES + 1):
            begun, asked = self._clock(), trio.current_time()
            signed = await fetch()
            if signed is None:
                seen = await self.find(ref)
                if seen is None or seen.at < begun or race == _RACES:
                    break
                continue
            mark = await self.note(ref, signed, named=named)
            if not is_rolled_back(mark, signed.entry):
                return VerifiedEntry(signed, mark, asked)
            if mark.at < begun or race == _RACES:
                raise _rolled_back(ref, mark, signed.entry, portal)
        return None


def _later(one: RevisionMark | None, other: RevisionMark) -> RevisionMark:
    if one is None:
        return other
    return one if (one.revision, other.digest) >= (other.revision, one.digest) else other


def _rolled_back(ref: EntryId, mark: RevisionMark, entry: Entry, portal: str) -> RolledBackError:
    return RolledBackError(f"registry entry {ref}: {behind(mark, entry)}", url=portal)


def behind(mark: RevisionMark | None, entry: Entry) -> str:
    """Say how an entry is behind a mark."""
    known = "another" if mark is None else mark.revision
    return f"revision {entry.revision} is behind revision {known}, which was seen before"

"""Reading registry entries from all portals: verified, never rolled back, cached; what was seen
last while no portal has an answer; and read repair: a portal that turns out to be behind is owed
the newest entry that is known.
"""

import copy
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import trio
from cachetools import LRUCache, TTLCache

from skymount.errors import (
    BadContentError,
    NotFoundError,
    PortalError,
    RolledBackError,
    StaleEntryError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.client.registry import GET_TIMEOUT, Registry
from skymount.portal.failover.portals import Portals
from skymount.portal.http.connection_pool import in_background
from skymount.portal.ledger.entries import (
    EntryId,
    RevisionMark,
    check_not_frozen,
    is_rolled_back,
    raised,
)
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import Status
from skymount.portal.ledger.revision_marks import RevisionMarks
from skymount.wire.registry_entry import MAX_REVISION, SignedEntry

T = TypeVar("T")

OFFLINE_TIME = 2.0
"""Seconds after which what was seen last is served if nothing comes from any portal."""

REPAIR_TIME = 300.0
"""Seconds in which a portal is owed the same revision of an entry at most once."""

_CACHED_ENTRIES = 10_000  # about a KiB each
_LOGGED_ONCE = 1_000  # rejections that are logged only once
_REPAIRS = 10_000  # that are remembered
_BEHIND = "a read found it there in an older revision, or not at all"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntryState:
    """What the registry held at some time."""

    signed: SignedEntry | None  # verified; None when there was no such entry
    requested_at: float  # when the request for this began, by trio's clock
    seen_at: float  # when this machine first saw this revision, in seconds since 1970
    answered_at: float  # when the answer came, by trio's clock
    stale: bool = False  # whether no portal has an answer now, and this was seen last

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


def status_after(error: BaseException, base: EntryState | None) -> Status:
    """Return the status of a write whose posting failed: WAITING unless it was refused."""
    if isinstance(error, UnavailableError | StorageError | trio.Cancelled):
        return Status.WAITING
    is_conflict = isinstance(error, StaleEntryError) and base is not None
    return Status.CONFLICT if is_conflict else Status.FAILED


def _is_indefinite(error: Exception | None) -> bool:
    """Whether no portal had a definite answer."""
    if not isinstance(error, UnavailableError | BadContentError):
        return False
    return not (isinstance(error, RolledBackError) or error.is_contradicted)


class _SharedRequest:
    """The readers of one entry that may share an answer; the one that holds the lock asks."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.failures = 0
        self.error: PortalError | None = None
        self.stale: EntryState | None = None


class _PartlyAbsentError(NotFoundError):
    """Some portals say that there is no such entry, and others failed."""


class EntryReader:
    """The registry as all portals together show it, verified and never rolled back.

    Without a ledger marks are kept as long as this object. Every method raises PortalError, and
    StorageError when the ledger cannot be read.
    """

    def __init__(
        self,
        portals: Portals,
        ledger: Ledger | None,
        *,
        look: float = GET_TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`look` is seconds that a portal may look for an entry, `clock` the ledger's."""
        self.portals = portals
        self.marks = RevisionMarks(ledger, clock)
        self.repair: ReadRepair | None = None
        """What is told which portals are behind."""
        self.on_stale: Callable[[str, Exception | None], None] | None = None
        """Is told what is served as it was seen last, as no portal has an answer, and why none
        has. Without it that is an error.
        """
        self._look = look
        self._clock = clock
        self._cache: LRUCache[EntryId, EntryState] = LRUCache(_CACHED_ENTRIES)
        self._watchers: list[Callable[[EntryId, EntryState], None]] = []
        self._logged: LRUCache[tuple[object, ...], None] = LRUCache(_LOGGED_ONCE)
        self._requests: WeakValueDictionary[EntryId, _SharedRequest] = WeakValueDictionary()

    @property
    def ledger(self) -> Ledger:
        """The ledger; StorageError without one."""
        if self.marks.ledger is None:
            raise StorageError("a ledger is needed to change entries")
        return self.marks.ledger

    def watch(self, changed: Callable[[EntryId, EntryState], None]) -> None:
        """Call `changed` with the new state, from the event loop, whenever an entry changes."""
        self._watchers.append(changed)

    async def public_keys(self) -> list[bytes]:
        return await self.marks.in_thread(self.ledger.public_keys)

    async def names(self, public_key: bytes) -> list[EntryId]:
        """Return the entries of a key that were used here, except those known to be deleted."""

        def read() -> list[EntryId]:
            found = self.ledger.listed_entries(public_key)
            return [EntryId(public_key, each.tweak, each.data_key) for each in found]

        return await self.marks.in_thread(read)

    def recall(self, ref: EntryId) -> EntryState | None:
        return self._cache.get(ref)

    recall_entry = recall

    async def read(
        self,
        ref: EntryId,
        max_age: float = 0.0,
        *,
        since: float = -math.inf,
        named: bool = True,
        fresh: bool = False,
    ) -> EntryState:
        """Return what the registry holds, or held by an answer that came `max_age` seconds ago or
        later, to a request that began at `since` or later, by trio's clock.

        Absent and deleted entries are states too. With 0 a new request is sent; otherwise those
        that ask at the same time share an answer. If `named` an existing entry is listed by
        `names`. Unless `fresh`, what was seen last is served if no portal has an answer (G20).
        """
        ask = self.ask if fresh else self._ask_or_recall
        if max_age <= 0:
            return await ask(ref, named)
        shared = self._requests.setdefault(ref, _SharedRequest())
        answered, failures = trio.current_time() - max_age, shared.failures
        if (state := self._cached_since(ref, answered, since)) and not (fresh and state.stale):
            return state
        async with shared.lock:
            if (state := self._cached_since(ref, answered, since)) and not (fresh and state.stale):
                return state
            if not fresh and shared.stale is not None and shared.stale.answered_at >= answered:
                return shared.stale
            if shared.error is not None and shared.failures > failures:
                raise copy.copy(shared.error)
            try:
                found = await ask(ref, named)
                shared.stale = found if found.stale else None
                return found
            except PortalError as error:
                shared.failures, shared.error = shared.failures + 1, copy.copy(error)
                raise

    async def _ask_or_recall(self, ref: EntryId, named: bool) -> EntryState:
        ask = partial(self.ask, ref, named)
        return await self.or_seen_last(str(ref), ask, partial(self._seen_last, ref))

    async def _seen_last(self, ref: EntryId) -> EntryState | None:
        signed, mark = await self.marks.newest(ref), await self.marks.find(ref)
        if signed is None or mark is None:
            return None
        now = trio.current_time()
        return self.store(ref, EntryState(signed, -math.inf, mark.seen_at, now, stale=True))

    async def or_seen_last(
        self,
        what: str,
        ask: Callable[[], Awaitable[T]],
        recall: Callable[[], Awaitable[T | None]],
    ) -> T:
        """Return what portals say, or what was seen last if they all fail, or none of them sends
        anything for `OFFLINE_TIME`. A portal that may be restarting is waited for.
        """
        if self.on_stale is None:
            return await ask()
        answers: list[T] = []
        failure: Exception | None = None
        ended, found = trio.Event(), None

        async def run() -> None:
            nonlocal failure
            try:
                answers.append(await ask())
            except Exception as error:  # noqa: BLE001 - raised below
                failure = error
            ended.set()

        async def recalled() -> T | None:
            with suppress(StorageError):
                return await recall()
            return None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            why: Exception | None = await self.portals.silence(ended, OFFLINE_TIME)
            if why is not None:
                found = await recalled()
            if found is None:
                await ended.wait()
                why = failure
                if _is_indefinite(why):
                    found = await recalled()
            nursery.cancel_scope.cancel()
        if found is not None:
            self.on_stale(what, why)
            return found
        if failure is not None:
            raise failure
        return answers[0]

    async def fetch_ahead(self, ref: EntryId, max_age: float, since: float = -math.inf) -> None:
        """Ask for what `read` will be asked for."""
        with in_background():
            await self.read(ref, max_age, since=since)

    def _cached_since(self, ref: EntryId, answered: float, requested: float) -> EntryState | None:
        state = self._cache.get(ref)
        if state is None or state.answered_at < answered or state.requested_at < requested:
            return None
        return state

    async def accept(self, signed: SignedEntry, requested_at: float, portal: str = "") -> None:
        """Verify and cache an entry that `portal` sent with something else, such as a proof.

        `requested_at` is by trio's clock. BadContentError if it is forged or rolled back.
        """
        ref = EntryId(signed.public_key, signed.entry.tweak)
        try:
            mark = await self.marks.check(ref, signed, portal, named=False)
        except BadContentError as error:
            self._log_rejected(ref, error)
            raise
        self.store(ref, EntryState(signed, requested_at, mark.seen_at, trio.current_time()))

    async def ask(
        self,
        ref: EntryId,
        named: bool = True,
        *,
        enough: int | None = None,
        seen: EntryState | None = None,
        among: Portals | None = None,
    ) -> EntryState:
        """Ask all portals now, or those `among` them. If others fail, an entry is absent if
        `enough` of them say so; but if it is the entry of a `seen` state, which is the newest that
        this machine saw, they have lost it, and that state is returned.

        Unless `seen` is given, RolledBackError if none of several portals has what was seen before.
        """
        begun, since = trio.current_time(), self._clock()
        try:
            return await self._ask_all(ref, named, enough=enough, among=among)
        except NotFoundError as error:
            if isinstance(error, _PartlyAbsentError) and seen is not None and seen.signed:
                mark = await self.marks.find(ref)
                if not is_rolled_back(mark, seen.signed.entry):
                    return seen
            elif seen is None and (lost := await self._lost(ref, since, among)):
                text = f"registry entry {ref}: no portal has it; revision {lost.entry.revision}"
                raise RolledBackError(f"{text} was seen before", url=error.url) from None
            old = self._cache.get(ref)
            was_absent = old is not None and old.signed is None
            seen_at = old.seen_at if old and was_absent else self._clock()
            return self.store(ref, EntryState(None, begun, seen_at, trio.current_time()))

    async def _lost(self, ref: EntryId, since: float, among: Portals | None) -> SignedEntry | None:
        """Return what was seen before of an entry that none of several portals has; None if its
        owner deleted it.

        What was seen `since` then may have been on its way when the portals were asked.
        """
        if len((among or self.portals).clients) < 2:
            return None
        mark = await self.marks.find(ref)
        if mark is None or mark.seen_at >= since:
            return None
        found = await self.marks.newest(ref)
        return None if found is None or found.entry.is_deleted else found

    async def ask_to_replace(
        self, ref: EntryId, *, enough: int | None = None, among: Portals | None = None
    ) -> EntryState:
        """Ask on behalf of a write that replaces the entry: a rolled back entry counts as absent.

        A portal may have lost the entry and restored an old one; its owner can correct that. The
        other portals must have answered too, because they may have something newer; or so many
        of all as are `enough`.
        """
        begun = trio.current_time()
        try:
            return await self._ask_all(ref, to_replace=True, enough=enough, among=among)
        except NotFoundError:
            return EntryState(None, begun, self._clock(), trio.current_time())

    async def _ask_all(
        self,
        ref: EntryId,
        named: bool = True,
        *,
        to_replace: bool = False,
        enough: int | None = None,
        among: Portals | None = None,
    ) -> EntryState:
        """Ask all portals; return and cache the newest state. Late answers are cached too.

        NotFoundError if all say so; or `enough` of them, when the others fail. `to_replace`: one
        that is behind what was seen says so too, but is not one of `enough`.
        """
        asked = self._clock()
        answers: dict[str, EntryState | None] = {}  # by portal; None: absent, or rolled back
        absent: set[str] = set()
        has_ended = False

        async def ask(portal: PortalReader) -> EntryState:
            try:
                state = await self._ask_one(portal, ref, named)
            except RolledBackError as error:
                answers[portal.url] = None
                if to_replace:
                    raise NotFoundError(error.message, url=error.url) from error
                raise
            else:
                answers[portal.url] = state
            finally:
                if has_ended:
                    self._take_late(ref, answers, asked)
            if state is None:
                absent.add(portal.url)
                raise NotFoundError("there is no such registry entry", status=404, url=portal.url)
            return state

        def insists() -> bool:
            return to_replace and (enough is None or len(absent) < enough)

        try:
            return self.store(ref, newest(await (among or self.portals).poll(ask, insists=insists)))
        except NotFoundError:
            raise
        except PortalError as error:
            if enough is not None and len(absent) >= enough:
                raise _PartlyAbsentError(error.message, url=error.url) from error
            raise
        finally:
            has_ended = True
            self._find_behind(ref, answers, asked)

    async def _ask_one(self, portal: PortalReader, ref: EntryId, named: bool) -> EntryState | None:
        registry = Registry(portal.http, self.marks, doubts=True)
        options = portal.http.options
        try:
            found = await registry.read(ref, options, timeout=self._look, named=named)
        except BadContentError as error:
            self._log_rejected(ref, error)
            raise
        if found is None:
            return None
        seen_at = found.mark.seen_at
        return EntryState(found.signed, found.requested_at, seen_at, trio.current_time())

    def _take_late(
        self, ref: EntryId, answers: Mapping[str, EntryState | None], asked: float
    ) -> None:
        states = [state for state in answers.values() if state is not None]
        if states:
            self.store(ref, newest(states))
        self._find_behind(ref, answers, asked)

    def _find_behind(
        self, ref: EntryId, answers: Mapping[str, EntryState | None], asked: float
    ) -> None:
        if self.repair is not None:
            self.repair.compare(ref, answers, asked)

    def store(self, ref: EntryId, state: EntryState) -> EntryState:
        """Cache a state unless a later one is cached, and tell watchers of a change; return it."""
        old = self._cache.get(ref)
        if is_news(old, state):
            self._cache[ref] = state
            if old is not None and not is_same(old, state):
                for changed in self._watchers:
                    changed(ref, state)
        return state

    def _log_rejected(self, ref: EntryId, error: BadContentError) -> None:
        values = (error.url, ref, error.message)
        if values not in self._logged:
            self._logged[values] = None
            log.warning("%s: registry entry %s is not believed: %s", *values)


class ReadRepair:
    """Which portals are behind, as reads find out."""

    def __init__(
        self,
        ledger: Ledger,
        marks: RevisionMarks,
        portals: Collection[str],
        nursery: trio.Nursery,
        owed: Callable[[], None],
    ) -> None:
        """`portals` are the addresses of those that may be repaired. `owed` is called when one is
        owed something new.
        """
        self._ledger = ledger
        self._marks = marks
        self._portals = frozenset(portals)
        self._nursery = nursery
        self._owed = owed
        self._has_repaired = False
        self._repaired: TTLCache[tuple[str, EntryId], bytes] = TTLCache(
            _REPAIRS, REPAIR_TIME, trio.current_time
        )  # the signature of what it was owed

    def compare(self, ref: EntryId, answers: Mapping[str, EntryState | None], asked: float) -> None:
        """Take what portals said of an entry when they were `asked`, by the ledger's clock; None:
        absent, or older than what was seen.
        """
        states = [state for state in answers.values() if state is not None]
        best = newest(states) if states else None
        behind = []
        for portal, state in answers.items():
            if state is None or (best is not None and is_behind(state, best)):
                behind.append(portal)
            elif self._has_repaired:
                self._repaired.pop((portal, ref), None)
        wanted = self._portals.intersection(behind)
        if wanted:
            self._nursery.start_soon(self._owe, ref, wanted, best, asked)

    async def _owe(
        self, ref: EntryId, portals: Collection[str], best: EntryState | None, asked: float
    ) -> None:
        try:
            await self._owe_newest(ref, portals, best, asked)
        except StorageError as error:
            log.info("registry entry %s: portals that lack it are not repaired: %s", ref, error)
        except Exception:  # a bug must not end the mount
            log.exception("registry entry %s: read repair failed", ref)

    async def _owe_newest(
        self, ref: EntryId, portals: Collection[str], best: EntryState | None, asked: float
    ) -> None:
        found = await self._marks.in_thread(self._ledger.newest_entry, ref.public_key, ref.tweak)
        if found is None:
            return
        if best is None or best.signed != found:
            mark = await self._marks.find(ref)
            if mark is None or mark.seen_at >= asked:
                return  # it was written since: the portals may have it by now
        last = found.signature
        behind = [each for each in portals if self._repaired.get((each, ref)) != last]
        self._has_repaired = True
        self._repaired.update({(portal, ref): last for portal in behind})
        if behind:
            owe = self._ledger.owe
            if await self._marks.in_thread(owe, found, ref.data_key, behind, _BEHIND):
                self._owed()

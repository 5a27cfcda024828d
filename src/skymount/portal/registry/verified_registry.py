"""Owns registry entries over all portals: what is believed of them, and how they are changed.

What one portal sends is believed by `marks`. A change takes a revision in the ledger before it is
posted. Neither the ledger's file nor the bytes of entries are known here.
"""

import copy
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Self
from weakref import WeakValueDictionary

import trio
from cachetools import LRUCache

from skymount.errors import (
    BadContentError,
    FrozenEntryError,
    KeyringError,
    MalformedError,
    NotFoundError,
    PortalError,
    RevisionConflictError,
    RevisionError,
    RolledBackError,
    SkymountError,
    StaleEntryError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.client.registry import GET_TIMEOUT, Registry
from skymount.portal.failover import Portals
from skymount.portal.registry.ledger import Fate, Ledger, Pending, Seen, is_rolled_back, raised
from skymount.portal.registry.revision_marks import EntryId, RevisionMarks, behind
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DATA_LIMIT, DELETED, MAX_REVISION, Entry, SignedEntry
from skymount.wire.skylink import Skylink

CONFLICTS = 5
"""How often a rewrite takes another revision because somebody else was faster."""

_STATES = 10_000  # entries remembered in memory, about a KiB each
_COMPLAINTS = 1_000  # things that are logged once
FRESH = 2.0
"""Seconds of `fresh`, unless told otherwise."""

_PAUSE = 0.05  # seconds before a rewrite is tried again, for each time that it was

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class State:
    """What the registry held at some time."""

    signed: SignedEntry | None
    """Verified; None when there was no such entry."""
    asked: float
    """When the request for this was begun, by trio's clock."""
    changed: float
    """When this machine first saw this revision, in seconds since 1970."""

    @property
    def data(self) -> bytes | None:
        """The content; None when the entry is absent or deleted."""
        if self.signed is None or self.signed.entry.is_deleted:
            return None
        return self.signed.entry.data

    @property
    def revision(self) -> int:
        """The revision, -1 when the entry is absent."""
        return -1 if self.signed is None else self.signed.entry.revision


# --- decisions


def is_same(one: State, other: State) -> bool:
    """Whether two states are of the same entry: revision and content, whatever the signature."""
    if one.signed is None or other.signed is None:
        return one.signed is other.signed
    return one.signed.entry == other.signed.entry


def is_news(old: State | None, new: State) -> bool:
    """Whether a state replaces the remembered one, in whatever order the answers came."""
    if old is None or old.signed is None:
        return old is None or new.signed is not None or new.asked >= old.asked
    if new.signed is None or is_same(old, new):
        return new.asked >= old.asked
    return not is_rolled_back(_mark_of(old), new.signed.entry)


def next_revision(current: int, taken: int | None) -> int:
    """Return the revision of a change: above the portal's and above all that were ever signed.

    FrozenEntryError when there is none left.
    """
    highest = max(current, -1 if taken is None else taken)
    if highest >= MAX_REVISION:
        raise FrozenEntryError("the entry has the last revision there is, and cannot be changed")
    return highest + 1


def check_base(base: State | None, current: State, wanted: bytes) -> bool:
    """Return whether a change made from `base` is still to be posted; None: a whole rewrite.

    It is not when the registry has its very content. StaleEntryError when somebody else changed
    the entry.
    """
    if base is None or is_same(base, current):
        return True
    if current.signed is not None and current.signed.entry.data == wanted:
        return False
    raise StaleEntryError(
        f"the entry was changed by somebody else: it has revision {current.revision}, "
        f"the change was made from {base.revision}"
    )


def fate_of(error: BaseException, base: State | None) -> Fate:
    """Return what becomes of content whose posting failed.

    It is sent by itself if no portal answered, or there was no time left; not if somebody gave up.
    """
    if isinstance(error, UnavailableError | StorageError | trio.Cancelled):
        return Fate.WAITING
    is_conflict = isinstance(error, StaleEntryError) and base is not None
    return Fate.CONFLICT if is_conflict else Fate.FAILED


def _log_superseded(pending: Pending) -> None:
    ref = EntryId(pending.public_key, pending.tweak, pending.data_key)
    text = "registry entry %s: %a was never posted, and is given up: something was written later"
    _log.warning(text, ref, pending.data)


def _mark_of(state: State) -> Seen | None:
    return raised(None, state.signed.entry, state.changed) if state.signed else None


# --- effects


class _Turn:
    """The readers of one entry that may share an answer; one of them asks."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.failures = 0
        self.error: PortalError | None = None


class VerifiedRegistry:
    """The registry as all portals together show it, verified and never rolled back.

    Without a ledger what was seen is remembered for as long as this is, and nothing can be changed.
    Every method raises PortalError for what portals do, and StorageError when the ledger cannot be
    read. One that cannot be written stops changes, but not reading.
    """

    limit = DATA_LIMIT
    """Bytes of content."""

    def __init__(
        self,
        portals: Portals,
        ledger: Ledger | None,
        *,
        look: float = GET_TIMEOUT,
        fresh: float = FRESH,
        clock: Callable[[], float] = time.time,
        gave_up: Callable[[Pending], None] | None = None,
    ) -> None:
        """`look` is seconds that a portal may look for an entry, `clock` the ledger's.

        `fresh` is seconds for which a remembered revision serves as the one that a rewrite follows.
        `gave_up` is called, from the event loop, with what left the spool since something that was
        written later is posted; without it that is logged.
        """
        self.portals = portals
        self.marks = RevisionMarks(ledger, clock)
        self._gave_up = gave_up or _log_superseded
        self._look = look
        self._fresh_for = fresh
        self._clock = clock
        self._states: LRUCache[EntryId, State] = LRUCache(_STATES)
        self._watchers: list[Callable[[EntryId, State], None]] = []
        self._complaints: LRUCache[tuple[object, ...], None] = LRUCache(_COMPLAINTS)
        self.kept = trio.Event()
        """Set when something was put into the spool; who waits for that puts a new one here."""
        self._unmarked: dict[int, tuple[str, Fate]] = {}  # failures that the ledger could not take
        self._turns: WeakValueDictionary[EntryId, _Turn] = WeakValueDictionary()
        self._writing: WeakValueDictionary[EntryId, trio.Lock] = WeakValueDictionary()

    @property
    def _ledger(self) -> Ledger:
        if self.marks.ledger is None:
            raise StorageError("without a ledger nothing is changed")
        return self.marks.ledger

    def at(self, urls: Collection[str]) -> Self | None:
        """Return the same over some of the portals alone, each tried once; None without any."""
        chosen = [client for client in self.portals.clients if client.url in urls]
        if not chosen:
            return None
        found = copy.copy(self)
        found.portals = replace(self.portals, clients=chosen, rounds=1)
        return found

    def watch(self, changed: Callable[[EntryId, State], None]) -> None:
        """Have it called, from the event loop, when an entry turns out to be another than before.

        With what it is now.
        """
        self._watchers.append(changed)

    async def public_keys(self) -> list[bytes]:
        """Return the keys of which entries were used here, sorted."""
        return await self.marks.in_thread(self._ledger.public_keys)

    async def names(self, public_key: bytes) -> list[EntryId]:
        """Return the entries of a key that were used here, less those known to be deleted."""
        return await self.marks.in_thread(self._names, public_key)

    def _names(self, public_key: bytes) -> list[EntryId]:
        names = self._ledger.names(public_key)
        return [EntryId(public_key, name.tweak, name.data_key) for name in names]

    def recall(self, ref: EntryId) -> State | None:
        """Return what is remembered, of any age. No IO."""
        return self._states.get(ref)

    async def read(self, ref: EntryId, max_age: float = 0.0, *, named: bool = True) -> State:
        """Return what the registry holds, or held at most `max_age` seconds ago.

        Absent and deleted entries are states too. With 0 a request begins now. Otherwise those that
        ask at the same time share an answer. What is there is listed in `names` if it is `named`.
        """
        if max_age <= 0:
            return await self._ask(ref, named)
        turn = self._turns.setdefault(ref, _Turn())
        since, failures = trio.current_time() - max_age, turn.failures
        state = self._states.get(ref)
        if state is not None and state.asked >= since:
            return state
        async with turn.lock:
            state = self._states.get(ref)
            if state is not None and state.asked >= since:
                return state
            if turn.error is not None and turn.failures > failures:
                raise copy.copy(turn.error)
            try:
                return await self._ask(ref, named)
            except PortalError as error:
                turn.failures, turn.error = turn.failures + 1, copy.copy(error)
                raise

    async def accept(self, signed: SignedEntry, asked: float, portal: str = "") -> None:
        """Believe an entry that came in another way, such as in a proof, and remember it.

        `asked` is when it was asked for, by trio's clock, and `portal` the URL of who sent it.
        BadContentError when its owner did not sign it, or it is rolled back.
        """
        ref = EntryId(signed.public_key, signed.entry.tweak)
        try:
            mark = await self.marks.check(ref, signed, portal, named=False)
        except BadContentError as error:
            self._complain(ref, error)
            raise
        self._remember(ref, State(signed, asked, mark.at))

    async def key_of(self, link: Skylink) -> EntryId | None:
        """Return the entry that a v2 skylink names, if it is known here."""
        return await self.marks.key_of(link)

    async def write(
        self,
        ref: EntryId,
        pair: SigningKeyPair,
        content: bytes | bytearray | mmap,
        base: State | None,
    ) -> State:
        """Sign and post new content; return the state then. It posts also what is there already.

        With a `base` the content is a change of that state: StaleEntryError when the portal has
        another one. Without, it replaces whatever is there. FrozenEntryError when no revision is
        left. Unless it is a StorageError, whatever is raised leaves the content in the spool.
        """
        data = bytes(content)
        Entry(ref.tweak, data, 0)  # MalformedError for too much data
        async with self._changing(ref, pair):
            return await self._write(ref, pair, data, base)

    def check(self, ref: EntryId, base: State) -> None:
        """Content made from any state can be signed: its owner did that before."""

    async def delete(self, ref: EntryId, pair: SigningKeyPair) -> State:
        """Post the deletion of an entry.

        Nothing is posted when it is absent or deleted already, unless something is pending for it.
        """
        async with self._changing(ref, pair):
            is_pending = await self.has_pending(ref)
            try:
                current = await self._ask(ref)
            except RolledBackError:
                return await self._write(ref, pair, DELETED, None)
            if current.data is None and not is_pending:
                return current
            return await self._write(ref, pair, DELETED, None, known=current)

    async def has_pending(self, ref: EntryId) -> bool:
        """Whether something of an entry is in the spool that what is posted now supersedes.

        Who leaves out a post since the content is there asks this first, and that second: another
        process may be posting what is pending.
        """
        return await self.marks.in_thread(self._ledger.has_pending, ref.public_key, ref.tweak)

    async def send(
        self, pending: Pending, pair: SigningKeyPair | None = None, *, overwrite: bool = False
    ) -> State:
        """Post what is in the spool: the very same bytes if they are signed.

        StaleEntryError when the entry was changed since, unless to `overwrite`: then it gets the
        next revision. `pair` is the key that signs, where that is needed. Whatever is raised leaves
        it in the spool. StorageError when it is not there, or another process is posting it.
        """
        ref = EntryId(pending.public_key, pending.tweak, pending.data_key)
        async with self._changing(ref, pair):
            names = (ref.public_key, ref.tweak)
            taken = await self.marks.in_thread(self._ledger.highest, *names)
            if not await self.marks.in_thread(self._ledger.resume, pending.id):
                raise StorageError("it is not in the spool any more, or being posted elsewhere")
            try:
                if not overwrite and pending.signed is not None:
                    return await self._send_again(ref, pending.id, pending.signed)
                return await self._send_anew(ref, pending, pair, overwrite, taken)
            except BaseException as error:
                # When nothing was known of the entry, what is there may have been there before.
                is_unknown = isinstance(error, StaleEntryError) and pending.base == -1
                before = Fate.CONFLICT if is_unknown else pending.fate
                await self._keep(ref, pending.data, None, pending.id, error, before)
                raise

    async def _send_anew(
        self,
        ref: EntryId,
        pending: Pending,
        pair: SigningKeyPair | None,
        overwrite: bool,
        taken: int | None,
    ) -> State:
        """Post what is in the spool, signed with the next revision.

        Unless to `overwrite`, not if somebody took a revision since `taken` was the highest one.
        """
        current = await (self._ask_to_replace(ref) if overwrite else self._ask(ref))
        if current.signed is not None and current.signed.entry.data == pending.data:
            await self._drop(ref, pending.id)
            return current
        if not overwrite and current.revision != pending.base:
            raise StaleEntryError(
                f"the entry was changed since: it has revision {current.revision}"
            )
        if pair is None:
            raise KeyringError("its private key is needed, to sign it with a new revision")
        if overwrite:
            base = limit = None
        else:
            base, limit = current, max(current.revision, -1 if taken is None else taken)
        return await self._write(
            ref, pair, pending.data, base, known=current, spooled=pending.id, limit=limit
        )

    async def save(self) -> None:
        """Write down what the ledger did not take at its time, if it does now."""
        await self.marks.save()
        for number, (reason, fate) in list(self._unmarked.items()):
            with suppress(StorageError):
                await self.marks.in_thread(self._ledger.fail, number, reason, fate)
                del self._unmarked[number]

    # --- asking

    async def _ask(self, ref: EntryId, named: bool = True) -> State:
        """Ask the portals, with a request that begins now."""
        begun = trio.current_time()
        try:
            state = await self.portals.first(lambda portal: self._ask_one(portal, ref, named))
        except NotFoundError:
            old = self._states.get(ref)
            absent = old is not None and old.signed is None
            state = State(None, begun, old.changed if old and absent else self._clock())
        return self._remember(ref, state)

    async def _ask_one(self, portal: PortalReader, ref: EntryId, named: bool) -> State:
        """Ask one portal: NotFoundError when it has no such entry, BadContentError when it lies."""
        transport = portal.transport
        registry = Registry(transport, self.marks)
        try:
            found = await registry.read(ref, transport.options, timeout=self._look, named=named)
        except BadContentError as error:
            self._complain(ref, error)
            raise
        if found is None:
            raise NotFoundError("there is no such registry entry", status=404, url=portal.url)
        return State(found.signed, found.asked, found.mark.at)

    async def _ask_to_replace(self, ref: EntryId) -> State:
        """Ask for who replaces whatever is there: what is behind counts as nothing.

        A portal may have lost the entry, and have an old one back; its owner can set it right. It
        does not speak for others, which may have something newer: those must have answered too.
        """
        begun = trio.current_time()

        async def ask(portal: PortalReader) -> State:
            try:
                return await self._ask_one(portal, ref, True)
            except RolledBackError as error:
                raise NotFoundError(error.message, url=error.url) from error

        try:
            state = await self.portals.first(ask)
        except NotFoundError:
            return State(None, begun, self._clock())
        return self._remember(ref, state)

    def _remember(self, ref: EntryId, state: State) -> State:
        """Remember a state unless a later one is, and tell of a change; return what was given."""
        old = self._states.get(ref)
        if is_news(old, state):
            self._states[ref] = state
            if old is not None and not is_same(old, state):
                for changed in self._watchers:
                    changed(ref, state)
        return state

    def _complain(self, ref: EntryId, error: BadContentError) -> None:
        """Log, once, why a portal is not believed."""
        values = (error.url, ref, error.message)
        if values not in self._complaints:
            self._complaints[values] = None
            _log.warning("%s: registry entry %s is not believed: %s", *values)

    # --- changing

    def _changing(self, ref: EntryId, pair: SigningKeyPair | None) -> trio.Lock:
        """Return the lock of those that change an entry."""
        if pair is not None and pair.public_key != ref.public_key:
            raise MalformedError("an entry is signed by its owner's key, not by another")
        return self._writing.setdefault(ref, trio.Lock())

    async def _write(
        self,
        ref: EntryId,
        pair: SigningKeyPair,
        data: bytes,
        base: State | None,
        *,
        known: State | None = None,
        spooled: int | None = None,
        limit: int | None = None,
    ) -> State:
        """Post new content; `known` is what the portals just said, `spooled` what it replaces.

        If a revision above the `limit` was taken before, something else was written: it is stale.

        A rewrite does not ask first if the last answer is fresh: if it is behind, the portal says
        so. A change of `base` does, since two changes may be of one revision (wire notes 6.3).
        """
        if known is None and base is None:
            known = self._fresh(ref)
        ask = self._ask_to_replace if base is None else self._ask
        try:
            is_pending = base is not None and spooled is None and await self.has_pending(ref)
            for attempt in range(CONFLICTS):
                await trio.sleep(_PAUSE * attempt)
                current = known if known and not attempt else await ask(ref)
                if not check_base(base, current, data):
                    if spooled is not None:
                        await self._drop(ref, spooled)
                        return current
                    if not is_pending:
                        return current
                claim, signed = await self.marks.in_thread(
                    self._claim, ref, pair, data, current.revision, spooled, limit
                )
                spooled, limit = claim, None
                state = await self._post(ref, claim, signed)
                if state is not None:
                    return state
            raise RevisionConflictError(f"somebody else was faster {CONFLICTS} times")
        except BaseException as error:
            await self._keep(ref, data, base, spooled, error)
            raise

    def _fresh(self, ref: EntryId) -> State | None:
        """Return what is remembered of an entry, unless that is too old."""
        state = self._states.get(ref)
        return state if state and state.asked > trio.current_time() - self._fresh_for else None

    def _claim(
        self,
        ref: EntryId,
        pair: SigningKeyPair,
        data: bytes,
        current: int,
        replaces: int | None,
        limit: int | None,
    ) -> tuple[int, SignedEntry]:
        """Sign content with a revision that nobody took, and take it. Runs in a thread."""
        while True:
            taken = self._ledger.highest(ref.public_key, ref.tweak)
            if limit is not None and taken is not None and taken > limit:
                raise StaleEntryError("the entry was changed since: something was written later")
            signed = Entry(ref.tweak, data, next_revision(current, taken)).sign(pair.private_key)
            try:
                portals = [client.url for client in self.portals.clients]
                return self._ledger.claim(signed, ref.data_key, replaces, portals), signed
            except RevisionError:
                continue  # another process was faster

    async def _post(self, ref: EntryId, spooled: int, signed: SignedEntry) -> State | None:
        """Post to the first portal that takes it; None when one has the same or a later revision.

        The answer to a post may be lost: a refusal by a portal that holds this very entry is none.
        """
        asked = trio.current_time()

        async def post(portal: PortalReader) -> bool:
            registry = Registry(portal.transport, self.marks)
            try:
                await registry.post(signed)
            except RevisionConflictError:
                held = await registry.fetch(
                    ref.public_key, ref.tweak, portal.transport.options, timeout=self._look
                )
                return held is not None and held.entry == signed.entry
            return True

        if not await self.portals.first(post):
            return None
        with trio.CancelScope(shield=True):  # it is done
            mark = await self._settle(ref, spooled, signed)
        return self._remember(ref, State(signed, asked, mark.at))

    async def _send_again(self, ref: EntryId, spooled: int, signed: SignedEntry) -> State:
        """Post what was signed before, unless something later was seen, or is there."""
        mark = await self.marks.find(ref)
        if is_rolled_back(mark, signed.entry):
            raise StaleEntryError(f"the entry was changed since: {behind(mark, signed.entry)}")
        current = await self._ask_to_replace(ref)
        if current.signed == signed:  # its answer was lost
            await self._settle(ref, spooled, signed)
            return current
        if current.revision >= signed.entry.revision:
            raise StaleEntryError(
                f"the entry was changed since: it has revision {current.revision}"
            )
        state = await self._post(ref, spooled, signed)
        if state is None:
            raise StaleEntryError("the entry was changed since: a later revision is there")
        return state

    async def _keep(
        self,
        ref: EntryId,
        data: bytes,
        base: State | None,
        spooled: int | None,
        error: BaseException,
        before: Fate = Fate.FAILED,
    ) -> None:
        """See to it that content that was not posted is in the spool, with the reason.

        A conflict of `before` stays one.
        """
        reason = str(error) if isinstance(error, SkymountError) else "interrupted"
        made_from = None if base is None else base.revision
        fate = Fate.CONFLICT if before is Fate.CONFLICT else fate_of(error, base)

        def keep() -> None:
            if spooled is not None:
                self._ledger.fail(spooled, reason, fate)
            elif data != DELETED:
                names = (ref.public_key, ref.tweak, ref.data_key)
                portals = [client.url for client in self.portals.clients]
                self._ledger.hold(*names, data, reason, made_from, portals, fate)

        try:
            with trio.CancelScope(shield=True):
                await self.marks.in_thread(keep)
            self.kept.set()
        except StorageError as failure:
            _log.error("registry entry %s: %s; then: %s", ref, reason, failure)
            if spooled is not None:
                self._unmarked[spooled] = (reason, fate)
            if spooled is None and isinstance(error, SkymountError):
                raise StorageError(f"{reason}; the content is lost: {failure}") from error

    async def _settle(self, ref: EntryId, spooled: int, signed: SignedEntry) -> Seen:
        """Take what was posted out of the spool, with what it supersedes, and raise the mark."""
        try:
            await self.marks.in_thread(self._ledger.settle, spooled)
            await self._supersede(ref, spooled)
        except StorageError as error:
            _log.warning("registry entry %s: it is posted, and stays pending: %s", ref, error)
        return await self.marks.note(ref, signed)

    async def _drop(self, ref: EntryId, spooled: int) -> None:
        """Take out of the spool what is at the portal already, with what it supersedes."""
        await self.marks.in_thread(self._ledger.drop, spooled)
        await self._supersede(ref, spooled)

    async def _supersede(self, ref: EntryId, spooled: int) -> None:
        """Take out of the spool what was written to an entry before that, and say so."""
        gone = await self.marks.in_thread(
            self._ledger.supersede, ref.public_key, ref.tweak, spooled
        )
        for each in gone:
            self._gave_up(each)

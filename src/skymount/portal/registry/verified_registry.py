"""Changing registry entries on all portals.

A write claims its revision in the ledger before it is posted, and stays in the ledger's outbox
until portals have it. Writes of an entry wait for each other.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from mmap import mmap
from weakref import WeakValueDictionary

import trio

from skymount.errors import (
    FrozenEntryError,
    KeyringError,
    MalformedError,
    RevisionConflictError,
    RolledBackError,
    SkymountError,
    StaleEntryError,
    StorageError,
)
from skymount.policies import WritePolicy
from skymount.portal.client.registry import GET_TIMEOUT
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.entries import (
    EntryId,
    RevisionMark,
    check_not_frozen,
    is_rolled_back,
    rollback_reason,
)
from skymount.portal.ledger.ledger import Ledger, Write
from skymount.portal.ledger.outbox import LACKS_CONTENT, Pending, Status
from skymount.portal.registry.entry_reader import (
    EntryReader,
    EntryState,
    described,
    needs_post,
    status_after,
)
from skymount.portal.registry.posting import Posted, Posting
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DATA_LIMIT, DELETED, Entry, SignedEntry

FRESH = 2.0  # seconds of `fresh`, unless told otherwise
CONFLICTS = 5  # how often a rewrite takes another revision because somebody else was faster
_BACK_OFF = 0.05  # seconds before a rewrite is retried, times the number of attempts so far

_log = logging.getLogger(__name__)


class VerifiedRegistry(EntryReader):
    """The registry of `EntryReader`, with changes.

    Nothing can be changed without a ledger, or when it cannot be written; reading still works.
    """

    limit = DATA_LIMIT  # bytes of content

    def __init__(
        self,
        portals: Portals,
        ledger: Ledger | None,
        *,
        look: float = GET_TIMEOUT,
        fresh: float = FRESH,
        clock: Callable[[], float] = time.time,
        gave_up: Callable[[Pending], None] | None = None,
        policy: WritePolicy = WritePolicy.ANY,
        is_own: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """`look` is seconds that a portal may look for an entry, `clock` the ledger's.

        `policy` says how many portals must take a write, and `is_own` whether the private key of a
        public key is here. `fresh` is seconds for which a cached revision serves as the one that a
        rewrite follows. `gave_up` is called with each write that was never posted, and whose place
        a later one took; else it is logged.
        """
        super().__init__(portals, ledger, look=look, clock=clock)
        self._fresh_for = fresh
        self._is_own = is_own
        self.posting = Posting(self, policy, look=look)
        self._gave_up = gave_up or _log_superseded
        self._unsaved: dict[int, tuple[str, Status]] = {}
        """Failures that the ledger could not take, by the number of the write."""
        self._write_locks: WeakValueDictionary[EntryId, trio.Lock] = WeakValueDictionary()

    def wake_senders(self) -> None:
        """Let those look that send what is pending."""
        self.posting.on_pending()

    async def write(
        self,
        ref: EntryId,
        pair: SigningKeyPair,
        content: bytes | bytearray | mmap,
        base: EntryState | None,
        *,
        lacking: Collection[str] = (),
    ) -> EntryState:
        """Sign and post new content, even if the entry has it already; return the state then.

        With a `base` the content is a change of that state: StaleEntryError when the portal has
        another one. Without, it replaces whatever is there. After any error but
        StorageError and MalformedError the content is in the outbox.

        It is not posted to the portals with the addresses `lacking`, which do not have the content
        behind the entry: they are owed both.
        """
        data = bytes(content)
        Entry(ref.tweak, data, 0)  # MalformedError for too much data
        async with self._write_lock(ref, pair):
            return await self._write(ref, pair, data, base, lacking)

    def check(self, ref: EntryId, base: EntryState) -> None:
        """Accept content made from any state: its owner has signed that state before."""

    async def delete(self, ref: EntryId, pair: SigningKeyPair) -> EntryState:
        """Post the deletion of an entry, unless it is absent and no write to it is pending."""
        async with self._write_lock(ref, pair):
            is_pending = await self.has_pending(ref)
            try:
                current = await self.ask(ref)
            except RolledBackError:
                return await self._write(ref, pair, DELETED, None)
            if current.data is None and not is_pending:
                return current
            return await self._write(ref, pair, DELETED, None, known=current)

    async def has_pending(self, ref: EntryId) -> bool:
        """Whether a write to an entry is pending that a later one would take the place of.

        Ask this before asking the portal: another process may be posting what is pending.
        """
        return await self.marks.in_thread(self.ledger.is_pending, ref)

    async def send(
        self,
        pending: Pending,
        pair: SigningKeyPair | None = None,
        *,
        overwrite: bool = False,
        only_last: bool = False,
        among: Portals | None = None,
    ) -> EntryState:
        """Post a pending write: the very same bytes if they are signed.

        It goes to all portals, or those `among` them. StaleEntryError when the entry was changed
        since, unless to `overwrite`: then it gets the next revision, signed with `pair`.
        FrozenEntryError when it can never be posted, and is given up; after any other error the
        write stays in the outbox. StorageError when it is not there, another process is posting it,
        or a later write waits; also if that is a conflict, with `only_last`.
        """
        ref = EntryId(pending.public_key, pending.tweak, pending.data_key)
        (among or self.portals).writable()  # fails before the outbox is touched
        async with self._write_lock(ref, pair):
            highest = await self.marks.in_thread(self.ledger.highest_revision, *ref.key)
            begin = partial(self.ledger.begin, pending.id, only_last=only_last)
            if not await self.marks.in_thread(begin):
                text = "it is not pending any more, being posted elsewhere"
                raise StorageError(f"{text}, or something was written later")
            try:
                if not overwrite and pending.signed is not None:
                    return await self._send_again(ref, pending, pending.signed, among)
                return await self._send_anew(ref, pending, pair, overwrite, highest, among)
            except BaseException as error:
                # With an unknown base the entry may have been there before.
                is_unknown = pending.signed is None and pending.base == -1
                is_conflict = isinstance(error, StaleEntryError) and is_unknown
                before = Status.CONFLICT if is_conflict else pending.status
                await self._failed(ref, pending.data, None, pending.id, error, before=before)
                raise

    async def _send_again(
        self, ref: EntryId, pending: Pending, signed: SignedEntry, among: Portals | None
    ) -> EntryState:
        mark = await self.marks.find(ref)
        if mark is not None and is_rolled_back(mark, signed.entry):
            check_not_frozen(mark.revision)
            reason = rollback_reason(mark, signed.entry)
            raise StaleEntryError(f"the entry was changed since: {reason}")
        current = await self._ask_before(ref, None, among)
        is_posted = current.signed == signed  # and the answer was lost
        portals = (among or self.portals).writable()
        if is_posted and len(portals.clients) < 2:
            taken_by = tuple(client.url for client in portals.clients)
            await self._posted(ref, Write(pending.id, signed), Posted(taken_by))
            return current
        if current.revision >= signed.entry.revision and not is_posted:
            raise _changed_since(current)
        write = Write(pending.id, signed)
        state = await self._post(ref, write, pending.lacking, among)
        if state is None:
            raise StaleEntryError("the entry was changed since: a later revision is there")
        return state

    async def _send_anew(
        self,
        ref: EntryId,
        pending: Pending,
        pair: SigningKeyPair | None,
        overwrite: bool,
        highest: int | None,
        among: Portals | None,
    ) -> EntryState:
        """Post with the next revision; not over revisions above `highest` unless to `overwrite`."""
        # What it was made from is not absent while a portal that may have it cannot be asked.
        enough = self._enough(among) if pending.base == -1 else None
        current = await (
            self._ask_before(ref, None, among)
            if overwrite
            else self.ask(ref, enough=enough, among=among)
        )
        if current.signed is not None and current.signed.entry.data == pending.data:
            await self._unchanged(ref, pending.id, current, pending.lacking)
            return current
        if not overwrite and current.revision != pending.base:
            raise _changed_since(current)
        if pair is None:
            raise KeyringError("its private key is needed, to sign it with a new revision")
        if overwrite:
            base = limit = None
        else:
            base, limit = current, max(current.revision, -1 if highest is None else highest)
        return await self._write(
            *(ref, pair, pending.data, base, pending.lacking),
            known=current,
            number=pending.id,
            limit=limit,
            among=among,
        )

    async def save(self) -> None:
        """Record what the ledger could not take before."""
        await self.marks.save()
        for number, (reason, status) in list(self._unsaved.items()):
            with suppress(StorageError):
                await self.marks.in_thread(self.ledger.fail, number, reason, status)
                del self._unsaved[number]

    async def ask(
        self,
        ref: EntryId,
        named: bool = True,
        *,
        enough: int | None = None,
        seen: EntryState | None = None,
        among: Portals | None = None,
    ) -> EntryState:
        """Ask as `EntryReader` does. An entry of one's own that was never seen here is absent if
        as many portals say so as must take a write: otherwise nothing new could be made while one
        is away.
        """
        may_be_new = enough is None and len((among or self.portals).clients) > 1
        if may_be_new and self._is_own(ref.public_key) and await self.marks.find(ref) is None:
            enough = self._enough(among)
        return await super().ask(ref, named, enough=enough, seen=seen, among=among)

    def _enough(self, among: Portals | None) -> int:
        """How many portals must say that there is no entry, before a write, if others fail."""
        return self.posting.policy.needed(len((among or self.portals).writable_clients))

    async def _ask_before(
        self, ref: EntryId, base: EntryState | None, among: Portals | None
    ) -> EntryState:
        """Ask before a write, which replaces the entry or is a change of `base`.

        If portals lost that while others cannot be asked, nobody is known to have changed it.
        """
        enough = self._enough(among)
        if base is None:
            return await self.ask_to_replace(ref, enough=enough, among=among)
        return await self.ask(ref, enough=enough, seen=base, among=among)

    async def _write(
        self,
        ref: EntryId,
        pair: SigningKeyPair,
        data: bytes,
        base: EntryState | None,
        lacking: Collection[str] = (),
        *,
        known: EntryState | None = None,
        number: int | None = None,
        limit: int | None = None,
        among: Portals | None = None,
    ) -> EntryState:
        """Post new content. `known` is what the portals just said; `number` that of a pending write
        that is signed anew.

        If a revision above the `limit` was claimed before, something else was written: it is stale.
        A rewrite does not ask first if the cached state is fresh: if that is outdated, the portal
        refuses. A change of `base` does, as two changes may have one revision (docs/wire.md 6.3).
        """
        if known is None and base is None:
            cached = self.recall(ref)
            if cached and cached.requested_at > trio.current_time() - self._fresh_for:
                known = cached
        portals: Sequence[str] = ()
        is_new = number is None
        try:
            writable = (among or self.portals).writable()  # fails before anything is signed
            portals = [each.url for each in writable.clients if each.url not in lacking]
            is_pending = base is not None and number is None and await self.has_pending(ref)
            for attempt in range(CONFLICTS):
                await trio.sleep(_BACK_OFF * attempt)
                is_known = known is not None and not attempt
                current = known if is_known and known else await self._ask_before(ref, base, among)
                if not needs_post(base, current, data) and (number is not None or not is_pending):
                    await self._unchanged(ref, number, current, lacking)
                    return current
                claim = partial(self.ledger.claim, portals=portals, lacking=lacking)
                more = {
                    "number": number,
                    "limit": limit,
                    "is_edit": base is not None and base.data is not None,
                }
                given = ref, pair, data, current.revision
                write = await self.marks.in_thread(partial(claim, *given, **more))
                number, limit = write.id, None
                self._give_up(write.superseded)
                state = await self._post(ref, write, lacking, among)
                if state is not None:
                    return state
            raise RevisionConflictError(f"somebody else was faster {CONFLICTS} times")
        except BaseException as error:
            await self._failed(ref, data, base, number, error, portals, lacking, is_new=is_new)
            raise

    async def _post(
        self, ref: EntryId, write: Write, lacking: Collection[str], among: Portals | None
    ) -> EntryState | None:
        """Post to the portals that are not read-only; None when one has something newer."""
        portals = (among or self.portals).writable()
        requested_at = trio.current_time()
        posted = await self.posting.post(portals, write.signed, lacking)
        if posted is None:
            return None
        try:
            with trio.CancelScope(shield=True):  # it is posted
                mark = await self._posted(ref, write, posted)
        finally:
            posted.recorded.set()
        now = trio.current_time()
        return self.store(ref, EntryState(write.signed, requested_at, mark.seen_at, now))

    # --- what becomes of a write

    async def _posted(self, ref: EntryId, write: Write, posted: Posted) -> RevisionMark:
        """Record that portals took a write; the others are owed it."""
        given = write, ref.data_key, posted.taken_by, posted.left, posted.late
        try:
            mark = await self.marks.in_thread(partial(self.ledger.took, *given))
        except StorageError as error:
            _log.warning("registry entry %s: it is posted, and stays pending: %s", ref, error)
            mark = await self.marks.record(ref, write.signed)
        self.wake_senders()
        return self.marks.with_unsaved(ref, mark) or mark

    async def _unchanged(
        self, ref: EntryId, number: int | None, state: EntryState, lacking: Collection[str]
    ) -> None:
        """Drop a pending write that need not be posted; the portals `lacking` the content behind
        the entry are owed both.
        """
        if number is not None:
            await self.marks.in_thread(self.ledger.drop, number)
        if state.signed is None or not lacking:
            return
        owe = partial(self.ledger.owe, needs_content=True, is_own=True)
        given = state.signed, ref.data_key, lacking, LACKS_CONTENT
        try:
            await self.marks.in_thread(partial(owe, *given))
            self.wake_senders()
        except StorageError as error:
            _log.warning("registry entry %s: not all portals have its content: %s", ref, error)

    async def _failed(
        self,
        ref: EntryId,
        data: bytes,
        base: EntryState | None,
        number: int | None,
        error: BaseException,
        portals: Sequence[str] = (),
        lacking: Collection[str] = (),
        *,
        is_new: bool = False,
        before: Status = Status.FAILED,
    ) -> None:
        """Keep content that was not posted in the outbox, with the reason; without a `number` it is
        new there, written for the `portals`. A CONFLICT `before` stays one; a new one is kept also
        if another process has written since. What can never be posted is not kept.
        """
        reason = str(error) if isinstance(error, SkymountError) else "interrupted"
        made_from = None if base is None else base.revision
        is_conflict = before is Status.CONFLICT
        status = Status.CONFLICT if is_conflict else status_after(error, base)

        is_replaced = False

        def keep() -> Sequence[Pending]:
            nonlocal is_replaced
            is_there = False
            if number is not None:
                is_there = self.ledger.fail(number, reason, status)
            is_lost = number is None or (is_new and status is Status.CONFLICT)
            is_replaced = not (is_there or is_lost)
            if is_lost and not is_there and data != DELETED:
                what = ref, data, reason, made_from, portals, lacking
                return self.ledger.keep(*what, status)
            return ()

        try:
            with trio.CancelScope(shield=True):
                if isinstance(error, FrozenEntryError):
                    await self._give_up_frozen(number)
                    return
                self._give_up(await self.marks.in_thread(keep))
                if is_replaced:
                    text = "registry entry %s: not posted, and replaced or dropped meanwhile: %s"
                    _log.warning(text, ref, ascii(data))
            self.wake_senders()
        except StorageError as failure:
            _log.error("registry entry %s: %s; then: %s", ref, reason, failure)
            if number is not None:
                self._unsaved[number] = (reason, status)
            elif isinstance(error, SkymountError):
                raise StorageError(f"{reason}; the content is lost: {failure}") from error

    async def _give_up_frozen(self, number: int | None) -> None:
        pending = None
        if number is not None:
            pending = await self.marks.in_thread(self.ledger.get, number)
        if pending is not None:
            await self.marks.in_thread(self.ledger.drop, pending.id)
            self._gave_up(pending)

    def _give_up(self, superseded: Sequence[Pending]) -> None:
        for each in superseded:
            self._gave_up(each)

    def _write_lock(self, ref: EntryId, pair: SigningKeyPair | None) -> trio.Lock:
        if pair is not None and pair.public_key != ref.public_key:
            raise MalformedError("an entry is signed by its owner's key, not by another")
        return self._write_locks.setdefault(ref, trio.Lock())


def _changed_since(current: EntryState) -> StaleEntryError:
    check_not_frozen(current.revision)
    return StaleEntryError(f"the entry was changed since: {described(current)}")


def _log_superseded(pending: Pending) -> None:
    ref = EntryId(pending.public_key, pending.tweak, pending.data_key)
    text = "registry entry %s: %a was never posted, and is given up: something was written later"
    _log.warning(text, ref, pending.data)

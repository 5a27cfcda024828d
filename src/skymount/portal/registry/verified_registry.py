"""Changing registry entries on all portals: claim a revision, sign, post, and spool what fails.

A write claims its revision in the ledger before it is posted. Reading is in `entry_reader`.
"""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from mmap import mmap
from weakref import WeakValueDictionary

import trio

from skymount.errors import (
    KeyringError,
    MalformedError,
    RevisionConflictError,
    RevisionError,
    RolledBackError,
    SkymountError,
    StaleEntryError,
    StorageError,
)
from skymount.portal.client.registry import GET_TIMEOUT
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.owed_entry import lacking_debts
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite
from skymount.portal.ledger.revision_marks import EntryId
from skymount.portal.ledger.rollback import RevisionMark, is_rolled_back, rollback_reason
from skymount.portal.registry.entry_reader import EntryReader
from skymount.portal.registry.entry_state import (
    EntryState,
    needs_post,
    next_revision,
    status_after,
)
from skymount.portal.registry.posting import Posted, Posting
from skymount.portal.write_policy import WritePolicy
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DATA_LIMIT, DELETED, Entry, SignedEntry

CONFLICTS = 5  # how often a rewrite takes another revision because somebody else was faster
FRESH = 2.0  # seconds of `fresh`, unless told otherwise
_BACK_OFF = 0.05  # seconds before a rewrite is retried, times the number of attempts so far

_log = logging.getLogger(__name__)


def _log_superseded(pending: PendingWrite) -> None:
    ref = EntryId(pending.public_key, pending.tweak, pending.data_key)
    text = "registry entry %s: %a was never posted, and is given up: something was written later"
    _log.warning(text, ref, pending.data)


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
        gave_up: Callable[[PendingWrite], None] | None = None,
        policy: WritePolicy = WritePolicy.ANY,
        is_own: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """`look` is seconds that a portal may look for an entry, `clock` the ledger's.

        `policy` says how many portals must take a write, and `is_own` whether the private key of a
        public key is here. `fresh` is seconds for which a cached
        revision serves as the one that a rewrite follows. `gave_up` is called with each pending
        write that a posted one superseded; else it is logged.
        """
        super().__init__(portals, ledger, look=look, clock=clock)
        self._gave_up = gave_up or _log_superseded
        self._fresh_for = fresh
        self._is_own = is_own
        self.posting = Posting(self, policy, look=look, clock=clock)
        self.spool_changed = trio.Event()  # who waits for the next change replaces it
        self._unsaved_failures: dict[int, tuple[str, PendingStatus]] = {}  # by id of the write
        self._write_locks: WeakValueDictionary[EntryId, trio.Lock] = WeakValueDictionary()

    def wake_senders(self) -> None:
        """Let those look that send what is pending or owed."""
        self.spool_changed.set()
        self.posting.on_owed()

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
        StorageError and MalformedError the content is in the spool.

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
                current = await self._ask(ref)
            except RolledBackError:
                return await self._write(ref, pair, DELETED, None)
            if current.data is None and not is_pending:
                return current
            return await self._write(ref, pair, DELETED, None, known=current)

    async def has_pending(self, ref: EntryId) -> bool:
        """Whether the spool has a write to an entry that a post would supersede.

        Ask this before asking the portal: another process may be posting what is pending.
        """
        return await self.marks.in_thread(self._ledger.has_pending, ref.public_key, ref.tweak)

    async def send(
        self,
        pending: PendingWrite,
        pair: SigningKeyPair | None = None,
        *,
        overwrite: bool = False,
        only_last: bool = False,
    ) -> EntryState:
        """Post a pending write: the very same bytes if they are signed.

        StaleEntryError when the entry was changed since, unless to `overwrite`: then it gets the
        next revision, signed with `pair`. On any error the write stays in the spool. StorageError
        when it is not there, another process is posting it, or `only_last` and it is not the last.
        """
        ref = EntryId(pending.public_key, pending.tweak, pending.data_key)
        self.portals.writable()  # fails before the spool is touched
        async with self._write_lock(ref, pair):
            key = (ref.public_key, ref.tweak)
            highest = await self.marks.in_thread(self._ledger.highest_revision, *key)
            begin = partial(self._ledger.begin_retry, pending.id, only_last=only_last)
            if not await self.marks.in_thread(begin):
                text = "it is not in the spool any more, or being posted elsewhere"
                raise StorageError(f"{text}, or written later" if only_last else text)
            try:
                if not overwrite and pending.signed is not None:
                    return await self._send_again(ref, pending, pending.signed)
                return await self._send_anew(ref, pending, pair, overwrite, highest)
            except BaseException as error:
                # With an unknown base the entry may have been there before.
                is_unknown = isinstance(error, StaleEntryError) and pending.base == -1
                before = PendingStatus.CONFLICT if is_unknown else pending.status
                await self._spool(ref, pending.data, None, pending.id, error, before=before)
                raise

    async def _send_again(
        self, ref: EntryId, pending: PendingWrite, signed: SignedEntry
    ) -> EntryState:
        mark = await self.marks.find(ref)
        if is_rolled_back(mark, signed.entry):
            reason = rollback_reason(mark, signed.entry)
            raise StaleEntryError(f"the entry was changed since: {reason}")
        current = await self._ask_before(ref, None)
        is_posted = current.signed == signed  # and the answer was lost
        if is_posted and len(self.portals.writable_clients) < 2:
            await self._mark_posted(ref, pending.id, signed, Posted(()))
            return current
        if current.revision >= signed.entry.revision and not is_posted:
            raise _changed_since(current)
        state = await self._post(ref, pending.id, signed, pending.lacking)
        if state is None:
            raise StaleEntryError("the entry was changed since: a later revision is there")
        return state

    async def _send_anew(
        self,
        ref: EntryId,
        pending: PendingWrite,
        pair: SigningKeyPair | None,
        overwrite: bool,
        highest: int | None,
    ) -> EntryState:
        """Post with the next revision; not over revisions above `highest` unless to `overwrite`."""
        current = await (
            self._ask_before(ref, None) if overwrite else self._ask(ref, enough=self._enough)
        )
        if current.signed is not None and current.signed.entry.data == pending.data:
            await self._drop(ref, pending.id)
            await self._owe_content(ref, current, pending.lacking)
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
            replaces=pending.id,
            limit=limit,
        )

    async def save(self) -> None:
        await self.marks.save()
        for number, (reason, status) in list(self._unsaved_failures.items()):
            with suppress(StorageError):
                await self.marks.in_thread(self._ledger.mark_failed, number, reason, status)
                del self._unsaved_failures[number]

    @property
    def _enough(self) -> int:
        """How many portals must say that there is no entry, before a write, if others fail."""
        return self.posting.policy.needed(len(self.portals.writable_clients))

    async def _ask(
        self, ref: EntryId, named: bool = True, *, enough: int | None = None
    ) -> EntryState:
        """Ask as `EntryReader` does. An entry of one's own that was never seen here is absent if
        `enough` portals say so: otherwise nothing new could be made while a portal is away.
        """
        may_be_new = enough is None and len(self.portals.clients) > 1
        if may_be_new and self._is_own(ref.public_key) and await self.marks.find(ref) is None:
            enough = self._enough
        return await super()._ask(ref, named, enough=enough)

    async def _ask_before(self, ref: EntryId, base: EntryState | None) -> EntryState:
        """Ask before a write, which replaces the entry or is a change of `base`."""
        ask = self._ask_to_replace if base is None else self._ask
        return await ask(ref, enough=self._enough)

    def _write_lock(self, ref: EntryId, pair: SigningKeyPair | None) -> trio.Lock:
        if pair is not None and pair.public_key != ref.public_key:
            raise MalformedError("an entry is signed by its owner's key, not by another")
        return self._write_locks.setdefault(ref, trio.Lock())

    async def _write(
        self,
        ref: EntryId,
        pair: SigningKeyPair,
        data: bytes,
        base: EntryState | None,
        lacking: Collection[str] = (),
        *,
        known: EntryState | None = None,
        replaces: int | None = None,
        limit: int | None = None,
    ) -> EntryState:
        """Post new content. `known` is what the portals just said; `replaces` a pending write.

        If a revision above the `limit` was claimed before, something else was written: it is stale.
        A rewrite does not ask first if the cached state is fresh: if that is outdated, the portal
        refuses. A change of `base` does, since two changes may have one revision (wire notes 6.3).
        """
        if known is None and base is None:
            cached = self.recall(ref)
            if cached and cached.requested_at > trio.current_time() - self._fresh_for:
                known = cached
        number = replaces
        try:
            self.portals.writable()  # fails before anything is signed
            is_pending = base is not None and replaces is None and await self.has_pending(ref)
            for attempt in range(CONFLICTS):
                await trio.sleep(_BACK_OFF * attempt)
                current = known if known and not attempt else await self._ask_before(ref, base)
                if not needs_post(base, current, data):
                    if number is not None:
                        await self._drop(ref, number)
                    if number is not None or not is_pending:
                        await self._owe_content(ref, current, lacking)
                        return current
                claimed, signed = await self.marks.in_thread(
                    self._claim, ref, pair, data, current.revision, number, limit, lacking
                )
                number, limit = claimed, None
                state = await self._post(ref, claimed, signed, lacking)
                if state is not None:
                    return state
            raise RevisionConflictError(f"somebody else was faster {CONFLICTS} times")
        except BaseException as error:
            await self._spool(ref, data, base, number, error, lacking)
            raise

    def _claim(
        self,
        ref: EntryId,
        pair: SigningKeyPair,
        data: bytes,
        current: int,
        replaces: int | None,
        limit: int | None,
        lacking: Collection[str],
    ) -> tuple[int, SignedEntry]:
        """Sign content with an unclaimed revision, and claim it. Runs in a thread."""
        portals = self._urls_without(lacking)
        while True:
            highest = self._ledger.highest_revision(ref.public_key, ref.tweak)
            if limit is not None and highest is not None and highest > limit:
                raise StaleEntryError("the entry was changed since: something was written later")
            revision = next_revision(current, highest)
            signed = Entry(ref.tweak, data, revision).sign(pair.private_key)
            try:
                number = self._ledger.claim_revision(
                    signed, ref.data_key, replaces, portals, lacking
                )
            except RevisionError:
                continue  # another process was faster
            return number, signed

    async def _post(
        self, ref: EntryId, number: int, signed: SignedEntry, lacking: Collection[str] = ()
    ) -> EntryState | None:
        """Post to the portals that are not read-only; None when one has something newer."""
        requested_at = trio.current_time()
        posted = await self.posting.post(self.portals.writable(), signed, lacking)
        if posted is None:
            return None
        try:
            with trio.CancelScope(shield=True):  # it is posted
                mark = await self._mark_posted(ref, number, signed, posted)
        finally:
            posted.recorded.set()
        return self._store(ref, EntryState(signed, requested_at, mark.seen_at))

    async def _spool(
        self,
        ref: EntryId,
        data: bytes,
        base: EntryState | None,
        number: int | None,
        error: BaseException,
        lacking: Collection[str] = (),
        *,
        before: PendingStatus = PendingStatus.FAILED,
    ) -> None:
        """Spool content that was not posted, with the reason. A CONFLICT `before` stays one."""
        reason = str(error) if isinstance(error, SkymountError) else "interrupted"
        made_from = None if base is None else base.revision
        is_conflict = before is PendingStatus.CONFLICT
        status = PendingStatus.CONFLICT if is_conflict else status_after(error, base)

        def spool() -> None:
            if number is not None:
                self._ledger.mark_failed(number, reason, status)
            elif data != DELETED:
                key = (ref.public_key, ref.tweak, ref.data_key)
                portals = self._urls_without(lacking)
                self._ledger.add_unsigned(*key, data, reason, made_from, portals, status, lacking)

        try:
            with trio.CancelScope(shield=True):
                await self.marks.in_thread(spool)
            self.spool_changed.set()
        except StorageError as failure:
            _log.error("registry entry %s: %s; then: %s", ref, reason, failure)
            if number is not None:
                self._unsaved_failures[number] = (reason, status)
            elif isinstance(error, SkymountError):
                raise StorageError(f"{reason}; the content is lost: {failure}") from error

    async def _mark_posted(
        self, ref: EntryId, number: int, signed: SignedEntry, posted: Posted
    ) -> RevisionMark:
        mark = None
        try:
            mark = await self.marks.in_thread(
                self._ledger.mark_posted, number, posted.taken_by, posted.debts
            )
            await self._remove_superseded(ref, number)
        except StorageError as error:
            _log.warning("registry entry %s: it is posted, and stays pending: %s", ref, error)
        if mark is None:
            mark = await self.marks.record(ref, signed)
            await self._record_debts(ref, signed, posted)
        if posted.debts:
            self.posting.on_owed()
        return self.marks.with_unsaved(ref, mark) or mark

    async def _record_debts(self, ref: EntryId, signed: SignedEntry, posted: Posted) -> None:
        """Record what portals are owed of a write that is no longer in the spool."""

        def record() -> None:
            self._ledger.mark_paid(signed, posted.taken_by)
            self._ledger.owe_all(signed, ref.data_key, posted.debts)

        if posted.debts or len(self.portals.writable_clients) > 1:
            try:
                await self.marks.in_thread(record)
            except StorageError as error:
                _log.warning("registry entry %s: not all portals have it: %s", ref, error)

    async def _owe_content(self, ref: EntryId, state: EntryState, portals: Collection[str]) -> None:
        """Let portals be owed an entry that need not be posted, and the content behind it."""
        if state.signed is None or not portals:
            return
        debts = lacking_debts(portals)
        try:
            await self.marks.in_thread(self._ledger.owe_all, state.signed, ref.data_key, debts)
            self.posting.on_owed()
        except StorageError as error:
            _log.warning("registry entry %s: not all portals have its content: %s", ref, error)

    def _urls_without(self, lacking: Collection[str]) -> list[str]:
        return [each.url for each in self.portals.writable_clients if each.url not in lacking]

    async def _drop(self, ref: EntryId, number: int) -> None:
        await self.marks.in_thread(self._ledger.drop, number)
        await self._remove_superseded(ref, number)

    async def _remove_superseded(self, ref: EntryId, number: int) -> None:
        gone = await self.marks.in_thread(
            self._ledger.remove_superseded, ref.public_key, ref.tweak, number
        )
        for each in gone:
            self._gave_up(each)


def _changed_since(current: EntryState) -> StaleEntryError:
    return StaleEntryError(f"the entry was changed since: it has revision {current.revision}")

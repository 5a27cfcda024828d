"""Changing registry entries on all portals. Writes of an entry wait for each other.

Reading is in `entry_reader`, what one write does in `entry_writer`.
"""

import time
from collections.abc import Callable, Collection
from functools import partial
from mmap import mmap
from weakref import WeakValueDictionary

import trio

from skymount.errors import (
    KeyringError,
    MalformedError,
    RolledBackError,
    StaleEntryError,
    StorageError,
)
from skymount.policies import WritePolicy
from skymount.portal.client.registry import GET_TIMEOUT
from skymount.portal.failover.portals import Portals
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite
from skymount.portal.ledger.revision_marks import EntryId
from skymount.portal.ledger.rollback import is_rolled_back, rollback_reason
from skymount.portal.registry.entry_reader import EntryReader
from skymount.portal.registry.entry_state import EntryState, check_not_frozen, described
from skymount.portal.registry.entry_writer import EntryWriter
from skymount.portal.registry.posting import Posted, Posting
from skymount.portal.registry.write_outcomes import WriteOutcomes
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import DATA_LIMIT, DELETED, Entry, SignedEntry

FRESH = 2.0  # seconds of `fresh`, unless told otherwise


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
        self._fresh_for = fresh
        self._is_own = is_own
        self.posting = Posting(self, policy, look=look, clock=clock)
        self.spool_changed = trio.Event()  # who waits for the next change replaces it
        self._outcomes = WriteOutcomes(self, self.posting, self.wake_senders, gave_up)
        self._write_locks: WeakValueDictionary[EntryId, trio.Lock] = WeakValueDictionary()

    def wake_senders(self) -> None:
        """Let those look that send what is pending or owed."""
        self._wake_retry()
        self.posting.on_owed()

    def _wake_retry(self) -> None:
        self.spool_changed.set()

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
            return await self._writer.write(ref, pair, data, base, lacking)

    def check(self, ref: EntryId, base: EntryState) -> None:
        """Accept content made from any state: its owner has signed that state before."""

    async def delete(self, ref: EntryId, pair: SigningKeyPair) -> EntryState:
        """Post the deletion of an entry, unless it is absent and no write to it is pending."""
        async with self._write_lock(ref, pair):
            is_pending = await self.has_pending(ref)
            try:
                current = await self.ask(ref)
            except RolledBackError:
                return await self._writer.write(ref, pair, DELETED, None)
            if current.data is None and not is_pending:
                return current
            return await self._writer.write(ref, pair, DELETED, None, known=current)

    async def has_pending(self, ref: EntryId) -> bool:
        """Whether the spool has a write to an entry that a post would supersede.

        Ask this before asking the portal: another process may be posting what is pending.
        """
        return await self._writer.has_pending(ref)

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
        next revision, signed with `pair`. FrozenEntryError when it can never be posted, and is
        given up; after any other error the write stays in the spool. StorageError when it is not
        there, another process is posting it, or `only_last` and it is not the last.
        """
        ref = EntryId(pending.public_key, pending.tweak, pending.data_key)
        self.portals.writable()  # fails before the spool is touched
        async with self._write_lock(ref, pair):
            key = (ref.public_key, ref.tweak)
            highest = await self.marks.in_thread(self.ledger.highest_revision, *key)
            begin = partial(self.ledger.begin_retry, pending.id, only_last=only_last)
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
                await self._outcomes.failed(
                    ref, pending.data, None, pending.id, error, before=before
                )
                raise

    async def _send_again(
        self, ref: EntryId, pending: PendingWrite, signed: SignedEntry
    ) -> EntryState:
        mark = await self.marks.find(ref)
        if mark is not None and is_rolled_back(mark, signed.entry):
            check_not_frozen(mark.revision)
            reason = rollback_reason(mark, signed.entry)
            raise StaleEntryError(f"the entry was changed since: {reason}")
        current = await self._writer.ask_before(ref, None)
        is_posted = current.signed == signed  # and the answer was lost
        if is_posted and len(self.portals.writable_clients) < 2:
            await self._outcomes.posted(ref, pending.id, signed, Posted(()), is_for_several=False)
            return current
        if current.revision >= signed.entry.revision and not is_posted:
            raise _changed_since(current)
        state = await self._writer.post(ref, pending.id, signed, pending.lacking)
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
        writer = self._writer
        # What it was made from is not absent while a portal that may have it cannot be asked.
        enough = writer.enough if pending.base == -1 else None
        current = await (
            writer.ask_before(ref, None) if overwrite else self.ask(ref, enough=enough)
        )
        if current.signed is not None and current.signed.entry.data == pending.data:
            await self._outcomes.unchanged(ref, pending.id, current, pending.lacking)
            return current
        if not overwrite and current.revision != pending.base:
            raise _changed_since(current)
        if pair is None:
            raise KeyringError("its private key is needed, to sign it with a new revision")
        if overwrite:
            base = limit = None
        else:
            base, limit = current, max(current.revision, -1 if highest is None else highest)
        return await writer.write(
            *(ref, pair, pending.data, base, pending.lacking),
            known=current,
            replaces=pending.id,
            limit=limit,
        )

    async def save(self) -> None:
        await self.marks.save()
        await self._outcomes.save()

    async def ask(
        self,
        ref: EntryId,
        named: bool = True,
        *,
        enough: int | None = None,
        seen: EntryState | None = None,
    ) -> EntryState:
        """Ask as `EntryReader` does. An entry of one's own that was never seen here is absent if
        as many portals say so as must take a write: otherwise nothing new could be made while one
        is away.
        """
        may_be_new = enough is None and len(self.portals.clients) > 1
        if may_be_new and self._is_own(ref.public_key) and await self.marks.find(ref) is None:
            enough = self._writer.enough
        return await super().ask(ref, named, enough=enough, seen=seen)

    @property
    def _writer(self) -> EntryWriter:
        return EntryWriter(self, self.posting, self._outcomes, self._fresh_for)

    def _write_lock(self, ref: EntryId, pair: SigningKeyPair | None) -> trio.Lock:
        if pair is not None and pair.public_key != ref.public_key:
            raise MalformedError("an entry is signed by its owner's key, not by another")
        return self._write_locks.setdefault(ref, trio.Lock())


def _changed_since(current: EntryState) -> StaleEntryError:
    check_not_frozen(current.revision)
    return StaleEntryError(f"the entry was changed since: {described(current)}")

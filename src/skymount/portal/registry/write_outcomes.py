"""Records in the ledger what became of writes: posted, owed to portals, or kept in the spool."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import trio

from skymount.errors import FrozenEntryError, SkymountError, StorageError
from skymount.portal.ledger.owed_entry import lacking_debts
from skymount.portal.ledger.pending_write import PendingStatus, PendingWrite
from skymount.portal.ledger.revision_marks import EntryId
from skymount.portal.ledger.rollback import RevisionMark
from skymount.portal.registry.entry_reader import EntryReader
from skymount.portal.registry.entry_state import EntryState, status_after
from skymount.portal.registry.posting import Posted, Posting
from skymount.wire.registry_entry import DELETED, SignedEntry

_log = logging.getLogger(__name__)


class WriteOutcomes:
    """What became of the writes of a registry. Needs a ledger, like the writes."""

    def __init__(
        self,
        entries: EntryReader,
        posting: Posting,
        on_spooled: Callable[[], None],
        gave_up: Callable[[PendingWrite], None] | None,
    ) -> None:
        """`on_spooled` is called when a write has come to the spool, or its reason has changed;
        `gave_up` with each pending write that a posted one superseded, which else is logged.
        """
        self._entries = entries
        self._gave_up = gave_up or _log_superseded
        self._on_spooled = on_spooled
        self._posting = posting
        self._unsaved_failures: dict[int, tuple[str, PendingStatus]] = {}  # by id of the write

    async def save(self) -> None:
        """Record the failures that the ledger could not take before."""
        for number, (reason, status) in list(self._unsaved_failures.items()):
            with suppress(StorageError):
                await self._entries.marks.in_thread(
                    self._entries.ledger.mark_failed, number, reason, status
                )
                del self._unsaved_failures[number]

    async def failed(
        self,
        ref: EntryId,
        data: bytes,
        base: EntryState | None,
        number: int | None,
        error: BaseException,
        portals: Sequence[str] = (),
        lacking: Collection[str] = (),
        *,
        before: PendingStatus = PendingStatus.FAILED,
    ) -> None:
        """Keep content that was not posted in the spool, with the reason; without a `number` it is
        new there, written for the `portals`. A CONFLICT `before` stays one. What can never be
        posted is not kept.
        """
        reason = str(error) if isinstance(error, SkymountError) else "interrupted"
        made_from = None if base is None else base.revision
        is_conflict = before is PendingStatus.CONFLICT
        status = PendingStatus.CONFLICT if is_conflict else status_after(error, base)

        def spool() -> None:
            if number is not None:
                self._entries.ledger.mark_failed(number, reason, status)
            elif data != DELETED:
                key = (ref.public_key, ref.tweak, ref.data_key)
                self._entries.ledger.add_unsigned(
                    *key, data, reason, made_from, portals, status, lacking
                )

        try:
            with trio.CancelScope(shield=True):
                if isinstance(error, FrozenEntryError):
                    await self._give_up(ref, number)
                    return
                await self._entries.marks.in_thread(spool)
            self._on_spooled()
        except StorageError as failure:
            _log.error("registry entry %s: %s; then: %s", ref, reason, failure)
            if number is not None:
                self._unsaved_failures[number] = (reason, status)
            elif isinstance(error, SkymountError):
                raise StorageError(f"{reason}; the content is lost: {failure}") from error

    async def posted(
        self,
        ref: EntryId,
        number: int,
        signed: SignedEntry,
        posted: Posted,
        *,
        is_for_several: bool,
    ) -> RevisionMark:
        """Take a write out of the spool that portals took; the others are owed it."""
        mark = None
        try:
            mark = await self._entries.marks.in_thread(
                self._entries.ledger.mark_posted, number, posted.taken_by, posted.debts
            )
            await self._remove_superseded(ref, number)
        except StorageError as error:
            _log.warning("registry entry %s: it is posted, and stays pending: %s", ref, error)
        if mark is None:  # it is no longer in the spool
            mark = await self._entries.marks.record(ref, signed)
            if posted.debts or is_for_several:
                await self._record_debts(ref, signed, posted)
        if posted.debts:
            self._posting.on_owed()
        return self._entries.marks.with_unsaved(ref, mark) or mark

    async def _record_debts(self, ref: EntryId, signed: SignedEntry, posted: Posted) -> None:
        def record() -> None:
            self._entries.ledger.mark_paid(signed, posted.taken_by)
            self._entries.ledger.owe_all(signed, ref.data_key, posted.debts)

        try:
            await self._entries.marks.in_thread(record)
        except StorageError as error:
            _log.warning("registry entry %s: not all portals have it: %s", ref, error)

    async def unchanged(
        self, ref: EntryId, number: int | None, state: EntryState, lacking: Collection[str]
    ) -> None:
        """Drop a pending write that need not be posted; the portals `lacking` the content behind
        the entry are owed both.
        """
        if number is not None:
            await self.drop(ref, number)
        if state.signed is None or not lacking:
            return
        debts = lacking_debts(lacking)
        try:
            await self._entries.marks.in_thread(
                self._entries.ledger.owe_all, state.signed, ref.data_key, debts
            )
            self._posting.on_owed()
        except StorageError as error:
            _log.warning("registry entry %s: not all portals have its content: %s", ref, error)

    async def _give_up(self, ref: EntryId, number: int | None) -> None:
        if number is None:
            return
        pending = await self._entries.marks.in_thread(self._entries.ledger.get, number)
        if pending is not None:
            await self.drop(ref, number)
            self._gave_up(pending)

    async def drop(self, ref: EntryId, number: int) -> None:
        await self._entries.marks.in_thread(self._entries.ledger.drop, number)
        await self._remove_superseded(ref, number)

    async def _remove_superseded(self, ref: EntryId, number: int) -> None:
        gone = await self._entries.marks.in_thread(
            self._entries.ledger.remove_superseded, ref.public_key, ref.tweak, number
        )
        for each in gone:
            self._gave_up(each)


def _log_superseded(pending: PendingWrite) -> None:
    ref = EntryId(pending.public_key, pending.tweak, pending.data_key)
    text = "registry entry %s: %a was never posted, and is given up: something was written later"
    _log.warning(text, ref, pending.data)

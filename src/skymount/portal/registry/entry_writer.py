"""Writes new content to a registry entry: claims a revision, signs, and posts.

A write claims its revision in the ledger before it is posted. ``write_outcomes`` records what
became of it.
"""

from collections.abc import Collection
from dataclasses import dataclass

import trio

from skymount.errors import RevisionConflictError, RevisionError, StaleEntryError
from skymount.portal.ledger.revision_marks import EntryId
from skymount.portal.registry.entry_reader import EntryReader
from skymount.portal.registry.entry_state import EntryState, needs_post, next_revision
from skymount.portal.registry.posting import Posting
from skymount.portal.registry.write_outcomes import WriteOutcomes
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, SignedEntry

CONFLICTS = 5  # how often a rewrite takes another revision because somebody else was faster
_BACK_OFF = 0.05  # seconds before a rewrite is retried, times the number of attempts so far


@dataclass(frozen=True, slots=True)
class EntryWriter:
    """Writes to the portals of an `EntryReader`. Its caller holds the lock of the entry."""

    entries: EntryReader
    posting: Posting
    outcomes: WriteOutcomes
    fresh_for: float
    """Seconds for which a cached revision serves as the one that a rewrite follows."""

    @property
    def enough(self) -> int:
        """How many portals must say that there is no entry, before a write, if others fail."""
        return self.posting.policy.needed(len(self.entries.portals.writable_clients))

    async def ask_before(self, ref: EntryId, base: EntryState | None) -> EntryState:
        """Ask before a write, which replaces the entry or is a change of `base`.

        If portals lost that while others cannot be asked, nobody is known to have changed it.
        """
        if base is None:
            return await self.entries.ask_to_replace(ref, enough=self.enough)
        return await self.entries.ask(ref, enough=self.enough, seen=base)

    async def write(
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
        refuses. A change of `base` does, as two changes may have one revision (docs/wire.md 6.3).
        """
        if known is None and base is None:
            cached = self.entries.recall(ref)
            if cached and cached.requested_at > trio.current_time() - self.fresh_for:
                known = cached
        number = replaces
        try:
            self.entries.portals.writable()  # fails before anything is signed
            is_pending = base is not None and replaces is None and await self.has_pending(ref)
            for attempt in range(CONFLICTS):
                await trio.sleep(_BACK_OFF * attempt)
                current = known if known and not attempt else await self.ask_before(ref, base)
                if not needs_post(base, current, data) and (number is not None or not is_pending):
                    await self.outcomes.unchanged(ref, number, current, lacking)
                    return current
                claimed, signed = await self.entries.marks.in_thread(
                    self._claim, ref, pair, data, current.revision, number, limit, lacking
                )
                number, limit = claimed, None
                state = await self.post(ref, claimed, signed, lacking)
                if state is not None:
                    return state
            raise RevisionConflictError(f"somebody else was faster {CONFLICTS} times")
        except BaseException as error:
            portals = self._urls_without(lacking)
            await self.outcomes.failed(ref, data, base, number, error, portals, lacking)
            raise

    async def has_pending(self, ref: EntryId) -> bool:
        """Whether the spool has a write to an entry that a post would supersede."""
        has_pending = self.entries.ledger.has_pending
        return await self.entries.marks.in_thread(has_pending, ref.public_key, ref.tweak)

    async def post(
        self, ref: EntryId, number: int, signed: SignedEntry, lacking: Collection[str] = ()
    ) -> EntryState | None:
        """Post to the portals that are not read-only; None when one has something newer."""
        portals = self.entries.portals.writable()
        requested_at = trio.current_time()
        posted = await self.posting.post(portals, signed, lacking)
        if posted is None:
            return None
        try:
            with trio.CancelScope(shield=True):  # it is posted
                is_for_several = len(portals.clients) > 1
                mark = await self.outcomes.posted(
                    ref, number, signed, posted, is_for_several=is_for_several
                )
        finally:
            posted.recorded.set()
        now = trio.current_time()
        return self.entries.store(ref, EntryState(signed, requested_at, mark.seen_at, now))

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
        ledger, portals = self.entries.ledger, self._urls_without(lacking)
        while True:
            highest = ledger.highest_revision(ref.public_key, ref.tweak)
            if limit is not None and highest is not None and highest > limit:
                raise StaleEntryError("the entry was changed since: something was written later")
            revision = next_revision(current, highest)
            signed = Entry(ref.tweak, data, revision).sign(pair.private_key)
            try:
                number = ledger.claim_revision(signed, ref.data_key, replaces, portals, lacking)
            except RevisionError:
                continue  # another process was faster
            return number, signed

    def _urls_without(self, lacking: Collection[str]) -> list[str]:
        clients = self.entries.portals.writable_clients
        return [each.url for each in clients if each.url not in lacking]

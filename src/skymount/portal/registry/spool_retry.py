"""Automatic retry of pending writes while a mount runs.

A write goes only to the portals that it was written for, and never replaces later changes.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from skymount.errors import SkymountError, StaleEntryError, StorageError, UnavailableError
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.pending_write import PendingWrite, due, summary
from skymount.portal.ledger.revision_marks import EntryId
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair

FIRST_PAUSE = 1.0  # seconds until the first retry; doubled while no portal answers
LAST_PAUSE = 30.0  # seconds of the longest back-off, and between looks for others' writes

_ATTEMPT_LIMIT = 10.0  # seconds; other writers of the entry wait for the end of an attempt

log = logging.getLogger(__name__)


class SpoolRetry:
    """Retries the pending writes of a ledger."""

    def __init__(
        self,
        entries: VerifiedRegistry,
        ledger: Ledger,
        pair_of: Callable[[bytes], Awaitable[SigningKeyPair | None]],
        *,
        sends: bool = True,
    ) -> None:
        """`pair_of` returns the key that signs for a public key. Unless it `sends` it only logs."""
        self.sends = sends
        self._entries = entries
        self._ledger = ledger
        self._pair_of = pair_of
        self._last_summary = ""

    async def run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._entries.spool_changed = changed = trio.Event()
            if not await self._due():
                pause = FIRST_PAUSE
                with trio.move_on_after(LAST_PAUSE):
                    await changed.wait()
                continue
            await trio.sleep(pause)
            is_sent = await self._send(await self._due())
            pause = FIRST_PAUSE if is_sent else min(2 * pause, LAST_PAUSE)

    async def say_what_is_pending(self) -> None:
        text = summary(await self._pending())
        if text:
            log.warning(text)

    async def _pending(self) -> list[PendingWrite]:
        if not self._ledger.path.exists():  # it is created when it is needed
            return []
        try:
            return await self._entries.marks.in_thread(self._ledger.pending)
        except StorageError as error:
            log.info("%s", error)
            return []

    async def _due(self) -> list[PendingWrite]:
        """Return the writes to retry from here; log how much is pending when that changes."""
        await self._entries.save()
        pending = await self._pending()
        text = summary(pending)
        if text and text != self._last_summary:
            log.warning(text)
        self._last_summary = text
        return [each for each in due(pending) if self.sends and self._entries.at(each.portals)]

    async def _send(self, writes: Sequence[PendingWrite]) -> bool:
        """Send writes; return whether any was posted. Portals that just failed are skipped."""
        unavailable: set[tuple[str, ...]] = set()
        is_sent = False
        for write in writes:
            entries = self._entries.at(write.portals)
            pair = None if write.signed else await self._pair_of(write.public_key)
            if entries is None or write.portals in unavailable or not (write.signed or pair):
                continue
            ref = EntryId(write.public_key, write.tweak, write.data_key)
            unavailable.add(write.portals)  # until they answer in time
            with trio.move_on_after(_ATTEMPT_LIMIT):
                try:
                    state = await entries.send(write, pair, only_last=True)
                    log.info("registry entry %s: posted, with revision %d", ref, state.revision)
                    is_sent = True
                except UnavailableError:
                    continue
                except StaleEntryError as error:
                    log.warning("registry entry %s: it is not sent by itself: %s", ref, error)
                except SkymountError as error:
                    log.warning("registry entry %s: %s", ref, error)
                unavailable.discard(write.portals)
        return is_sent

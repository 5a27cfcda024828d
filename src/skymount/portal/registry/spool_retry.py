"""Owns sending by itself what could not be posted: while a mount runs, what waits for a portal goes
to those that it was written for once one answers; not what somebody else has changed meanwhile.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from skymount.errors import SkymountError, StaleEntryError, StorageError, UnavailableError
from skymount.portal.registry.ledger import Fate, Ledger, Pending
from skymount.portal.registry.revision_marks import EntryId
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair

FIRST_PAUSE = 1.0
"""Seconds until what waits is sent; doubled while no portal answers."""

LAST_PAUSE = 30.0
"""The longest pause, and the seconds between two looks at what others have kept."""

_LIMIT = 10.0  # seconds of one attempt: whoever writes to the entry meanwhile waits for its end

log = logging.getLogger(__name__)


def due(pending: Sequence[Pending]) -> list[Pending]:
    """Return what is to be sent: of each entry what was written last, if that waits for a portal.

    `pending` is sorted by age. What was written before that is superseded once it is posted.
    """
    latest = {(each.public_key, each.tweak): each for each in pending}
    return [each for each in latest.values() if each.fate is Fate.WAITING and not each.posting]


def summary(pending: Sequence[Pending]) -> str:
    """Say in one line how much is pending; empty when nothing is."""
    if not pending:
        return ""
    changes = "1 change" if len(pending) == 1 else f"{len(pending)} changes"
    return f"{changes} of registry entries could not be posted: see `skymount registry pending`"


class SpoolRetry:
    """Sends what waits in the ledger. `pair_of` returns the key that signs, None without one."""

    def __init__(
        self,
        entries: VerifiedRegistry,
        ledger: Ledger,
        pair_of: Callable[[bytes], Awaitable[SigningKeyPair | None]],
        *,
        sends: bool = True,
        first_pause: float = FIRST_PAUSE,
        last_pause: float = LAST_PAUSE,
    ) -> None:
        """Unless it `sends` it only says what is pending. Of the pauses see `FIRST_PAUSE`."""
        self._sends = sends
        self._entries = entries
        self._ledger = ledger
        self._pair_of = pair_of
        self._first_pause = first_pause
        self._last_pause = last_pause
        self._said = ""

    async def run(self) -> None:
        """Look for what waits, and send it, until cancelled."""
        pause = self._first_pause
        while True:
            self._entries.kept = kept = trio.Event()
            if not await self._waiting():
                pause = self._first_pause
                with trio.move_on_after(self._last_pause):
                    await kept.wait()
                continue
            await trio.sleep(pause)
            is_sent = await self._send(await self._waiting())
            pause = self._first_pause if is_sent else min(2 * pause, self._last_pause)

    async def say_what_is_pending(self) -> None:
        """Log one line on what is pending, if anything is."""
        text = summary(await self._pending())
        if text:
            log.warning(text)

    async def _pending(self) -> list[Pending]:
        if not self._ledger.path.exists():  # it is made when it is needed
            return []
        try:
            return await self._entries.marks.in_thread(self._ledger.pending)
        except StorageError as error:
            log.info("%s", error)
            return []

    async def _waiting(self) -> list[Pending]:
        """Return what is to be sent from here."""
        await self._entries.save()
        pending = await self._pending()
        text = summary(pending)
        if text and text != self._said:
            log.warning(text)
        self._said = text
        return [each for each in due(pending) if self._sends and self._entries.at(each.portals)]

    async def _send(self, waiting: Sequence[Pending]) -> bool:
        """Send what waits, but nothing more to portals that just failed; whether any was sent."""
        away: set[tuple[str, ...]] = set()
        is_sent = False
        for each in waiting:
            entries = self._entries.at(each.portals)
            pair = None if each.signed else await self._pair_of(each.public_key)
            if entries is None or each.portals in away or not (each.signed or pair):
                continue
            ref = EntryId(each.public_key, each.tweak, each.data_key)
            away.add(each.portals)  # unless it answers, in time
            with trio.move_on_after(_LIMIT):
                try:
                    state = await entries.send(each, pair)
                    log.info("registry entry %s: posted, with revision %d", ref, state.revision)
                    is_sent = True
                except UnavailableError:
                    continue
                except StaleEntryError as error:
                    log.warning("registry entry %s: it is not sent by itself: %s", ref, error)
                except SkymountError as error:
                    log.warning("registry entry %s: %s", ref, error)
                away.discard(each.portals)
        return is_sent

"""Sends what is in the ledger's outbox, while a mount runs: entries that portals are owed, and
writes that could not be posted. The latter go only to portals that they were written for, and never
replace what somebody else wrote meanwhile.

Each portal is served by itself, with growing pauses while it fails.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import trio

from skymount.errors import (
    KeyringError,
    MalformedError,
    PortalError,
    SkymountError,
    StaleEntryError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import State
from skymount.portal.ledger.entries import EntryId
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import (
    LONGEST_PAUSE,
    OwedTotal,
    Pending,
    owed_summary,
    summary,
)
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import linked_skylink
from skymount.wire.skylink import Skylink

SendContent = Callable[[Skylink, PortalReader], Awaitable[None]]
"""Brings the content of a skylink to a portal; SkymountError when that fails."""

FIRST_PAUSE = 1.0
"""Seconds after a failure; doubled with each further one."""
LAST_PAUSE = 30.0
"""Seconds of the longest pause of a portal, and between two looks for what others put into the
ledger."""

_AT_ONCE = 8  # entries that are sent to a portal that works at the same time
_ATTEMPT_LIMIT = 10.0  # seconds; other writers of the entry wait for the end of an attempt

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Line:
    """What is sent to one portal, entries or those with content: that may take long."""

    client: PortalReader
    with_content: bool
    changed: trio.Event
    pause: float = FIRST_PAUSE
    works: bool = False
    """Whether the last attempt succeeded."""
    was_due: Sequence[tuple[int, int, float]] = ()
    """What was sent last: numbers, attempts, times."""


class Sender:
    """Sends what is pending to the portals of a registry that take writes."""

    def __init__(
        self,
        registry: VerifiedRegistry,
        ledger: Ledger,
        *,
        sends: bool = True,
        pair_of: Callable[[bytes], Awaitable[SigningKeyPair | None]] | None = None,
        send_content: SendContent | None = None,
    ) -> None:
        """Unless it `sends` it only counts. `pair_of` returns the key that signs for a public key;
        without it only what is signed is sent. Entries whose content is owed too wait without
        `send_content`.
        """
        self.totals: Sequence[OwedTotal] = ()
        """What each portal was owed a moment ago."""
        self._registry = registry
        self._ledger = ledger
        self._sends = sends
        self._pair_of = pair_of
        self._send_content = send_content
        self._lines: list[_Line] = []
        self._counted = trio.Event()
        self._last_summary = ""
        registry.posting.on_pending = self.wake

    def wake(self) -> None:
        """Look at once: there is something new."""
        for line in self._lines:
            line.changed.set()
        self._counted.set()

    async def run(self) -> None:
        """Send, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._sends:
                for client in self._registry.portals.writable_clients:
                    await self._from_ledger(partial(self._ledger.end_pauses, client.url))
                    for with_content in (False, True):
                        self._lines.append(_Line(client, with_content, trio.Event()))
                        nursery.start_soon(self._serve, self._lines[-1])
            while True:
                self._counted = trio.Event()
                await self._registry.save()
                if await self._from_ledger(self._ledger.release):
                    self.wake()
                await self._count()
                with trio.move_on_after(LAST_PAUSE):
                    await self._counted.wait()

    async def say_what_is_pending(self) -> None:
        await self._count(is_last=True)
        for text in (self._last_summary, owed_summary(self.totals)):
            if text:
                log.warning(text)

    async def _serve(self, line: _Line) -> None:
        while True:
            line.changed = trio.Event()
            wait = await self._wait_until_due(line)
            if wait > 0:
                with trio.move_on_after(min(wait, LAST_PAUSE)):
                    await line.changed.wait()
                continue
            was_due = line.was_due
            failure = await self._send_due(line)
            self._counted.set()
            if failure is None and line.was_due == was_due:  # another process is at it, say
                await trio.sleep(line.pause)
                line.pause = min(2 * line.pause, LAST_PAUSE)
            elif failure is None:
                line.pause = FIRST_PAUSE
                if not line.works:
                    line.works = True
                    await self._from_ledger(partial(self._ledger.end_pauses, line.client.url))
            else:
                line.works = False
                await self._rest(line)
                line.pause = min(2 * line.pause, LAST_PAUSE)

    async def _wait_until_due(self, line: _Line) -> float:
        find = partial(self._ledger.next_at, line.client.url, with_content=line.with_content)
        found = await self._from_ledger(find)
        return LAST_PAUSE if found is None else found

    async def _rest(self, line: _Line) -> None:
        """Wait until a portal is worth asking: the pause is over, or it has worked for somebody."""
        health, since = self._registry.portals.health(line.client), trio.current_time()
        while True:
            await trio.sleep(FIRST_PAUSE)
            now = trio.current_time()
            is_over = now >= since + line.pause and now >= health.told_until
            if is_over or health.state(now) is State.CLOSED:
                return

    async def _send_due(self, line: _Line) -> PortalError | None:
        """Send some of what is due; return the portal's failure."""
        limit = _AT_ONCE if line.works else 1
        due = partial(self._ledger.due, line.client.url, limit, with_content=line.with_content)
        failure: PortalError | None = None

        async def send(pending: Pending) -> None:
            nonlocal failure
            try:
                how = self._send_owed if pending.accepted else self._send_write
                await how(line.client, pending)
            except UnavailableError as error:
                failure = error

        found = await self._from_ledger(due) or ()
        line.was_due = [(each.id, each.attempts, each.next_at) for each in found]
        async with trio.open_nursery() as nursery:
            for pending in found:
                nursery.start_soon(send, pending)
        return failure

    # --- a write that was not accepted

    async def _send_write(self, client: PortalReader, pending: Pending) -> None:
        """Post a write to the portals here that it was for; UnavailableError if these fail."""
        ref = _ref(pending)
        pair = None
        if pending.signed is None and self._pair_of is not None:
            pair = await self._pair_of(pending.public_key)
        portals = self._registry.portals
        chosen = [each for each in portals.writable_clients if each.url in pending.portals]
        once = replace(portals.config, rounds=1, wakes=False)
        among = replace(portals, clients=chosen, config=once)
        with trio.move_on_after(_ATTEMPT_LIMIT):
            try:
                if pending.signed is None and pair is None:
                    raise KeyringError("its private key is needed, to sign it with a new revision")
                send = partial(self._registry.send, only_last=True, among=among)
                state = await send(pending, pair)
                log.info("registry entry %s: posted, with revision %d", ref, state.revision)
            except UnavailableError:
                raise
            except KeyringError as error:  # it may be there again tomorrow
                fail = partial(self._ledger.fail, pending.id, str(error), pending.status)
                await self._from_ledger(fail)
            except StorageError as error:  # it is gone, or somebody else is at it
                log.info("registry entry %s: %s", ref, error)
            except StaleEntryError as error:
                log.warning("registry entry %s: it is not sent by itself: %s", ref, error)
            except SkymountError as error:
                log.warning("registry entry %s: %s", ref, error)
            return
        raise UnavailableError("no answer in time", url=client.url)

    # --- what a portal is owed

    async def _send_owed(self, client: PortalReader, owed: Pending) -> None:
        """Send an entry to a portal; UnavailableError if that fails."""
        try:
            if await self.send_owed(client, owed):
                log.info("%s: it has got the registry entry %s", client.url, _ref(owed))
        except UnavailableError as error:
            log.info("%s: it still lacks registry entries: %s", client.url, error)
            raise
        except SkymountError as error:
            level = logging.INFO if owed.attempts else logging.WARNING
            text = "%s: it still lacks the registry entry %s: %s"
            log.log(level, text, client.url, _ref(owed), error)

    async def send_owed(self, client: PortalReader, owed: Pending) -> bool:
        """Send an entry to the portal that is owed it; False when it is owed no longer, or another
        process sends it now, or the portal has something newer.
        """
        registry, signed, url = self._registry, owed.signed, client.url
        in_thread = registry.marks.in_thread
        assert signed is not None
        if not await in_thread(self._ledger.begin_owed, signed, url):
            return False
        try:
            await self._prepare(client, owed)
            begun = trio.current_time()
            post = partial(registry.posting.post_to, signed=signed)
            newer = await registry.portals.attempt(client, post)
        except BaseException as error:
            # A failure of the portal is what its pause is for.
            is_portal_s = isinstance(error, UnavailableError | trio.Cancelled)
            reason = str(error) if isinstance(error, SkymountError) else "interrupted"
            pause = 0.0 if is_portal_s else _pause_of(owed)
            put_off = partial(self._ledger.put_off, signed, url, reason, pause)
            with trio.CancelScope(shield=True), suppress(StorageError):
                await in_thread(put_off)
            raise
        if newer is not None:
            if owed.is_own:
                await self._ask_others(client, owed)
            await registry.posting.learn(newer, begun, url)
            await in_thread(self._ledger.mark_paid, newer, [url])
        await in_thread(self._ledger.mark_paid, signed, [url])
        return newer is None

    async def _ask_others(self, client: PortalReader, owed: Pending) -> None:
        """Find out whether portals that took the entry have a newer one too: then somebody replaced
        it there, and it is not in conflict with what this portal has.
        """
        portals = self._registry.portals
        others = [each for each in portals.writable_clients if each is not client]
        if others:
            once = replace(portals.config, rounds=1, wakes=False)
            among = replace(portals, clients=others, config=once)
            with suppress(PortalError, StorageError):
                await self._registry.ask(_ref(owed), among=among)

    async def _prepare(self, client: PortalReader, owed: Pending) -> None:
        try:
            assert owed.signed is not None
            owed.signed.verify()
        except MalformedError as error:
            raise StorageError(f"{self._ledger.path} is damaged: {error}") from None
        skylink = linked_skylink(owed.data)
        if owed.lacking and skylink is not None:
            if self._send_content is None:
                raise StorageError("the content behind it is to be sent first")
            await self._send_content(skylink, client)

    # --- the log

    async def _count(self, *, is_last: bool = False) -> None:
        text = summary(await self._from_ledger(self._ledger.count_unsent) or 0)
        if text and text != self._last_summary and not is_last:
            log.warning(text)
        self._last_summary = text
        totals = await self._from_ledger(self._ledger.totals) or ()
        before, now = ({each.portal: each for each in those} for those in (self.totals, totals))
        self.totals = totals
        for portal in now.keys() - before.keys():
            text = "%s: it lacks registry entries (%d), which are sent later: %s"
            log.warning(text, portal, now[portal].count, now[portal].reason)
        for portal in before.keys() - now.keys():
            log.info("%s: it is owed no registry entry any more", portal)

    async def _from_ledger(self, read: Callable[[], T]) -> T | None:
        """Return what the ledger says; None without a ledger, or if it cannot be used."""
        if not self._ledger.path.exists():  # it is created when it is needed
            return None
        try:
            return await self._registry.marks.in_thread(read)
        except StorageError as error:
            log.info("%s", error)
            return None


def _pause_of(pending: Pending) -> float:
    """Return the seconds until something is tried again that its portal refused."""
    return float(min(FIRST_PAUSE * 2 ** min(pending.attempts, 16), LONGEST_PAUSE))


def _ref(pending: Pending) -> EntryId:
    return EntryId(pending.public_key, pending.tweak, pending.data_key)

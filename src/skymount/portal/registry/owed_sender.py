"""Sends portals the registry entries that they are owed, while a mount runs.

Each portal is served by itself, with growing pauses while it fails.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from skymount.errors import (
    MalformedError,
    PortalError,
    SkymountError,
    StorageError,
    UnavailableError,
)
from skymount.portal.client.base import PortalReader
from skymount.portal.failover.health import State
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.owed_entry import OwedEntry, OwedTotal, owed_summary
from skymount.portal.ledger.revision_marks import EntryId
from skymount.portal.registry.verified_registry import VerifiedRegistry
from skymount.wire.registry_entry import linked_skylink
from skymount.wire.skylink import Skylink

SendContent = Callable[[Skylink, PortalReader], Awaitable[None]]
"""Brings the content of a skylink to a portal; SkymountError when that fails."""

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OwedConfig:
    """Times in seconds."""

    first_pause: float = 1.0
    """After a failure; doubled with each further one."""
    longest_pause: float = 300.0
    look: float = 30.0
    """Between two looks for what others put into the ledger."""
    at_once: int = 8
    """Entries that are sent to a portal at the same time."""


class OwedSender:
    """Sends what is owed to the portals of a registry that take writes."""

    def __init__(
        self,
        registry: VerifiedRegistry,
        ledger: Ledger,
        *,
        sends: bool = True,
        send_content: SendContent | None = None,
        config: OwedConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Unless it `sends` it only counts. Entries whose content is owed too wait without
        `send_content`. `clock` is the ledger's.
        """
        self.totals: Sequence[OwedTotal] = ()
        """What each portal was owed a moment ago."""
        self._registry = registry
        self._ledger = ledger
        self._sends = sends
        self._send_content = send_content
        self._config = config or OwedConfig()
        self._clock = clock
        self._changed: dict[tuple[PortalReader, bool] | None, trio.Event] = {}
        registry.posting.on_owed = self.wake

    def wake(self) -> None:
        """Look at once: somebody is owed something new."""
        for event in self._changed.values():
            event.set()

    async def run(self) -> None:
        """Send, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._sends:
                for client in self._registry.portals.writable_clients:
                    for with_content in (False, True):
                        nursery.start_soon(self._serve, client, with_content)
            while True:
                self._changed[None] = changed = trio.Event()
                if await self._from_ledger(self._ledger.release_owed):
                    self.wake()
                await self._count()
                with trio.move_on_after(self._config.look):
                    await changed.wait()

    async def say_what_is_owed(self) -> None:
        await self._count()
        if text := owed_summary(self.totals):
            log.warning(text)

    async def _serve(self, client: PortalReader, with_content: bool) -> None:
        """Send one portal what it is owed; content by itself, as it may take long."""
        pause = self._config.first_pause
        while True:
            self._changed[client, with_content] = changed = trio.Event()
            wait = await self._wait_until_due(client, with_content)
            if wait > 0:
                with trio.move_on_after(min(wait, self._config.look)):
                    await changed.wait()
                continue
            await self._rest(client)
            limit = self._config.at_once if pause == self._config.first_pause else 1
            failure = await self._send_due(client, with_content, limit)
            self._changed[None].set()
            if failure is None:
                pause = self._config.first_pause
            else:
                await self._rest(client, pause, is_silent=failure.status is None)
                pause = min(2 * pause, self._config.longest_pause)

    async def _wait_until_due(self, client: PortalReader, with_content: bool) -> float:
        find = partial(self._ledger.next_owed_at, client.url, with_content=with_content)
        due = await self._from_ledger(find)
        return self._config.look if due is None else due - self._clock()

    async def _rest(
        self, client: PortalReader, pause: float = 0.0, *, is_silent: bool = False
    ) -> None:
        """Wait until a portal is worth asking: the pause after a failure is over, or the portal was
        silent and has answered somebody since.
        """
        health, since = self._registry.portals.health(client), trio.current_time()
        least = min(pause, self._config.first_pause)
        while True:
            now = trio.current_time()
            is_awake = is_silent and now >= since + least and health.showed_signs(since + least / 2)
            is_over = now >= since + pause or is_awake
            if is_over and health.state(now) is not State.OPEN:
                return
            await trio.sleep(self._config.first_pause)

    async def _send_due(
        self, client: PortalReader, with_content: bool, limit: int
    ) -> PortalError | None:
        """Send some of what is due; return the portal's failure."""
        now = self._clock()
        find = partial(self._ledger.due_owed, client.url, now, limit, with_content=with_content)
        failure: PortalError | None = None

        async def send(owed: OwedEntry) -> None:
            nonlocal failure
            try:
                if await self.send(client, owed):
                    log.info("%s: it has got the registry entry %s", client.url, _ref(owed))
            except UnavailableError as error:
                failure = error
                log.info("%s: it still lacks registry entries: %s", client.url, error)
            except SkymountError as error:
                level = logging.INFO if owed.attempts else logging.WARNING
                text = "%s: it still lacks the registry entry %s: %s"
                log.log(level, text, client.url, _ref(owed), error)

        async with trio.open_nursery() as nursery:
            for owed in await self._from_ledger(find) or ():
                nursery.start_soon(send, owed)
        return failure

    async def send(self, client: PortalReader, owed: OwedEntry) -> bool:
        """Send an entry to the portal that is owed it; False when it is owed no longer, or another
        process sends it now, or the portal has something newer.
        """
        registry, signed = self._registry, owed.signed
        in_thread = registry.marks.in_thread
        if not await in_thread(self._ledger.begin_owed, signed, owed.portal):
            return False
        try:
            await self._prepare(client, owed)
            begun = trio.current_time()
            post = partial(registry.posting.post_to, signed=signed)
            newer = await registry.portals.attempt(client, post)
        except BaseException as error:
            await self._put_off(owed, error)
            raise
        if newer is not None:
            if owed.is_own:
                await self._ask_others(client, owed)
            await registry.posting.learn(newer, begun, client.url)
            await in_thread(self._ledger.mark_paid, newer, [owed.portal])
        await in_thread(self._ledger.mark_paid, signed, [owed.portal])
        return newer is None

    async def _ask_others(self, client: PortalReader, owed: OwedEntry) -> None:
        """Find out whether portals that took the entry have a newer one too: then somebody replaced
        it there, and it is not in conflict with what this portal has.
        """
        urls = {each.url for each in self._registry.portals.writable_clients} - {client.url}
        others = self._registry.at(urls)
        if others is not None:
            with suppress(PortalError, StorageError):
                await others.read(_ref(owed))

    async def _prepare(self, client: PortalReader, owed: OwedEntry) -> None:
        try:
            owed.signed.verify()
        except MalformedError as error:
            raise StorageError(f"{self._ledger.path} is damaged: {error}") from None
        skylink = linked_skylink(owed.signed.entry.data)
        if owed.with_content and skylink is not None:
            if self._send_content is None:
                raise StorageError("the content behind it is to be sent first")
            await self._send_content(skylink, client)

    async def _put_off(self, owed: OwedEntry, error: BaseException) -> None:
        """Record a failure; if it is the portal's, this entry waits no longer than others."""
        pause = 0.0
        if not isinstance(error, UnavailableError | trio.Cancelled):
            config = self._config
            pause = min(config.first_pause * 2 ** min(owed.attempts, 16), config.longest_pause)
        reason = str(error) if isinstance(error, SkymountError) else "interrupted"
        fail = partial(self._ledger.mark_owed_failed, owed.signed, owed.portal)
        with trio.CancelScope(shield=True), suppress(StorageError):
            await self._registry.marks.in_thread(fail, reason, self._clock() + pause)

    async def _count(self) -> None:
        totals = await self._from_ledger(self._ledger.owed_totals) or ()
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


def _ref(owed: OwedEntry) -> EntryId:
    return EntryId(owed.public_key, owed.tweak, owed.data_key)

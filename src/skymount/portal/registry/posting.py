"""Posts signed entries to all portals that take writes, at once."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from skymount.errors import (
    BadContentError,
    PortalError,
    RequestRefusedError,
    RevisionConflictError,
    RevisionError,
    StorageError,
    UnavailableError,
)
from skymount.policies import WritePolicy, too_few
from skymount.portal.client.base import PortalReader
from skymount.portal.client.registry import GET_TIMEOUT, Registry
from skymount.portal.failover.portals import Portals
from skymount.portal.failover.race import Race, Runner, enough
from skymount.portal.ledger.outbox import LACKS_CONTENT
from skymount.portal.registry.entry_reader import EntryReader
from skymount.wire.registry_entry import SignedEntry, check_update

_FIRST_PAUSE = 1.0  # seconds until a late post that failed is sent again

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Posted:
    """An entry that enough portals took."""

    taken_by: tuple[str, ...]
    """The addresses of portals that have it."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Of those that do not take it now: why."""
    late: Mapping[str, str] = field(default_factory=dict)
    """Of those that are still at it."""
    recorded: trio.Event = field(default_factory=trio.Event)
    """To be set once this is in the ledger."""


class Posting:
    """Posts entries, and records in the ledger what becomes of posts that are late."""

    def __init__(
        self,
        entries: EntryReader,
        policy: WritePolicy = WritePolicy.ANY,
        *,
        look: float = GET_TIMEOUT,
    ) -> None:
        """`policy` says how many portals must take an entry, `look` is the seconds that a portal
        may look for one.
        """
        self.on_pending: Callable[[], None] = lambda: None
        """Called when there is something new to be sent."""
        self._slow: set[PortalReader] = set()  # late with the last post: it is not waited for
        self._entries = entries
        self.policy = policy
        self._look = look

    async def post(
        self, portals: Portals, signed: SignedEntry, lacking: Collection[str] = ()
    ) -> Posted | None:
        """Post to all portals but those `lacking` the content behind the entry; None when one has
        something newer. PortalError when too few took it.
        """
        if len(portals.clients) == 1 and portals.clients[0].url not in lacking:
            return await self._post_to_only(portals, signed)
        requested_at = trio.current_time()

        async def post(portal: PortalReader) -> SignedEntry | None:
            begun, usual = trio.current_time(), portals.health(portal).hedge_delay
            answer = await self.post_to(portal, signed)
            if trio.current_time() < begun + usual:
                self._slow.discard(portal)
            return answer

        def is_late(runner: Runner, now: float) -> bool:
            is_known = runner.turn.client in self._slow and len(race.answers) >= needed
            return is_known or _is_late(runner, now)

        async def record(portal: PortalReader, answer: SignedEntry | PortalError | None) -> None:
            await self._record_late(signed, portal, requested_at, answer)

        needed = self.policy.needed(len(portals.clients))
        asked = [client for client in portals.clients if client.url not in lacking]
        race = Race(
            replace(portals, clients=asked, is_part=True),
            post,
            enough(needed),
            ends=_is_newer,
            is_late=is_late,
            on_late=record,
            insists=lambda: True,
        )
        await race.run()
        self._slow |= race.late.keys()
        newer = {client: held for client, held in race.answers.items() if held is not None}
        if newer:
            behind = [client.url for client in race.answers if client not in newer]
            for client, held in newer.items():
                await self.learn(held, requested_at, client.url, behind)
            return None
        errors = race.shortfalls()
        if len(race.answers) < needed:
            raise _too_few(errors, len(race.answers), needed, len(portals.clients))
        left, late = (
            {client.url: str(error) for client, error in found.items()}
            for found in (errors, race.late)
        )
        return Posted(tuple(client.url for client in race.answers), left, late, race.handled)

    async def _post_to_only(self, portals: Portals, signed: SignedEntry) -> Posted | None:
        async def post(portal: PortalReader) -> Posted | None:
            refusal = await self._post(portal, signed)
            return Posted((portal.url,)) if refusal is None else None

        return await portals.first(post, hedged=False)

    async def post_to(self, portal: PortalReader, signed: SignedEntry) -> SignedEntry | None:
        """Post to one portal; return the entry that it has instead, or None if it took it.

        RequestRefusedError when it refuses the entry as outdated, and does not show a newer one.
        """
        refusal = await self._post(portal, signed)
        if refusal is None:
            return None
        if refusal.held is not None and _replaces_not(signed, refusal.held):
            return refusal.held
        text = f"it refuses the entry without having a newer one: {refusal.message}"
        raise RequestRefusedError(text, url=portal.url)

    async def _post(self, portal: PortalReader, signed: SignedEntry) -> "_Refusal | None":
        """Post to one portal. The answer to an earlier post may have been lost: a portal that
        refuses the entry but has it took it.
        """
        registry = Registry(portal.http, self._entries.marks, doubts=True)
        key = (signed.public_key, signed.entry.tweak)
        try:
            await registry.post(signed)
        except RevisionConflictError as error:
            held = await registry.fetch(*key, portal.http.options, timeout=self._look)
            is_taken = held is not None and held.entry == signed.entry
            return None if is_taken else _Refusal(held, error.message)
        return None

    async def learn(
        self, held: SignedEntry, requested_at: float, portal: str, behind: Collection[str] = ()
    ) -> None:
        """Remember what a portal has instead of what was posted, and what others took."""
        ledger = self._entries.marks.ledger
        try:
            await self._entries.accept(held, requested_at, portal)
            if ledger is not None and behind:
                reason = f"{portal} has a newer one"
                await self._entries.marks.in_thread(ledger.owe, held, None, behind, reason)
                self.on_pending()
        except (BadContentError, StorageError) as error:
            _log.info("%s", error)

    async def _record_late(
        self,
        signed: SignedEntry,
        portal: PortalReader,
        requested_at: float,
        answer: SignedEntry | PortalError | None,
    ) -> None:
        """Record what became of a post that nobody waited for."""
        ledger, url = self._entries.marks.ledger, portal.url
        if ledger is None:
            return
        try:
            with trio.CancelScope(shield=True):
                if isinstance(answer, PortalError):
                    put_off = partial(ledger.put_off, signed, url, str(answer), _FIRST_PAUSE)
                    await self._entries.marks.in_thread(put_off)
                    self.on_pending()
                    return
                if answer is not None:
                    await self.learn(answer, requested_at, url)
                    await self._entries.marks.in_thread(ledger.mark_paid, answer, [url])
                await self._entries.marks.in_thread(ledger.mark_paid, signed, [url])
        except StorageError as error:
            _log.info("%s is owed a registry entry, whether it has it or not: %s", url, error)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A portal says that an entry is outdated."""

    held: SignedEntry | None
    """What it has, verified."""
    message: str


def _is_newer(held: SignedEntry | None) -> bool:
    return held is not None


def _is_late(runner: Runner, now: float) -> bool:
    return now - runner.begun >= runner.turn.health.hedge_delay


def _replaces_not(signed: SignedEntry, held: SignedEntry) -> bool:
    """Whether the registry's rules forbid that an entry replaces the one that is there."""
    try:
        check_update(held.entry, signed.entry)
    except RevisionError:
        return True
    return False


def _too_few(
    errors: Mapping[PortalReader, PortalError], took: int, needed: int, portals: int
) -> PortalError:
    """Return the error of a write that too few portals took: wrong content, else a failure, else
    a refusal.
    """
    kinds: tuple[type[PortalError], ...] = (BadContentError, UnavailableError, PortalError)
    ordered = [error for kind in kinds for error in errors.values() if isinstance(error, kind)]
    found = ordered[0] if ordered else UnavailableError(LACKS_CONTENT)
    return too_few(found, took, portals, needed)

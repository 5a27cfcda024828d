"""Uploads to all portals at once, until enough of them have it."""

import math
from collections.abc import Collection
from functools import partial

import trio

from skymount.concurrency import run_all
from skymount.errors import BadContentError, PortalError, PortalTimeoutError, UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody, send
from skymount.portal.failover import retry_after
from skymount.portal.failover.health import PortalHealth, Rank
from skymount.portal.failover.portals import Portals
from skymount.portal.failover.reachability import Attempts
from skymount.portal.uploads.copies import Copies, SharedProgress
from skymount.portal.uploads.upload_check import settle
from skymount.wire.http.responses import UploadResult


async def upload_to_all(
    portals: Portals,
    body: UploadBody,
    needed: int,
    *,
    patience: float,
    extra: float = 0.0,
    rounds: int = 1,
) -> Copies:
    """Upload to all portals that are not read-only, at once.

    Once so many have it as are `needed`, the others get `patience` seconds, and `extra` seconds for
    each second that it took until then; one that takes nothing more for `patience` seconds is left
    before. One that failed lately is asked only if it is needed. While too few have it, portals
    that fail are asked again in further rounds, and those that said when they may be asked again
    are waited for. The sources must be shared ones. Errors of the sources are raised.
    """
    upload = _UploadToAll(portals.writable(), body, needed, patience, extra)
    await upload.run(rounds)
    copies = upload.ordered()
    await settle(body, copies)
    return copies


def time_for_others(elapsed: float, patience: float, extra: float) -> float:
    """Return for how long portals are waited for once enough others have it, which took `elapsed`
    seconds.
    """
    return patience + extra * elapsed


class _UploadToAll:
    """An upload to all portals in progress."""

    def __init__(
        self, portals: Portals, body: UploadBody, needed: int, patience: float, extra: float
    ) -> None:
        self._copies = Copies()
        self._portals = portals
        self._body = body
        self._needed = needed
        self._patience = patience
        self._extra = extra
        self._begun = trio.current_time()
        self._end = math.inf
        """When portals that are not needed are left, whatever they do."""
        self._progress = SharedProgress(body.progress)
        self._under_way: dict[PortalReader, trio.CancelScope] = {}
        self._taken_at: dict[PortalReader, float] = {}
        """When each portal last took a piece."""
        self._refused: set[PortalReader] = set()
        self._asked: set[PortalReader] = set()

    async def run(self, rounds: int) -> None:
        pauses = retry_after.Waits(self._portals.config.longest_wait)
        number = 0
        while True:
            asked = self._worth_asking()
            await self._ask(asked)
            number += 1
            if self._is_enough:
                return
            if asked and number < rounds:
                await trio.sleep(self._portals.config.pause(number))
            elif not await pauses.wait(self._health_of_missing()):
                break
        unasked = [each for each in self._missing() if each not in self._asked]
        if awake := await self._portals.awake(unasked):
            await self._ask(awake)

    async def _ask(self, clients: Collection[PortalReader]) -> None:
        """Upload to portals at once, and to those that failed lately if it takes long."""
        ended = trio.Event()

        async def ask_first() -> None:
            await run_all(*(partial(self._attempt, client) for client in clients))
            ended.set()

        async def ask_others() -> None:
            with trio.move_on_after(self._patience):
                await ended.wait()
            if not ended.is_set() and not self._is_enough:
                others = [each for each in self._able() if each not in clients]
                await run_all(*(partial(self._attempt, client) for client in others))

        await run_all(ask_first, ask_others)

    @property
    def _is_enough(self) -> bool:
        return len(self._copies.results) >= self._needed

    def _missing(self) -> list[PortalReader]:
        done = self._refused | self._copies.results.keys()
        return [each for each in self._portals.clients if each not in done]

    def _health_of_missing(self) -> list[PortalHealth]:
        return [self._portals.health(each) for each in self._missing()]

    def _worth_asking(self) -> Collection[PortalReader]:
        """Return the portals to ask next: those that work, and all if these are too few."""
        now, is_probed = trio.current_time(), self._portals.probes is not None
        missing, health = self._missing(), self._portals.health
        healthy = [
            each for each in missing if health(each).rank(now, is_probed=is_probed) is Rank.HEALTHY
        ]
        if len(self._copies.results) + len(healthy) >= self._needed:
            return healthy
        return self._able() or [each for each in missing if health(each).may_be_tried(now)]

    def _able(self) -> Collection[PortalReader]:
        """Return the portals that may be asked, in spite of failures."""
        now, is_alone = trio.current_time(), len(self._portals.clients) < 2
        attempts = {
            each: self._portals.health(each).attempts(now, is_alone=is_alone)
            for each in self._missing()
        }
        return [each for each, found in attempts.items() if found is not Attempts.NONE]

    def ordered(self) -> Copies:
        """Return what became of it, in the order of the portals; some were not asked at all."""
        results, failures = self._copies.results, self._copies.failures
        ordered = Copies()
        for client in self._portals.clients:
            if client in results:
                ordered.results[client] = results[client]
                continue
            health = self._portals.health(client)
            default = UnavailableError("it failed a moment ago", url=client.url)
            error = failures.get(client) or health.known_error or default
            ordered.failures[client] = retry_after.with_end(error, {client.url: health})
        return ordered

    async def _attempt(self, client: PortalReader) -> None:
        self._asked.add(client)
        self._under_way[client] = scope = trio.CancelScope(deadline=self._deadline)
        try:
            with scope:
                result = await self._portals.ask_once(client, self._send)
                self._copies.results[client] = result
        except PortalError as error:
            self._note_failure(client, error)
        finally:
            del self._under_way[client]
            self._progress.forget(client)
        if scope.cancelled_caught:
            self._note_late(client)
        if self._is_enough and self._end == math.inf:
            now = trio.current_time()
            self._end = now + time_for_others(now - self._begun, self._patience, self._extra)
        for other in self._under_way.values():
            other.deadline = min(other.deadline, self._deadline)

    @property
    def _deadline(self) -> float:
        """When a portal is left that takes nothing more from now on."""
        is_enough = self._end < math.inf
        return min(trio.current_time() + self._patience, self._end) if is_enough else math.inf

    def _note_late(self, client: PortalReader) -> None:
        now = trio.current_time()
        quiet = now - self._taken_at.get(client, -math.inf)
        is_silent = quiet >= self._patience
        said = f"it took nothing for {self._patience:g} s" if is_silent else "it took it slowly"
        text = f"{said}, while other portals took all of it"
        late = PortalTimeoutError(text, method="POST", url=client.url)
        self._note_failure(client, late)
        waited = self._patience if is_silent else 0.0
        self._portals.health(client).record_failure(late, now, waited=waited)

    async def _send(self, client: PortalReader) -> UploadResult:
        def note(sent: int, total: int | None) -> None:
            self._taken_at[client] = trio.current_time()
            self._under_way[client].deadline = self._deadline
            self._progress.note(client, sent, total)

        return await send(client.http, self._body.with_progress(note))

    def _note_failure(self, client: PortalReader, error: PortalError) -> None:
        self._copies.failures[client] = error
        if not isinstance(error, UnavailableError | BadContentError):
            self._refused.add(client)

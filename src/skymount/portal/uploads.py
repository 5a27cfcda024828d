"""Uploads with several portals: to the next one when one fails, to several, and to all of them."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

import trio

from skymount.concurrency import run_all
from skymount.errors import BadContentError, PortalError, PortalTimeoutError, UnavailableError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import Progress, UploadBody, send
from skymount.portal.failover.health import Rank
from skymount.portal.failover.portals import Portals
from skymount.portal.failover.reachability import Attempts
from skymount.wire.http.responses import UploadResult
from skymount.wire.skylink import Skylink

OnFallback = Callable[[PortalError, PortalReader], None]
"""Called with why a portal failed, and the portal that is tried in its place."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The portals that have what was uploaded, and those that failed."""

    results: dict[PortalReader, UploadResult] = field(default_factory=dict)
    failures: dict[PortalReader, PortalError] = field(default_factory=dict)

    @property
    def is_same(self) -> bool:
        """Whether all portals gave it the same skylink."""
        return len({result.skylink for result in self.results.values()}) < 2

    def agreed(self, needed: int) -> Skylink:
        """Return the skylink that most portals gave it, or else that of the first portal;
        PortalError if too few gave it.
        """
        names = Counter(result.skylink for result in self.results.values())
        skylink, count = next(iter(names.most_common(1)), (None, 0))
        if skylink is not None and count >= needed:
            return skylink
        raise self._shortage(count, needed)

    def lacking(self, skylink: Skylink) -> list[str]:
        """Return the addresses of the portals that do not have it under this skylink."""
        others = [each for each, result in self.results.items() if result.skylink != skylink]
        return [client.url for client in (*others, *self.failures)]

    def _shortage(self, count: int, needed: int) -> PortalError:
        """Return the error of too few copies: a failure of some portal, else a refusal."""
        failures = (UnavailableError, BadContentError)
        errors = sorted(self.failures.values(), key=lambda each: not isinstance(each, failures))
        if not errors:
            return BadContentError("the portals gave what was uploaded different skylinks")
        error = copy.copy(errors[0])
        if needed > 1:
            total = len(self.results) + len(self.failures)
            error.message = f"{count} of {total} portals took it, {needed} have to: {error.message}"
        return error


async def upload_copies(
    portals: Portals, body: UploadBody, count: int, on_fallback: OnFallback
) -> Copies:
    """Upload to so many of the portals that are not read-only, or to as many as take it.

    Each portal gets one attempt, in the order of health; the next one takes the place of one that
    fails. All copies are sent at once if the sources can be read several times at once. What a
    portal encrypts goes to the first portals only: the next one may not have the skykey. Errors of
    the sources are raised.
    """
    asked = portals.writable().ranked()
    upload = _Upload(portals, body, count, on_fallback)
    upload.queue = asked[:count] if body.is_encrypted else asked
    await run_all(*[upload.work] * (count if body.is_shared else 1))
    return upload.copies


async def upload_to_first(
    portals: Portals, body: UploadBody, on_fallback: OnFallback
) -> tuple[PortalReader, UploadResult]:
    """Upload to the first portal that takes it; PortalError of the last one that was tried."""
    copies = await upload_copies(portals, body, 1, on_fallback)
    if not copies.results:
        raise list(copies.failures.values())[-1]
    return next(iter(copies.results.items()))


async def upload_to_all(
    portals: Portals, body: UploadBody, needed: int, *, patience: float, rounds: int = 1
) -> Copies:
    """Upload to all portals that are not read-only, at once.

    Once so many have it as are `needed`, a portal that takes nothing more for `patience` seconds
    is left. One that failed lately is asked only if it is needed. Portals that fail are asked again
    in further rounds while too few have it. The sources must be shared ones. Errors of the sources
    are raised.
    """
    upload = _UploadToAll(portals.writable(), body, needed, patience)
    for number in range(rounds):
        if number:
            await trio.sleep(portals.config.pause(number))
        asked = upload.worth_asking()
        await run_all(*(partial(upload.attempt, client) for client in asked))
        if upload.is_enough or not asked:
            break
    return upload.ordered()


class _SharedProgress:
    """The progress of several uploads of the same: that of the one that is furthest."""

    def __init__(self, report: Progress | None) -> None:
        self._report = report
        self._sent: dict[PortalReader, int] = {}

    def note(self, client: PortalReader, sent: int, total: int | None) -> None:
        self._sent[client] = sent
        if self._report is not None:
            self._report(max(self._sent.values()), total)

    def forget(self, client: PortalReader) -> None:
        self._sent.pop(client, None)


class _UploadToAll:
    """An upload to all portals in progress."""

    def __init__(self, portals: Portals, body: UploadBody, needed: int, patience: float) -> None:
        self.copies = Copies()
        self._portals = portals
        self._body = body
        self._needed = needed
        self._patience = patience
        self._progress = _SharedProgress(body.progress)
        self._under_way: dict[PortalReader, trio.CancelScope] = {}
        self._refused: set[PortalReader] = set()

    @property
    def is_enough(self) -> bool:
        return len(self.copies.results) >= self._needed

    def worth_asking(self) -> Collection[PortalReader]:
        """Return the portals to ask next: those that work, and all if these are too few."""
        now, is_probed = trio.current_time(), self._portals.probes is not None
        done = self._refused | self.copies.results.keys()
        health = {each: self._portals.health(each) for each in self._portals.clients}
        missing = [each for each in self._portals.clients if each not in done]
        healthy = [
            each for each in missing if health[each].rank(now, is_probed=is_probed) is Rank.HEALTHY
        ]
        if len(self.copies.results) + len(healthy) >= self._needed:
            return healthy
        is_alone = len(self._portals.clients) < 2
        able = [
            each
            for each in missing
            if health[each].attempts(now, is_alone=is_alone) is not Attempts.NONE
        ]
        return able or [each for each in missing if health[each].may_be_tried(now)]

    def ordered(self) -> Copies:
        """Return what became of it, in the order of the portals; some were not asked at all."""
        results, failures = self.copies.results, self.copies.failures
        ordered = Copies()
        for client in self._portals.clients:
            if client in results:
                ordered.results[client] = results[client]
                continue
            known = failures.get(client) or self._portals.health(client).known_error
            default = UnavailableError("it failed a moment ago", url=client.url)
            ordered.failures[client] = known or default
        return ordered

    async def attempt(self, client: PortalReader) -> None:
        """Upload to one portal."""
        self._under_way[client] = scope = trio.CancelScope(deadline=self._deadline)
        try:
            with scope:
                result = await self._portals.ask_once(client, self._send)
                self.copies.results[client] = result
        except PortalError as error:
            self._note_failure(client, error)
        finally:
            del self._under_way[client]
            self._progress.forget(client)
        if scope.cancelled_caught:
            said = f"nothing came for {self._patience:g} s, while other portals took it"
            late = PortalTimeoutError(said, method="POST", url=client.url)
            self._note_failure(client, late)
            now = trio.current_time()
            self._portals.health(client).record_failure(late, now, waited=self._patience)
        for other in self._under_way.values():
            other.deadline = min(other.deadline, self._deadline)

    @property
    def _deadline(self) -> float:
        """When a portal is left that takes nothing more from now on."""
        return trio.current_time() + self._patience if self.is_enough else math.inf

    async def _send(self, client: PortalReader) -> UploadResult:
        def note(sent: int, total: int | None) -> None:
            self._under_way[client].deadline = self._deadline
            self._progress.note(client, sent, total)

        return await send(client.http, self._body.with_progress(note))

    def _note_failure(self, client: PortalReader, error: PortalError) -> None:
        self.copies.failures[client] = error
        if not isinstance(error, UnavailableError | BadContentError):
            self._refused.add(client)


class _Upload:
    """An upload in progress."""

    def __init__(
        self, portals: Portals, body: UploadBody, count: int, on_fallback: OnFallback
    ) -> None:
        self.queue: list[PortalReader] = []
        self.copies = Copies()
        self._portals = portals
        self._body = body
        self._count = count
        self._on_fallback = on_fallback
        self._active = 0
        self._progress = _SharedProgress(body.progress)

    async def work(self) -> None:
        """Upload to one portal after the other while copies are missing."""
        while self.queue and len(self.copies.results) + self._active < self._count:
            client = self.queue.pop(0)
            self._active += 1
            try:
                result = await self._portals.ask_once(client, self._send)
            except PortalError as error:
                self._note_failure(client, error)
            else:
                self.copies.results[client] = result
                if self._body.unrepeatable:
                    self.queue.clear()
            finally:
                self._active -= 1
                self._progress.forget(client)

    async def _send(self, client: PortalReader) -> UploadResult:
        body = self._body.with_progress(partial(self._progress.note, client))
        return await send(client.http, body)

    def _note_failure(self, client: PortalReader, error: PortalError) -> None:
        self.copies.failures[client] = error
        if self.queue and self._body.unrepeatable:
            self.queue.clear()
            error.message = f"{error.message.rstrip('.')}; {self._body.unrepeatable}"
        elif error.status == HTTPStatus.BAD_REQUEST:  # every portal would refuse it
            self.queue.clear()
        elif self.queue:
            self._on_fallback(error, self.queue[0])

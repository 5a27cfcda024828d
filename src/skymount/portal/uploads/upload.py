"""Uploads with several portals: to the next one when one fails, to some, and to all at once."""

import math
from dataclasses import replace
from http import HTTPStatus

import trio

from skymount.errors import PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody, send
from skymount.portal.failover.portals import Portals
from skymount.portal.failover.race import EVERYBODY, Race, Runner, Want, with_end
from skymount.portal.uploads.copies import Copies, OnFallback, SharedProgress
from skymount.portal.uploads.upload_check import settle
from skymount.wire.http.responses import UploadResult

QUIET = 3.0
"""Seconds in which a portal takes and sends nothing, after which it is asked for a sign of life, if
there is another one."""


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
    writable = portals.writable()
    sending = _Sending(body)
    end = enough_at = math.inf

    def is_late(runner: Runner, now: float) -> bool:
        nonlocal end, enough_at
        if len(race.answers) < needed:
            return now - runner.begun >= patience
        if end == math.inf:
            enough_at = now
            end = now + time_for_others(now - begun, patience, extra)
        return now >= end or min(sending.quiet(runner, now), now - enough_at) >= patience

    begun = trio.current_time()
    config = replace(writable.config, rounds=rounds)
    want = Want(EVERYBODY, needed, waits=True)
    race = Race(
        replace(writable, config=config), sending.send, want, is_late=is_late, insists=lambda: True
    )
    await race.run()
    copies = sending.copies(writable, race)
    await settle(body, copies)
    return copies


def time_for_others(elapsed: float, patience: float, extra: float) -> float:
    """Return for how long portals are waited for once enough others have it, which took `elapsed`
    seconds.
    """
    return patience + extra * elapsed


async def upload_copies(
    portals: Portals, body: UploadBody, count: int, on_fallback: OnFallback
) -> Copies:
    """Upload to so many of the portals that are not read-only, or to as many as take it.

    Each portal gets one attempt, in the order of health; the next one takes the place of one that
    fails, is silent, or gave another skylink than the first proved one. If too few took it, those
    that said when they may be asked again are waited for. All copies are sent at once if the
    sources can be read several times at once. What a portal encrypts goes to the first portals
    only: the next one may not have the skykey. What can be read only once goes to no other portal
    once that has begun. Errors of the sources are raised.
    """
    left = portals.writable()
    clients = left.ranked()
    left = replace(left, clients=clients[:count] if body.is_encrypted else clients)
    sending = _Sending(body, on_fallback)
    found = Copies()
    while left.clients and (lacking := count - len(found.results)) > 0:
        race = sending.race_for(left, lacking)
        await race.run()
        made = sending.copies(left, race, is_of_asked=True)
        found.results.update(made.results)
        found.failures.update(made.failures)
        await settle(body, found)
        if len(made.results) < lacking:
            break
        left = replace(left, clients=[each for each in left.clients if each not in race.asked])
    return found


async def upload_to_first(
    portals: Portals, body: UploadBody, on_fallback: OnFallback
) -> tuple[PortalReader, UploadResult]:
    """Upload to the first portal that takes it; PortalError of the last one that was tried."""
    copies = await upload_copies(portals, body, 1, on_fallback)
    if not copies.results:
        error = list(copies.failures.values())[-1]
        raise with_end(error, {each.url: portals.health(each) for each in copies.failures})
    return next(iter(copies.results.items()))


class _Sending:
    """The uploads of one body."""

    def __init__(self, body: UploadBody, on_fallback: OnFallback | None = None) -> None:
        self._body = body
        self._on_fallback = on_fallback
        self._progress = SharedProgress(body.progress)
        self._taken_at: dict[PortalReader, float] = {}
        """When each portal last took a piece."""
        self._race: Race[UploadResult] | None = None

    def race_for(self, portals: Portals, needed: int) -> Race[UploadResult]:
        """Return a race that ends when so many portals took it; each is asked once."""
        want = Want(needed if self._body.is_shared else 1, needed, is_hedged=False, sheds=True)
        config = replace(portals.config, rounds=1)

        def is_late(runner: Runner, now: float) -> bool:
            has_other = race.has_next and not self._body.is_spent
            return has_other and self.quiet(runner, now) >= QUIET

        few = replace(portals, config=config)
        race = Race(
            few, self.send, want, is_late=is_late, is_fatal=self._is_fatal, insists=lambda: True
        )
        self._race = race
        return race

    def quiet(self, runner: Runner, now: float) -> float:
        """Return for how many seconds a portal has taken nothing."""
        return now - max(runner.begun, self._taken_at.get(runner.turn.client, -math.inf))

    async def send(self, client: PortalReader) -> UploadResult:
        if self._on_fallback is not None and self._race is not None and self._race.errors:
            *_, last = self._race.errors.values()
            self._on_fallback(self._race.errors.get(client, last), client)

        def note(sent: int, total: int | None) -> None:
            self._taken_at[client] = trio.current_time()
            self._progress.note(client, sent, total)

        try:
            return await send(client.http, self._body.with_progress(note))
        finally:
            self._progress.forget(client)

    def _is_fatal(self, error: PortalError) -> bool:
        """Whether no other portal can have it: it would refuse it too, or a pipe was begun."""
        return error.status == HTTPStatus.BAD_REQUEST or self._body.is_spent

    def copies(
        self, portals: Portals, race: Race[UploadResult], *, is_of_asked: bool = False
    ) -> Copies:
        """Return what became of it, in the order of the portals. `is_of_asked`: failures are those
        of portals that were asked, in their order, if any was.
        """
        found = Copies()
        found.results.update(
            (client, race.answers[client]) for client in portals.clients if client in race.answers
        )
        failures = race.shortfalls()
        if is_of_asked and (race.errors or race.answers):
            failures = {each: failures[each] for each in race.errors}  # the last one last
        found.failures.update(failures)
        if self._body.is_spent and race.errors and len(race.asked) < len(portals.clients):
            client, error = race.errors.popitem()
            found.failures[client] = error.explained(after="; a pipe cannot be sent again")
        return found

"""Uploads with several portals: to the next one when one fails, to some, and to all at once."""

import logging
import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TypeVar

import trio

from skymount.errors import BadContentError, DisprovedError, PortalError, UnavailableError
from skymount.policies import too_few
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import Progress, UploadBody, send
from skymount.portal.failover.portals import Portals
from skymount.portal.failover.race import EVERYBODY, Race, Runner, Want, with_end
from skymount.portal.uploads.claims import check, computed
from skymount.wire.http.responses import UploadResult
from skymount.wire.skylink import SECTOR_SIZE, Skylink

T = TypeVar("T")

_QUIET = 0.25  # seconds; a portal that gives no sign of life then in another second is left
_QUIET_SHARE = 0.1

_log = logging.getLogger(__name__)

OnFallback = Callable[[PortalError, PortalReader], None]
"""Called with why a portal failed, and the portal that is tried then: the next one, or the same one
again after the pause that it asked for."""


@dataclass(slots=True)
class Copies:
    """The portals that have what was uploaded, and those that do not."""

    portals: Portals
    results: dict[PortalReader, UploadResult] = field(default_factory=dict)
    failures: dict[PortalReader, PortalError] = field(default_factory=dict)
    doubt: str = ""
    """Why its skylink is not known to be right, if it is not."""

    @property
    def lacking(self) -> list[str]:
        """The addresses of the portals that do not have it."""
        return [client.url for client in self.failures]

    def agreed(self, needed: int = 1) -> UploadResult:
        """Return what all gave it; PortalError if too few have it, or their skylinks differ."""
        if len({each.skylink for each in self.results.values()}) > 1:
            advice = "leave out the portal that is wrong (--portal, `portals` in the configuration)"
            raise BadContentError(f"{self.doubt}; {advice}")
        if self.results and len(self.results) >= needed:
            return next(iter(self.results.values()))
        kinds = UnavailableError, BadContentError  # which tell more than a refusal
        errors = sorted(self.failures.values(), key=lambda each: isinstance(each, kinds))
        portals = {each.url: self.portals.health(each) for each in self.failures}
        count = len(self.results) + len(self.failures)
        raise too_few(with_end(errors[-1], portals), len(self.results), count, needed)


async def upload_copies(
    portals: Portals, body: UploadBody, count: int, on_fallback: OnFallback
) -> Copies:
    """Upload to so many of the portals that are not read-only, or to as many as take it.

    Each portal gets one attempt, in the order of health; the next one takes the place of one that
    fails, is silent, or gives it a wrong skylink. If too few took it, those that said when they may
    be asked again are waited for. All copies are sent at once if the sources can be read several
    times at once. What a portal encrypts goes to the first portals only: the next one may not have
    the skykey. What can be read only once goes to no other portal once that has begun. Errors of
    the sources are raised.
    """
    upload = await _prepared(portals, body, on_fallback)
    chosen = portals.writable()
    chosen.start_trials(_see_alive)
    clients = chosen.ranked()
    chosen = replace(chosen, clients=clients[:count] if body.is_encrypted else clients)
    want = Want(count if upload.body.is_shared else 1, count, is_hedged=False)

    def is_quiet(runner: Runner, now: float) -> bool:
        return _is_quiet(runner, now) and upload.race.has_next and not upload.body.is_spent

    await upload.run(chosen, want, is_quiet, is_quiet)
    return upload.copies


async def _see_alive(client: PortalReader) -> None:
    if not await client.http.is_alive():
        raise UnavailableError("it gives no sign of life", url=client.url)


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
    each second that it took until then; one that takes nothing, and gives no sign of life, is left
    before. One that failed lately is asked only if it is needed. While too few have it, portals
    that fail are asked again in further rounds, and those that said when they may be asked again
    are waited for. The sources must be shared ones. Errors of the sources are raised.
    """
    upload = await _prepared(portals, body)
    begun, end = trio.current_time(), math.inf

    def is_late(runner: Runner, now: float) -> bool:
        nonlocal end
        if len(upload.race.answers) < needed:
            return now - runner.begun >= patience
        if end == math.inf:
            end = now + time_for_others(now - begun, patience, extra)
        return now >= end

    def is_quiet(runner: Runner, now: float) -> bool:
        return _is_quiet(runner, now) and len(upload.race.answers) >= needed

    want = Want(EVERYBODY, needed, waits=True)
    await upload.run(portals.writable(), want, is_late, is_quiet, rounds)
    return upload.copies


def _is_quiet(runner: Runner, now: float) -> bool:
    return runner.watch.quiet(now) >= quiet_limit(now - runner.begun)


def quiet_limit(elapsed: float) -> float:
    """Return after how many seconds in which it takes nothing a portal is asked for a sign of life,
    when its upload has taken so long. To begin again would cost as much.
    """
    return max(_QUIET, _QUIET_SHARE * elapsed)


def time_for_others(elapsed: float, patience: float, extra: float) -> float:
    """Return for how long portals are waited for once enough others have it, which took `elapsed`
    seconds.
    """
    return patience + extra * elapsed


async def upload_with_entry(
    portals: Portals,
    body: UploadBody,
    needed: int,
    write: Callable[[Skylink, Collection[str]], Awaitable[T]],
    *,
    patience: float,
    extra: float = 0.0,
    rounds: int = 1,
    on_copies: Callable[[Copies], None] = lambda _: None,
) -> T:
    """Upload as `upload_to_all`, then write the entry that leads to it.

    `write` is called with the addresses of the portals that lack the content. If it fails because
    portals do, some of those get the content after all, and it is called once more. `on_copies` is
    told before who has it.
    """
    copies = await upload_to_all(
        portals, body, needed, patience=patience, extra=extra, rounds=rounds
    )
    skylink = copies.agreed(needed).skylink
    on_copies(copies)
    try:
        return await write(skylink, copies.lacking)
    except (UnavailableError, BadContentError):
        if not copies.failures:
            raise
        others = replace(portals, clients=list(copies.failures))
        more = await upload_to_all(others, body, 1, patience=patience, extra=extra)
        takers = {each for each, result in more.results.items() if result.skylink == skylink}
        if not takers:
            raise
    return await write(skylink, [each.url for each in copies.failures if each not in takers])


async def _prepared(
    portals: Portals, body: UploadBody, on_fallback: OnFallback | None = None
) -> "_Upload":
    """Read what fits a base sector, so that its skylink is known before it is sent."""
    skylinks: list[Skylink] = []
    if body.size is not None and body.content_size <= SECTOR_SIZE and not body.is_encrypted:
        body = await trio.to_thread.run_sync(body.held)
        skylinks = await trio.to_thread.run_sync(computed, body)
    return _Upload(portals, body, skylinks, on_fallback)


class _Upload:
    """One body on its way to portals."""

    race: Race[UploadResult]

    def __init__(
        self,
        portals: Portals,
        body: UploadBody,
        skylinks: Collection[Skylink],
        on_fallback: OnFallback | None,
    ) -> None:
        """`skylinks` are those that it should have, if they are known."""
        self.body = body
        self.copies = Copies(portals)
        self._on_fallback = on_fallback
        self._computed = skylinks
        self._counts: Skylink | None = None
        """The first that was computed or proved; of larger content, that was shown."""
        self._can_be_shown = not body.is_encrypted and not body.is_dry_run
        self._sent: dict[PortalReader, int] = {}

    async def run(
        self,
        portals: Portals,
        want: Want,
        is_late: Callable[[Runner, float], bool],
        is_quiet: Callable[[Runner, float], bool],
        rounds: int = 1,
    ) -> None:
        """Upload to portals as it is wanted. Called once; `copies` is what came of it."""
        self.race = race = Race(
            replace(portals, config=replace(portals.config, rounds=rounds)),
            self._send,
            want,
            is_good=self._is_good,
            is_late=is_late,
            is_quiet=is_quiet,
            is_fatal=self._is_fatal,
            insists=lambda: True,
        )
        await race.run()
        given = {**race.answers, **race.doubtful}
        failures = {each: why for each, why in race.shortfalls().items() if each not in given}
        if not want.waits and (race.errors or given):
            failures = {each: failures[each] for each in race.errors}  # of those that were asked
        for client in race.left:
            if len(race.answers) < want.needed and not self.body.is_spent:
                await self._ask_again(client, race, portals, given, failures)
        if self.body.is_spent and race.errors and len(race.asked) < len(portals.clients):
            client, error = race.errors.popitem()
            failures[client] = error.explained(after="; a pipe cannot be sent again")
        self.copies.results = {each: given[each] for each in portals.clients if each in given}
        self.copies.failures = failures
        await self._settle()

    async def _ask_again(
        self,
        client: PortalReader,
        race: Race[UploadResult],
        portals: Portals,
        given: dict[PortalReader, UploadResult],
        failures: dict[PortalReader, PortalError],
    ) -> None:
        """Wait for a portal that gave no sign of life in time, as no other one has it."""
        config = replace(portals.config, rounds=1)
        alone = replace(portals, clients=[client], config=config, background=None)
        again = Race(alone, self._send, Want(is_hedged=False), is_good=self._is_good)
        await again.run()
        found = {**again.answers, **again.doubtful}
        race.answers.update(again.answers)
        given.update(found)
        failures.pop(client, None)
        failures.update(again.errors if not found else {})

    def _is_good(self, result: UploadResult) -> bool:
        """Whether it is not worth another upload to find a right skylink."""
        is_open = self._counts is None and not self._computed
        return is_open or result.skylink == self._counts

    def _is_fatal(self, error: PortalError) -> bool:
        """Whether no other portal can have it: it would refuse it too, or a pipe was begun."""
        return error.status == HTTPStatus.BAD_REQUEST or self.body.is_spent

    async def _send(self, client: PortalReader) -> UploadResult:
        if self._on_fallback is not None and self.race.errors:
            *_, last = self.race.errors.values()
            self._on_fallback(self.race.errors.get(client, last), client)
        try:
            result = await send(client.http, self.body.with_progress(self._progress_of(client)))
        except PortalError:
            self._sent.pop(client, None)
            raise
        skylink = result.skylink
        if skylink == self._counts:
            return result
        is_right = skylink in self._computed or (
            self._can_be_shown
            and await check(client, skylink, self.body, in_full=bool(self._computed))
        )
        if is_right and self._counts is None:
            self._counts = skylink
        return result

    def _progress_of(self, client: PortalReader) -> Progress | None:
        """Return what tells the progress of the upload that is furthest."""
        tell = self.body.progress
        if tell is None:
            return None

        def note(sent: int, total: int | None) -> None:
            self._sent[client] = sent
            tell(max(self._sent.values()), total)

        return note

    async def _settle(self) -> None:
        """Let one skylink count, the first that is proved, if they differ; say what is doubtful."""
        copies, results = self.copies, self.copies.results
        claims = [f"{client.url} has {each.skylink}" for client, each in results.items()]
        skylinks = {each.skylink for each in results.values()}
        counts = self._counts
        if len(skylinks) > 1 and not self._computed:
            counts = await self._first_proved()
        if len(skylinks) > 1 and counts is None:
            said = "the portals gave it different skylinks, and none of them proved it: "
            copies.doubt = said + ", ".join(claims)
        elif skylinks and counts is None and (self._computed or self._can_be_shown):
            copies.doubt = f"nothing proves that the skylink is right: {claims[0]}"
        if copies.doubt:
            _log.warning("%s", copies.doubt)
        for client in [*results] if counts else ():
            if results[client].skylink != counts:
                text = f"it has the upload as {results.pop(client).skylink}, and {counts} is proved"
                copies.failures[client] = error = BadContentError(text, url=client.url)
                _log.warning("%s", error)

    async def _first_proved(self) -> Skylink | None:
        for client, result in self.copies.results.items():
            try:
                if await check(client, result.skylink, self.body, in_full=True):
                    return result.skylink
            except DisprovedError as error:
                self.copies.portals.health(client).failed(error, trio.current_time())
        return None

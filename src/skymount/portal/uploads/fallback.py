"""Uploads that go to the next portal when one fails, or is silent."""

from collections.abc import Callable
from http import HTTPStatus

import trio

from skymount.concurrency import run_all
from skymount.errors import PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody, send
from skymount.portal.failover import retry_after
from skymount.portal.failover.portals import Portals
from skymount.portal.uploads.copies import Copies, OnFallback, SharedProgress
from skymount.portal.uploads.silence import send_unless_silent
from skymount.portal.uploads.upload_check import settle
from skymount.wire.http.responses import UploadResult


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
    upload = _Upload(portals.writable(), body, count, on_fallback)
    await upload.run()
    return upload.copies


async def upload_to_first(
    portals: Portals, body: UploadBody, on_fallback: OnFallback
) -> tuple[PortalReader, UploadResult]:
    """Upload to the first portal that takes it; PortalError of the last one that was tried."""
    copies = await upload_copies(portals, body, 1, on_fallback)
    if not copies.results:
        error = list(copies.failures.values())[-1]
        health = {client.url: portals.health(client) for client in copies.failures}
        raise retry_after.with_end(error, health)
    return next(iter(copies.results.items()))


class _Upload:
    """An upload in progress."""

    def __init__(
        self, portals: Portals, body: UploadBody, count: int, on_fallback: OnFallback
    ) -> None:
        self.copies = Copies()
        self._portals = portals
        self._body = body
        self._count = count
        self._on_fallback = on_fallback
        ranked = portals.ranked()
        self._queue = ranked[:count] if body.is_encrypted else ranked
        self._active = 0
        self._is_final = False
        """Whether no further portal may be asked."""
        self._progress = SharedProgress(body.progress)

    async def run(self) -> None:
        pauses = retry_after.Waits(self._portals.config.longest_wait)
        while True:
            await run_all(*[self._work] * (self._count if self._body.is_shared else 1))
            await settle(self._body, self.copies)
            if len(self.copies.results) >= self._count:
                return
            if not self._queue and not await self._wait(pauses):
                return

    async def _wait(self, pauses: retry_after.Waits) -> bool:
        """Wait for portals that asked for a pause; False if none of them can be asked again."""
        if self._is_final or self._body.is_spent:
            return False
        begun, failed = trio.current_time(), list(self.copies.failures)
        if not await pauses.wait([self._portals.health(client) for client in failed]):
            return False
        now = trio.current_time()
        told = {client: self._portals.health(client).told_until for client in failed}
        self._queue = [client for client in failed if begun < told[client] <= now]
        for client in self._queue[:1]:
            self._on_fallback(self.copies.failures[client], client)
        return bool(self._queue)

    async def _work(self) -> None:
        """Upload to one portal after the other while copies are missing."""
        while self._queue and len(self.copies.results) + self._active < self._count:
            client = self._queue.pop(0)
            self._active += 1
            try:
                result = await self._portals.ask_once(client, self._send)
            except PortalError as error:
                self._note_failure(client, error)
            else:
                self.copies.failures.pop(client, None)
                self.copies.results[client] = result
            finally:
                self._active -= 1
                self._progress.forget(client)

    async def _send(self, client: PortalReader) -> UploadResult:
        async def post(note: Callable[[], None]) -> UploadResult:
            def progress(sent: int, total: int | None) -> None:
                note()
                self._progress.note(client, sent, total)

            return await send(client.http, self._body.with_progress(progress))

        return await send_unless_silent(client, post, self._has_other)

    def _has_other(self) -> bool:
        return bool(self._queue) and not self._body.is_spent

    def _note_failure(self, client: PortalReader, error: PortalError) -> None:
        self.copies.failures.pop(client, None)  # the last failure is the last one in it
        self.copies.failures[client] = error
        if self._queue and self._body.is_spent:
            self._queue.clear()
            said = error.explained(after="; a pipe cannot be sent again")
            self.copies.failures[client] = said
        elif error.status == HTTPStatus.BAD_REQUEST:  # every portal would refuse it
            self._queue.clear()
            self._is_final = True
        elif self._queue:
            self._on_fallback(error, self._queue[0])

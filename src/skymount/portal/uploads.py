"""Uploads with several portals: to the next one when one fails, and to several of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from skymount.concurrency import run_all
from skymount.errors import PortalError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.upload import UploadBody, send
from skymount.portal.failover import Portals
from skymount.wire.http.responses import UploadResult

OnFallback = Callable[[PortalError, PortalReader], None]
"""Called with why a portal failed, and the portal that is tried in its place."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The portals that have what was uploaded, in the order in which they took it, and the rest."""

    results: dict[PortalReader, UploadResult] = field(default_factory=dict)
    failures: dict[PortalReader, PortalError] = field(default_factory=dict)

    @property
    def is_same(self) -> bool:
        """Whether all portals gave it the same skylink."""
        return len({result.skylink for result in self.results.values()}) < 2


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

    async def _send(self, client: PortalReader) -> UploadResult:
        return await send(client.http, self._body)

    def _note_failure(self, client: PortalReader, error: PortalError) -> None:
        self.copies.failures[client] = error
        if self.queue and self._body.unrepeatable:
            self.queue.clear()
            error.message = f"{error.message.rstrip('.')}; {self._body.unrepeatable}"
        elif error.status == HTTPStatus.BAD_REQUEST:  # every portal would refuse it
            self.queue.clear()
        elif self.queue:
            self._on_fallback(error, self.queue[0])

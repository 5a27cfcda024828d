"""Brings content from the portals of one side to a portal of the other, for ``skymount pin``.

What the target has is not sent again. What is fetched of large content is kept until the target has
it (`spool`); sending is left to the replicator.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from skymount.content.model.skyfile import LoadedSkyfile, Skyfile, Verified
from skymount.content.opening import Content
from skymount.content.replication.replicator import Progress, Replicator
from skymount.content.replication.spool import discard, open_spool
from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    CacheError,
    DisprovedError,
    NotFoundError,
    PortalError,
    SkymountError,
    UnreplicableError,
)
from skymount.portal.client.base import PortalReader
from skymount.wire.http import requests
from skymount.wire.http.responses import RESPONSE_LIMIT
from skymount.wire.skylink import Skylink

_PIN_TIMEOUT = 600.0  # seconds: a portal may have to fetch it from upstream


@dataclass(frozen=True, slots=True)
class Pinned:
    """Content that the target has."""

    skylink: Skylink
    size: int
    was_there: bool
    """Whether the target had it before, so that nothing was sent."""
    is_pinned: bool = False
    """Whether the target says that it stays."""


class Pinner:
    """Brings content to one portal, the target."""

    def __init__(
        self, source: Content, target: Content, place: Path, warn: Callable[[str], None]
    ) -> None:
        """`target` has one portal. What is fetched is kept at `place`; a warning says if that
        cannot be used.
        """
        self._source = source
        self._target = target
        self._place = place
        self._warn = warn
        self._replicator = Replicator(target.portals, source.reader)

    @property
    def portal(self) -> PortalReader:
        return self._target.portals.clients[0]

    async def pin(
        self, skylink: Skylink, progress: Progress | None = None, *, again: bool = False
    ) -> Pinned:
        """Bring content as `bring`, and let the target pin it."""
        brought = await self.bring(skylink, progress, again=again)
        call = self.portal.options.overridden(timeout=_PIN_TIMEOUT)
        request = requests.pin(call.dialect, skylink)
        try:
            await self.portal.http.fetch(request, RESPONSE_LIMIT, call)
        except (NotFoundError, AccessDeniedError):
            return brought
        except PortalError as error:
            if error.status != HTTPStatus.METHOD_NOT_ALLOWED:
                self._warn(f"{skylink}: it is not pinned there: {error}")
            return brought
        return replace(brought, is_pinned=True)

    async def bring(
        self, skylink: Skylink, progress: Progress | None = None, *, again: bool = False
    ) -> Pinned:
        """Bring the content of a v1 skylink to the target, unless it has it already; with `again`
        also then, or if the target has something else in its place.

        UnreplicableError if it cannot be read, or cannot keep its skylink; PortalError if the
        source does not have it, or the target fails.
        """
        present: LoadedSkyfile | None = None
        if not again:
            try:
                present = await self._present(skylink)
            except DisprovedError:
                again = True
        if present is not None and _is_proven(present):
            return await self._was_there(skylink, present.skyfile.size)
        skyfile = await self._source.reader.load(skylink)
        if (
            skyfile.verified is not Verified.YES
            and (await self._source.reader.loader.load(skylink)).is_final
        ):
            raise UnreplicableError(
                f"{skylink} cannot be uploaded again: a portal encrypted it, which gives it "
                "another skylink each time"
            )
        if present is not None:
            self._compare(present.skyfile, skyfile)
            return await self._was_there(skylink, skyfile.size)
        self._replicator.check(skyfile, self.portal)
        if skyfile.inline:
            await self._replicator.send(skyfile, self.portal, self._source.reader, progress)
        else:
            await self._send_large(skyfile, progress)
        if again:
            await self._present(skylink)  # it may be no better now
        return Pinned(skylink, skyfile.size, was_there=False)

    async def _was_there(self, skylink: Skylink, size: int) -> Pinned:
        """The target may have it from an attempt whose answer was lost: nothing of it is kept."""
        await discard(self._place, skylink)
        return Pinned(skylink, size, was_there=True)

    async def _present(self, skylink: Skylink) -> LoadedSkyfile | None:
        """Return how the target describes the content, with a proof if it has one; None if it does
        not have it. DisprovedError if it has something else in its place.
        """
        try:
            return await self._target.reader.loader.load(skylink)
        except NotFoundError:
            return None

    def _compare(self, present: Skyfile, proved: Skyfile) -> None:
        """BadContentError if the target describes content otherwise than the source proves it."""
        is_same = present.size == proved.size and present.listing.packed == proved.listing.packed
        if proved.verified is not Verified.YES or not is_same:
            raise BadContentError(
                f"{proved.skylink}: the portal shows something under this skylink, and nothing "
                "proves that it is the content",
                url=self.portal.url,
            )

    async def _send_large(self, skyfile: Skyfile, progress: Progress | None) -> None:
        failure: SkymountError | None = None
        try:
            async with open_spool(self._source, self._place, skyfile.skylink) as spool:
                try:
                    await self._replicator.send(skyfile, self.portal, spool.reader, progress)
                    spool.is_done = True
                except SkymountError as error:  # raised below, outside of nurseries
                    failure = error
        except CacheError as error:
            self._warn(f"{error}; nothing is kept for another attempt")
            await self._replicator.send(skyfile, self.portal, self._source.reader, progress)
        if failure is not None:
            raise failure


def _is_proven(loaded: LoadedSkyfile) -> bool:
    """Whether a portal proved that it has the content, be it encrypted."""
    return loaded.is_final or loaded.skyfile.verified is not Verified.NO

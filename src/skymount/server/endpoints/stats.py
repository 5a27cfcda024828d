"""The endpoints about the portal itself (wire notes 4.7): statistics, pins, and empty lists."""

import time
from dataclasses import dataclass, field

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount import __version__
from skymount.server.http import responses
from skymount.server.http_error import HttpError
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.interfaces import Entries
from skymount.server.storage.retention.retention import Retention
from skymount.server.storage.skyfile_index import SkyfileIndex


class _Stats(msgspec.Struct):
    version: str
    uptime: int  # seconds
    numfiles: int  # skyfiles, each of which may be a directory
    totalsize: int  # bytes of their content
    numentries: int  # of the registry, deleted ones included


@dataclass(frozen=True, slots=True)
class StatsEndpoints:
    """The endpoints about one portal."""

    index: SkyfileIndex
    resolver: SkylinkResolver
    entries: Entries
    retention: Retention
    started: float = field(default_factory=time.monotonic)

    async def stats(self, request: Request) -> Response:
        files, size = self.index.totals()
        entries = await self.entries.count()
        uptime = int(time.monotonic() - self.started)
        return _json(_Stats(__version__, uptime, files, size, entries))

    async def pin(self, request: Request) -> Response:
        """Pin a skyfile that is stored here: it is not swept away."""
        resolved = await self.resolver.resolve(request.path_params["link"])
        if not await self.retention.pin(resolved.skylink):
            raise HttpError(404, "failed to fetch skylink: root not found")
        return responses.BytesResponse(204, resolved.headers())

    async def blocklist(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return _json({"blacklist": None, "blocklist": []})

    async def portals(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return _json({"portals": []})


def _json(value: object) -> Response:
    return responses.json_body(msgspec.json.encode(value) + b"\n")

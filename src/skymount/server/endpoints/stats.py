"""The endpoints about the portal itself (docs/wire.md 4.7): statistics, and empty lists."""

import time
from dataclasses import dataclass, field

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount import __version__
from skymount.server.http import responses
from skymount.server.storage.interfaces import Entries
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
    entries: Entries
    started: float = field(default_factory=time.monotonic)

    async def stats(self, request: Request) -> Response:
        files, size = self.index.totals()
        entries = await self.entries.count()
        uptime = int(time.monotonic() - self.started)
        return _json(_Stats(__version__, uptime, files, size, entries))

    async def blocklist(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return _json({"blacklist": None, "blocklist": []})

    async def portals(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return _json({"portals": []})


def _json(value: object) -> Response:
    return responses.json_body(msgspec.json.encode(value) + b"\n")

"""Owns the endpoints that show how content is stored: metadata, base sector, sectors by root
(wire notes 4.7). Clients check content with them.
"""

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.server.http import responses
from skymount.server.http.query_params import number, parse_query
from skymount.server.http_error import HttpError
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.server.storage.skyfile_store import StoredRange, read
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE

_BINARY = ("Content-Type", "application/octet-stream")
_TIMEOUT_LIMIT = 900  # seconds


@dataclass(frozen=True, slots=True)
class SectorEndpoints:
    """The reading endpoints below content, of one portal."""

    catalog: SkyfileIndex
    resolver: SkylinkResolver

    async def metadata(self, request: Request) -> Response:
        """Answer with the stored metadata, byte by byte; those of encrypted content decrypted."""
        resolved = await self.resolver.resolve(request.path_params["link"])
        skyfile = await self.catalog.find(resolved.skylink)
        if skyfile.is_encrypted:
            skyfile = (await self.catalog.load(resolved.skylink)).skyfile
        headers = [*resolved.headers(), ("Content-Type", responses.JSON_TYPE)]
        extent = skyfile.metadata
        return responses.StreamedResponse(200, headers, _whole(extent), extent.length)

    async def base_sector(self, request: Request) -> Response:
        """Answer with what the skylink points to: its base sector up to the fetch size."""
        _check_timeout(request)
        resolved = await self.resolver.resolve(request.path_params["link"])
        skyfile = await self.catalog.find(resolved.skylink)
        size = skyfile.skylink.fetch_size
        used = replace(skyfile.base, length=min(size, skyfile.base.length))
        base = await trio.to_thread.run_sync(read, used)
        headers = [*resolved.headers(), _BINARY]
        return responses.BytesResponse(200, headers, base.ljust(size, b"\0"))

    async def root(self, request: Request) -> Response:
        """Answer with bytes of a sector, zeros where it was padded."""
        params = _check_timeout(request)
        try:
            root = bytes.fromhex(params.get("root", ""))
        except ValueError:
            root = b""
        if len(root) != ROOT_SIZE:
            raise HttpError(400, "unable to parse 'root' parameter: not 64 hex digits")
        offset, length = number(params, "offset"), number(params, "length")
        if offset is None or length is None:
            raise HttpError(400, "'offset' and 'length' parameters are needed")
        if offset + length > SECTOR_SIZE:
            raise HttpError(400, f"offset and length go beyond the sector of {SECTOR_SIZE} bytes")
        place = await self.catalog.sector(root)
        used = max(0, min(length, place.extent.length - offset))
        wanted = StoredRange(place.extent.file, place.extent.offset + offset, used)
        data = await trio.to_thread.run_sync(read, wanted) if used else b""
        return responses.BytesResponse(200, [_BINARY], data.ljust(length, b"\0"))


def _check_timeout(request: Request) -> dict[str, str]:
    params = parse_query(request.scope["query_string"])
    if (number(params, "timeout") or 0) > _TIMEOUT_LIMIT:
        raise HttpError(
            400, f"'timeout' parameter too high, maximum allowed timeout is {_TIMEOUT_LIMIT}s"
        )
    return params


async def _whole(extent: StoredRange) -> AsyncIterator[bytes]:
    fd = await trio.to_thread.run_sync(os.open, extent.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        reading = responses.read_pieces(fd, extent.offset, extent.length, extent.decrypt)
        async with aclosing(reading) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece
    finally:
        os.close(fd)

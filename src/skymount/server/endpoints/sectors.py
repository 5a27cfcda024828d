"""The endpoints that clients verify content with (docs/wire.md 4.7)."""

from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from skymount.server.http import caching, responses
from skymount.server.http.query_params import check_timeout, number, parse_query
from skymount.server.http_error import HttpError
from skymount.server.resolver import SkylinkResolver
from skymount.server.storage.skyfile_index import SkyfileIndex
from skymount.server.storage.stored_range import (
    StoredRange,
    fetch_range,
    read_chunks,
    read_range,
)
from skymount.wire.http.responses import etag
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE
from skymount.wording import readable_size

_BINARY_TYPE = ("Content-Type", "application/octet-stream")


@dataclass(frozen=True, slots=True)
class SectorEndpoints:
    """The endpoints of one portal's sectors."""

    index: SkyfileIndex
    resolver: SkylinkResolver

    async def metadata(self, request: Request) -> Response:
        resolved = await self.resolver.resolve(request.path_params["link"])
        skyfile = await self.index.find(resolved.skylink)
        if skyfile.is_encrypted:
            skyfile = (await self.index.load(resolved.skylink)).stored
        tag = etag(resolved.skylink, "metadata", "")
        headers = [
            *resolved.headers(),
            *caching.cache_headers(
                tag, may_move=bool(resolved.entries), is_decrypted=skyfile.is_encrypted
            ),
        ]
        if caching.is_unchanged(request.headers, tag):
            return responses.StreamedResponse(304, headers, None, None)
        headers.append(("Content-Type", responses.JSON_TYPE))
        if skyfile.metadata.is_in_memory:
            return responses.BytesResponse(200, headers, read_range(skyfile.metadata))
        chunks = read_chunks(skyfile.metadata)
        return responses.StreamedResponse(200, headers, chunks, skyfile.metadata.length)

    async def base_sector(self, request: Request) -> Response:
        """Answer with the base sector, up to the fetch size of the skylink."""
        check_timeout(parse_query(request.scope["query_string"]))
        resolved = await self.resolver.resolve(request.path_params["link"])
        skyfile = await self.index.find(resolved.skylink)
        tag = etag(resolved.skylink, "basesector", "")
        headers = [*resolved.headers(), *_as_stored(tag, may_move=bool(resolved.entries))]
        if caching.is_unchanged(request.headers, tag):
            return responses.StreamedResponse(304, headers, None, None)
        size = skyfile.skylink.fetch_size
        used = replace(skyfile.base, length=min(size, skyfile.base.length))
        base = await fetch_range(used)
        return responses.BytesResponse(200, [*headers, _BINARY_TYPE], base.ljust(size, b"\0"))

    async def root(self, request: Request) -> Response:
        params = parse_query(request.scope["query_string"])
        check_timeout(params)
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
            size = readable_size(SECTOR_SIZE)
            raise HttpError(400, f"offset and length go beyond the sector of {size}")
        stored = await self.index.sector(root)
        tag = f'"{root.hex()}-{offset}-{length}"'
        headers = _as_stored(tag, may_move=False)
        if caching.is_unchanged(request.headers, tag):
            return responses.StreamedResponse(304, headers, None, None)
        used = max(0, min(length, stored.length - offset))
        wanted = StoredRange(stored.source, stored.offset + offset, used)
        data = await fetch_range(wanted) if used else b""
        return responses.BytesResponse(200, [*headers, _BINARY_TYPE], data.ljust(length, b"\0"))


def _as_stored(tag: str, *, may_move: bool) -> responses.HeaderList:
    """Return the headers of a sector, which is sent without decrypting it."""
    return caching.cache_headers(tag, may_move=may_move, is_decrypted=False)

"""The endpoints that clients verify content with (docs/wire.md 4.7)."""

from dataclasses import dataclass, replace

from skymount.server.http.conditional import is_unchanged
from skymount.server.http.forms import check_timeout, number, parse_query
from skymount.server.http.messages import (
    FIRST_PIECE,
    JSON_TYPE,
    Pieces,
    Request,
    Response,
    cache_control,
    fields,
)
from skymount.server.http_error import HttpError
from skymount.server.resolver import ResolvedSkylink, SkylinkResolver
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

_BINARY = fields(("Content-Type", "application/octet-stream"))


@dataclass(frozen=True, slots=True)
class SectorEndpoints:
    """The endpoints of one portal's sectors."""

    index: SkyfileIndex
    resolver: SkylinkResolver

    async def metadata(self, request: Request) -> Response:
        resolved = await self.resolver.resolve(request.variables["link"])
        skyfile = await self.index.find(resolved.skylink)
        if skyfile.is_encrypted:
            skyfile = (await self.index.load(resolved.skylink)).stored
        cache = cache_control(may_move=bool(resolved.entries), is_decrypted=skyfile.is_encrypted)
        response = _tagged(request, etag(resolved.skylink, "metadata", ""), cache, resolved)
        if response.status == 200:
            response.fields += fields(("Content-Type", JSON_TYPE))
            stored = skyfile.metadata
            if stored.is_in_memory:
                response.body = read_range(stored)
            else:
                response.body = Pieces(read_chunks(stored, size=FIRST_PIECE), stored.length)
        return response

    async def base_sector(self, request: Request) -> Response:
        """Answer with the base sector, up to the fetch size of the skylink."""
        check_timeout(parse_query(request.query))
        resolved = await self.resolver.resolve(request.variables["link"])
        skyfile = await self.index.find(resolved.skylink)
        cache = cache_control(may_move=bool(resolved.entries))
        response = _tagged(request, etag(resolved.skylink, "basesector", ""), cache, resolved)
        if response.status == 200:
            size = skyfile.skylink.fetch_size
            used = replace(skyfile.base, length=min(size, skyfile.base.length))
            response.fields += _BINARY
            response.body = (await fetch_range(used)).ljust(size, b"\0")
        return response

    async def root(self, request: Request) -> Response:
        params = parse_query(request.query)
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
        response = _tagged(request, tag, cache_control(may_move=False))
        if response.status == 200:
            used = max(0, min(length, stored.length - offset))
            wanted = StoredRange(stored.source, stored.offset + offset, used)
            data = await fetch_range(wanted) if used else b""
            response.fields += _BINARY
            response.body = data.ljust(length, b"\0")
        return response


def _tagged(
    request: Request, tag: str, cache: str, resolved: ResolvedSkylink | None = None
) -> Response:
    """Return the beginning of an answer: 304 if the client has it already, else 200."""
    status = 304 if is_unchanged(request.headers, tag) else 200
    known, skylink = (resolved.fields, str(resolved.skylink)) if resolved else (b"", "")
    return Response(status, known + fields(("ETag", tag)), cache=cache, skylink=skylink)

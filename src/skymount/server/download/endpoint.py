"""The download endpoints (contract 3 and 4)."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import trio
from cachetools import LRUCache
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from skymount.server.config import PortalConfig
from skymount.server.download import charset, conditional, media_type
from skymount.server.download.archive import archive_chunks
from skymount.server.download.path_selection import (
    DownloadQuery,
    DownloadRequest,
    SelectedContent,
    path_with_plus,
    select_content,
)
from skymount.server.http import caching, responses
from skymount.server.http.query_params import decode_path, parse_query
from skymount.server.http.requester import REQUESTER, Kind, Requester
from skymount.server.http_error import HttpError
from skymount.server.resolver import ResolvedSkylink, SkylinkResolver
from skymount.server.storage.skyfile_index import ParsedSkyfile, SkyfileIndex
from skymount.server.storage.stored_range import StoredRange, read_chunks
from skymount.wire.dialect import PRESETS
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.http.responses import etag
from skymount.wire.skylink import Skylink

_MANY_SUBFILES = 2000  # with more, a selection may take over 1 ms and runs in a thread

_HEADER_ROOM = {Kind.PROGRAM: 16 << 10, Kind.SCRIPT: 192 << 10}
# Bytes of metadata in all headers: many programs take 16 KiB, Chromium takes 256 KiB.

_GUESSED_TYPES = 4096  # that are remembered

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class GuessedTypes:
    """What the first bytes told, of content that is one extent of a skyfile."""

    types: LRUCache[tuple[Skylink, tuple[int, int]], str] = field(
        default_factory=lambda: LRUCache(_GUESSED_TYPES)
    )
    utf8: LRUCache[tuple[Skylink, tuple[int, int]], bool] = field(
        default_factory=lambda: LRUCache(_GUESSED_TYPES)
    )


@dataclass(frozen=True, slots=True)
class OpenDownload:
    """What a request is about, and what it is answered with."""

    resolved: ResolvedSkylink
    skyfile: ParsedSkyfile
    request: DownloadRequest
    content: SelectedContent | None = None
    """None where the client is redirected to the URL with a slash at its end."""


@dataclass(frozen=True, slots=True)
class DownloadEndpoint:
    """The download endpoints of one portal."""

    config: PortalConfig
    index: SkyfileIndex
    resolver: SkylinkResolver
    guessed: GuessedTypes = field(default_factory=GuessedTypes)

    async def load(self, request: Request, *, attachment: bool = False) -> OpenDownload:
        """Find the skyfile that a request is about; what of it is served is not selected yet."""
        query = DownloadQuery.parse(
            parse_query(request.scope["query_string"]), has_range="range" in request.headers
        )
        query = replace(query, attachment=query.attachment or attachment)
        resolved = await self.resolver.resolve(request.path_params["link"])
        skyfile = await self.index.load(resolved.skylink)
        may_redirect = not query.attachment and request.scope["path"][-1] != "/"
        raw = request.path_params.get("path", "")
        path = decode_path(raw)
        if "+" in raw:
            path = await _unblocked(skyfile, path_with_plus, skyfile.metadata, raw)
        return OpenDownload(resolved, skyfile, DownloadRequest(path, query, may_redirect))

    async def select(self, opened: OpenDownload) -> OpenDownload:
        content = await _unblocked(
            opened.skyfile,
            select_content,
            opened.skyfile,
            opened.request,
            self.config.header_limit,
        )
        return replace(opened, content=content)

    def headers(self, request: Request, opened: OpenDownload) -> responses.HeaderList:
        """Return the headers that are about the skylink, and its metadata."""
        if opened.content is None:
            return opened.resolved.headers()
        query, requester = opened.request.query, request.scope[REQUESTER]
        return _common_headers(opened.resolved, opened.skyfile, opened.content, query, requester)

    async def serve(self, request: Request, opened: OpenDownload) -> Response:
        if opened.content is None:
            return _redirect(opened, request.scope["path"], request.scope["query_string"])
        return await _serve(
            opened.resolved,
            opened.skyfile,
            opened.content,
            opened.request,
            request.headers,
            request.scope[REQUESTER],
            self.guessed,
        )


async def _unblocked(skyfile: ParsedSkyfile, decide: Callable[..., _T], *args: object) -> _T:
    """Call `decide`; in a thread if it has to look at many subfiles."""
    if len(skyfile.metadata.subfiles) < _MANY_SUBFILES:
        return decide(*args)
    return await trio.to_thread.run_sync(decide, *args)


def _redirect(opened: OpenDownload, url: str, query: bytes) -> Response:
    last = url.rpartition("/")[2]
    target = f"./{last}/" if ":" in last else f"{last}/"
    if query:
        target += f"?{query.decode('latin-1')}"
    [_, *control] = _cache_headers(opened.resolved, opened.skyfile, "")
    return responses.BytesResponse(308, [("Location", target), *control])


def _cache_headers(
    resolved: ResolvedSkylink, skyfile: ParsedSkyfile, tag: str
) -> responses.HeaderList:
    is_decrypted = skyfile.stored.is_encrypted
    return caching.cache_headers(tag, may_move=bool(resolved.entries), is_decrypted=is_decrypted)


def _common_headers(
    resolved: ResolvedSkylink,
    skyfile: ParsedSkyfile,
    content: SelectedContent,
    query: DownloadQuery,
    requester: Requester,
) -> responses.HeaderList:
    headers = resolved.headers()
    if query.with_metadata and content.metadata_header is not None:
        headers += metadata_headers(content.metadata_header, requester)
        headers.append(("Vary", ", ".join(requester.told_by)))
    for dialect in PRESETS.values():
        if query.with_layout:
            headers.append((dialect.layout_header, bytes(skyfile.stored.layout).hex()))
    return headers


def metadata_headers(metadata: bytes, requester: Requester) -> responses.HeaderList:
    """Return the headers that carry metadata.

    An agent that names its dialect gets it under that dialect's name. Scripts and other programs
    get what common clients take, under each name that there is room for. Pages and their parts
    get none: nobody reads it there, and a proxy may refuse headers of more than 4 KiB.
    """
    if requester.is_browser:
        return []
    if requester.dialect is not None:
        return [(requester.dialect.metadata_header, metadata)]
    room = _HEADER_ROOM[requester.kind]
    count = room // len(metadata) if metadata else len(PRESETS)
    return [(dialect.metadata_header, metadata) for dialect in [*PRESETS.values()][:count]]


async def _serve(
    resolved: ResolvedSkylink,
    skyfile: ParsedSkyfile,
    content: SelectedContent,
    download: DownloadRequest,
    request_headers: Headers,
    requester: Requester,
    guessed: GuessedTypes,
) -> Response:
    query, payload = download.query, skyfile.stored.payload
    headers = _common_headers(resolved, skyfile, content, query, requester)
    tag = etag(resolved.skylink, f"/{download.path}", query.archive)
    is_error_page = content.status != 200
    if not is_error_page:
        headers += _cache_headers(resolved, skyfile, tag)
        if caching.is_unchanged(request_headers, tag):
            return responses.StreamedResponse(304, headers, None, None)
    attachment = query.attachment or bool(content.archive)
    headers.append(
        ("Content-Disposition", media_type.disposition(content.name, attachment=attachment))
    )
    if content.archive:
        headers.append(("Content-Type", content.content_type))
        chunks = archive_chunks(content.archive, content.members, payload)
        return responses.StreamedResponse(200, headers, chunks, None)
    content_type = await read_content_type(skyfile, content, guessed)
    if requester.is_browser and content.size:
        content_type = await _type_with_charset(content_type, skyfile, content, guessed)
    range_header = "" if is_error_page else query.range_header or request_headers.get("range", "")
    try:
        plan = conditional.plan_response(
            request_headers, range_header, tag, content_type, content.size
        )
    except HttpError as error:
        return responses.of_http_error(error, headers)
    headers += [("Accept-Ranges", "bytes"), *plan.headers]
    status = content.status if is_error_page else plan.status
    chunks = _body_chunks(payload, content.extents, plan.segments)
    if payload.is_in_memory:
        return responses.BytesResponse(status, headers, b"".join(chunks))
    return responses.StreamedResponse(status, headers, chunks, plan.length)


async def read_content_type(
    skyfile: ParsedSkyfile, content: SelectedContent, guessed: GuessedTypes
) -> str:
    """Return the Content-Type of what is served. A guess by the first bytes is remembered."""
    known = media_type.stored_or_guessed(content.content_type, content.guess_by)
    if known or not content.size:
        return known or media_type.sniff(b"")
    return await _told_by_start(
        skyfile, content, guessed.types, media_type.SNIFF_SIZE, media_type.sniff
    )


async def _type_with_charset(
    known: str, skyfile: ParsedSkyfile, content: SelectedContent, guessed: GuessedTypes
) -> str:
    """Add a charset to a type of text that is UTF-8; a guess has one whatever the content is."""
    bare = known if known == content.content_type.strip() else known.removesuffix(charset.UTF8)
    if not charset.takes_charset(bare):
        return known
    decide = partial(
        charset.is_utf8,
        is_whole=content.size <= charset.START_SIZE,
        may_declare=charset.may_declare(bare),
    )
    told = _told_by_start(skyfile, content, guessed.utf8, charset.START_SIZE, decide)
    return bare + charset.UTF8 if await told else bare


async def _told_by_start(
    skyfile: ParsedSkyfile,
    content: SelectedContent,
    told: LRUCache[tuple[Skylink, tuple[int, int]], _T],
    size: int,
    decide: Callable[[bytes], _T],
) -> _T:
    """Return what the first bytes tell, which is remembered if they have to be read from disk."""
    payload = skyfile.stored.payload
    start = payload_ranges(content.extents, ByteRange(0, min(content.size, size)))
    if payload.is_in_memory:
        return decide(b"".join(read_chunks(payload, start)))
    key = (skyfile.stored.skylink, content.extents[0])
    is_one = len(content.extents) == 1
    if is_one and key in told:
        return told[key]
    found = decide(await trio.to_thread.run_sync(lambda: b"".join(read_chunks(payload, start))))
    if is_one:
        told[key] = found
    return found


def _body_chunks(
    payload: StoredRange,
    extents: tuple[tuple[int, int], ...],
    segments: Iterable[conditional.BodySegment],
) -> Generator[bytes]:
    for segment in segments:
        if isinstance(segment, bytes):
            yield segment
        else:
            yield from read_chunks(payload, payload_ranges(extents, segment))


def payload_ranges(
    extents: tuple[tuple[int, int], ...], wanted: ByteRange
) -> Iterator[tuple[int, int]]:
    """Yield the (offset, length) in the payload that a range of the joined extents covers."""
    position = 0
    for offset, length in extents:
        start, stop = max(wanted.start, position), min(wanted.stop, position + length)
        if start < stop:
            yield offset + start - position, stop - start
        position += length

"""Owns the download endpoints (contract 3 and 4): from a chosen content to the answer.

What is chosen is `selection`'s, ranges and conditions are `conditions`'.
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

import trio
from starlette.requests import Request
from starlette.responses import Response

from skymount.server.config import PortalConfig
from skymount.server.download import archive, conditional, media_type
from skymount.server.download.path_selection import (
    DownloadQuery,
    DownloadRequest,
    RedirectToSlash,
    SelectedContent,
    select_content,
)
from skymount.server.http import responses
from skymount.server.http.query_params import decode_path, parse_query
from skymount.server.http_error import HttpError
from skymount.server.resolver import ResolvedSkylink, SkylinkResolver
from skymount.server.storage.skyfile_index import ParsedSkyfile, SkyfileIndex
from skymount.server.storage.skyfile_store import StoredRange
from skymount.wire.byte_range import ByteRange
from skymount.wire.dialect import PRESETS
from skymount.wire.responses import etag

_MANY_SUBFILES = 2000  # from here on a choice may take over 1 ms and is made in a thread


@dataclass(frozen=True, slots=True)
class DownloadEndpoint:
    """The download endpoints of one portal."""

    config: PortalConfig
    catalog: SkyfileIndex
    resolver: SkylinkResolver

    async def get(self, request: Request) -> Response:
        """Answer GET and HEAD of a skylink, or of a path inside."""
        return await self._answer(request, attachment=False)

    async def get_attachment(self, request: Request) -> Response:
        """Answer as `get` does, to be saved and not shown."""
        return await self._answer(request, attachment=True)

    async def _answer(self, request: Request, *, attachment: bool) -> Response:
        headers = _plain_headers(request)
        query = DownloadQuery.parse(
            parse_query(request.scope["query_string"]), has_range="range" in headers
        )
        query = replace(query, attachment=query.attachment or attachment)
        resolved = await self.resolver.resolve(request.path_params["link"])
        stored = await self.catalog.load(resolved.skylink)
        url = request.scope["path"]
        may_redirect = not query.attachment and url[-1] != "/"
        asked = DownloadRequest(
            decode_path(request.path_params.get("path", "")), query, may_redirect
        )
        if len(stored.metadata.subfiles) < _MANY_SUBFILES:
            choice = select_content(stored, asked, self.config.header_limit)
        else:
            choice = await trio.to_thread.run_sync(
                select_content, stored, asked, self.config.header_limit
            )
        if isinstance(choice, RedirectToSlash):
            return _redirect(url, request.scope["query_string"])
        return await _serve(resolved, stored, choice, asked, headers)


def _plain_headers(request: Request) -> dict[str, str]:
    """Return the request's headers; of a repeated one the first."""
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        found.setdefault(name, value)
    return found


def _redirect(url: str, query: bytes) -> Response:
    """Send the client to the same URL with a slash, by a link relative to it."""
    last = url.rpartition("/")[2]
    target = f"./{last}/" if ":" in last else f"{last}/"
    if query:
        target += f"?{query.decode('latin-1')}"
    return responses.BytesResponse(308, [("Location", target)])


def _common_headers(
    resolved: ResolvedSkylink, stored: ParsedSkyfile, choice: SelectedContent, query: DownloadQuery
) -> responses.Headers:
    """Return what every answer to a download carries, whatever its status."""
    headers = resolved.headers()
    for dialect in PRESETS.values():
        if query.with_metadata and choice.header is not None:
            headers.append((dialect.metadata_header, choice.header))
        if query.with_layout:
            headers.append((dialect.layout_header, bytes(stored.skyfile.layout).hex()))
    return headers


async def _serve(
    resolved: ResolvedSkylink,
    stored: ParsedSkyfile,
    choice: SelectedContent,
    asked: DownloadRequest,
    headers: Mapping[str, str],
) -> Response:
    """Answer with the chosen content."""
    query = asked.query
    sent = _common_headers(resolved, stored, choice, query)
    tag = etag(resolved.skylink, f"/{asked.path}", query.archive)
    is_error_page = choice.status != 200
    if not is_error_page:
        sent.append(("ETag", tag))
        if conditional.is_unchanged(headers, tag):
            return responses.StreamedResponse(304, sent, _nothing(), None)
    attachment = query.attachment or bool(choice.archive)
    sent.append(("Content-Disposition", media_type.disposition(choice.name, attachment=attachment)))
    if choice.archive:
        sent.append(("Content-Type", choice.content_type))
        return responses.StreamedResponse(200, sent, _archive(stored, choice), None)
    kind = await _content_type(stored, choice)
    asked_range = "" if is_error_page else query.range_header or headers.get("range", "")
    try:
        plan = conditional.plan_response(headers, asked_range, tag, kind, choice.size)
    except HttpError as refusal:
        return responses.error(refusal.status, refusal.message, [*sent, *refusal.headers])
    sent += [("Accept-Ranges", "bytes"), *plan.headers]
    status = choice.status if is_error_page else plan.status
    body = _segments(stored.skyfile.payload, choice.extents, plan.segments)
    return responses.StreamedResponse(status, sent, body, plan.length)


async def _content_type(stored: ParsedSkyfile, choice: SelectedContent) -> str:
    known = media_type.stored_or_guessed(choice.content_type, choice.guess_by)
    if known:
        return known
    start = ByteRange(0, min(choice.size, media_type.SNIFF_SIZE)) if choice.size else b""
    body = _segments(stored.skyfile.payload, choice.extents, (start,))
    return media_type.sniff(b"".join([piece async for piece in body]))


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def _segments(
    payload: StoredRange,
    extents: tuple[tuple[int, int], ...],
    segments: tuple[conditional.BodySegment, ...],
) -> AsyncIterator[bytes]:
    """Yield the body: literal bytes, and ranges of the content that the extents make up."""
    fd = await trio.to_thread.run_sync(os.open, payload.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for segment in segments:
            if isinstance(segment, bytes):
                yield segment
                continue
            for offset, length in payload_ranges(extents, segment):
                reading = responses.read_pieces(
                    fd, payload.offset + offset, length, payload.decrypt
                )
                async with aclosing(reading) as found:  # type: ignore[type-var]
                    async for piece in found:
                        yield piece
    finally:
        os.close(fd)


def payload_ranges(
    extents: tuple[tuple[int, int], ...], wanted: ByteRange
) -> Iterator[tuple[int, int]]:
    """Yield the (offset, length) pieces of the payload that a range of the extents covers."""
    at = 0
    for offset, length in extents:
        start, stop = max(wanted.start, at), min(wanted.stop, at + length)
        if start < stop:
            yield offset + start - at, stop - start
        at += length


async def _archive(stored: ParsedSkyfile, choice: SelectedContent) -> AsyncIterator[bytes]:
    payload = stored.skyfile.payload
    source = archive.Source(str(payload.file), payload.offset, payload.decrypt)
    pieces = archive.pieces(choice.archive, choice.members, source)
    try:
        while True:
            piece = await trio.to_thread.run_sync(next, pieces, None)
            if piece is None:
                return
            yield piece
    finally:
        pieces.close()  # type: ignore[attr-defined]

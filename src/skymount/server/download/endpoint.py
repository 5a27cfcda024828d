"""The download endpoints (contract 3 and 4): from the parameters of a request to its answer.

An archive is made while it is read. Its members have their full stored name (docs/wire.md 4.3) and
no time, so that it is the same on every download. Generators of bodies block on the disk: each step
runs in a thread.
"""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypeVar

import trio
from cachetools import LRUCache

from skymount.server.config import PortalConfig
from skymount.server.download.content import (
    SNIFF_SIZE,
    START_SIZE,
    UTF8,
    DownloadQuery,
    SelectedContent,
    disposition,
    is_utf8,
    may_declare,
    path_with_plus,
    select_content,
    sniff,
    stored_or_guessed,
    takes_charset,
)
from skymount.server.http.clients import Kind, Requester
from skymount.server.http.forms import decode_path, parse_query
from skymount.server.http.messages import (
    FIRST_PIECE,
    NOT_STORED,
    BodySegment,
    FileRange,
    Pieces,
    Request,
    Response,
    cache_control,
    error_response,
    fields,
    is_unchanged,
    select_ranges,
)
from skymount.server.http_error import HttpError
from skymount.server.resolver import ResolvedSkylink, SkylinkResolver
from skymount.server.storage.skyfile_index import ParsedSkyfile, SkyfileIndex
from skymount.server.storage.stored_range import StoredFile, StoredRange, read_chunks, read_open
from skymount.wire.dialect import PRESETS
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.http.responses import etag
from skymount.wire.metadata import Subfile
from skymount.wire.skylink import Skylink

_MANY_SUBFILES = 2000  # with more, a selection may take over 1 ms and runs in a thread

_HEADER_ROOM = {Kind.PROGRAM: 16 << 10, Kind.SCRIPT: 192 << 10}
# Bytes of metadata in all headers: many programs take 16 KiB, Chromium takes 256 KiB.

_TAGS = 1024  # that are remembered, and names of files, if they are no longer than
_SHORT = 256  # characters: clients choose them
_PLAIN = DownloadQuery.parse({}, has_range=False)

_etag = lru_cache(_TAGS)(etag)
_disposition = lru_cache(_TAGS)(disposition)
_GUESSED_TYPES = 4096  # that are remembered

_T = TypeVar("_T")

Isolation = Callable[[str], bytes]
"""Returns the headers that keep content of a type off the portal's own origin."""


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
class Download:
    """What a request is about."""

    resolved: ResolvedSkylink
    skyfile: ParsedSkyfile
    path: str
    """Without a leading slash; empty for the skylink itself."""
    query: DownloadQuery
    may_redirect: bool
    """Whether the URL has no slash at its end and the download is no attachment."""
    may_move: bool
    """Whether the URL may lead to other content later."""

    def cache(self) -> str:
        encrypted = self.skyfile.stored.is_encrypted
        return cache_control(may_move=self.may_move, is_decrypted=encrypted)


@dataclass(frozen=True, slots=True)
class DownloadEndpoint:
    """The download endpoints of one portal."""

    config: PortalConfig
    index: SkyfileIndex
    resolver: SkylinkResolver
    guessed: GuessedTypes = field(default_factory=GuessedTypes)

    async def load(
        self, request: Request, *, attachment: bool = False, may_move: bool = False
    ) -> Download:
        """Find the skyfile that a request is about; what of it is served is not selected yet."""
        query = _PLAIN
        if request.query:
            has_range = "range" in request.headers
            query = DownloadQuery.parse(parse_query(request.query), has_range=has_range)
        if attachment:
            query = replace(query, attachment=True)
        resolved = await self.resolver.resolve(request.variables["link"])
        skyfile = await self.index.load(resolved.skylink)
        may_redirect = not query.attachment and request.path[-1] != "/"
        raw = request.variables.get("path", "")
        path = decode_path(raw)
        if "+" in raw:
            path = await _unblocked(skyfile, path_with_plus, skyfile.metadata, raw)
        may_move = may_move or bool(resolved.entries)
        return Download(resolved, skyfile, path, query, may_redirect, may_move)

    async def select(self, download: Download) -> SelectedContent | None:
        """Decide what is served; None where the client is redirected to the URL with a slash at
        its end. HttpError 404 or 400.
        """
        decide = partial(select_content, may_redirect=download.may_redirect)
        skyfile, archive = download.skyfile, download.query.archive
        limit = self.config.header_limit
        return await _unblocked(skyfile, decide, skyfile, download.path, archive, limit)

    def about(
        self, request: Request, download: Download, content: SelectedContent
    ) -> tuple[bytes, tuple[str, ...]]:
        """Return the headers that are about the skylink and its metadata, and the request headers
        that they depend on.
        """
        query, found, vary = download.query, download.resolved.fields, tuple[str, ...]()
        if query.with_metadata and content.metadata_header is not None:
            requester = request.asker.requester
            found += metadata_fields(content.metadata_header, requester)
            vary = requester.told_by
        if query.with_layout:
            layout = bytes(download.skyfile.stored.layout).hex()
            found += fields(*((each.layout_header, layout) for each in PRESETS.values()))
        return found, vary

    async def respond(
        self,
        request: Request,
        download: Download,
        content: SelectedContent | None,
        isolation: Isolation | None = None,
    ) -> Response:
        """Answer with what was selected."""
        if content is None:
            return _redirect(request, download)
        query, headers = download.query, request.headers
        known, vary = self.about(request, download, content)
        made = Response(content.status, known, b"", NOT_STORED, vary)
        made.skylink = str(download.resolved.skylink)
        path = download.path
        tag_of = _etag if len(path) <= _SHORT else etag
        tag = tag_of(download.resolved.skylink, f"/{path}", query.archive)
        isolated: Isolation = isolation or (lambda kind: b"")
        is_error_page = content.status != 200
        if not is_error_page:
            made.fields += fields(("ETag", tag))
            made.cache = download.cache()
            if is_unchanged(headers, tag):
                made.status = 304
                made.fields += isolated("")
                return made
        attachment = query.attachment or bool(content.archive)
        name = content.name
        disposed = _disposition if len(name) <= _SHORT else disposition
        named = disposed(name, attachment=attachment)
        payload = download.skyfile.stored.payload
        if content.archive:
            kind = content.content_type
            made.fields += fields(("Content-Disposition", named), ("Content-Type", kind))
            made.fields += isolated(kind)
            made.body = Pieces(archive_pieces(content.archive, content.members, payload))
            return made
        kind = await self.kind(download, content)
        if request.asker.requester.is_browser and content.size:
            kind = await self._with_charset(download, content, kind)
        wanted = "" if is_error_page else query.range_header or headers.get("range", "")
        try:
            chosen = select_ranges(headers, wanted, tag, kind, content.size)
        except HttpError as error:
            known = made.fields + fields(("Content-Disposition", named))
            return replace(error_response(error, known), vary=vary, skylink=made.skylink)
        made.fields += fields(
            ("Content-Disposition", named), ("Accept-Ranges", "bytes"), *chosen.headers
        )
        made.fields += isolated(dict(chosen.headers)["Content-Type"])
        made.status = content.status if is_error_page else chosen.status
        made.body = _body(payload, content.extents, chosen.segments)
        return made

    async def kind(self, download: Download, content: SelectedContent) -> str:
        """Return the Content-Type of what is served. A guess by the first bytes is remembered."""
        known = stored_or_guessed(content.content_type, content.guess_by)
        if known or not content.size:
            return known or sniff(b"")
        return await _told_by_start(download, content, self.guessed.types, SNIFF_SIZE, sniff)

    async def _with_charset(self, download: Download, content: SelectedContent, kind: str) -> str:
        """Add a charset to a type of text that is UTF-8; a guess has one in any case."""
        bare = kind
        if kind != content.content_type.strip():
            bare = kind.removesuffix(UTF8)
        if not takes_charset(bare):
            return kind
        decide = partial(
            is_utf8,
            is_whole=content.size <= START_SIZE,
            may_declare=may_declare(bare),
        )
        told = _told_by_start(download, content, self.guessed.utf8, START_SIZE, decide)
        return bare + UTF8 if await told else bare


async def _told_by_start(
    download: Download,
    content: SelectedContent,
    told: LRUCache[tuple[Skylink, tuple[int, int]], _T],
    size: int,
    decide: Callable[[bytes], _T],
) -> _T:
    """Return what the first bytes tell, which is remembered."""
    stored = download.skyfile.stored
    key = (stored.skylink, content.extents[0])
    is_one = len(content.extents) == 1
    if is_one and key in told:
        return told[key]
    start = payload_ranges(content.extents, ByteRange(0, min(content.size, size)))
    read = partial(_joined, stored.payload, start)
    is_here = stored.payload.is_in_memory
    found = decide(read() if is_here else await trio.to_thread.run_sync(read))
    if is_one:
        told[key] = found
    return found


async def _unblocked(skyfile: ParsedSkyfile, decide: Callable[..., _T], *args: object) -> _T:
    """Call `decide`; in a thread if it has to look at many subfiles."""
    if len(skyfile.metadata.subfiles) < _MANY_SUBFILES:
        return decide(*args)
    return await trio.to_thread.run_sync(decide, *args)


def _redirect(request: Request, download: Download) -> Response:
    last = request.path.rpartition("/")[2]
    target = f"./{last}/" if ":" in last else f"{last}/"
    if request.query:
        target += f"?{request.query}"
    return Response(308, fields(("Location", target)), cache=download.cache())


def metadata_fields(metadata: bytes, requester: Requester) -> bytes:
    """Return the headers that carry metadata.

    An agent that names its dialect gets it under that dialect's name. Scripts and other programs
    get what common clients take, under each name that there is room for. Pages and their parts
    get none: nobody reads it there, and a proxy may refuse headers of more than 4 KiB.
    """
    if requester.is_browser:
        return b""
    if requester.dialect is not None:
        return fields((requester.dialect.metadata_header, metadata))
    room = _HEADER_ROOM[requester.kind]
    count = room // len(metadata) if metadata else len(PRESETS)
    return fields(*((each.metadata_header, metadata) for each in [*PRESETS.values()][:count]))


def _joined(payload: StoredRange, parts: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(read_chunks(payload, parts))


def _body(
    payload: StoredRange,
    extents: tuple[tuple[int, int], ...],
    segments: tuple[BodySegment, ...],
) -> bytes | FileRange | Pieces:
    if payload.is_in_memory or not segments:
        return b"".join(_pieces(payload, extents, segments))
    if len(segments) == len(extents) == 1 and not isinstance(segments[0], bytes):
        [(offset, length)] = payload_ranges(extents, segments[0])
        if isinstance(payload.source, StoredFile) and payload.decrypt is None:
            return FileRange(payload.source.path, payload.offset + offset, length)
    return Pieces(_pieces(payload, extents, segments), sum(map(len, segments)))


def _pieces(
    payload: StoredRange,
    extents: tuple[tuple[int, int], ...],
    segments: Iterable[BodySegment],
) -> Generator[bytes, int | None]:
    for segment in segments:
        if isinstance(segment, bytes):
            yield segment
        else:
            yield from read_chunks(payload, payload_ranges(extents, segment), FIRST_PIECE)


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


_DEFAULT_MODE = 0o644  # of a file uploaded without one: with mode 0 it would unpack unreadable

Member = tuple[str, Subfile]  # its name in the archive, and where its content is
_Content = Callable[[Subfile], Iterator[bytes]]


def archive_pieces(
    archive: str, members: Sequence[Member], payload: StoredRange
) -> Generator[bytes, int | None]:
    """Yield an archive of the members in pieces of `FIRST_PIECE`, or of what is sent."""
    with closing(payload.source.open()) as opened:

        def content(sub: Subfile) -> Iterator[bytes]:
            return read_open(opened, payload, sub.offset, sub.len, FIRST_PIECE)

        if archive == "zip":
            small = _zip(members, content)
        else:
            small = _tar(members, content)
            small = small if archive == "tar" else _gzip(small)
        waiting, size, wanted = [], 0, FIRST_PIECE
        for data in small:  # a thousand tiny members are not a thousand sends
            waiting.append(data)
            size += len(data)
            if size >= wanted:
                piece, waiting, size = b"".join(waiting), [], 0
                wanted = (yield piece) or wanted
        yield b"".join(waiting)


class _Sink(io.RawIOBase):
    """A file that cannot seek and gives back what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self._waiting.append(bytes(data))  # type: ignore[call-overload]
        return len(self._waiting[-1])

    def take(self) -> bytes:
        taken, self._waiting = b"".join(self._waiting), []
        return taken


def _zip(members: Sequence[Member], content: _Content) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name, sub in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = (sub.mode & 0o7777 or _DEFAULT_MODE) << 16
            info.file_size = sub.len
            with archive.open(info, "w") as file:
                for data in content(sub):
                    file.write(data)
                    yield sink.take()
            yield sink.take()
    yield sink.take()


def _tar(members: Sequence[Member], content: _Content) -> Iterator[bytes]:
    for name, sub in members:
        info = tarfile.TarInfo(name)
        info.size = sub.len
        info.mode = sub.mode & 0o7777 or _DEFAULT_MODE
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        yield from content(sub)
        yield bytes(-sub.len % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _gzip(source: Iterator[bytes]) -> Iterator[bytes]:
    compressor = zlib.compressobj(level=1, wbits=31)  # 31: gzip format, no time in its header
    for data in source:
        yield compressor.compress(data)
    yield compressor.flush()

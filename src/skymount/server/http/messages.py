"""Requests and answers, as endpoints see them: `async def endpoint(request) -> Response`.

An endpoint decides status, headers, what caches may do, and the body; `connection` writes it.
Conditions and ranges are those of RFC 9110, 13 and 14. HEAD is treated like GET.
"""

import os
import re
import time
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

import trio

from skymount.errors import MalformedError, StorageError
from skymount.server.http.access_log import Visit
from skymount.server.http.clients import Asker, is_page_path
from skymount.server.http.parsing import Headers
from skymount.server.http_error import HttpError
from skymount.wire.dialect import PRESETS
from skymount.wire.http.byte_range import ByteRange, parse_range
from skymount.wire.http.responses import encode_error
from skymount.wire.skylink import Skylink
from skymount.wording import readable_size

JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"

NOT_STORED = "no-store"
"""What caches may do with an answer, unless its endpoint says otherwise; always for errors."""
IMMUTABLE = "public, max-age=31536000, immutable"
"""For what a v1 skylink or a Merkle root names, which no password protects."""
REVALIDATED = "no-cache"
"""For what a registry entry or a name leads to now: kept, but asked about at each use."""

BODILESS = frozenset({204, 304})
"""The statuses of answers without a body, and without its length (RFC 9110 8.6)."""

FIRST_PIECE = 64 << 10
"""Bytes of a piece of a body that is made in any case; of a body that is sent with its head."""

_FIRST_ERROR = 400
_UNSAFE = re.compile(rb"[\r\n\0]")
_REMEMBERED = 1024  # encoded headers of a kind


class ClientGoneError(Exception):
    """The client has closed its connection: nobody waits for the answer."""


class RequestBody(Protocol):
    """The body of a request, as it arrives."""

    async def receive(self) -> bytes:
        """Return the next bytes, empty at the end; ClientGoneError, HttpError 400."""


@dataclass(slots=True)
class Request:
    """One request. What is not in its head is set on its way to its endpoint."""

    method: str
    path: str
    """Still percent-encoded; with what the host selects before it."""
    query: str
    version: str
    headers: Headers
    body: RequestBody
    peer: str
    """The IP address of the other end of the connection, or `UNIX`."""
    reached: str
    """The address that the client has connected to, as a Host header gives it."""
    visit: Visit
    asker: Asker = field(init=False)
    added: bytes = b""
    """The headers of its answer that access rules add, encoded."""
    variables: dict[str, str] = field(default_factory=dict)
    """What stands in the path in place of the variables of its route."""

    @property
    def wants_page(self) -> bool:
        """Whether an answer, be it an error, is to be a page."""
        is_shown = self.method in ("GET", "HEAD") or is_page_path(self.path)
        return is_shown and self.asker.takes_page


@dataclass(frozen=True, slots=True)
class FileRange:
    """A body that is a part of a file: it goes from there to the socket."""

    path: Path
    offset: int
    length: int

    def open(self) -> tuple[int, bytes]:
        """Return the file's descriptor, and a small body; StorageError, OSError. Blocks."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < self.offset + self.length:
                name = f"{self.path.parent.name}/{self.path.name}"
                raise StorageError(f"stored {name} is damaged: shorter than recorded")
            if self.length > FIRST_PIECE:
                return descriptor, b""
            return descriptor, os.pread(descriptor, self.length, self.offset)
        except BaseException:
            os.close(descriptor)
            raise


@dataclass(frozen=True, slots=True)
class Pieces:
    """A body that is made while it is sent, in threads."""

    made: Generator[bytes, int | None]
    """Its first piece has at most about `FIRST_PIECE`; then it is sent how many bytes a piece may
    have.
    """
    length: int | None = None
    """None if only its end tells."""


@dataclass(slots=True)
class Response:
    """An answer, without the headers that every answer has."""

    status: int
    fields: bytes = b""
    """Encoded headers, as `fields` makes them."""
    body: bytes | FileRange | Pieces = b""
    cache: str = NOT_STORED
    vary: tuple[str, ...] = ()
    """The request headers that the answer depends on, besides those that access depends on."""
    skylink: str = ""
    """What it is about, for the access log."""

    @property
    def length(self) -> int | None:
        body = self.body
        return len(body) if isinstance(body, bytes) else body.length


def fields(*pairs: tuple[str, str | bytes]) -> bytes:
    """Encode headers. What would end a line becomes a space."""
    found, count = b"".join(_line(name, value) for name, value in pairs), len(pairs)
    if found.count(b"\r") == found.count(b"\n") == count and b"\0" not in found:
        return found
    lines = (_line(name, value)[:-2] for name, value in pairs)
    return b"".join(_UNSAFE.sub(b" ", line) + b"\r\n" for line in lines)


def _line(name: str, value: str | bytes) -> bytes:
    encoded = value if isinstance(value, bytes) else value.encode()
    return b"%b: %b\r\n" % (name.encode(), encoded)


def cache_control(*, may_move: bool, is_decrypted: bool = False) -> str:
    """Return what caches may do with content. Decrypted content is locked again when its skykey
    is deleted, so no cache may have it.
    """
    if is_decrypted:
        return NOT_STORED
    return REVALIDATED if may_move else IMMUTABLE


@lru_cache(_REMEMBERED)
def skylink_fields(skylink: Skylink) -> bytes:
    """Name the v1 skylink of what is served or was stored."""
    return fields(*((dialect.skylink_header, str(skylink)) for dialect in PRESETS.values()))


def json_response(
    body: bytes, *, status: int = 200, more: bytes = b"", skylink: str = ""
) -> Response:
    """Answer with JSON that is encoded already; `more` are further headers, encoded."""
    return Response(status, more + _JSON_FIELDS, body, skylink=skylink)


def text_response(status: int, text: str, *, vary: tuple[str, ...] = ()) -> Response:
    """Answer with a line of text."""
    return Response(status, _TEXT_FIELDS, text.encode(), vary=vary)


def error_response(failure: HttpError, more: bytes = b"") -> Response:
    """Answer with an error (docs/wire.md 4.6)."""
    if failure.plain_text:
        return text_response(failure.status, failure.message)
    more += fields(*failure.headers)
    return json_response(encode_error(failure.message), status=failure.status, more=more)


async def read_body(request: Request, limit: int, timeout: float) -> bytes:
    """Return the whole body, which may take `timeout` seconds; errors as of `stream_body`."""
    with trio.move_on_after(timeout):
        return b"".join([data async for data in stream_body(request, limit, timeout)])
    raise HttpError(408, "the body did not come in time")


async def stream_body(
    request: Request, limit: int, pause: float, *, failed: str = ""
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, at most `limit` bytes, with pauses of at most `pause` seconds.

    HttpError 413 over the limit, at once if Content-Length says so, and 408 after a longer pause;
    their messages begin with `failed`. ClientGoneError when the client goes away.
    """
    too_large = HttpError(413, f"{failed}the body is over the limit of {readable_size(limit)}")
    if int(request.headers.get("content-length", "0")) > limit:
        raise too_large
    size = 0
    while True:
        try:
            with trio.fail_after(pause):
                data = await request.body.receive()
        except trio.TooSlowError:
            raise HttpError(408, f"{failed}the body did not come in time") from None
        if not data:
            return
        size += len(data)
        if size > limit:
            raise too_large
        yield data


def encode_head(
    response: Response,
    version: str = "1.1",
    added: bytes = b"",
    varies: tuple[str, ...] = (),
    *,
    closes: bool,
) -> bytes:
    """Return all that stands before the body of an answer to a request of a version of HTTP.

    `added` are the headers that access rules add, `varies` the request headers that these depend
    on. `closes` says whether the connection ends with the answer.
    """
    status, length = response.status, response.length
    lines = [_status_line(status), response.fields, added, _date(int(time.time()))]
    lines.append(_cache_line(response.cache if status < _FIRST_ERROR else NOT_STORED))
    if names := varies + response.vary:
        lines.append(_vary_line(names))
    if status not in BODILESS:
        if length is not None:
            lines.append(b"Content-Length: %d\r\n" % length)
        elif version == "1.1":
            lines.append(b"Transfer-Encoding: chunked\r\n")
    if closes:
        lines.append(b"Connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def encode_line(status: int, text: str, *more: tuple[str, str]) -> bytes:
    """Return a whole answer of one line, after which the connection ends."""
    body = f"{text}\n".encode()
    return encode_head(Response(status, _TEXT_FIELDS + fields(*more), body), closes=True) + body


@lru_cache(_REMEMBERED)
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


@lru_cache(1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


@lru_cache(_REMEMBERED)
def _cache_line(control: str) -> bytes:
    return fields(("Cache-Control", control))


@lru_cache(_REMEMBERED)
def _vary_line(names: tuple[str, ...]) -> bytes:
    return fields(("Vary", ", ".join(sorted(set(names)))))


_JSON_FIELDS = fields(("Content-Type", JSON_TYPE))
_TEXT_FIELDS = fields(("Content-Type", TEXT_TYPE))


BodySegment = bytes | ByteRange  # literal bytes, or a range of the content


@dataclass(frozen=True, slots=True)
class Selection:
    """The status, headers and body of an answer with content."""

    status: int
    headers: tuple[tuple[str, str], ...]
    segments: tuple[BodySegment, ...]

    @property
    def length(self) -> int:
        return sum(map(len, self.segments))


def select_ranges(
    headers: Mapping[str, str], range_header: str, etag: str, content_type: str, size: int
) -> Selection:
    """Decide which ranges of `size` bytes of content are sent; HttpError 416 for a bad range."""
    if_range = headers.get("if-range")
    if not range_header or not size or (if_range is not None and if_range.strip() != etag):
        return _full(content_type, size)
    try:
        ranges = parse_range(range_header, size)
    except MalformedError as error:
        raise _unsatisfiable(str(error), size) from None
    if ranges is None or sum(map(len, ranges)) > size:  # longer than the whole: as Go does
        return _full(content_type, size)
    if not ranges:
        raise _unsatisfiable("invalid range: failed to overlap", size)
    if len(ranges) == 1:
        range_headers = (
            ("Content-Type", content_type),
            ("Content-Range", ranges[0].content_range(size)),
        )
        return Selection(206, range_headers, tuple(ranges))
    return _multipart(ranges, etag, content_type, size)


def _full(content_type: str, size: int) -> Selection:
    whole = (ByteRange(0, size),) if size else ()
    return Selection(200, (("Content-Type", content_type),), whole)


def _unsatisfiable(message: str, size: int) -> HttpError:
    return HttpError(416, message, (("Content-Range", f"bytes */{size}"),))


def _multipart(ranges: list[ByteRange], etag: str, content_type: str, size: int) -> Selection:
    """Answer several ranges. The boundary is from the ETag, a hash that content cannot contain."""
    boundary = etag.strip('"')[:32]
    segments: list[BodySegment] = []
    delimiter = f"--{boundary}"
    for one in ranges:
        head = (
            f"{delimiter}\r\nContent-Type: {content_type}\r\n"
            f"Content-Range: {one.content_range(size)}\r\n\r\n"
        )
        segments += [head.encode(), one]
        delimiter = f"\r\n--{boundary}"
    segments.append(f"\r\n--{boundary}--\r\n".encode())
    multipart_type = f"multipart/byteranges; boundary={boundary}"
    return Selection(206, (("Content-Type", multipart_type),), tuple(segments))


def is_unchanged(headers: Headers, tag: str) -> bool:
    """Whether the client has the content already (304); HttpError 412 when If-Match fails.

    Nothing here has a time of change, so conditions by time are ignored (RFC 9110 13.1.3, 13.1.4).
    """
    if "if-match" not in headers and "if-none-match" not in headers:
        return False
    wanted, known = (", ".join(headers.getlist(name)) for name in ("if-match", "if-none-match"))
    if wanted and not _matches(wanted, tag):
        raise HttpError(412, "the content does not match the If-Match header")
    return _matches(known.replace("W/", ""), tag)  # weak comparison


def _matches(header: str, tag: str) -> bool:
    """Whether a list of entity tags has this one, by strong comparison."""
    return header.strip() == "*" or tag in (each.strip() for each in header.split(","))

"""Conditions and ranges of requests for content (RFC 9110, 13 and 14). HEAD is treated like GET."""

from collections.abc import Mapping
from dataclasses import dataclass

from skymount.errors import MalformedError
from skymount.server.http.parsing import Headers
from skymount.server.http_error import HttpError
from skymount.wire.http.byte_range import ByteRange, parse_range

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

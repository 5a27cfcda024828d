"""Ranges, and the condition on them (RFC 9110, 13.1.5 and 14). HEAD is treated like GET."""

from collections.abc import Mapping
from dataclasses import dataclass

from skymount.errors import MalformedError
from skymount.server.http_error import HttpError
from skymount.wire.http.byte_range import ByteRange, parse_range

BodySegment = bytes | ByteRange  # literal bytes, or a range of the content


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """Status, headers and body of a response with content."""

    status: int
    headers: tuple[tuple[str, str], ...]
    segments: tuple[BodySegment, ...]

    @property
    def length(self) -> int:
        return sum(map(len, self.segments))


def plan_response(
    headers: Mapping[str, str], range_header: str, etag: str, content_type: str, size: int
) -> ResponsePlan:
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
        return ResponsePlan(206, range_headers, tuple(ranges))
    return _multipart(ranges, etag, content_type, size)


def _full(content_type: str, size: int) -> ResponsePlan:
    whole = (ByteRange(0, size),) if size else ()
    return ResponsePlan(200, (("Content-Type", content_type),), whole)


def _unsatisfiable(message: str, size: int) -> HttpError:
    return HttpError(416, message, (("Content-Range", f"bytes */{size}"),))


def _multipart(ranges: list[ByteRange], etag: str, content_type: str, size: int) -> ResponsePlan:
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
    return ResponsePlan(206, (("Content-Type", multipart_type),), tuple(segments))

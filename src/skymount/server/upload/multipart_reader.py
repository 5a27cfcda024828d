"""Owns reading a multipart/form-data body as it arrives; the only importer of python-multipart.

Turns pieces of a body into events: a part begins, some of its bytes, its end. What the parts mean
is `upload`'s matter.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from skymount.errors import MalformedError
from skymount.wire.multipart import PART_HEADER_LIMIT, PartHeader

# What it would log of each malformed form is in the answer to who has sent it.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

MANY_EVENTS = 16
"""From so many events in a slice on, the event loop deserves a turn before the next one."""

_SLICE_MIN = 4 << 10  # bytes parsed at once while parts are tiny: about 2 ms of the event loop
_SLICE_MAX = 64 << 10  # and while they are not; what hypercorn hands over at once

_HEADERS_LIMIT = 32  # header lines of one part; browsers send two or three
_BOUNDARY = re.compile(rb"[ -~]{0,255}[!-~]")


@dataclass(frozen=True, slots=True)
class PartBegins:
    """A part's header was read."""

    part: PartHeader


@dataclass(frozen=True, slots=True)
class PartData:
    """More bytes of the part that began last."""

    data: bytes


Event = PartBegins | PartData


def is_multipart(content_type: bytes) -> bool:
    """Whether a body of that Content-Type is a form (wire notes 3.3)."""
    return content_type.lower().lstrip().startswith(b"multipart/form-data")


class FormReader:
    """Reads one body. Feed it with `events`; `finish` says whether the body was whole."""

    def __init__(self, content_type: bytes) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not _BOUNDARY.fullmatch(boundary):
            raise MalformedError("multipart: no usable boundary in the Content-Type header")
        self._events: list[Event] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._name, self._value = bytearray(), bytearray()
        self._header_size = 0
        self._ended = False
        self._slice = _SLICE_MIN
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_part_data": self._on_part_data,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_end": self._on_end,
            },
            max_header_count=_HEADERS_LIMIT,
            max_header_size=PART_HEADER_LIMIT,
        )

    def events(self, data: bytes) -> Iterator[list[Event]]:
        """Yield what the next bytes of the body hold, slice by slice.

        MalformedError when it is no form.
        """
        at = 0
        while at < len(data):
            size = self._slice
            try:
                self._parser.write(data[at : at + size])
            except FormParserError as error:
                raise MalformedError(f"multipart: {error}") from None
            at += size
            found, self._events = self._events, []
            grown = min(2 * size, _SLICE_MAX)
            self._slice = grown if len(found) < MANY_EVENTS else _SLICE_MIN
            yield found

    def finish(self) -> None:
        """MalformedError unless the closing boundary has come."""
        if not self._ended:
            raise MalformedError("multipart: unexpected EOF")

    def _on_part_begin(self) -> None:
        self._headers, self._header_size = [], 0

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._header_size += len(self._name) + len(self._value)
        if self._header_size > PART_HEADER_LIMIT:
            raise MalformedError("multipart: the header of a part is too long")
        self._headers.append((bytes(self._name), bytes(self._value)))
        self._name.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        self._events.append(PartBegins(PartHeader.parse(self._headers)))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(PartData(data[start:end]))

    def _on_end(self) -> None:
        self._ended = True

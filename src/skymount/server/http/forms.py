"""Parameters of a query or a form, by Go's rules and with its messages, and the parts of a form.

Forms of multipart/form-data are read as they arrive. The only importer of python-multipart.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from skymount.errors import MalformedError
from skymount.server.http.clients import BROWSER
from skymount.server.http.messages import Request
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.wire.http.multipart import PART_HEADER_LIMIT, PartHeader

_FORM_TYPE = "application/x-www-form-urlencoded"
_MULTIPART_TYPE = "multipart/form-data"
_PARAMS_LIMIT = 100  # in one query; no endpoint knows a fifth of that
_TIMEOUT_LIMIT = 900  # seconds
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_NUMBER_DIGITS = 18  # more would not be below 2**63

Params = Mapping[str, str]


def parse_query(raw: str) -> dict[str, str]:
    """Parse a query string; the first value of a name counts, as in Go."""
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_PARAMS_LIMIT,
        )
    except ValueError as error:
        raise HttpError(400, f"failed to parse query params: {error}") from None
    return dict(reversed(pairs))


def form_params(request: Request, body: bytes) -> dict[str, str]:
    """Merge the query with the form in the body, which wins; ignore bodies that are none
    (docs/wire.md 7).
    """
    params = parse_query(request.query)
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("", _FORM_TYPE):
        params.update(_parse_form(body))
    elif kind == _MULTIPART_TYPE:
        with refuse_malformed(400):
            params.update(read_fields(content_type.encode("latin-1"), body, _PARAMS_LIMIT))
    return params


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        return parse_query(body.strip().decode("ascii"))
    except UnicodeDecodeError as error:
        raise HttpError(400, f"failed to parse query params: {error}") from None


def decode_path(raw: str) -> str:
    """Percent-decode a path inside a skylink. ``+`` is a plus."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "error parsing skylink: path is not valid UTF-8") from None


def boolean(params: Params, name: str) -> bool:
    """Parse a boolean as Go's ParseBool does; absent and empty are false."""
    value = params.get(name, "")
    if value in _TRUE:
        return True
    if value in _FALSE or not value:
        return False
    raise HttpError(400, f"unable to parse '{name}' parameter: invalid syntax {value[:40]!r}")


def number(params: Params, name: str, *, base: int = 10) -> int | None:
    """Parse a whole number that is not negative; None when absent or empty."""
    value = params.get(name, "")
    if not value:
        return None
    try:
        if value.isascii() and value.isdigit() and len(value) <= _NUMBER_DIGITS:
            return int(value, base)
    except ValueError:
        pass
    raise HttpError(400, f"unable to parse '{name}' parameter: invalid syntax {value[:40]!r}")


def check_timeout(params: Params) -> None:
    """HttpError 400 for a bad ``timeout``. It has no effect: everything is on a local disk."""
    if (number(params, "timeout") or 0) > _TIMEOUT_LIMIT:
        raise HttpError(
            400, f"'timeout' parameter too high, maximum allowed timeout is {_TIMEOUT_LIMIT}s"
        )


# It would log every malformed form. The client gets the reason in the response.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

_MANY_EVENTS = 16  # in one slice: the parts are tiny
_SLICE_MIN = 4 << 10  # bytes parsed at once while parts are tiny: about 2 ms of the event loop
_SLICE_MAX = 64 << 10  # otherwise; as many are received at once

_HEADER_LINES_LIMIT = 32  # of one part; browsers send two or three
_FIELD_LIMIT = 4 << 10  # bytes of a part that is no file
_HTML_FORMS = (BROWSER, "curl/")  # agents that write file names as HTML has it
_BOUNDARY = re.compile(rb"[ -~]{0,255}[!-~]")


class Parts(Protocol):
    """What wants the parts of a form."""

    def begin(self, part: PartHeader, offset: int) -> bytearray | None:
        """Take the next part, whose content begins at `offset` of the content of all files.

        Return None for a file. The bytes of a part that is none are added to what is returned.
        """


class FormReader:
    """Reads one body. Feed it with `content`; `finish` checks that the body was complete."""

    def __init__(self, content_type: bytes, parts: Parts, user_agent: str = "") -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not _BOUNDARY.fullmatch(boundary):
            raise MalformedError("multipart: no usable boundary in the Content-Type header")
        self._parts = parts
        self._by_html = user_agent.startswith(_HTML_FORMS)
        self._content: list[bytes] = []
        self._size = 0
        self._events = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._name, self._value = bytearray(), bytearray()
        self._header_size = 0
        self._ended = False
        self._field: bytearray | None = None
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
            max_header_count=_HEADER_LINES_LIMIT,
            max_header_size=PART_HEADER_LIMIT,
        )

    def content(self, data: bytes) -> Iterator[bytes]:
        """Yield the content in the next bytes of the body; MalformedError if they are no form."""
        start = 0
        while start < len(data):
            size, self._events, self._content = self._slice, 0, []
            try:
                self._parser.write(data[start : start + size])
            except FormParserError as error:
                raise MalformedError(f"multipart: {error}") from None
            start += size
            tiny = self._events >= _MANY_EVENTS
            self._slice = _SLICE_MIN if tiny else min(2 * size, _SLICE_MAX)
            yield b"".join(self._content)

    def finish(self) -> None:
        """MalformedError unless the closing boundary has come."""
        if not self._ended:
            raise MalformedError("multipart: unexpected EOF")

    def _on_part_begin(self) -> None:
        self._headers, self._header_size = [], 0
        self._events += 1

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
        self._field = self._parts.begin(
            PartHeader.parse(self._headers, by_html=self._by_html), self._size
        )

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is not None:
            self._field += data[start:end]
            if len(self._field) > _FIELD_LIMIT:
                raise MalformedError("multipart: a field is too long")
            return
        self._content.append(data[start:end])
        self._size += end - start
        self._events += 1

    def _on_end(self) -> None:
        self._ended = True


class _Fields:
    def __init__(self, limit: int) -> None:
        self.found: list[tuple[str, bytearray]] = []
        self._limit = limit

    def begin(self, part: PartHeader, offset: int) -> bytearray:
        if len(self.found) == self._limit:
            raise MalformedError(f"multipart: more than {self._limit} fields")
        self.found.append((part.field, bytearray()))
        return self.found[-1][1]


def read_fields(content_type: bytes, body: bytes, limit: int) -> dict[str, str]:
    """Return the fields of a form, at most `limit`. The first of a name counts, as in Go, and a
    file is a field as well. MalformedError for anything that is no form of texts.
    """
    fields = _Fields(limit)
    reader = FormReader(content_type, fields)
    for _ in reader.content(body):
        pass
    reader.finish()
    try:
        return {name: value.decode() for name, value in reversed(fields.found)}
    except UnicodeDecodeError:
        raise MalformedError("multipart: a field is not valid UTF-8") from None

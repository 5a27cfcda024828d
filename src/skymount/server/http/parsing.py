"""Reads HTTP/1.1 requests (RFC 9112) from bytes: their heads and bodies. No IO.

What two programs could read in different ways is refused, against request smuggling (RFC 9112,
11.2): a proxy must not take for the next request what the portal takes for a body.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from skymount.server.http_error import HttpError

HEAD_LIMIT = 64 << 10
"""Bytes of a request line and its headers; of the trailers of a body, too."""

_PIECES = 32  # chunks that are joined before other connections run
_PIECE_LIMIT = 256 << 10  # bytes, with those of their sizes
_LENGTH_DIGITS = 18  # no body is that long

_LENGTH = re.compile(r"[0-9]{1,20}")
_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/([0-9])\.([0-9])")
_FIELDS = re.compile(r"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\0\n-\r]*\r\n)*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[^\0\n-\r]*)?")


class BadRequestError(HttpError):
    """Bytes that are no proper request: nothing that follows them can be read."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(status, message, plain_text=True)


class Headers(dict[str, str]):
    """The headers of a request, by name in lower case; of several values the first."""

    def __init__(self, fields: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(reversed(fields))
        self.fields = fields

    def getlist(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the body of a request."""

    method: str
    target: str
    version: str
    """``1.0`` or ``1.1``."""
    headers: Headers
    body: int | None
    """The length of the body; None if it is in chunks."""

    @property
    def keeps_open(self) -> bool:
        """Whether the client takes another answer on the same connection."""
        return self.version == "1.1" and "close" not in _tokens(self.headers, "connection")

    @property
    def awaits_continue(self) -> bool:
        """Whether the client sends the body only when it is told to (RFC 9110, 10.1.1)."""
        return self.version == "1.1" and "100-continue" in _tokens(self.headers, "expect")


def _tokens(headers: Headers, name: str) -> list[str]:
    if name not in headers:
        return []
    return [token.strip().lower() for token in ",".join(headers.getlist(name)).split(",")]


def take_head(held: bytearray) -> Head | None:
    """Take the head of a request from what was received; None while it is not all there.

    BadRequestError.
    """
    end = held.find(b"\r\n\r\n", 0, HEAD_LIMIT)
    if end < 0:
        if held and held[0] <= 0x20:  # also what is no HTTP at all, such as TLS
            raise BadRequestError("this is no HTTP request")
        _check_lines(held)
        if len(held) >= HEAD_LIMIT:
            raise BadRequestError("the headers are too long", 431)
        return None
    line, _, fields = held[: end + 2].decode("latin-1").partition("\r\n")
    del held[: end + 4]
    match = _LINE.fullmatch(line)
    if match is None:
        raise BadRequestError("the request line is malformed")
    method, target, major, minor = match.groups()
    if major != "1" or minor not in "01":
        raise BadRequestError("only HTTP/1.0 and HTTP/1.1 are understood here", 505)
    headers = _parse_fields(fields)
    hosts = len(headers.getlist("host"))
    if hosts > 1 or (not hosts and minor == "1"):
        raise BadRequestError("there is not one Host header")
    version = f"1.{minor}"
    return Head(method, target, version, headers, _body_length(headers, version))


def _parse_fields(text: str) -> Headers:
    """Read lines that each end with CR LF."""
    if not _FIELDS.fullmatch(text):
        raise BadRequestError("a header is malformed")
    fields = list[tuple[str, str]]()
    for line in text.split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        fields.append((name.lower(), value.strip(" \t")))
    return Headers(fields)


def _body_length(headers: Headers, version: str) -> int | None:
    if "transfer-encoding" in headers:
        codings = headers.getlist("transfer-encoding")
        if len(codings) > 1 or codings[0].lower() != "chunked":
            raise BadRequestError("the transfer coding is not understood")
        if "content-length" in headers or version == "1.0":
            raise BadRequestError("the body has two lengths")
        return None
    if "content-length" not in headers:
        return 0
    lengths = ",".join(headers.getlist("content-length")).split(",")
    length = lengths[0].strip(" \t")
    if not _LENGTH.fullmatch(length) or any(each.strip(" \t") != length for each in lengths):
        raise BadRequestError("the Content-Length is malformed")
    headers["content-length"] = length
    if len(length) > _LENGTH_DIGITS:
        raise BadRequestError("the body is too long", 413)
    return int(length)


class BodyReader:
    """Takes one body from what is received."""

    def __init__(self, length: int | None) -> None:
        self.is_ended = length == 0
        self._is_chunked = length is None
        self._left = length or 0  # of the body, or of the chunk
        self._is_in_chunk = False
        self._is_in_trailers = False

    def take(self, held: bytearray) -> bytes | None:
        """Return the next bytes, empty at the end; None if more has to be received.

        BadRequestError.
        """
        if self._is_chunked:
            data = self._take_chunks(held)
        else:
            data = self._take_content(held)
            self.is_ended = not self._left
        return data if data or self.is_ended else None

    def _take_chunks(self, held: bytearray) -> bytes:
        pieces, least = list[bytes](), len(held) - _PIECE_LIMIT
        while len(pieces) < _PIECES and len(held) > least and self._begin_chunk(held):
            pieces.append(self._take_content(held))
            if self._left or not self._end_chunk(held):
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_content(self, held: bytearray) -> bytes:
        data = bytes(memoryview(held)[: min(self._left, _PIECE_LIMIT)])
        del held[: len(data)]
        self._left -= len(data)
        return data

    def _begin_chunk(self, held: bytearray) -> bool:
        """Read what stands before a chunk; return whether content follows."""
        if self._is_in_chunk and not self._left and not self._end_chunk(held):
            return False
        if self._is_in_chunk:
            return bool(held)
        if self._is_in_trailers:
            self._take_trailers(held)
            return False
        line = _take_line(held)
        if line is None:
            return False
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise BadRequestError("the size of a chunk is malformed")
        self._left = int(match[1], 16)
        if self._left:
            self._is_in_chunk = True
            return bool(held)
        self._is_in_trailers = True
        self._take_trailers(held)
        return False

    def _end_chunk(self, held: bytearray) -> bool:
        """Read what stands behind a chunk; return whether it was there."""
        if not b"\r\n".startswith(bytes(held[:2])):
            raise BadRequestError("a chunk does not end where it should")
        if len(held) < 2:
            return False
        del held[:2]
        self._is_in_chunk = False
        return True

    def _take_trailers(self, held: bytearray) -> None:
        """Read and drop the fields behind the last chunk."""
        if held.startswith(b"\r\n"):
            del held[:2]
            self.is_ended = True
            return
        end = held.find(b"\r\n\r\n", 0, HEAD_LIMIT)
        if end >= 0:
            trailers = _parse_fields(held[: end + 2].decode("latin-1"))
            _body_length(trailers, "1.1")  # what others could take for the framing is well-formed
            del held[: end + 4]
            self.is_ended = True
            return
        _check_lines(held)
        if len(held) >= HEAD_LIMIT:
            raise BadRequestError("the trailers are too long", 431)


def _check_lines(held: bytearray) -> None:
    """Refuse a line that has ended otherwise than with CR LF: other parsers see its end elsewhere.

    This is done each time that bytes come.
    """
    end = min(len(held), HEAD_LIMIT)
    ends, returns = held.count(b"\r\n", 0, end), held.count(b"\r", 0, end)
    if held.count(b"\n", 0, end) != ends or returns - held.endswith(b"\r", 0, end) != ends:
        raise BadRequestError("a line does not end with CR LF")


def _take_line(held: bytearray) -> bytes | None:
    """Take a line without its end; None while it is not all there."""
    end = held.find(b"\n", 0, HEAD_LIMIT)
    if end < 0:
        if len(held) >= HEAD_LIMIT:
            raise BadRequestError("a line is too long", 431)
        return None
    if held[end - 1 : end] != b"\r":
        raise BadRequestError("a line does not end with CR LF")
    line = bytes(held[: end - 1])
    del held[: end + 1]
    return line

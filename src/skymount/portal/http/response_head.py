"""Bounds on the head of a response. Long headers bypass h11, which blocks the loop for a second
for 0.5 MB of tiny lines, or one line of 80 MB.
"""

import io
import re
from dataclasses import dataclass

import h11

from skymount.wording import readable_size

LINES_LIMIT = 250
"""Lines of a head; deployed portals send some thirty."""

SMALL_LIMIT = 128 << 10
"""Bytes of a head that h11 parses, in 3 ms; and of any head where no metadata is expected."""

_LONG = 16 << 10  # bytes of a line that bypasses h11; only metadata are as long
_BLANK = re.compile(rb"\n\r?\n")
_FIRST = 0x21  # the lowest byte that a head can begin with
_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,100}")
_FRAMING = (b"connection", b"content-length", b"transfer-encoding")  # h11 must see these
_ODD = b"\0\v\f\r"  # no value has these (RFC 9110, 5.5)
_TAIL = 256  # bytes at the end of a value in which white space is stripped


class TooLongError(h11.RemoteProtocolError):
    """A head has more bytes or lines than are read."""


@dataclass(frozen=True, slots=True)
class RawHead:
    """A complete head."""

    lines: bytes
    """For h11, with the blank line."""
    long: tuple[tuple[bytes, bytes], ...]
    """Names and values of the long headers."""


class _LongHeader:
    """A header whose value is collected as it comes, and copied once."""

    def __init__(self, beginning: bytes) -> None:
        self.name, colon, value = beginning.partition(b":")
        if not colon or not _NAME.fullmatch(self.name) or self.name.lower() in _FRAMING:
            raise h11.RemoteProtocolError("a line that cannot be as long")
        self._value = io.BytesIO()
        self._odd = 0
        self.add(value.lstrip(b" \t"))

    def add(self, part: bytes) -> None:
        self._odd += len(part) - len(part.translate(None, _ODD))
        self._value.write(part)

    def value(self) -> bytes:
        """Return the value of a complete line; RemoteProtocolError if it is malformed."""
        end = self._value.tell()
        self._value.seek(max(0, end - _TAIL))
        tail = self._value.read()
        if self._odd > tail.endswith(b"\r\n"):
            raise h11.RemoteProtocolError(f"illegal header value of {self.name!r}")
        self._value.truncate(end - len(tail) + len(tail.rstrip(b" \t\r\n")))
        return self._value.getvalue()


class HeadBuffer:
    """Collects bytes until a head is complete, in time linear in what is added.

    The bounds hold for all heads together, informational ones (100 Continue) included.
    """

    def __init__(self, limit: int) -> None:
        self.rest = b""
        """The bytes after the heads that were taken."""
        self._limit = limit
        self._size = 0
        self._count = 0
        self._parsed = 0
        self._lines = bytearray()
        self._line = bytearray()
        self._long: _LongHeader | None = None
        self._found: list[tuple[bytes, bytes]] = []

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        self.rest += data

    def take(self) -> RawHead | None:
        """Return the next head, None while it is incomplete.

        TooLongError for too many lines or bytes, and RemoteProtocolError of h11 for what cannot be
        a head.
        """
        if not (self._lines or self._line or self._long):
            found = _BLANK.search(self.rest, 0, _LONG)
            if found:  # nearly always
                return self._take_short(found.end())
        data, at = self.rest, 0
        while at < len(data):
            end = data.find(b"\n", at) + 1
            stop = end or len(data)
            self._extend(data[at:stop])
            at = stop
            if end and self._end_line():
                head = RawHead(bytes(self._lines), tuple(self._found))
                self.rest = data[at:]
                self._lines.clear()
                self._found.clear()
                return head
        self.rest = b""
        return None

    def _take_short(self, stop: int) -> RawHead:
        head, self.rest = self.rest[:stop], self.rest[stop:]
        self._check_first(head)
        self._note_size(len(head))
        self._note_lines(head.count(b"\n"), is_blank=True)
        self._note_parsed(len(head))
        return RawHead(head, ())

    def _extend(self, part: bytes) -> None:
        if not (self._lines or self._line or self._long):
            self._check_first(part)
        self._note_size(len(part))
        if self._long is not None:
            self._long.add(part)
            return
        self._line += part
        if len(self._line) > _LONG:
            self._long = _LongHeader(bytes(self._line))
            self._line.clear()

    def _end_line(self) -> bool:
        """Store a complete line; return whether it is the blank one."""
        is_blank = bytes(self._line[:3]) in (b"\n", b"\r\n")
        self._note_lines(1, is_blank=is_blank)
        if self._long is not None:
            self._found.append((self._long.name, self._long.value()))
            self._long = None
            return False
        if self._found and self._line.startswith((b" ", b"\t")):  # it may belong to one of those
            raise h11.RemoteProtocolError("a long header is continued on another line")
        self._note_parsed(len(self._line))
        self._lines += self._line
        self._line.clear()
        return is_blank

    def _check_first(self, data: bytes) -> None:
        if data[0] < _FIRST:
            raise h11.RemoteProtocolError("no response line received")

    def _note_size(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise TooLongError(f"more than {readable_size(self._limit)} of headers")

    def _note_lines(self, lines: int, *, is_blank: bool) -> None:
        self._count += lines
        if self._count - is_blank > LINES_LIMIT:
            raise TooLongError(f"more than {LINES_LIMIT} header lines")

    def _note_parsed(self, size: int) -> None:
        self._parsed += size
        if self._parsed > SMALL_LIMIT:
            raise TooLongError(f"more than {readable_size(SMALL_LIMIT)} of short headers")

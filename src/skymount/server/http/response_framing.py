"""Where a response ends: what its head says of that, and its body as it is sent. No IO."""

import re
from collections.abc import Iterable

from skymount.server.http.framing import RequestHead

_BODILESS = frozenset({204, 304})
_CLOSE = (b"connection", b"close")
_CHUNKED = (b"transfer-encoding", b"chunked")
_HEAD = re.compile(rb"HTTP/1\.1 [0-9]{3} \r\n(?:[a-z0-9-]+: [^\0\n-\r]*\r\n)+\r\n")


def encode_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Write the head of a response; ValueError for what would end it early."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    head = b"HTTP/1.1 %d \r\n%b\r\n" % (status, b"".join(lines))
    if head.count(b"\n") != len(lines) + 2 or not _HEAD.fullmatch(head):
        raise ValueError(f"not the head of a response: {head[:200]!r}")
    return head


class ResponseFraming:
    """The response to one request: its head, then its body."""

    def __init__(self, request: RequestHead) -> None:
        self._request = request
        self._is_bodiless = request.method == b"HEAD"
        self._is_chunked = False
        self._left: int | None = None  # bytes that are yet to be sent
        self.closes = request.closes
        """Whether the connection ends with the response."""

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the head, which says how the body ends."""
        self._is_bodiless |= status in _BODILESS
        length = next((value for name, value in headers if name == b"content-length"), None)
        if length is not None:
            self._left = int(length)
        elif not self._request.is_1_0 and status not in _BODILESS:
            self._is_chunked = True
            headers = [*headers, _CHUNKED]
        return encode_head(status, [*headers, _CLOSE] if self.closes else headers)

    def body(self, piece: bytes) -> tuple[bytes, ...]:
        """Return what to send for a piece of the body; ValueError beyond its length."""
        if self._is_bodiless or not piece:
            return ()
        if self._is_chunked:
            return (b"%x\r\n" % len(piece), piece, b"\r\n")
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise ValueError("the body of a response is longer than its head says")
        return (piece,)

    def end(self) -> bytes:
        """Return what ends the body; ValueError if there is less of it than the head says."""
        if self._left and not self._is_bodiless:
            raise ValueError("the body of a response is shorter than its head says")
        return b"0\r\n\r\n" if self._is_chunked and not self._is_bodiless else b""

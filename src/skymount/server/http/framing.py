"""Where requests begin and end on a connection: heads, and bodies of a length or in chunks. No IO.

What two parsers could read in two ways is refused, against request smuggling (RFC 9112, 11.2):
a proxy could take for the next request what the portal takes for the body.
"""

import re

import msgspec

from skymount.server.http_error import HttpError

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELD = rb"(%s):([^\0\n-\r]*)\r\n" % _TOKEN
_FIELDS = rb"(?:%s:[^\0\n-\r]*\r\n)*" % _TOKEN
_HEAD = re.compile(rb"(%s) ([!-~]+) HTTP/1\.([01])\r\n(%s)\r\n" % (_TOKEN, _FIELDS))
_fields = re.compile(_FIELD).findall
_AFTER_SIZE = rb"(?:[ \t]*|;[^\0\n-\r]*)\r\n"
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})%s" % _AFTER_SIZE)
_LAST_CHUNK = re.compile(rb"0+%s%s\r\n" % (_AFTER_SIZE, _FIELDS))
_FRAMING = re.compile(rb"\n(?:content-length|transfer-encoding):", re.IGNORECASE)  # in a trailer
_BLOCK_END = re.compile(rb"\n\r?\n")  # also such as are refused, so that nobody waits for more
_LENGTH = re.compile(rb"[0-9]{1,18}")
_LINE_END = b"\r\n"
_BLANK = b" \t"


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """What a request says before its body."""

    method: bytes
    target: bytes
    is_1_0: bool
    """HTTP/1.0: the response ends with the connection."""
    headers: list[tuple[bytes, bytes]]
    """With names in lower case."""
    length: int | None
    """Bytes of the body; None if it comes in chunks."""
    closes: bool
    """Whether the client wants the connection to end with the response."""
    expects_continue: bool
    """Whether the client waits to be asked for the body."""


class RequestReader:
    """The requests of one connection. Every method may raise HttpError 400 or 431; then whatever
    else comes means nothing.
    """

    def __init__(self, head_limit: int) -> None:
        self._limit = head_limit
        self._held = bytearray()
        self._searched = 0  # bytes without the end of a head or a trailer
        self._left = 0  # bytes of the body or of a chunk that are yet to come
        self._is_chunked = False
        self._is_chunk_over = False  # but for the end of its line
        self.has_body = False
        """Whether the body of the request that was returned last is not at its end yet."""

    @property
    def ahead(self) -> int:
        """Bytes that are held."""
        return len(self._held)

    def receive(self, data: bytes) -> None:
        """Take bytes of a connection."""
        self._held += data

    def next_head(self) -> RequestHead | None:
        """Return the next request; None until its head is whole."""
        if self._held and self._held[0] <= ord(" "):  # no request of HTTP/1 will come of it
            raise _doubtful()
        block = self._take_block(0)
        if block is None:
            return None
        head = _parse_head(block)
        self._is_chunked, self._left = head.length is None, head.length or 0
        self.has_body = self._is_chunked or self._left > 0
        return head

    def next_piece(self) -> bytes | None:
        """Return a piece of the body, empty at its end; None until more is received."""
        if self._is_chunked and not self._left and self.has_body and not self._start_chunk():
            return None
        if not self.has_body:
            return b""
        piece = bytes(self._held if len(self._held) <= self._left else self._held[: self._left])
        del self._held[: len(piece)]
        self._left -= len(piece)
        self._is_chunk_over = self._is_chunked and not self._left
        self.has_body = self._is_chunked or self._left > 0
        return piece or None

    def _start_chunk(self) -> bool:
        """Read the size of a chunk; of the last one, all that follows. False until it is whole."""
        held = self._held
        if self._is_chunk_over:
            if not _LINE_END.startswith(held[:2]):
                raise _doubtful()
            if len(held) < len(_LINE_END):
                return False
            del held[:2]
            self._is_chunk_over = False
        end = held.find(b"\n") + 1
        if not end:
            self._check_limit(len(held))
            return False
        found = _CHUNK.fullmatch(held[:end])
        if found is None:
            raise _doubtful()
        self._left = int(found[1], 16)
        if self._left:
            del held[:end]
            return True
        block = self._take_block(end - 1)
        if block is None:
            return False
        if not _LAST_CHUNK.fullmatch(block) or _FRAMING.search(block):
            raise _doubtful()
        self.has_body = False
        return True

    def _take_block(self, start: int) -> bytes | None:
        """Take all up to the first empty line from `start` on; None until it is there."""
        found = _BLOCK_END.search(self._held, max(start, self._searched - 2))
        end = len(self._held) if found is None else found.end()
        self._check_limit(end)
        if found is None:
            self._searched = end
            return None
        self._searched = 0
        block = bytes(self._held[:end])
        del self._held[:end]
        return block

    def _check_limit(self, size: int) -> None:
        if size > self._limit:
            raise HttpError(431, "the head of a request is too long")


def _doubtful() -> HttpError:
    return HttpError(400, "it is not certain where this request ends")


def _parse_head(block: bytes) -> RequestHead:
    found = _HEAD.fullmatch(block)
    if found is None:
        raise _doubtful()
    method, target, version, lines = found.groups()
    headers = [(name.lower(), value.strip(_BLANK)) for name, value in _fields(lines)]
    is_1_0 = closes = version == b"0"
    hosts, lengths, codings, expects_continue = 0, set[bytes](), list[bytes](), False
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            lengths.add(value)
        elif name == b"transfer-encoding":
            codings.append(value.lower())
        elif name == b"connection":
            closes |= any(each.strip(_BLANK) == b"close" for each in value.lower().split(b","))
        elif name == b"expect":
            expects_continue |= value.lower() == b"100-continue" and not is_1_0
    if hosts > 1 or (not hosts and not is_1_0):
        raise HttpError(400, "a request has one Host header")
    if codings and (lengths or is_1_0 or codings != [b"chunked"]):
        raise _doubtful()
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise _doubtful()
    length = None if codings else int(*lengths or (0,))
    return RequestHead(method, target, is_1_0, headers, length, closes, expects_continue)

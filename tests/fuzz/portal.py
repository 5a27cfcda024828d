"""What portals send over a connection, and how they are addressed."""

import math
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import h11
import httpx
import trio

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal.http.http11 import HTTP11Connection
from skymount.portal.http.response import Headers, error_for, parse_retry_after
from skymount.portal.http.response_body import Body
from skymount.portal.http.response_head import LINES_LIMIT, SMALL_LIMIT, HeadBuffer, RawHead
from skymount.settings import PortalOptions
from skymount.values import is_local, parse_portal_url
from tests.fuzz.engine import attempt, pieces, target
from tests.fuzz.wire import text_of

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: r\r\n\r\n"
)
ENDLESS = b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nhello"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + HELLO
LONG = b"HTTP/1.1 200 OK\nsvc-metadata: {" + b'"a": "b c",\t' * 1500 + b"}\nContent-Length: 2\n\nok"
BARE = b"HTTP/1.1 204 No Content\r\n\r\n" + HELLO
MANY = b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (LINES_LIMIT - 1) + b"\r\n"
ANSWERS = (
    *(b"\x00\x02" + answer for answer in (HELLO, CHUNKED, ENDLESS, CONTINUED, LONG, BARE)),
    b"\x00\x00" + MANY,
    b"\x01\x05" + HELLO + HELLO,
    b"\x00\xff" + HELLO + CHUNKED,
    b"\x02\x03" + CHUNKED + HELLO,
)
HEAD_TOKENS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b":",
        b" ",
        b"\t",
        b"\0",
        b"HTTP/1.1 ",
        b"HTTP/1.0 ",
        b"200 OK",
        b"\xff",
    ),
    *(
        b"304 x\r\n",
        b"100 Continue\r\n\r\n",
        b"101 Switching Protocols\r\n",
        b"Connection: close\r\n",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: 5, 5\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Connection: keep-alive\r\n",
        b"\r\n\r\n",
        b"\n\n",
    ),
    *(b"0\r\n\r\n", b"5\r\nhello\r\n", b"ffffffffffffffff\r\n", b"1;x\r\n", b"A: b\r\n c\r\n"),
    *(HELLO, CHUNKED, b"x" * 16_500, b"y: " + b"z" * 16_500 + b"\r\n", b"a: b\r\n" * 300),
)
_HEAD_LIMIT = 32 << 10


def _heads(parts: Sequence[bytes]) -> tuple[list[RawHead], bytes] | None:
    """Return all heads that are complete, and what is left; None where they are refused."""
    buffer, found = HeadBuffer(_HEAD_LIMIT), []
    try:
        for part in parts:
            buffer.add(part)
            while (head := buffer.take()) is not None:
                found.append(head)
    except h11.RemoteProtocolError:
        return None
    return found, buffer.rest


@target(*ANSWERS, tokens=HEAD_TOKENS)
def answer_heads(data: bytes) -> None:
    """Heads are the same however they come, and none is larger than it may be."""
    stream = data[2:]
    whole = _heads([stream])
    assert whole == _heads(pieces(stream, data[:2])) == _heads(pieces(stream, b""))
    if whole is None:
        return
    heads, _ = whole
    short = sum(len(head.lines) for head in heads)
    assert short <= SMALL_LIMIT
    assert short + sum(len(value) for head in heads for _, value in head.long) <= _HEAD_LIMIT
    assert sum(head.lines.count(b"\n") - 1 + len(head.long) for head in heads) <= LINES_LIMIT
    for head in heads:
        assert head.lines.endswith((b"\n\n", b"\n\r\n"))
        assert b"\n\n" not in head.lines[:-1]
        for name, value in head.long:
            assert not set(value) & set(b"\0\v\f\r\n")
            assert value == value.strip(b" \t")
            assert b":" not in name


class _Stream:
    """A connection on which a server sends pieces and then closes it, whatever it is asked."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.peer = "192.0.2.1"
        self._parts = deque(parts)
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True

    def is_quiet(self) -> bool:
        return not self._is_closed and bool(self._parts)

    async def send(self, data: bytes, timeout: float | None) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self, limit: int, timeout: float | None) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            raise httpx.ReadError("closed")
        if not self._parts:
            return b""
        part = self._parts.popleft()
        if len(part) > limit:
            self._parts.appendleft(part[limit:])
        return part[:limit]

    async def receive_into(self, view: memoryview, timeout: float | None) -> int:
        data = await self.receive(len(view), timeout)
        view[: len(data)] = data
        return len(data)


async def no_tls() -> ssl.SSLContext:
    """Make what TLS needs, which no test does."""
    raise AssertionError("not for http")


_Outcome = tuple[int, list[tuple[bytes, bytes]], bytes] | None


async def _read(body: Body, into: bool) -> bytes:
    """Read a body to its end, by the piece or into a buffer."""
    found = bytearray()
    view = memoryview(bytearray(1000))
    while True:
        if into:
            received = await body.receive_into(view)
            data = bytes(view[:received])
        else:
            data = await body.receive(999)
        if not data:
            return bytes(found)
        found += data


async def exchanged(connection: HTTP11Connection, url: str, method: str, into: bool) -> _Outcome:
    """Ask, and return the response; None if it was refused."""
    request = httpx.Request(method, url, extensions={"head_limit": _HEAD_LIMIT, "timeout": {}})
    found: _Outcome = None
    with suppress(httpx.HTTPError):
        response = await connection.handle(request)
        try:
            body = await _read(response.extensions["body"], into)
            found = (response.status_code, response.headers.raw, body)
        finally:
            await response.aclose()
    await connection.aclose()
    return found


async def in_memory(parts: Sequence[bytes], method: str, into: bool) -> _Outcome:
    """Ask a server that sends these pieces, without a socket."""
    link = _Stream(parts)

    async def dial(*_: object) -> _Stream:
        await trio.lowlevel.checkpoint()
        return link

    asking = HTTP11Connection(no_tls, 60, dial)
    found = await exchanged(asking, "http://portal.example/", method, into)
    assert link.is_closed
    return found


@target(*ANSWERS, tokens=HEAD_TOKENS)
def connection(data: bytes) -> None:
    """An answer is the same however it comes, and what h11 makes of it; or it is refused."""
    options, stream = data[:1] or b"\0", data[2:]
    method = "HEAD" if options[0] & 1 else "GET"
    into = bool(options[0] & 2)
    whole = trio.run(in_memory, [stream] if stream else [], method, into)
    assert whole == trio.run(in_memory, pieces(stream, data[1:2]), method, not into)
    if whole is None:
        return
    status, headers, body = whole
    assert 200 <= status < 1000
    assert sum(len(name) + len(value) for name, value in headers) <= _HEAD_LIMIT
    lengths = {value for name, value in headers if name == b"content-length"}
    if method == "HEAD":
        assert not body
    elif lengths and status not in (204, 304):
        assert {b"%d" % len(body)} == {b"%d" % int(length) for length in lengths}
    if all(len(value) < 16_000 for _, value in headers):
        assert _by_h11(stream, method) == whole


def _by_h11(stream: bytes, method: str) -> _Outcome:
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    parser.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(stream)
    if stream:
        parser.receive_data(b"")
    head, body = None, b""
    while True:
        event = parser.next_event()
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return head.status_code, list(head.headers), body


@target(
    b"120\nContent-Length: 10",
    b"Fri, 31 Dec 1999 23:59:59 GMT\nRetry-After: 1\nretry-after: 2",
    b"Sun, 06 Nov 9999 08:49:37 -9999\nA: \xff",
    tokens=(b"\n", b": ", b"GMT", b"+2400", b"Jan", b"-", b",", b"Content-Length: ", b"\xff", b" "),
)
def answer_headers(data: bytes) -> None:
    """Headers are text whatever their bytes; a pause that is asked for is a number of seconds."""
    first, *lines = data.split(b"\n")
    raw = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    headers = Headers(raw)
    for name in headers:
        assert isinstance(headers[name], str)
        assert name in headers
        assert headers.raw(name) in [value for _, value in raw]
    assert headers.length is None or 0 <= headers.length < 10**19
    seconds = parse_retry_after(text_of(first), datetime(2025, 1, 1, tzinfo=UTC))
    assert seconds is None or 0 <= seconds < math.inf
    if first.isdigit():
        error_for(int(first[:3]))


@target(
    b"https://portal.example",
    b"http://127.0.0.1:4280/a/",
    b"http://[::1]:1",
    "https://bücher.example".encode(),
    tokens=(
        *(b"http://", b"https://", b":", b"/", b"@", b"[", b"]", b"?", b"#", b"%", b"\\", b"\0"),
        *(b"::", b"127.0.0.1", b"localhost", b"." * 100, b"\xff", "\u2100".encode(), b"a" * 64),
    ),
)
def portal_address(data: bytes) -> None:
    """An address is one without credentials, which is taken again as it is; or is malformed."""
    found = attempt(parse_portal_url, text_of(data))
    if found is None:
        return
    assert parse_portal_url(found) == found
    assert found.startswith(("http://", "https://"))
    assert not set(found) & set("@?#\\ \r\n\0")
    assert isinstance(is_local(found), bool)
    if found.isascii():  # IDNA has two versions, and httpx knows the newer one
        httpx.URL(found)


@target(
    b"X-Key: value\nCookie: a=b",
    b"Host: a",
    b"A: b\na: c",
    tokens=(b"\n", b": ", b"\r", b"\xff", b"Range: 1", b"Content-Length: 1", b"\0", b" "),
)
def request_headers(data: bytes) -> None:
    """Headers that a user gives can be sent as they are, or are refused."""
    lines = [text_of(line).partition(":") for line in data.split(b"\n")]
    errors = (MalformedError, WrongTypeError)
    given = {name: value for name, _, value in lines}

    def parse() -> PortalOptions:
        return PortalOptions.parse(headers=given)

    options = attempt(parse, errors=errors)
    if options is not None:
        sent = [("Host", "a"), *((name, value) for name, value in options.headers)]
        h11.Request(
            method="GET",
            target="/",
            headers=[(name.encode("ascii"), value.encode("latin-1")) for name, value in sent],
        )

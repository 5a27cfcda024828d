"""An answer's head has bounds on its lines, wherever they come from; long ones go past h11."""

import socket
from functools import partial

import h11
import pytest
import trio

from skymount.errors import BadContentError
from skymount.portal.http.client import HttpClient
from skymount.portal.http.response_head import LINES_LIMIT, SMALL_LIMIT, HeadBuffer, RawHead
from skymount.settings import PortalOptions
from skymount.wire.http.requests import Request
from skymount.wording import readable_size

LINE = b"a: b\r\n"


async def _answer(stream: trio.SocketStream, answer: bytes) -> None:
    await stream.receive_some(65536)
    with trio.move_on_after(5):
        try:
            await stream.send_all(answer)
        except trio.BrokenResourceError:
            pass
    await stream.aclose()


async def _fetch(answer: bytes) -> bytes:
    """Fetch from a server that sends these bytes."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, lambda stream: _answer(stream, answer), 0)
        listeners = await nursery.start(partial(serve, host="127.0.0.1"))
        assert listeners[0].socket.family == socket.AF_INET
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        transport = HttpClient(url, PortalOptions.parse(url, retries=0))
        found: bytes | BadContentError
        try:
            found = (await transport.fetch(Request("GET", "/"), 1 << 20)).body
        except BadContentError as error:  # past the nursery, which would wrap it
            found = error
        await transport.aclose()
        nursery.cancel_scope.cancel()
    if isinstance(found, BadContentError):
        raise found
    return found


def _head(lines: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" + LINE * lines + b"\r\n"


async def test_as_many_lines_as_may_be():
    """C14: Nothing is read without a limit. Lines of the body do not count."""
    assert await _fetch(_head(LINES_LIMIT - 2) + b"\n\n\n\n") == b"\n\n\n\n"


@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["complete", "endless"])
async def test_too_many_lines(end: bytes):
    """A head of too many lines is an error, long before h11 would have split them."""
    answer = b"HTTP/1.1 200 OK\r\n" + LINE * 1_000_000 + end
    with pytest.raises(BadContentError, match="header lines"):
        await _fetch(answer)


async def test_too_many_lines_after_the_body():
    """So are trailers."""
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + LINE * 10_000
    with pytest.raises(BadContentError):
        await _fetch(answer + b"\r\n")


STATUS = b"HTTP/1.1 200 OK\r\n"
MUCH = b"{" + b'"a": "b c",\t' * 3000 + b"}"


def _taken(data: bytes, step: int) -> tuple[RawHead, bytes]:
    """Take one head that comes in pieces of so many bytes; return also what was not of it."""
    buffer = HeadBuffer(1 << 20)
    for at in range(0, len(data), step):
        buffer.add(data[at : at + step])
        head = buffer.take()
        if head is not None:
            return head, buffer.rest + data[at + step :]
    raise AssertionError("it is not complete")


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("step", [1, 2, 7, 16_383, 16_384, 16_385, 65_536])
def test_long_headers(step: int, end: bytes):
    """However a head comes, its long headers are set apart as they are; the rest is for h11."""
    lines = [STATUS[:-2], b"A: b", b"Long:  " + MUCH + b" \t", b"C: d", b"other:" + MUCH, b"", b""]
    head, rest = _taken(end.join(lines) + b"body", step)
    assert head.lines == end.join([STATUS[:-2], b"A: b", b"C: d", b"", b""])
    assert head.long == ((b"Long", MUCH), (b"other", MUCH))
    assert rest == b"body"


@pytest.mark.parametrize("step", [1, 65_536])
@pytest.mark.parametrize(
    "lines",
    [
        b"Long: " + MUCH + b"\r\n more\r\n\r\n",
        b"Long: " + MUCH + b"\0" + MUCH + b"\r\n\r\n",
        b"Long: " + MUCH + b"\r" + MUCH + b"\r\n\r\n",
        b"Long: " + MUCH + b"\r\r\n\r\n",
        b"Long: " + MUCH + b"\0" + MUCH + b"\n\n",
        b"Long: " + MUCH + b"\r" + MUCH + b"\n\n",
        b"Long : " + MUCH + b"\r\n\r\n",
        b" Long: " + MUCH + b"\r\n\r\n",
        b"n" * 200 + b": " + MUCH + b"\r\n\r\n",
        MUCH.replace(b":", b"-") + b"\r\n\r\n",
        b"Connection: " + MUCH + b"\r\n\r\n",
        b"Content-Length: " + b"0" * 20_000 + b"4\r\n\r\n",
        b"Transfer-encoding: chunked" + b" " * 20_000 + b"\r\n\r\n",
    ],
)
def test_long_lines_that_are_refused(lines: bytes, step: int):
    """A long line is a header that may be as long, or an error: h11 sees all that frames a body."""
    with pytest.raises(h11.RemoteProtocolError):
        _taken(STATUS + lines, step)


def _fed(buffer: HeadBuffer, data: bytes, step: int) -> list[RawHead]:
    """Return the heads in what comes in pieces of so many bytes."""
    found = []
    for at in range(0, len(data), step):
        buffer.add(data[at : at + step])
        found += iter(buffer.take, None)
    return found


@pytest.mark.parametrize("step", [1, 1000, 65_536])
def test_bytes_of_all_heads_together(step: int):
    """C14: a head has as many bytes as its bound says and not one more, with those before it."""
    early, end = b"HTTP/1.1 100 Continue\r\n\r\n", STATUS + b"\r\n"
    answers = early + STATUS + b"Long: " + MUCH + b"\r\n\r\n"
    heads = [RawHead(early, ()), RawHead(end, ((b"Long", MUCH),))]
    assert _fed(HeadBuffer(len(answers)), answers, step) == heads
    limit = len(answers) - 1
    with pytest.raises(h11.RemoteProtocolError, match=f"more than {readable_size(limit)}"):
        _fed(HeadBuffer(limit), answers, step)
    with pytest.raises(h11.RemoteProtocolError, match=f"more than {readable_size(limit)}"):
        _fed(HeadBuffer(limit), answers[:-4] + b"more", step)  # before it comes to its end


def test_headers_of_an_earlier_head():
    """What stood in a head before the answer's own is not taken for a header of the answer."""
    early = b"HTTP/1.1 103 Early Hints\r\nLong: " + MUCH + b"\r\n\r\n"
    answer = STATUS + b"Other: " + MUCH[1:] + b"\r\n\r\n"
    buffer = HeadBuffer(1 << 20)
    buffer.add(early + answer)
    first, second = buffer.take(), buffer.take()
    assert first is not None
    assert first.long == ((b"Long", MUCH),)
    assert second == RawHead(STATUS + b"\r\n", ((b"Other", MUCH[1:]),))


@pytest.mark.parametrize("beginning", [b"\r", b"\n", b" ", b"\0", b"\t"])
@pytest.mark.parametrize("rest", [b"", STATUS + b"\r\n"])
def test_what_begins_no_head(beginning: bytes, rest: bytes):
    """What cannot be the beginning of a head is refused at its first byte."""
    buffer = HeadBuffer(1 << 20)
    buffer.add(beginning + rest)
    with pytest.raises(h11.RemoteProtocolError, match="no response line"):
        buffer.take()


def test_long_status_line():
    """A status line is not as long."""
    with pytest.raises(h11.RemoteProtocolError, match="as long"):
        _taken(STATUS[:-2] + b" x: " + MUCH + b"\r\n\r\n", 65_536)


def test_many_short_lines():
    """C14: what h11 gets is little, in all heads together, whatever the bound on the head."""
    line = b"a: " + b"b" * 10_000 + b"\r\n"
    few, many = SMALL_LIMIT // len(line), SMALL_LIMIT // len(line) + 1
    assert _taken(STATUS + line * few + b"\r\n", 65_536)[0].long == ()
    with pytest.raises(h11.RemoteProtocolError, match="short headers"):
        _taken(STATUS + line * many + b"\r\n", 65_536)
    buffer = HeadBuffer(1 << 20)
    buffer.add((STATUS + line + b"\r\n") * many)
    with pytest.raises(h11.RemoteProtocolError, match="short headers"):
        list(iter(buffer.take, None))

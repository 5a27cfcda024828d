"""An answer's head has a bound on its lines, wherever they come from."""

import socket
from functools import partial

import h11
import pytest
import trio

from skymount.errors import BadContentError
from skymount.portal.heads import LINES_LIMIT
from skymount.portal.options import PortalOptions
from skymount.portal.transport import Transport
from skymount.wire.messages import Request

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
        transport = Transport(url, PortalOptions.parse(url, retries=0))
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


def test_h11_still_works_like_that():
    """The method that is replaced is the one that h11 calls."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.receive_data(b"HTTP/1.1 200 OK\r\n" + LINE * (LINES_LIMIT + 1))
    with pytest.raises(h11.RemoteProtocolError, match="header lines"):
        connection.next_event()

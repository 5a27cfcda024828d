"""What clients send and get on one connection, byte by byte."""

import socket

import pytest
import trio
import trio.testing

from skymount.server.http.messages import Request, Response
from tests.portal_process import PortalProcess
from tests.server.http.test_messages import connected
from tests.server.http_client import Client
from tests.server.raw_connection import connect

_UPLOAD = (
    b"POST /svc/skyfile?filename=a&dryrun=1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: a/b\r\n"
)
_PORTALS = b"GET /svc/portals HTTP/1.1\r\nHost: localhost\r\n"
_CLOSE = b"Connection: close\r\n\r\n"


def _read_to_end(connection: socket.socket) -> bytes:
    found = bytearray()
    while piece := connection.recv(65536):
        found += piece
    return bytes(found)


def _talk(portal: PortalProcess, *pieces: bytes) -> bytes:
    """Return all that comes back until the portal closes the connection."""
    with connect(portal.url) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return _read_to_end(connection)


def test_a_client_that_has_nothing_more_to_send(portal: PortalProcess) -> None:
    """It gets the whole answer, also one that is streamed."""
    with Client(base_url=portal.url, timeout=60) as client:
        link = client.upload_file("large", bytes(5 << 20))
    with connect(portal.url) as connection:
        connection.sendall(f"GET /{link} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        assert len(_read_to_end(connection)) > 5 << 20


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0(portal: PortalProcess, more: bytes) -> None:
    """The connection is closed, and the body is not chunked."""
    found = _talk(portal, b"GET /svc/portals HTTP/1.0\r\nHost: localhost\r\n" + more + b"\r\n")
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head.lower()
    assert body == b'{"portals":[]}\n'


def test_a_body_that_waits_to_be_asked_for(portal: PortalProcess) -> None:
    """With `Expect: 100-continue` the body is asked for once it is wanted."""
    with connect(portal.url) as connection:
        connection.sendall(_UPLOAD + b"Content-Length: 5\r\nExpect: 100-continue\r\n" + _CLOSE)
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hello")
        assert _read_to_end(connection).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_is_not_wanted(portal: PortalProcess) -> None:
    """It is not asked for, and the connection is closed: nobody knows whether it comes."""
    refused = b"POST /svc/portals HTTP/1.1\r\nHost: localhost\r\n"
    found = _talk(portal, refused + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 405 ")
    assert b"connection: close" in found.lower()


async def test_tiny_chunks_let_others_run() -> None:
    """A body of many chunks that arrived at once does not hold up other connections."""
    turns, size = 0, 0

    async def answer(request: Request) -> Response:
        nonlocal size
        while data := await request.body.receive():
            size += len(data)
        return Response(204)

    ours, connection = connected(answer)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    ours.sendall(_UPLOAD + b"Transfer-Encoding: chunked\r\n" + _CLOSE)
    ours.sendall(b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await connection.serve()
        nursery.cancel_scope.cancel()
    with ours:
        assert _read_to_end(ours).startswith(b"HTTP/1.1 204 ")
    assert size == 20_000
    assert turns > 100


def _refused_late(portal: PortalProcess, head: bytes, body: bytes) -> bytes:
    """Return the answer to a request whose body is sent whole, whatever comes back meanwhile."""
    with connect(portal.url) as connection:
        connection.sendall(head + body)
        return _read_to_end(connection)


def test_a_body_that_did_not_wait_to_be_asked_for(portal: PortalProcess) -> None:
    """The answer reaches a client that sends with `Expect: 100-continue` what nobody wants."""
    head = b"POST /svc/portals HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    head += b"Content-Length: 30000000\r\n\r\n"
    found = _refused_late(portal, head, bytes(30_000_000))
    assert found.startswith(b"HTTP/1.1 405 ")
    assert found.count(b"HTTP/1.1") == 1


def test_much_behind_a_broken_chunk(portal: PortalProcess) -> None:
    """The answer that says so reaches a client that goes on sending."""
    head = _UPLOAD + b"Transfer-Encoding: chunked\r\n\r\n"
    found = _refused_late(portal, head, b"1\r\na\r\nX\r\n" + bytes(30_000_000))
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"chunk" in found


async def test_a_request_that_has_arrived_is_answered() -> None:
    """A connection is not idle any more once bytes are there, though nothing has read them yet."""
    ours, connection = connected(Response(204))
    with ours:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.serve)
            await trio.testing.wait_all_tasks_blocked()
            ours.sendall(_PORTALS + b"\r\n")
            assert not connection.end_if_idle()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert ours.recv(1000).startswith(b"HTTP/1.1 204 ")
            assert connection.end_if_idle()
        assert ours.recv(1000) == b""

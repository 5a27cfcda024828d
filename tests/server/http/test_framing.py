"""Requests whose end is doubtful are refused, and no others."""

import socket
from contextlib import suppress
from urllib.parse import urlsplit

import h11
import pytest

from skymount.server.http.framing import StrictConnection
from tests.portal_process import PortalProcess

_BODY = b"5\r\nhello\r\n0\r\n\r\n"  # chunked
_AMBIGUOUS = {
    "length and chunked": (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", _BODY),
    "chunked and length": (b"Transfer-Encoding: chunked\r\nContent-Length: 20\r\n\r\n", _BODY),
    "no length and chunked": (b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n", _BODY),
    "two lengths": (b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", b"hello"),
    "two lengths in a line": (b"Content-Length: 5, 6\r\n\r\n", b"hello"),
    "a length with a sign": (b"Content-Length: +5\r\n\r\n", b"hello"),
    "a length in hex": (b"Content-Length: 0x5\r\n\r\n", b"hello"),
    "an empty length": (b"Content-Length:\r\n\r\n", b"hello"),
    "chunked, identity": (b"Transfer-Encoding: chunked, identity\r\n\r\n", _BODY),
    "identity": (b"Transfer-Encoding: identity\r\n\r\n", b""),
    "gzip": (b"Transfer-Encoding: gzip, chunked\r\n\r\n", _BODY),
    "nearly chunked": (b"Transfer-Encoding: xchunked\r\n\r\n", _BODY),
    "an empty coding": (b"Transfer-Encoding:\r\n\r\n", _BODY),
    "chunked by a tab": (b"Transfer-Encoding:\x0bchunked\r\n\r\n", _BODY),
    "chunked twice": (b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n", _BODY),
    "chunked twice in a line": (b"Transfer-Encoding: chunked, chunked\r\n\r\n", _BODY),
    "a folded line": (b"Transfer-Encoding:\r\n chunked\r\n\r\n", _BODY),
    "a folded line of another header": (b"A: b\r\n\tContent-Length: 5\r\n\r\n", b"hello"),
    "a blank before the colon": (b"Transfer-Encoding : chunked\r\n\r\n", _BODY),
    "a blank before the name": (b" Transfer-Encoding: chunked\r\n\r\n", _BODY),
    "LF at the end of a line": (b"A: b\nTransfer-Encoding: chunked\r\n\r\n", _BODY),
    "LF at the end of the head": (b"Transfer-Encoding: chunked\r\n\n", _BODY),
    "CR at the end of a line": (b"A: b\rTransfer-Encoding: chunked\r\n\r\n", _BODY),
    "NUL in a value": (b"A: b\0\r\nContent-Length: 5\r\n\r\n", b"hello"),
}
_AMBIGUOUS_BODIES = {
    "LF after a size": b"5\nhello\r\n0\r\n\r\n",
    "LF after a chunk": b"5\r\nhello\n0\r\n\r\n",
    "LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "CR in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "a size in another form": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "LF after the trailer": b"5\r\nhello\r\n0\r\n\n",
    "LF in the trailer": b"5\r\nhello\r\n0\r\na: b\n\r\n",
    "a folded line in the trailer": b"5\r\nhello\r\n0\r\na: b\r\n c\r\n\r\n",
    "a longer chunk": b"5\r\nhellohello\r\n0\r\n\r\n",
}
_CERTAIN = {
    "a length": (b"Content-Length: 5\r\n\r\n", b"hello"),
    "a length twice": (b"content-length: 5\r\nContent-Length: 5\r\n\r\n", b"hello"),
    "chunked": (b"Transfer-Encoding: Chunked\r\n\r\n", _BODY),
    "line ends in a chunk": (
        b"Transfer-Encoding:chunked \r\n\r\n",
        b"05;a=b\r\n\r\n\n \r\r\n0\r\nA: b\r\n\r\n",
    ),
    "two chunks": (
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"2\r\nhe\r\n3\r\n\n\r \r\n0\r\n\r\n",
    ),
    "line ends in a body": (b"Content-Length: 5\r\n\r\n", b"\n\r\r\n "),
    "no body": (b"Content-Length: 0\r\n\r\n", b""),
}
_SMUGGLED = b"GET /svc/stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def _head(version: str = "1.1") -> bytes:
    return (
        f"POST /svc/skyfile?filename=a&dryrun=1 HTTP/{version}\r\n"
        "Host: localhost\r\nContent-Type: a/b\r\n"
    ).encode()


_CHUNKED = _head() + b"Transfer-Encoding: chunked\r\n\r\n"
_DOUBTFUL = {
    **{name: _head() + head + body for name, (head, body) in _AMBIGUOUS.items()},
    **{name: _CHUNKED + body for name, body in _AMBIGUOUS_BODIES.items()},
    "HTTP/1.0": _head("1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + _BODY,
}


def _read(*pieces: bytes) -> int:
    """Feed one request in pieces; return the bytes of its body once it is whole."""
    connection, size = StrictConnection(64 << 10), 0
    for piece in pieces:
        connection.receive_data(piece)
        while (event := connection.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.EndOfMessage):
                return size
            size += len(event.data) if isinstance(event, h11.Data) else 0
    raise AssertionError("the request did not end")


@pytest.mark.parametrize("name", _DOUBTFUL)
def test_doubtful_ends(name: str) -> None:
    """400 wherever the request is cut on its way."""
    data = _DOUBTFUL[name]
    cuts = [(data[:at], data[at:]) for at in range(1, len(data))]
    for pieces in [(data,), *cuts, tuple(data[at : at + 1] for at in range(len(data)))]:
        with pytest.raises(h11.RemoteProtocolError) as refused:
            _read(*pieces)
        assert refused.value.error_status_hint == 400


@pytest.mark.parametrize("name", _CERTAIN)
def test_certain_ends(name: str) -> None:
    """Wherever the request is cut on its way; content may be anything."""
    head, body = _CERTAIN[name]
    data = _head() + head + body
    expected = 5 if body else 0
    assert _read(*(data[at : at + 1] for at in range(len(data)))) == expected
    for at in range(1, len(data)):
        assert _read(data[:at], data[at:]) == expected


def _answers(portal: PortalProcess, data: bytes) -> bytes:
    """Return all that comes back until the portal closes the connection."""
    parts, found = urlsplit(portal.url), bytearray()
    address = (parts.hostname, parts.port)
    with socket.create_connection(address, timeout=10) as connection, suppress(ConnectionError):
        connection.sendall(data)
        while piece := connection.recv(4096):
            found += piece
    return bytes(found)


@pytest.mark.parametrize("name", _DOUBTFUL)
def test_the_portal_refuses_doubtful_ends(portal: PortalProcess, name: str) -> None:
    """400 and the end of the connection (RFC 9112, 6.3): what comes next could be no request."""
    found = _answers(portal, _DOUBTFUL[name] + _SMUGGLED)
    assert found.startswith(b"HTTP/1.1 400 "), found
    assert found.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in found.lower()


@pytest.mark.parametrize("name", _CERTAIN)
def test_the_portal_answers_what_comes_behind_a_certain_end(
    portal: PortalProcess, name: str
) -> None:
    head, body = _CERTAIN[name]
    found = _answers(portal, _head() + head + body + _SMUGGLED)
    assert found.count(b"HTTP/1.1 200 ") == 2, found

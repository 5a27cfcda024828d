"""How the end of a response is said: by its length, by chunks, or by the end of the connection."""

import pytest

from skymount.server.http.framing import RequestHead, RequestReader
from skymount.server.http.response_framing import ResponseFraming


def _request(method: str = "GET", version: str = "1.1", *lines: str) -> RequestHead:
    reader = RequestReader(1000)
    head = "\r\n".join([f"{method} / HTTP/{version}", "Host: a", *lines, "\r\n"])
    reader.receive(head.encode())
    found = reader.next_head()
    assert found is not None
    return found


def _sent(request: RequestHead, status: int, *pieces: bytes, length: int | None = None) -> bytes:
    framing = ResponseFraming(request)
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    head = framing.head(status, [(b"a", b"b"), *headers])
    return head + b"".join(sent for piece in pieces for sent in framing.body(piece)) + framing.end()


_CHUNKED = b"HTTP/1.1 200 \r\na: b\r\ntransfer-encoding: chunked\r\n\r\n"
_SIZED = b"HTTP/1.1 200 \r\na: b\r\ncontent-length: 3\r\n\r\n"


def test_a_length() -> None:
    assert _sent(_request(), 200, b"ab", b"", b"c", length=3) == _SIZED + b"abc"


def test_chunks() -> None:
    """An empty piece is not sent: it would be the end."""
    assert _sent(_request(), 200, b"ab", b"", b"c") == _CHUNKED + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"


def test_head() -> None:
    """The same headers without a body."""
    assert _sent(_request("HEAD"), 200, b"abc", length=3) == _SIZED
    assert _sent(_request("HEAD"), 200, b"abc") == _CHUNKED


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body(status: int) -> None:
    assert _sent(_request(), status, b"abc") == b"HTTP/1.1 %d \r\na: b\r\n\r\n" % status


def test_http_1_0() -> None:
    """The connection ends, and with it the body."""
    head = b"HTTP/1.1 200 \r\na: b\r\nconnection: close\r\n\r\n"
    assert _sent(_request("GET", "1.0", "Connection: keep-alive"), 200, b"abc") == head + b"abc"


@pytest.mark.parametrize("value", ["close", "Keep-Alive, Close", "x\r\nConnection: close"])
def test_the_client_wants_the_connection_to_end(value: str) -> None:
    sent = _sent(_request("GET", "1.1", f"Connection: {value}"), 200, length=0)
    assert sent.endswith(b"\r\nconnection: close\r\n\r\n")


@pytest.mark.parametrize("pieces", [(b"ab",), (b"ab", b"cd"), ()])
def test_another_length_than_said(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="than its head says"):
        _sent(_request(), 200, *pieces, length=3)


@pytest.mark.parametrize("header", [(b"a", b"b\r\nc: d"), (b"a\n", b"b"), (b"a", b"b\0")])
def test_a_header_that_would_be_several(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="not the head of a response"):
        ResponseFraming(_request()).head(200, [header])

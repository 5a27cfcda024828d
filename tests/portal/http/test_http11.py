"""One HTTP connection on real sockets: framing of answers, buffers, and when it is used again."""

import ssl
from typing import Self

import httpx
import pytest
import trio
import trio.testing

from skymount.errors import BadContentError
from skymount.portal.http.client import HttpClient
from skymount.portal.http.http11 import HTTP11Connection
from skymount.portal.http.proxy import Route
from skymount.portal.http.response_head import LINES_LIMIT, SMALL_LIMIT
from skymount.settings import PortalOptions
from skymount.wire.http.requests import Request
from tests.fuzz.portal import no_tls
from tests.portal.conftest import Contexts
from tests.portal.http.scripted_server import (
    CHUNKED,
    HELLO,
    MUCH,
    Reply,
    fetched,
    serving,
    sized,
    talking,
)

CONTENT = Request("GET", "/", may_tell_metadata=True)


class Pieces:
    """A body of a request that comes by the piece. No generator: httpx does not close one."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = iter(pieces)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


async def ask(connection: HTTP11Connection, url: str, method: str = "GET") -> tuple[int, bytes]:
    """Send a request and return status and body."""
    response = await connection.handle(httpx.Request(method, url))
    body = b"".join([piece async for piece in response.stream])
    await response.aclose()
    return response.status_code, body


# --- framing


@pytest.mark.parametrize("answer", [HELLO, CHUNKED], ids=["sized", "chunked"])
async def test_split_anywhere(answer: bytes):
    """An answer may come in two pieces, wherever it is split; the connection stays the same."""
    replies = [Reply([answer[:at], answer[at:]]) for at in range(1, len(answer))]
    async with talking(*replies) as (server, transport):
        for _ in replies:
            assert await fetched(transport) == b"hello"
        assert server.accepted == 1


@pytest.mark.parametrize("answer", [HELLO, CHUNKED], ids=["sized", "chunked"])
async def test_byte_by_byte(answer: bytes):
    """An answer may come byte by byte."""
    async with talking(Reply([bytes([byte]) for byte in answer])) as (server, transport):
        assert await fetched(transport) == b"hello"
        assert await fetched(transport) == b"hello"
        assert server.accepted == 1


async def test_line_feeds_alone():
    """Lines may end in a line feed alone."""
    async with talking(HELLO.replace(b"\r\n", b"\n")) as (_, transport):
        assert await fetched(transport) == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED.replace(b"3\r\n", b"z\r\n"),
        CHUNKED.replace(b"\r\nlo", b"lo"),
        CHUNKED.replace(b"3\r\n", b"3;" + b"x" * 100_000),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        CHUNKED.replace(b"Transfer", b"Content-Length: 25\r\nTransfer"),
        CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"\x16\x03\x01",
        b"\r\n" + HELLO,
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
    ],
)
async def test_no_http(answer: bytes):
    """What is not HTTP is the portal's fault, and is known at once."""
    async with talking(answer, timeout=60) as (_, transport):
        with trio.fail_after(10), pytest.raises(BadContentError):
            await fetched(transport)


@pytest.mark.parametrize("answer", [CHUNKED[:-5], HELLO[:-1], HELLO[:20], b""])
async def test_too_short(answer: bytes):
    """An answer that breaks off is an error, in its head and in its body."""
    async with talking(Reply([answer], close=True)) as (_, transport):
        with pytest.raises(BadContentError):
            await fetched(transport)


async def test_continue_and_hints():
    """What a server says before its answer is skipped."""
    before = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    replies = [
        Reply([before + HELLO]),
        Reply([before, HELLO]),
        Reply([before[:30], before[30:], HELLO]),
    ]
    async with talking(*replies) as (server, transport):
        for _ in replies:
            assert await fetched(transport) == b"hello"
        assert server.accepted == 1


async def test_bodiless():
    """HEAD, 204 and 304 have no body, whatever their headers say."""
    replies = [
        sized(b"", length=1000),
        b"HTTP/1.1 204 No Content\r\nContent-Length: 10\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
        HELLO,
    ]
    async with serving(*replies) as server:
        connection = HTTP11Connection(no_tls, 60)
        assert await ask(connection, server.url, "HEAD") == (200, b"")
        assert await ask(connection, server.url) == (204, b"")
        assert await ask(connection, server.url) == (304, b"")
        assert await ask(connection, server.url) == (200, b"hello")
        assert server.accepted == 1
        await connection.aclose()


# --- bounds


async def test_large_header():
    """C14: a head with metadata may be far larger than what is received at once."""
    large = b"X-Large: %s\r\n" % (b"x" * 3_000_000)
    async with talking(sized(b"hello", more=large)) as (server, transport):
        answer = await transport.fetch(CONTENT, 10)
        assert answer.headers["x-large"] == "x" * 3_000_000
        assert answer.body == b"hello"
        assert await fetched(transport, CONTENT) == b"hello"
        assert server.accepted == 1


async def test_large_header_of_anything_else():
    """C14: where no metadata can be, a head has a far smaller bound."""
    for size, good in ((SMALL_LIMIT - 100, True), (SMALL_LIMIT, False)):
        large = b"X-Large: %s\r\n" % (b"x" * size)
        async with talking(sized(b"hello", more=large)) as (_, transport):
            assert await fetched(transport, CONTENT) == b"hello"
            if good:
                assert await fetched(transport) == b"hello"
            else:
                with pytest.raises(BadContentError, match="of headers"):
                    await fetched(transport)


async def test_large_header_of_an_error():
    """A long header of what is no success is of no use, and is not kept."""
    large = b"Location: /%s\r\nX-Large: %s\r\n" % (b"x" * 20_000, b"x" * 3_000_000)
    async with serving(sized(b"hello", more=large).replace(b"200 OK", b"302 Found")) as server:
        connection = HTTP11Connection(no_tls, 60)
        extensions = {"head_limit": 4 << 20}
        response = await connection.handle(httpx.Request("GET", server.url, extensions=extensions))
        assert [name for name, _ in response.headers.raw] == [b"content-length"]
        await response.aclose()
        await connection.aclose()


@pytest.mark.parametrize(("lines", "good"), [(LINES_LIMIT - 2, True), (LINES_LIMIT - 1, False)])
async def test_lines_of_a_head(lines: int, good: bool):
    """C14: so many lines and not one more, also when they come one by one."""
    answer = sized(b"hello", more=b"a: b\r\n" * lines)
    pieces = [line + b"\n" for line in answer.split(b"\n")[:-1]] + [b"hello"]
    for sent in (Reply([answer]), Reply(pieces)):
        async with talking(sent) as (_, transport):
            if good:
                assert await fetched(transport) == b"hello"
            else:
                with pytest.raises(BadContentError, match="header lines"):
                    await fetched(transport)


async def test_hints_without_end():
    """C14: what goes before the answer counts too."""
    async with talking(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000) as (_, transport):
        with pytest.raises(BadContentError, match="header lines"):
            await fetched(transport)


# --- used again


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("junk", [b"x", HELLO, MUCH])
async def test_junk_after_the_body(junk: bytes, late: bool):
    """What follows an answer is nobody's, and the next request gets another connection."""
    pieces = [HELLO, junk] if late else [HELLO + junk]
    async with talking(Reply(pieces), sized(b"second")) as (server, transport):
        assert await fetched(transport) == b"hello"
        await trio.testing.wait_all_tasks_blocked()
        assert await fetched(transport) == b"second"
        assert server.accepted == 2


async def test_junk_after_chunks():
    """The same after a body in chunks."""
    async with talking(CHUNKED + HELLO, sized(b"second")) as (server, transport):
        assert await fetched(transport) == b"hello"
        assert await fetched(transport) == b"second"
        assert server.accepted == 2


@pytest.mark.parametrize(
    "answer", [HELLO.replace(b"1.1", b"1.0"), sized(b"hello", more=b"Connection: close\r\n")]
)
async def test_not_kept(answer: bytes):
    """A server that says that it closes the connection is not asked on it again."""
    async with talking(answer) as (server, transport):
        for _ in range(2):
            assert await fetched(transport) == b"hello"
        assert server.accepted == 2


async def test_closed_while_idle():
    """A connection that the server closed meanwhile is not used: the request does not fail."""
    async with talking(Reply([HELLO], close=True)) as (server, transport):
        for number in range(1, 4):
            assert await fetched(transport) == b"hello"
            while server.closed < number:
                await trio.testing.wait_all_tasks_blocked()
        assert server.accepted == 3


async def test_idle_for_too_long():
    """A connection that was idle for too long is closed and another one made."""
    async with serving(HELLO) as server:
        connection = HTTP11Connection(no_tls, -1)
        for _ in range(2):
            assert await ask(connection, server.url) == (200, b"hello")
        assert server.accepted == 2
        await connection.aclose()


async def test_another_origin():
    """A connection is to one origin at a time."""
    async with serving(HELLO) as one, serving(sized(b"other")) as other:
        connection = HTTP11Connection(no_tls, 60)
        assert await ask(connection, one.url) == (200, b"hello")
        assert await ask(connection, other.url) == (200, b"other")
        assert await ask(connection, one.url) == (200, b"hello")
        assert (one.accepted, other.accepted) == (2, 1)
        await connection.aclose()


async def test_redirect_on_the_same_connection():
    """A redirect whose body came along is followed on the same connection, without cookies."""
    redirect = (
        b"HTTP/1.1 302 Found\r\nLocation: /b\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nno"
    )
    async with talking(redirect, HELLO) as (server, transport):
        assert await fetched(transport) == b"hello"
        assert server.accepted == 1
        assert server.received[1].startswith(b"GET /b HTTP/1.1\r\n")
        assert b"cookie" not in server.received[1].lower()


# --- requests


async def test_refused_upload():
    """The answer to an upload comes through though the server does not take the upload."""
    refusal = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 5\r\n\r\nlarge"
    async with serving(Reply([refusal], close=True, takes_body=False)) as server:
        connection = HTTP11Connection(no_tls, 60)

        for content in (Pieces(*[MUCH] * 100), MUCH * 100):
            request = httpx.Request("POST", server.url, content=content)
            response = await connection.handle(request)
            assert response.status_code == 413
            await response.aclose()
        assert server.accepted == 2
        await connection.aclose()


async def test_body_of_a_request():
    """A body goes with its head or after it, as a whole or by the piece, with or without length."""

    async with serving(HELLO) as server:
        connection = HTTP11Connection(no_tls, 60)
        for content, headers in [
            (b"hello", {}),
            (MUCH, {}),
            (Pieces(b"hel", b"", b"lo"), {"Content-Length": "5"}),
            (Pieces(b"hel", b"", b"lo"), {}),
        ]:
            request = httpx.Request("POST", server.url, content=content, headers=headers)
            response = await connection.handle(request)
            assert [piece async for piece in response.stream] == [b"hello"]
            await response.aclose()
        whole, large, counted, chunked = (x.partition(b"\r\n\r\n")[2] for x in server.received)
        assert (whole, large, counted) == (b"hello", MUCH, b"hello")
        assert b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n".startswith(chunked)
        await connection.aclose()


async def test_body_that_is_not_as_declared():
    """A body of another length than its header says fails, and costs the connection."""
    async with serving(HELLO) as server:
        connection = HTTP11Connection(no_tls, 60)
        for length in ("4", "6"):
            headers = {"Content-Length": length}
            request = httpx.Request("POST", server.url, content=Pieces(b"hello"), headers=headers)
            with pytest.raises(httpx.LocalProtocolError):
                await connection.handle(request)
        assert await ask(connection, server.url) == (200, b"hello")
        await connection.aclose()


# --- connecting


async def test_ipv6():
    """An address may be an IPv6 one."""
    async with serving(HELLO, host="::1") as server:
        transport = HttpClient(server.url, PortalOptions.parse(server.url))
        assert await fetched(transport) == b"hello"
        assert b"\r\nHost: [::1]:" in server.received[0]
        await transport.aclose()


async def test_closed_while_connecting(contexts: Contexts):
    """C13: closing ends what is being connected."""

    async def connect() -> None:
        with pytest.raises(httpx.ConnectError):
            await connection.connect(Route.of(httpx.URL(f"https://127.0.0.1:{port}")), 60)

    connection = HTTP11Connection(contexts.trusted, 60)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    with trio.fail_after(20):
        async with listeners[0], trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            silent = await listeners[0].accept()
            assert await silent.receive_some()
            await connection.aclose()
            await silent.aclose()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "unix:///x"])
async def test_no_such_protocol(url: str):
    """There is HTTP and HTTPS, nothing else."""
    with pytest.raises(httpx.UnsupportedProtocol):
        await ask(HTTP11Connection(no_tls, 60), url)


# --- TLS


async def test_tls(contexts: Contexts):
    """Over TLS answers are read and connections kept as without, also one made ahead."""

    async with serving(HELLO, sized(MUCH), CHUNKED, tls=contexts.server) as server:
        connection = HTTP11Connection(contexts.trusted, 60)
        await connection.connect(Route.of(httpx.URL(server.url)), 5)
        await trio.testing.wait_all_tasks_blocked()
        assert await ask(connection, server.url) == (200, b"hello")
        response = await connection.handle(httpx.Request("GET", server.url))
        found, view = 0, memoryview(bytearray(len(MUCH)))
        while received := await response.extensions["body"].receive_into(view[found:]):
            found += received
        await response.aclose()
        assert bytes(view) == MUCH
        assert await ask(connection, server.url) == (200, b"hello")
        assert server.accepted == 1
        await connection.aclose()


async def test_tls_that_is_closed_while_idle(contexts: Contexts):
    """Over TLS too a connection that the server closed meanwhile is not used."""
    async with serving(Reply([HELLO], close=True), tls=contexts.server) as server:
        connection = HTTP11Connection(contexts.trusted, 60)
        for number in range(1, 3):
            assert await ask(connection, server.url) == (200, b"hello")
            while server.closed < number:
                await trio.testing.wait_all_tasks_blocked()
        assert server.accepted == 2
        await connection.aclose()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("junk", [b"x", HELLO, MUCH])
async def test_tls_junk_after_the_answer(contexts: Contexts, method: str, junk: bytes):
    """Over TLS too what follows an answer is nobody's, also what was decrypted with it or waits
    for that: this is where trio's own names for it are needed.
    """
    first = HELLO if method == "GET" else sized(b"", length=len(junk))
    replies = [Reply([first + junk]), Reply([first, junk]), Reply([sized(b"second")])]
    async with serving(*replies, tls=contexts.server, corked=True) as server:
        connection = HTTP11Connection(contexts.trusted, 60)
        for number in range(1, 3):
            assert (await ask(connection, server.url, method))[0] == 200
            await trio.testing.wait_all_tasks_blocked()
            assert server.accepted == number
        assert await ask(connection, server.url) == (200, b"second")
        assert server.accepted == 3
        await connection.aclose()


async def test_tls_of_another(contexts: Contexts):
    """A certificate that nobody vouches for is not accepted, and the error says why."""

    async def tls() -> ssl.SSLContext:
        return ssl.create_default_context()

    async with serving(HELLO, tls=contexts.server) as server:
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await ask(HTTP11Connection(tls, 60), server.url)

"""Bodies of answers: their ends, what is left of them, and how they fill buffers."""

import httpx
import pytest
import trio
import trio.testing

from skymount.errors import BadContentError, PortalTimeoutError
from skymount.portal.http.client import HttpClient
from skymount.portal.http.http11 import HTTP11Connection
from skymount.portal.http.response_body import Body
from skymount.settings import PortalOptions
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, running
from tests.fuzz.portal import no_tls
from tests.portal.http.scripted_server import (
    CHUNKED,
    ENDLESS,
    GET,
    HELLO,
    MUCH,
    Reply,
    fetched,
    filled,
    opened,
    serving,
    sized,
    talking,
)


async def test_body_until_the_end_of_the_connection():
    """A body without a length ends with the connection, which is not used again."""
    async with talking(Reply([ENDLESS, MUCH], close=True)) as (server, transport):
        for _ in range(2):
            assert await fetched(transport) == b"hello" + MUCH
        assert server.accepted == 2


async def test_chunks_of_many_lines():
    """What is in chunks may hold as many line feeds as it likes."""
    lines = b"\n" * 70_000
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [lines, MUCH, lines, b"x"])
    answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nA: b\r\n\r\n"
    )
    async with talking(answer) as (server, transport):
        for _ in range(2):
            assert await fetched(transport) == lines + MUCH + lines + b"x"
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("size", "count", "good"), [(1, 1000, True), (1, 1010, False), (256, 4000, True)]
)
async def test_tiny_chunks(size: int, count: int, good: bool):
    """C14: a body is not taken in crumbs, each of which costs as much as a piece."""
    chunks = b"%x\r\n%s\r\n" % (size, b"x" * size) * count
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % chunks
    async with talking(answer) as (_, transport):
        if good:
            assert await fetched(transport) == b"x" * (count * size)
        else:
            with pytest.raises(BadContentError, match="small chunks"):
                await fetched(transport)


async def test_body_that_is_not_read():
    """What is left of a body costs the connection, unless it has arrived already."""
    async with talking(HELLO, HELLO, sized(MUCH), HELLO) as (server, transport):
        for _ in range(3):
            async with transport.open(GET):
                pass
        assert server.accepted == 1
        assert await fetched(transport) == b"hello"
        assert server.accepted == 2


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: 150"])
async def test_body_of_which_more_comes(framing: bytes):
    """What comes of a body after its reader has left is never taken for the next answer."""
    beginning = b"HTTP/1.1 200 OK\r\n%s\r\n\r\n96\r\nhel" % framing
    more = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"
    async with talking(Reply([beginning, more]), HELLO) as (server, transport):
        async with transport.open(GET) as answer:
            assert await answer.receive()
        assert await fetched(transport) == b"hello"
        assert server.accepted == 2


async def test_closed_answer():
    """An answer that was closed is not read from: the connection may be another's by now."""
    async with serving(sized(MUCH)) as server:
        connection = HTTP11Connection(no_tls, 60)
        response = await connection.handle(httpx.Request("GET", server.url))
        body: Body = response.extensions["body"]
        await response.aclose()
        with pytest.raises(httpx.StreamClosed):
            await body.receive()
        with pytest.raises(httpx.StreamClosed):
            await body.receive_into(memoryview(bytearray(1)))
        await connection.aclose()


@pytest.mark.parametrize("split", [1, 50, 100_000, 300_000])
async def test_fill(split: int):
    """A body fills buffers of any size one after another, however it comes."""
    answer = sized(MUCH)
    pieces = [answer[:split], answer[split:]]
    async with talking(Reply(pieces)) as (server, transport):
        for sizes in ([300_000], [1, 65_536, 7, 200_000, 34_456], [100_000] * 3):
            async with transport.open(GET) as answer_:
                found = [await filled(transport, answer_, size) for size in sizes]
                await answer_.finish()
            assert b"".join(found) == MUCH
        assert server.accepted == 1


async def test_fill_from_chunks():
    """A body without a length does so too."""
    async with talking(CHUNKED) as (server, transport):
        for _ in range(2):
            async with transport.open(GET) as answer:
                assert await filled(transport, answer, 4) == b"hell"
                assert await filled(transport, answer, 1) == b"o"
                await answer.finish()
        assert server.accepted == 1


@pytest.mark.parametrize("answer", [sized(b"hell"), HELLO[:-1], CHUNKED[:-13]])
async def test_fill_with_too_little(answer: bytes):
    """A body that ends before its buffer is full is an error, there and then."""
    async with opened(Reply([answer], close=True)) as (transport, body):
        with pytest.raises(BadContentError):
            await filled(transport, body, 5)


@pytest.mark.parametrize("answer", [sized(b"hello!"), CHUNKED, ENDLESS + b"!"])
async def test_something_follows(answer: bytes):
    """A body that goes on after its last buffer is an error."""
    async with opened(Reply([answer], close=True)) as (transport, body):
        assert await filled(transport, body, 4) == b"hell"
        with pytest.raises(BadContentError, match="more bytes"):
            await body.finish()


async def test_silence_in_a_buffer():
    """A body that stops coming is given up after the time-out."""
    async with opened(HELLO[:-1], timeout=0.1) as (transport, body):
        with pytest.raises(PortalTimeoutError):
            await filled(transport, body, 5)


async def test_drip_into_a_buffer():
    """A body that drips is given up when silence would be."""
    async with running(FakePortal()) as portal:
        portal.fault(lambda *_: fake.Reply(200, (), MUCH, drip=(1, 0.01)))
        transport = HttpClient(portal.url, PortalOptions.parse(portal.url, timeout=0.2))
        async with transport.open(GET) as body:
            with pytest.raises(PortalTimeoutError, match="only"):
                await filled(transport, body, len(MUCH))
        await transport.aclose()


async def test_cancelled_in_a_buffer():
    """A buffer may be given up in the middle; the next request works, on a connection anew."""
    async with talking(sized(b"hell", length=5), HELLO) as (server, transport):
        with trio.CancelScope() as scope:
            async with transport.open(GET) as opened, trio.open_nursery() as nursery:
                nursery.start_soon(filled, transport, opened, 5)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        assert await fetched(transport) == b"hello"
        assert server.accepted == 2

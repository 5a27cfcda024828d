"""The HTTP server for Prometheus, on real sockets."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from skymount.daemon.metrics_server import serve

TEXT = b"skymount_open_files 1\n"


@asynccontextmanager
async def serving(caplog: pytest.LogCaptureFixture) -> AsyncIterator[int]:
    """Run the server; yields its port."""
    caplog.set_level(logging.INFO)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "127.0.0.1:0", lambda: TEXT)
        with trio.fail_after(60):
            while not (said := re.search(r"http://127\.0\.0\.1:(\d+)/metrics", caplog.text)):
                await trio.sleep(0.01)
            yield int(said[1])
        nursery.cancel_scope.cancel()


async def ask(port: int, request: bytes) -> bytes:
    """Send something; return all that comes."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    found = b""
    async with stream:
        try:
            await stream.send_all(request)
            async for piece in stream:
                found += piece
        except trio.BrokenResourceError:
            pass
    return found


async def test_what_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """E6: GET and HEAD of /metrics, for names of this machine alone."""
    async with serving(caplog) as port:
        host = b"Host: 127.0.0.1:%d\r\n\r\n" % port
        answer = await ask(port, b"GET /metrics HTTP/1.1\r\n" + host)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
        assert body == TEXT
        head, _, body = (await ask(port, b"HEAD /metrics HTTP/1.1\r\n" + host)).partition(
            b"\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert body == b""
        for request, status in (
            (b"GET /metrics?name=x HTTP/1.1\r\n" + host, b"200"),
            (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
            (b"GET /metrics HTTP/1.1\r\nHost: [::1]:9\r\n\r\n", b"200"),
            (b"GET /other HTTP/1.1\r\n" + host, b"404"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n" + host, b"405"),
            (b"GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n", b"403"),
            (b"GET /metrics HTTP/1.1\r\nHost: [\r\n\r\n", b"403"),
            (b"GET /metrics HTTP/1.0\r\n\r\n", b"403"),
            (b"nonsense\r\n\r\n", b"400"),
            (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 3000, b"431"),
        ):
            answer = await ask(port, request)
            assert answer.startswith(b"HTTP/1.1 " + status), (request[:60], answer[:60])


async def test_clients_that_hang(caplog: pytest.LogCaptureFixture) -> None:
    """E6: They take no more than eight places, and go after a while; the rest is closed at once."""
    async with serving(caplog) as port:
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(8)]
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert await ask(port, request) == b""
        for each in silent:
            assert await each.receive_some() == b""
            await each.aclose()
        assert TEXT in await ask(port, request)


async def test_a_client_that_goes(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(caplog) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /met")
        await stream.aclose()
        assert TEXT in await ask(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def test_a_port_that_is_taken() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        await serve(f"127.0.0.1:{port}", lambda: TEXT)
    for each in listeners:
        await each.aclose()

"""A server that sends what it is told, byte by byte, and clients of it."""

import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing

from skymount.portal.http.client import HttpClient
from skymount.portal.http.response import StreamingResponse
from skymount.settings import PortalOptions
from skymount.wire.http.requests import Request
from tests.fakes.skyfiles import noise

GET = Request("GET", "/")
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
)
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\nhello"
MUCH = noise(300_000)


@dataclass(frozen=True, slots=True)
class Reply:
    """What is sent for one request, piece by piece: each once the one before has been received."""

    pieces: Sequence[bytes]
    close: bool = False
    takes_body: bool = True


@dataclass(slots=True)
class Server:
    """Answers requests with what it was told, the last reply again and again."""

    replies: list[Reply]
    url: str = ""
    accepted: int = 0
    closed: int = 0
    received: list[bytes] = field(default_factory=list)

    async def talk(self, stream: trio.abc.Stream) -> None:
        self.accepted += 1
        try:
            while await self._answer(stream):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.closed += 1
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.abc.Stream) -> bool:
        reply = self.replies[0] if len(self.replies) == 1 else self.replies.pop(0)
        request = b""
        while not self._is_whole(request, reply):
            data = await stream.receive_some(65536)
            if not data:
                self.replies.insert(0, reply)
                return False
            request += data
        self.received.append(request)
        for piece in reply.pieces:
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        return not reply.close

    @staticmethod
    def _is_whole(request: bytes, reply: Reply) -> bool:
        head, blank, body = request.partition(b"\r\n\r\n")
        if not blank or not reply.takes_body:
            return bool(blank)
        found = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        return len(body) >= (int(found[0].partition(b":")[2]) if found else 0)


@asynccontextmanager
async def serving(
    *replies: Reply | bytes,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    corked: bool = False,
) -> AsyncIterator[Server]:
    """Run a server; it ends with the block. If corked, the kernel sends pieces as one packet."""
    server = Server([x if isinstance(x, Reply) else Reply([x]) for x in replies])
    listeners = await trio.open_tcp_listeners(0, host=host)
    port = listeners[0].socket.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    server.url = f"http{'s' if tls else ''}://{shown}:{port}"

    async def talk(stream: trio.SocketStream) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, corked)
        if tls is None:
            await server.talk(stream)
        else:
            secure = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
            await server.talk(secure)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        yield server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def talking(
    *replies: Reply | bytes, timeout: float = 5
) -> AsyncIterator[tuple[Server, HttpClient]]:
    """Run a server, and a client of it that repeats nothing."""
    async with serving(*replies) as server:
        options = PortalOptions.parse(server.url, retries=0, timeout=timeout)
        transport = HttpClient(server.url, options)
        yield server, transport
        await transport.aclose()


@asynccontextmanager
async def opened(
    reply: Reply | bytes, timeout: float = 5
) -> AsyncIterator[tuple[HttpClient, StreamingResponse]]:
    async with talking(reply, timeout=timeout) as (_, transport), transport.open(GET) as answer:
        yield transport, answer


async def fetched(transport: HttpClient, request: Request = GET) -> bytes:
    return (await transport.fetch(request, 1 << 20)).body


async def filled(transport: HttpClient, answer: StreamingResponse, size: int) -> bytes:
    view = memoryview(bytearray(size))
    await answer.fill_next(view)
    return bytes(view)


def sized(body: bytes, *, length: int | None = None, more: bytes = b"") -> bytes:
    declared = len(body) if length is None else length
    return b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (more, declared, body)


async def no_tls() -> ssl.SSLContext:
    raise AssertionError("not asked for")

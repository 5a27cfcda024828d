"""What comes over a plain TCP stream: into a buffer, much at a time where it comes fast."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skymount.portal.http.stream import Link, open_link

MIB = 1 << 20
TIMEOUT = 30.0


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, trio.SocketStream]]:
    """Connect; yields our end and the server's."""
    accepted: list[trio.SocketStream] = []
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    link = await open_link("127.0.0.1", port, None, TIMEOUT)
    accepted.append(await listener.accept())
    await listener.aclose()
    async with accepted[0]:
        try:
            yield link, accepted[0]
        finally:
            link.close()


async def fill(link: Link, view: memoryview) -> int:
    """Receive until a buffer is full; return how often that took."""
    count = 0
    while view:
        received = await link.receive_into(view, TIMEOUT)
        assert received
        view = view[received:]
        count += 1
    return count


def pattern(size: int) -> bytes:
    """Return bytes of which no two stretches are alike."""
    return b"".join(n.to_bytes(4, "big") for n in range(size // 4))


@pytest.mark.parametrize("piece", [MIB, 64 << 10, 1000])
async def test_every_byte_whatever_the_pieces(piece: int):
    """R1: What is sent is what is received, whatever the pieces it is sent in."""
    sent, found = pattern(4 * MIB), bytearray(4 * MIB)
    async with linked() as (link, server), trio.open_nursery() as nursery:

        async def send() -> None:
            for at in range(0, len(sent), piece):
                await server.send_all(sent[at : at + piece])

        nursery.start_soon(send)
        for at in range(0, len(found), MIB):
            await fill(link, memoryview(found)[at : at + MIB])
    assert found == sent


async def test_much_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """R5: What comes in small pieces, but fast, is received in large ones."""
    monkeypatch.setattr("skymount.portal.http.stream._GATHERING", TIMEOUT)
    found = bytearray(MIB)
    async with linked() as (link, server):
        await server.send_all(bytes(10))
        assert await link.receive_into(memoryview(found), TIMEOUT) == 10
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for _ in range(16):
                    await server.send_all(bytes(16 << 10))
                    await wait_all_tasks_blocked()

            nursery.start_soon(send)
            assert await link.receive_into(memoryview(found)[10:], TIMEOUT) == 256 << 10


async def test_little_is_not_waited_for():
    """R2: A server that sends little and then waits is heard all the same, each time."""
    found = bytearray(MIB)
    async with linked() as (link, server):
        for _ in range(3):
            await server.send_all(b"little")
            assert await link.receive_into(memoryview(found), TIMEOUT) == 6
        await server.send_all(b"answer")
        assert await link.receive(MIB, TIMEOUT) == b"answer"
        with pytest.raises(httpx.ReadTimeout):
            await link.receive_into(memoryview(found), 0.01)


async def test_what_comes_unasked_is_seen():
    """After a body of which much was waited for a single byte is noticed."""
    found = bytearray(MIB)
    async with linked() as (link, server):
        for _ in range(2):  # the second one is waited for
            await server.send_all(bytes(20_000))
            assert await link.receive_into(memoryview(found), TIMEOUT) == 20_000
        assert link.is_quiet()
        await server.send_all(b"!")
        await _arrived(link)
        assert not link.is_quiet()


async def _arrived(link: Link) -> None:
    """Wait until there is something to receive."""
    stream = link._socket  # type: ignore[attr-defined]
    assert isinstance(stream, socket.socket)
    await trio.lowlevel.wait_readable(stream)


@pytest.mark.parametrize("by_server", [True, False])
async def test_end_while_much_is_waited_for(by_server: bool):
    """R1, R3: The end of the stream, or of our use of it, ends the wait at once."""
    found = bytearray(MIB)
    async with linked() as (link, server):
        await server.send_all(b"half")
        assert await link.receive_into(memoryview(found), TIMEOUT) == 4
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                if by_server:
                    assert await link.receive_into(memoryview(found), TIMEOUT) == 0
                else:
                    with pytest.raises(httpx.ReadError):
                        await link.receive_into(memoryview(found), TIMEOUT)

            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            if by_server:
                await server.aclose()
            else:
                link.close()

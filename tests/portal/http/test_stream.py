"""A TCP stream, with TLS or without, and which certificates are trusted."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skymount.errors import UnavailableError
from skymount.portal.client.client import PortalClient
from skymount.portal.http.stream import SocketStream
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, running
from tests.portal.conftest import Contexts
from tests.portal.redirect_space import Names

MIB = 1 << 20
TIMEOUT = 30.0
CONTENT = skyfiles.of_files({"f": b"content"})


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest, contexts: Contexts) -> Contexts | None:
    return contexts if request.param else None


@asynccontextmanager
async def connected(
    tls: Contexts | None, gathering: float = 0.02
) -> AsyncIterator[tuple[SocketStream, trio.abc.Stream]]:
    """Connect; yields our end and the server's."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    opened = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    server: trio.abc.Stream = await listener.accept()
    await listener.aclose()
    stream = SocketStream(socket.socket(fileno=opened.socket.detach()), gathering)
    if tls is not None:
        server = trio.SSLStream(server, tls.server, server_side=True, https_compatible=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.do_handshake)
            await stream.start_tls(tls.client, "localhost")
    try:
        async with server:
            yield stream, server
    finally:
        stream.close()


async def fill(stream: SocketStream, view: memoryview) -> int:
    """Receive until a buffer is full; return how often that took."""
    count = 0
    while view:
        received = await stream.receive_into(view, TIMEOUT)
        assert received
        view = view[received:]
        count += 1
    return count


def pattern(size: int) -> bytes:
    """Return bytes of which no two stretches are alike."""
    return b"".join(n.to_bytes(4, "big") for n in range(size // 4))


@pytest.mark.parametrize("piece", [MIB, 64 << 10, 1000])
async def test_every_byte_whatever_the_pieces(piece: int, tls: Contexts | None):
    """R1: What is sent is what is received, whatever the pieces it is sent in."""
    sent, found = pattern(4 * MIB), bytearray(4 * MIB)
    async with connected(tls) as (stream, server), trio.open_nursery() as nursery:

        async def send() -> None:
            for at in range(0, len(sent), piece):
                await server.send_all(sent[at : at + piece])

        nursery.start_soon(send)
        for at in range(0, len(found), MIB):
            await fill(stream, memoryview(found)[at : at + MIB])
    assert found == sent


async def test_much_at_a_time(tls: Contexts | None):
    """R5: What comes in small pieces, but fast, is received in large ones."""
    found = bytearray(MIB)
    async with connected(tls, gathering=TIMEOUT) as (stream, server):
        await server.send_all(bytes(10))
        assert await stream.receive_into(memoryview(found), TIMEOUT) == 10
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for _ in range(16):
                    await server.send_all(bytes(16 << 10))
                    await wait_all_tasks_blocked()

            nursery.start_soon(send)
            assert await stream.receive_into(memoryview(found)[10:], TIMEOUT) == 256 << 10


async def test_what_the_other_side_takes_is_seen(tls: Contexts | None):
    """Of what the kernel has already."""
    async with connected(tls) as (stream, server), trio.open_nursery() as nursery:
        assert stream.sent()[0] == 0
        nursery.start_soon(stream.send, bytes(32 * MIB), None)
        await wait_all_tasks_blocked(0.1)
        given, queued = stream.sent()
        assert queued
        with trio.fail_after(TIMEOUT):
            while stream.sent() == (given, queued):
                await server.receive_some(MIB)
        nursery.cancel_scope.cancel()
    assert stream.sent()[1] == 0  # as it is closed


async def test_little_is_not_waited_for(tls: Contexts | None):
    """R2: A server that sends little and then waits is heard all the same, each time."""
    found = bytearray(MIB)
    async with connected(tls) as (stream, server):
        for _ in range(3):
            await server.send_all(b"little")
            assert await stream.receive_into(memoryview(found), TIMEOUT) == 6
        await server.send_all(b"answer")
        assert await stream.receive(MIB, TIMEOUT) == b"answer"
        with pytest.raises(httpx.ReadTimeout):
            await stream.receive_into(memoryview(found), 0.01)


async def test_what_comes_unasked_is_seen(tls: Contexts | None):
    """After a body of which much was waited for a single byte is noticed."""
    found = bytearray(MIB)
    async with connected(tls) as (stream, server):
        for _ in range(2):  # the second one is waited for
            await server.send_all(bytes(20_000))
            assert await stream.receive_into(memoryview(found), TIMEOUT) == 20_000
        assert stream.is_quiet()
        await server.send_all(b"!")
        with trio.fail_after(TIMEOUT):
            while stream.is_quiet():
                await trio.sleep(0.001)


@pytest.mark.parametrize("by_server", [True, False])
async def test_end_while_much_is_waited_for(by_server: bool, tls: Contexts | None):
    """R1, R3: The end of the stream, or of our use of it, ends the wait at once."""
    found = bytearray(MIB)
    async with connected(tls) as (stream, server):
        await server.send_all(b"half")
        assert await stream.receive_into(memoryview(found), TIMEOUT) == 4
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                if by_server:
                    assert await stream.receive_into(memoryview(found), TIMEOUT) == 0
                else:
                    with pytest.raises(httpx.ReadError):
                        await stream.receive_into(memoryview(found), TIMEOUT)

            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            if by_server:
                await server.aclose()
            else:
                stream.close()


# --- certificates


@pytest.fixture
def authority(tmp_path: Path, contexts: Contexts) -> str:
    """Return a file with the certificate of the authority that the tests' servers have."""
    path = tmp_path / "authority.pem"
    path.write_bytes(contexts.authority)
    return str(path)


@pytest.mark.parametrize("named_by", ["option", "environment"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_trusted_authority(
    contexts: Contexts, authority: str, named_by: str, host: str, monkeypatch: pytest.MonkeyPatch
):
    """C17: an authority of the option `ca_file` or of SSL_CERT_FILE is trusted, here as well."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if named_by == "environment":
        monkeypatch.setenv("SSL_CERT_FILE", authority)
    options = {"ca_file": authority} if named_by == "option" else {}
    async with running(FakePortal(tls=contexts.server)) as portal:
        portal.add(CONTENT)
        async with PortalClient(f"https://{host}:{portal.port}", retries=0, **options) as client:
            assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata


async def test_unknown_authority(contexts: Contexts):
    """C17: the error of a certificate that cannot be verified says what to do."""
    async with running(FakePortal(tls=contexts.server)) as portal:
        async with PortalClient(f"https://localhost:{portal.port}", retries=0) as client:
            with pytest.raises(UnavailableError) as caught:
                await client.raw_metadata(CONTENT.skylink)
        assert portal.requests == []
    assert "the certificate of localhost is not valid" in caught.value.message
    assert "ca_file or SSL_CERT_FILE" in caught.value.advice


async def test_certificate_of_another_host(contexts: Contexts, authority: str):
    """C17: a certificate is for its host alone, whoever signed it."""
    async with running(FakePortal(tls=contexts.server)) as portal:
        trio.socket.set_custom_hostname_resolver(Names({"other.example": ["127.0.0.1"] * 9}))
        url = f"https://other.example:{portal.port}"
        async with PortalClient(url, retries=0, ca_file=authority) as client:
            with pytest.raises(UnavailableError, match=r"not valid for 'other\.example'"):
                await client.raw_metadata(CONTENT.skylink)
        assert portal.requests == []


@pytest.mark.parametrize("named_by", ["option", "environment"])
@pytest.mark.parametrize("text", [None, "no certificate"])
async def test_file_without_certificates(
    tmp_path: Path, named_by: str, text: str | None, monkeypatch: pytest.MonkeyPatch
):
    """C17: a file of certificates that cannot be read is named in the error."""
    path = tmp_path / "authority.pem"
    if text is not None:
        path.write_text(text)
    if named_by == "environment":
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
    options = {"ca_file": str(path)} if named_by == "option" else {}
    async with PortalClient("https://127.0.0.1:1", retries=0, **options) as client:
        with pytest.raises(UnavailableError, match=f"no certificates can be read from {path}"):
            await client.raw_metadata(CONTENT.skylink)

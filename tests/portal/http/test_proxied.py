"""Portals behind a proxy of the environment: everything works, within the same bounds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11
import pytest
import trio

from skymount.errors import BadContentError, HeadTooLongError
from skymount.portal.client.client import PortalClient
from skymount.portal.http import proxied
from skymount.portal.http.response_head import LINES_LIMIT
from skymount.wire.byte_range import ByteRange
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, Reply, Request, running
from tests.fakes.skyfiles import noise
from tests.portal.ranges import received
from tests.portal.redirect_space import Names

CONTENT = skyfiles.of_files({"f": noise(300_000)})
NAME = "http://portal.example"


class Proxy(FakePortal):
    """Answers for a portal of another name, if asked as a proxy is."""

    def answer(self, request: Request) -> Reply:
        assert request.target.startswith(NAME)
        target = request.target.removeprefix(NAME)
        return super().answer(Request(request.method, target, request.headers, request.body))


@asynccontextmanager
async def talking(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Proxy, PortalClient]]:
    """Yield a proxy, and a client of a portal that is reached through it alone."""
    for name in ("NO_PROXY", "no_proxy", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    proxy = Proxy()
    async with running(proxy):
        proxy.add(CONTENT)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with PortalClient(NAME, retries=0) as client:
            yield proxy, client


async def test_everything_goes_through_it(monkeypatch: pytest.MonkeyPatch):
    """Answers come whole, by the piece and into buffers; the connection is kept."""
    wanted = ByteRange(10, 250_000)
    async with talking(monkeypatch) as (proxy, client):
        assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata
        found = await received(client, CONTENT.skylink, "", wanted, 300_000)
        assert found == CONTENT.payload[10:250_000]
        view = memoryview(bytearray(len(wanted)))
        async with client.open_range(CONTENT.skylink, "", wanted, 300_000) as body:
            told = [number async for number in body.fill_each([view[:99_999], view[99_999:]])]
            assert told == [0, 1]
        assert view == CONTENT.payload[10:250_000]
        await client.transport.connect(2)
        assert proxy.accepted == 1


async def test_redirect(monkeypatch: pytest.MonkeyPatch):
    """Redirects are followed."""
    async with talking(monkeypatch) as (proxy, client):
        proxy.fault(fake.redirects(f"/svc/metadata/{CONTENT.name}?again"), times=1)
        assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata
        assert len(proxy.requests) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "localhost", "a.localhost", "[::1]"])
async def test_redirect_to_this_machine(monkeypatch: pytest.MonkeyPatch, host: str):
    """C7: what a proxy cannot reach for us either is not asked for: numbers and localhost."""
    async with talking(monkeypatch) as (proxy, client):
        proxy.fault(fake.redirects(f"http://{host}/"))
        with pytest.raises(BadContentError, match="from a public to a loopback address"):
            await client.raw_metadata(CONTENT.skylink)
        assert len(proxy.requests) == 1


async def test_update_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch):
    """C7: nor does what is sent go to another origin behind a proxy."""
    async with talking(monkeypatch) as (proxy, client):
        proxy.fault(fake.redirects("http://other.example/", 307))
        with pytest.raises(BadContentError, match="another origin"):
            await client.delete_skykey(name="name")
        assert len(proxy.requests) == 1


INSIDE = "inside.example"


@pytest.mark.parametrize(
    ("addresses", "connections"), [(["127.0.0.1"] * 2, 0), (["9.9.9.9", "127.0.0.1"], 1)]
)
async def test_redirect_past_the_proxy(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], connections: int
):
    """C7: an address that is connected to without the proxy is checked as anywhere, before a byte
    is sent.
    """
    async with talking(monkeypatch) as (proxy, _), running(FakePortal()) as other:
        trio.socket.set_custom_hostname_resolver(Names({INSIDE: addresses}))
        monkeypatch.setenv("NO_PROXY", INSIDE)
        proxy.fault(fake.redirects(f"http://{INSIDE}:{other.port}/"))
        async with PortalClient(NAME, retries=0) as client:
            with pytest.raises(BadContentError, match="from a public to a loopback address"):
                await client.raw_metadata(CONTENT.skylink)
        assert (other.accepted, other.requests) == (connections, [])


async def test_portal_past_the_proxy(monkeypatch: pytest.MonkeyPatch):
    """C7: the address of a portal that is asked without the proxy is known, and it may redirect to
    itself.
    """
    async with talking(monkeypatch) as (proxy, _), running(FakePortal()) as portal:
        portal.add(CONTENT)
        trio.socket.set_custom_hostname_resolver(Names({INSIDE: ["127.0.0.1"] * 9}))
        monkeypatch.setenv("NO_PROXY", INSIDE)
        url = f"http://{INSIDE}:{portal.port}"
        where = ((b"Location", f"{url}/svc/metadata/{CONTENT.name}?again".encode()),)
        portal.fault(lambda *_: Reply(307, where, then="close"), times=1)
        async with PortalClient(url, retries=0) as client:
            assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata
        assert portal.accepted == 2
        assert proxy.requests == []


async def test_too_many_lines(monkeypatch: pytest.MonkeyPatch):
    """C14: a head has the same bound on its lines."""
    async with talking(monkeypatch) as (proxy, client):
        lines = ((b"a", b"b"),) * LINES_LIMIT
        proxy.fault(lambda *_: fake.Reply(200, lines))
        with pytest.raises(HeadTooLongError, match="header lines"):
            await client.raw_metadata(CONTENT.skylink)


async def test_large_header(monkeypatch: pytest.MonkeyPatch):
    """C14: and one on its bytes."""
    async with talking(monkeypatch) as (proxy, client):
        proxy.fault(lambda *_: fake.Reply(200, ((b"a", b"b" * 3_000_000),), b"x"))
        assert await client.raw_metadata(CONTENT.skylink) == b"x"
        proxy.heal()
        proxy.fault(fake.endless_header)
        with pytest.raises(HeadTooLongError):
            await client.raw_metadata(CONTENT.skylink)


def test_h11_still_works_like_that():
    """The method that is replaced is the one that h11 calls."""
    assert proxied.new_client
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.receive_data(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (LINES_LIMIT + 1))
    with pytest.raises(h11.RemoteProtocolError, match="header lines"):
        connection.next_event()

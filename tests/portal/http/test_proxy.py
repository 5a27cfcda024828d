"""Portals behind a proxy of the environment: everything works, within the same bounds."""

import os
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from httpx._utils import URLPattern, get_environment_proxies

from skymount.errors import BadContentError, HeadTooLongError, UnavailableError
from skymount.portal.client.client import PortalClient
from skymount.portal.http.proxy import EnvironmentProxies, Proxy
from skymount.portal.http.response_head import LINES_LIMIT
from skymount.wire.http import requests
from skymount.wire.http.byte_range import ByteRange
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, Reply, Request, running
from tests.fakes.skyfiles import noise
from tests.portal.conftest import Contexts
from tests.portal.ranges import received
from tests.portal.redirect_space import Names

CONTENT = skyfiles.of_files({"f": noise(300_000)})
NAME = "http://portal.example"


class FakeProxy(FakePortal):
    """Answers for a portal of another name, if asked as a proxy is."""

    def answer(self, request: Request) -> Reply:
        assert request.target.startswith(NAME)
        target = request.target.removeprefix(NAME)
        return super().answer(Request(request.method, target, request.headers, request.body))


@asynccontextmanager
async def talking(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[FakeProxy, PortalClient]]:
    """Yield a proxy, and a client of a portal that is reached through it alone."""
    for name in ("NO_PROXY", "no_proxy", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    proxy = FakeProxy()
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
        await client.http.connect(2)
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
        request = requests.Request("GET", "/", may_tell_metadata=True)
        assert (await client.http.fetch(request, 10)).headers["a"] == "b" * 3_000_000
        with pytest.raises(HeadTooLongError):
            await client.raw_metadata(CONTENT.skylink)
        proxy.heal()
        proxy.fault(fake.endless_header)
        with pytest.raises(HeadTooLongError):
            await client.raw_metadata(CONTENT.skylink)


# --- tunnels


class TunnelProxy:
    """Connects to the port that it is asked for, here, or refuses with the status that it has."""

    def __init__(self, status: int = 200, more: bytes = b"") -> None:
        self.status = status
        self.more = more
        self.heads: list[bytes] = []

    async def serve(self, near: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await near.receive_some(65536)
        self.heads.append(head)
        await near.send_all(b"HTTP/1.1 %d Told\r\n\r\n%b" % (self.status, self.more))
        if self.status != 200:
            await near.aclose()
            return
        far = await trio.open_tcp_stream("127.0.0.1", int(head.split()[1].rpartition(b":")[2]))
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, near, far)
            nursery.start_soon(self._copy, far, near)

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(65536):
                await target.send_all(data)
        await target.aclose()


@asynccontextmanager
async def tunnelled(
    proxy: TunnelProxy, contexts: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[FakePortal, PortalClient]]:
    """Yield a portal with TLS, and a client of it that goes through a proxy with a password."""
    authority = tmp_path / "authority.pem"
    authority.write_bytes(contexts.authority)
    for name in ("NO_PROXY", "no_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with (
        running(FakePortal(tls=contexts.server)) as portal,
        trio.open_nursery() as nursery,
    ):
        portal.add(CONTENT)
        serve = partial(trio.serve_tcp, proxy.serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        port = listener.socket.getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:pass%20word@127.0.0.1:{port}")
        url = f"https://portal.example:{portal.port}"
        async with PortalClient(url, retries=0, ca_file=str(authority)) as client:
            yield portal, client
        nursery.cancel_scope.cancel()


async def test_tunnel(contexts: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An https portal is reached through a tunnel, which is kept; the proxy gets its password."""
    proxy = TunnelProxy()
    async with tunnelled(proxy, contexts, tmp_path, monkeypatch) as (portal, client):
        for _ in range(2):
            assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata
        (head,) = proxy.heads
        assert head.startswith(b"CONNECT portal.example:%d HTTP/1.1\r\n" % portal.port)
        assert b64encode(b"user:pass word") in head
        assert all("proxy-authorization" not in request.headers for request in portal.requests)


@pytest.mark.parametrize(
    ("proxy", "message"),
    [
        (TunnelProxy(407), "refuses a tunnel: 407"),
        (TunnelProxy(200, b"HTTP/1.1 200 OK\r\n\r\n"), "sends something before"),
    ],
)
async def test_no_tunnel(
    proxy: TunnelProxy,
    message: str,
    contexts: Contexts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """A proxy that makes no tunnel, or puts words into the portal's mouth, is an error."""
    async with tunnelled(proxy, contexts, tmp_path, monkeypatch) as (portal, client):
        with pytest.raises(UnavailableError, match=message) as caught:
            await client.raw_metadata(CONTENT.skylink)
        assert "pass word" not in str(caught.value)
        assert portal.requests == []


# --- what the environment names


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://portal.example", "one"),
        ("https://portal.example", "two"),
        ("http://excepted.example", None),
        ("http://below.excepted.example", None),
        ("http://notexcepted.example", "one"),
        ("http://10.0.0.1", None),
        ("http://[::1]", None),
        ("http://portal.example:81", None),
        ("https://portal.example:81", None),
    ],
)
def test_proxy_of_a_url(url: str, expected: str | None):
    """Each scheme has its proxy; NO_PROXY names hosts, with their domains, and ports."""
    excepted = "EXCEPTED.example, 10.0.0.1,[::1],portal.example:81"
    proxies = EnvironmentProxies({"http": "one", "all": "http://u:p@two:3128", "no": excepted})
    found = proxies.proxy_for(httpx.URL(url))
    assert (found.host if found else None) == expected
    if expected == "two":
        assert found == Proxy("http", "two", 3128, b"Basic " + b64encode(b"u:p"))
        assert "Basic" not in repr(found)


@pytest.mark.parametrize("address", ["socks5://proxy.example", "http://", "http://a:b/c@d:80"])
def test_proxy_that_cannot_be_used(address: str):
    """Only HTTP proxies are used; anything else is an error, and no way around it is taken."""
    with pytest.raises(UnavailableError, match=r"proxy .*environment"):
        EnvironmentProxies({"http": address}).proxy_for(httpx.URL("http://portal.example"))


NO_PROXY_CASES = [
    ("example.com", "http://example.com", True),
    ("example.com", "http://www.example.com", True),
    ("EXAMPLE.com", "https://www.Example.com:81", True),
    ("example.com", "http://wwwexample.com", False),
    (".example.com", "http://example.com", False),
    (".example.com", "http://www.example.com", True),
    ("*.example.com", "http://www.example.com", False),
    ("example.com:81", "http://example.com:81", True),
    ("example.com:81", "https://www.example.com:81", True),
    ("example.com:81", "http://example.com", False),
    (":81", "http://example.com:81", True),
    (":81", "http://example.com:82", False),
    ("http://example.com", "http://example.com", True),
    ("http://example.com", "https://example.com", False),
    ("http://example.com", "http://www.example.com", False),
    ("http://*example.com", "http://www.example.com", True),
    ("http://*.example.com", "http://example.com", False),
    ("all://example.com:81", "https://example.com:81", True),
    ("https://", "https://example.com", True),
    ("https://", "http://example.com", False),
    ("localhost", "http://localhost:81", True),
    ("localhost", "http://a.localhost", False),
    ("10.0.0.1", "http://10.0.0.1:81", True),
    ("0.0.1", "http://example.com", False),
    ("10.0.0.1:81", "http://10.0.0.1:81", True),
    ("10.0.0.1:81", "http://10.0.0.1", False),
    ("10.0.0.0/8", "http://10.0.0.1", False),
    ("10.0.0.0/8", "http://10.0.0.0", True),
    ("::1", "http://[::1]:81", True),
    ("::1", "http://[::2]", False),
    (" , other.example ,*", "http://example.com", True),
    (".", "http://example.com", False),
    ("", "http://example.com", False),
]
"""NO_PROXY, a URL, and whether it is reached without the proxy, as httpx has it."""


@pytest.mark.parametrize(("excepted", "url", "expected"), NO_PROXY_CASES)
def test_no_proxy_is_understood_as_by_httpx(
    excepted: str, url: str, expected: bool, monkeypatch: pytest.MonkeyPatch
):
    """Hosts, domains, ports and schemes."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("all_proxy", "http://proxy.example")
    monkeypatch.setenv("no_proxy", excepted)
    assert (EnvironmentProxies().proxy_for(httpx.URL(url)) is None) == expected
    mounts = sorted((URLPattern(key), value) for key, value in get_environment_proxies().items())
    found = next((value for pattern, value in mounts if pattern.matches(httpx.URL(url))), None)
    assert (found is None) == expected


@pytest.mark.parametrize(
    ("excepted", "url", "expected"),
    [
        ("1", "http://10.0.0.1", False),
        ("0.0.1:81", "http://10.0.0.1:81", False),
        ("[::1]", "http://[::1]", True),
        ("[::1]:81", "http://[::1]:81", True),
        ("[::1]:81", "http://[::1]:82", False),
        ("[::1, example.com", "http://example.com", True),
        ("example.com:port, fe80::/10", "http://example.com", False),
    ],
)
def test_no_proxy_beyond_httpx(excepted: str, url: str, expected: bool):
    """An address is no domain, it may be in brackets, and what cannot be parsed excepts nothing."""
    proxies = EnvironmentProxies({"all": "http://proxy.example", "no": excepted})
    assert (proxies.proxy_for(httpx.URL(url)) is None) == expected


def test_no_proxy_for_anything():
    """NO_PROXY may except everything."""
    proxies = EnvironmentProxies({"http": "one", "no": "*"})
    assert proxies.proxy_for(httpx.URL("http://portal.example")) is None

"""The portal inside a process: the interface that the daemon uses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from skymount.server.config import PortalConfig
from skymount.server.download import endpoint
from skymount.server.http.parsing import BodyReader
from skymount.server.http_server import serve
from skymount.wire import merkle
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.server.http_client import message_of
from tests.server.storage.stored import IN_FILES, damage

_RAW = {"Content-Type": "application/octet-stream"}


@asynccontextmanager
async def _serving(config: PortalConfig) -> AsyncIterator[str]:
    """Run a portal in a task; stop it by its event."""
    urls: list[str] = []
    listening, shutdown = trio.Event(), trio.Event()

    def on_listening(url: str) -> None:
        urls.append(url)
        listening.set()

    async def run() -> None:
        await serve(config, on_listening=on_listening, shutdown=shutdown)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await listening.wait()
        yield urls[0]
        shutdown.set()


@asynccontextmanager
async def _client(config: PortalConfig) -> AsyncIterator[httpx.AsyncClient]:
    async with _serving(config) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def _upload(client: httpx.AsyncClient, content: bytes) -> dict[str, Any]:
    """Upload a file; return the answer."""
    answer = await client.post("/svc/skyfile?filename=a", content=content, headers=_RAW)
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def config(tmp_path: Path) -> PortalConfig:
    """A portal on a free port."""
    return PortalConfig(data=tmp_path, port=0, graceful_timeout=0.2)


async def test_it_can_be_cancelled(config: PortalConfig) -> None:
    """Cancelling the task frees port and directory."""
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            urls: list[str] = []

            def on_listening(url: str, urls: list[str] = urls) -> None:
                urls.append(url)
                nursery.cancel_scope.cancel()

            await serve(config, on_listening=on_listening)
        assert len(urls) == 1


async def test_it_listens_on_ipv6(config: PortalConfig) -> None:
    """The URL has the address in brackets."""
    async with _client(replace(config, host="::1")) as client:
        assert client.base_url.host == "::1"
        assert (await client.get("/")).status_code == 200


async def _connected(url: str) -> trio.SocketStream:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


def _head(length: int, kind: str = "a/b") -> bytes:
    return (
        "POST /svc/skyfile?filename=a HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {length}\r\nContent-Type: {kind}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("kind", ["a/b", "multipart/form-data; boundary=b"])
async def test_a_client_that_pauses_is_dropped(config: PortalConfig, kind: str) -> None:
    """408 when the body does not come in time, and nothing is kept."""
    beginning = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    with trio.fail_after(10):
        async with _serving(replace(config, body_timeout=0.2)) as url:
            async with await _connected(url) as stream:
                await stream.send_all(_head(9_999_999, kind) + beginning + b"x" * (5 << 20))
                answer = await stream.receive_some()
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert not list((config.data / "v1" / "incoming").iterdir())


async def test_a_slow_client_is_not_dropped(config: PortalConfig) -> None:
    """What counts is each pause, not how long the whole takes."""
    async with _serving(replace(config, body_timeout=1.0)) as url, await _connected(url) as stream:
        await stream.send_all(_head(6))
        for _ in range(6):
            await trio.sleep(0.25)
            await stream.send_all(b"x")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "again"),
    [
        (b"", b""),
        (b"GET /svc/stats HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
        (b"GET /svc/stats HTTP/1.1\r\nHost:", b""),
        (b"GET /svc/stats HTTP/1.1\r\nA: ", b"x"),
    ],
    ids=["nothing", "one request", "half a head", "a head in single bytes"],
)
async def test_an_idle_connection_is_closed(
    config: PortalConfig, sent: bytes, again: bytes
) -> None:
    """Between requests, before the first one, and while a head does not come to its end."""

    async def trickle(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while again:
                await stream.send_all(again)
                await trio.sleep(0.05)

    async with (
        _serving(replace(config, idle_timeout=0.3)) as url,
        await _connected(url) as stream,
        trio.open_nursery() as nursery,
    ):
        await stream.send_all(sent)
        nursery.start_soon(trickle, stream)
        with trio.fail_after(20), suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        nursery.cancel_scope.cancel()


async def test_a_stop_does_not_wait_for_idle_connections(config: PortalConfig) -> None:
    """Neither for new ones, nor for those whose request is answered."""
    with trio.fail_after(30):
        async with _serving(replace(config, graceful_timeout=1000)) as url:
            new, used = await _connected(url), await _connected(url)
            await used.send_all(b"GET /svc/portals HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await used.receive_some()).startswith(b"HTTP/1.1 200 ")
    for stream in (new, used):
        await stream.aclose()


async def test_a_bug_ends_one_connection(
    config: PortalConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the other connections go on."""

    def fail(*args: object) -> None:
        raise RuntimeError("a bug below the application")

    async with _client(config) as client:
        assert (await client.get("/svc/stats")).status_code == 200
        with monkeypatch.context() as patched:
            patched.setattr(BodyReader, "__init__", fail)
            async with httpx.AsyncClient() as other:
                with pytest.raises(httpx.TransportError):
                    await other.get(client.base_url)
        assert (await client.get("/svc/stats")).status_code == 200
    assert "a connection failed" in caplog.text


@pytest.mark.parametrize("size", [200, IN_FILES])
async def test_a_base_sector_that_is_cut_short(config: PortalConfig, size: int) -> None:
    """It is not sent with zeros in place of what is missing, and does not hide other sectors."""
    async with _client(config) as client:
        other = await _upload(client, b"other")
        stored = await _upload(client, bytes(size - 1) + b"x")
        link = stored["skylink"]
        damage(config.data, link, lambda base: base[:-1])
        root = f"/svc/root?root={stored['merkleroot']}&offset=0&length=4096"
        for path in (f"/{link}", f"/svc/basesector/{link}", root):
            refused = await client.get(path)
            assert refused.status_code == 500
            assert link in message_of(refused)
        root = {"root": other["merkleroot"], "offset": "0", "length": "4"}
        assert (await client.get("/svc/root", params=root)).status_code == 200


async def test_a_type_is_guessed_once(
    config: PortalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are not read for each range."""
    guesses: list[bytes] = []
    sniff = endpoint.sniff

    def recorded(start: bytes) -> str:
        guesses.append(start)
        return sniff(start)

    monkeypatch.setattr(endpoint, "sniff", recorded)
    pdf = b"%PDF-" + noise(IN_FILES)
    async with _client(config) as client:
        link = (await _upload(client, pdf))["skylink"]
        for wanted in ("0-8", "100-200"):
            part = await client.get(f"/{link}", headers={"Range": f"bytes={wanted}"})
            assert part.status_code == 206
            assert part.headers["content-type"] == "application/pdf"
    assert guesses == [pdf[:512]]


async def test_a_file_of_another_length(
    config: PortalConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes beyond the recorded length are not sent. Without the last ones the answer is an error
    at once; the log has one line, not a traceback for each request.
    """
    content = noise(SECTOR_SIZE + 5)
    async with _client(config) as client:
        link = (await _upload(client, content))["skylink"]
        (payload,) = config.data.glob(f"v1/skyfiles/*/{link}/payload")
        payload.write_bytes(content + b"more")
        assert (await client.get(f"/{link}")).content == content
        payload.write_bytes(content[:-5])
        root = f"/svc/root?root={merkle.sector_root(content[-5:]).hex()}&offset=0&length=9"
        for path, wanted in ((f"/{link}", ""), (f"/{link}", "bytes=-5"), (root, "")):
            refused = await client.get(path, headers={"Range": wanted} if wanted else {})
            assert refused.status_code == 500
            assert f"{link}/payload is damaged: shorter than recorded" in message_of(refused)
    assert [record.exc_info for record in caplog.records] == [None] * 3

"""The portal inside a process: the interface that the daemon uses."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import trio

from skymount.errors import ConfigError, StorageError
from skymount.server.config import PortalConfig
from skymount.server.download import endpoint
from skymount.server.http.parsing import BodyReader
from skymount.server.http_server import serve
from skymount.wire import merkle
from skymount.wire.http.multipart import PartHeader
from skymount.wire.skylink import SECTOR_SIZE
from tests.fakes.skyfiles import noise
from tests.server.http_client import FORM_TYPE, form, message_of
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


@pytest.fixture
def config(tmp_path: Path) -> PortalConfig:
    """A portal on a free port."""
    return PortalConfig(data=tmp_path, port=0, graceful_timeout=0.2)


async def test_it_serves_until_told_to_stop(config: PortalConfig) -> None:
    """And can be started again on the same directory."""
    for _ in range(2):
        async with _serving(config) as url, httpx.AsyncClient(base_url=url) as client:
            answer = await client.post("/svc/skyfile?filename=a", content=b"x", headers=_RAW)
            link = answer.json()["skylink"]
            assert (await client.get(f"/{link}")).content == b"x"


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
    async with _serving(replace(config, host="::1")) as url:
        assert url.startswith("http://[::1]:")
        async with httpx.AsyncClient() as client:
            assert (await client.get(url)).status_code == 200


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


async def test_a_client_that_does_not_read_is_cut_off(config: PortalConfig) -> None:
    """Its connection and the file that it was given are closed after a while."""
    size = 64 << 20
    async with _serving(config) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        answer = await client.post("/svc/skyfile?filename=a", content=bytes(size), headers=_RAW)
    request = f"GET /{answer.json()['skylink']} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with _serving(replace(config, send_timeout=0.5)) as url:
        before = len(os.listdir("/proc/self/fd"))
        async with await _connected(url) as stream:
            await stream.send_all(request.encode())
            received = len(await stream.receive_some(100))
            assert len(os.listdir("/proc/self/fd")) > before + 1
            with trio.fail_after(30):
                while len(os.listdir("/proc/self/fd")) > before + 1:  # our own end
                    await trio.sleep(0.05)
            with suppress(trio.BrokenResourceError):
                while data := await stream.receive_some():
                    received += len(data)
            assert received < size


async def test_a_stop_lets_requests_end(config: PortalConfig) -> None:
    """What is under way ends as if nothing was, and then nothing is waited for."""
    stop = trio.Event()
    urls: list[str] = []

    async def serving(task_status: trio.TaskStatus[None]) -> None:
        def on_listening(url: str) -> None:
            urls.append(url)
            task_status.started()

        await serve(replace(config, graceful_timeout=100), on_listening=on_listening, shutdown=stop)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(serving)
            async with await _connected(urls[0]) as stream:
                await stream.send_all(_head(10 << 20) + bytes(6 << 20))
                while not list((config.data / "v1" / "incoming").iterdir()):
                    await trio.sleep(0.01)
                stop.set()
                await trio.sleep(0.05)
                await stream.send_all(bytes(4 << 20))
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


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

    async with _serving(config) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/svc/stats")).status_code == 200
        with monkeypatch.context() as patched:
            patched.setattr(BodyReader, "__init__", fail)
            async with httpx.AsyncClient() as other:
                with pytest.raises(httpx.TransportError):
                    await other.get(url)
        assert (await client.get("/svc/stats")).status_code == 200
    assert "a connection failed" in caplog.text


async def test_a_damaged_store_is_a_server_error(config: PortalConfig) -> None:
    """500 with a message, and one damaged skyfile does not hide the others' sectors."""
    async with _serving(config) as url, httpx.AsyncClient(base_url=url) as client:
        links = []
        for content in (b"first", b"second"):
            answer = await client.post("/svc/skyfile?filename=a", content=content, headers=_RAW)
            links.append(answer.json())
        damage(config.data, links[0]["skylink"], lambda _: b"\x09" * 200)
        answer = await client.get(f"/{links[0]['skylink']}")
        assert answer.status_code == 500
        assert "damaged" in message_of(answer)
        root = {"root": links[1]["merkleroot"], "offset": "0", "length": "4"}
        assert (await client.get("/svc/root", params=root)).status_code == 200


async def test_damage_in_the_middle_of_a_body(
    config: PortalConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is an error at once; the log has one line, not a traceback for each request."""
    async with _serving(config) as url, httpx.AsyncClient(base_url=url) as client:
        content = bytes(SECTOR_SIZE + 5)
        answer = await client.post("/svc/skyfile?filename=a", content=content, headers=_RAW)
        link = answer.json()["skylink"]
        (payload,) = config.data.glob(f"v1/skyfiles/*/{link}/payload")
        os.truncate(payload, 2 << 20)
        assert (await client.get(f"/{link}")).status_code == 500
    (logged,) = caplog.records
    assert "shorter than recorded" in logged.getMessage()
    assert logged.exc_info is None


@pytest.mark.parametrize("size", [200, IN_FILES])
async def test_a_base_sector_that_is_cut_short(config: PortalConfig, size: int) -> None:
    """It is not sent with zeros in place of what is missing."""
    async with _serving(config) as url, httpx.AsyncClient(base_url=url) as client:
        content = bytes(size - 1) + b"x"
        answer = (
            await client.post("/svc/skyfile?filename=a", content=content, headers=_RAW)
        ).json()
        damage(config.data, answer["skylink"], lambda base: base[:-1])
        root = f"/svc/root?root={answer['merkleroot']}&offset=0&length=4096"
        for path in (f"/{answer['skylink']}", f"/svc/basesector/{answer['skylink']}", root):
            refused = await client.get(path)
            assert refused.status_code == 500
            assert answer["skylink"] in message_of(refused)


async def test_a_type_is_guessed_once(
    config: PortalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are not read for each range; each file of a directory has a type of its own."""
    guesses: list[bytes] = []
    sniff = endpoint.sniff

    def recorded(start: bytes) -> str:
        guesses.append(start)
        return sniff(start)

    monkeypatch.setattr(endpoint, "sniff", recorded)
    pdf, text = b"%PDF-" + noise(IN_FILES), b"t" * IN_FILES
    async with _serving(config) as url, httpx.AsyncClient(base_url=url) as client:
        body = form(
            (PartHeader("files[]", "a/pdf", ""), pdf), (PartHeader("files[]", "a/text", ""), text)
        )
        headers = {"Content-Type": FORM_TYPE}
        answer = await client.post("/svc/skyfile?filename=site", content=body, headers=headers)
        link = answer.json()["skylink"]
        for wanted in ("0-8", "100-200", "9-"):
            for name, kind in (("pdf", "application/pdf"), ("text", "text/plain; charset=utf-8")):
                ranged = {"Range": f"bytes={wanted}"}
                part = await client.get(f"/{link}/a/{name}", headers=ranged)
                assert part.status_code == 206
                assert part.headers["content-type"] == kind
    assert sorted(guesses) == sorted([pdf[:512], text[:512]])


async def test_a_file_of_another_length(
    config: PortalConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes beyond the recorded length are not sent. Without the first ones the answer is 500."""
    async with _serving(config) as url, httpx.AsyncClient(base_url=url) as client:
        content = noise(SECTOR_SIZE + 5)
        answer = await client.post("/svc/skyfile?filename=a", content=content, headers=_RAW)
        link = answer.json()["skylink"]
        (payload,) = config.data.glob(f"v1/skyfiles/*/{link}/payload")
        payload.write_bytes(content + b"more")
        assert (await client.get(f"/{link}")).content == content
        payload.write_bytes(content[:-5])
        refused = await client.get(f"/{link}", headers={"Range": "bytes=-5"})
        assert refused.status_code == 500
        assert f"{link}/payload is damaged: shorter than recorded" in message_of(refused)
        root = {"root": merkle.sector_root(content[-5:]).hex(), "offset": "0", "length": "9"}
        assert (await client.get("/svc/root", params=root)).status_code == 500
    assert len(caplog.records) == 2


async def test_errors_at_the_start_are_ours(config: PortalConfig) -> None:
    """ConfigError for the address, StorageError for the directory."""

    def unexpected(url: str) -> None:
        raise AssertionError(url)

    with pytest.raises(ConfigError, match=r"cannot listen on 256\.0\.0\.1:0"):
        await serve(replace(config, host="256.0.0.1"), on_listening=unexpected)
    async with _serving(config):
        with pytest.raises(StorageError, match="another portal"):
            await serve(config, on_listening=unexpected)

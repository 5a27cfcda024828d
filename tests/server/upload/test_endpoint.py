"""Uploads that break off, are refused, are killed, or come all at once."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from skymount.wire.http.multipart import PartHeader
from tests.portal_process import (
    PortalProcess,
    portal_process,
)
from tests.server.http_client import FORM_TYPE, Client, form, message_of, stored_files
from tests.server.raw_connection import PATIENCE, begin_upload, eventually, incoming_uploads

_RAW = {"Content-Type": "application/octet-stream"}


_KILLER = """
import os, signal, sys

left = int(os.environ["KILLED_AT"])
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
begun = False

def look(event, args):
    global left, begun
    if event in EVENTS and any("/v1/" in str(arg) for arg in args[:2]):
        begun = begun or event == "os.mkdir" and "/incoming/" in str(args[0])
        left -= begun
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
"""


def test_killed_at_any_moment_an_upload_is_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill it before each step of the same upload on the disk: after none is there half of it."""
    content, upload = b"k" * (5 << 20), "/svc/skyfile?filename=a"
    (tmp_path / "sitecustomize.py").write_text(_KILLER)
    data = tmp_path / "data"
    with portal_process(data) as portal, Client(base_url=portal.url) as client:
        answer = client.post(f"{upload}&dryrun=1", content=content, headers=_RAW)
        link = answer.json()["skylink"]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = []
    for step in range(50):
        monkeypatch.setenv("KILLED_AT", str(step))
        with portal_process(data) as portal, Client(base_url=portal.url) as client:
            answer = client.get(f"/{link}")
            found.append(answer.status_code)
            assert answer.status_code == 404 or answer.content == content
            try:
                assert client.post(upload, content=content, headers=_RAW).status_code == 200
            except httpx.TransportError:
                assert portal.process.wait(PATIENCE) == -signal.SIGKILL
            else:
                break
    assert len(found) > 5
    assert found == sorted(found, reverse=True)
    assert set(found) == {404, 200}


def test_a_broken_off_upload_leaves_nothing(client: Client, portal: PortalProcess) -> None:
    """The client goes away in the middle, raw or in a form."""
    before = stored_files(portal.data)
    connection = begin_upload(portal.url, 9 << 20, 20 << 20)
    eventually(lambda: bool(incoming_uploads(portal.data)))
    connection.close()
    eventually(lambda: not incoming_uploads(portal.data))
    body = form((PartHeader("file", "a"), b"x" * (9 << 20)))[:-10]
    answer = client.post("/svc/skyfile", content=body, headers={"Content-Type": FORM_TYPE})
    assert answer.status_code == 400
    assert "unexpected EOF" in message_of(answer)
    assert not incoming_uploads(portal.data)
    assert stored_files(portal.data) == before


def test_a_refused_upload_leaves_nothing(client: Client, portal: PortalProcess) -> None:
    """A rule broken by the last part undoes the ones before."""
    before = stored_files(portal.data)
    parts = [
        (PartHeader("files[]", "ok"), b"x" * (5 << 20)),
        (PartHeader("files[]", "../bad"), b"x"),
    ]
    assert client.post_form(parts, {"filename": "d"}).status_code == 400
    assert stored_files(portal.data) == before
    assert not incoming_uploads(portal.data)


def test_damage_is_mended_by_the_next_upload(client: Client, portal: PortalProcess) -> None:
    """Also where what is damaged was read before, and is in memory."""
    for name, content in (("whole", bytes(100_000)), ("large", bytes(5 << 20))):
        link = client.upload_file(name, content)
        paths = list(portal.data.glob(f"v1/skyfiles/*/{link}/*"))
        assert paths
        for path in paths:
            whole = path.read_bytes()
            path.write_bytes(whole[:-1] + b"X")
            client.get(f"/{link}")
            assert client.upload_file(name, content) == link
            assert path.read_bytes() == whole
            assert client.get(f"/{link}").content == content


def test_the_size_of_an_upload_is_limited(tmp_path: Path) -> None:
    """413, whether the length is announced or not, and the answer reaches the client."""
    with (
        portal_process(tmp_path, "--max-upload", "1MB") as portal,
        Client(base_url=portal.url) as client,
    ):

        def chunks() -> Iterator[bytes]:
            for _ in range(3000):
                yield b"x" * 1000

        for content in (b"x" * 3_000_000, chunks()):
            answer = client.post("/svc/skyfile?filename=a", content=content, headers=_RAW)
            assert answer.status_code == 413
            assert "over the limit of 976.6 KiB" in message_of(answer)
        assert client.upload_file("a", b"x" * 900_000)
    assert not incoming_uploads(tmp_path)


def test_uploads_at_the_same_time(tmp_path: Path) -> None:
    """Several clients, some with the same content; all is stored."""
    import trio

    async def upload(http: httpx.AsyncClient, n: int, links: dict[int, str]) -> None:
        content = bytes([n % 4]) * (5 << 20)
        answer = await http.post("/svc/skyfile?filename=a", content=content, headers=_RAW)
        links[n] = answer.json()["skylink"]

    async def main(url: str) -> None:
        links: dict[int, str] = {}
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            async with trio.open_nursery() as nursery:
                for n in range(8):
                    nursery.start_soon(upload, http, n, links)
            assert len(set(links.values())) == 4
            for n, link in links.items():
                answer = await http.get(f"/{link}")
                assert answer.content == bytes([n % 4]) * (5 << 20)

    with portal_process(tmp_path) as portal:
        trio.run(main, portal.url)
    assert not incoming_uploads(tmp_path)


def test_memory_of_slow_uploads(tmp_path: Path) -> None:
    """Each holds a part of what it sent; when they have ended, the memory is free for others."""
    count, size = 24, (4 << 20) - 1000
    with portal_process(tmp_path) as portal, ExitStack() as stack:
        httpx.get(f"{portal.url}/svc/stats", timeout=60).raise_for_status()
        before = portal.rss()
        for _ in range(count):
            stack.enter_context(begin_upload(portal.url, size, 9 << 20))
        payloads = [path / "payload" for path in _when_begun(tmp_path, count)]
        eventually(lambda: all(path.stat().st_size == 3 << 20 for path in payloads))
        assert portal.rss() - before < count * (2 << 20) + (20 << 20)
        stack.close()
        eventually(lambda: not incoming_uploads(tmp_path))


def _when_begun(data: Path, count: int) -> list[Path]:
    """Wait until so many uploads have written something; return their directories."""

    def begun() -> list[Path]:
        return [path for path in incoming_uploads(data) if (path / "payload").exists()]

    eventually(lambda: len(begun()) == count)
    return begun()

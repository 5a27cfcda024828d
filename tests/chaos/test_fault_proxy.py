"""The fault proxies of the chaos tests do what they say."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from skymount.wire.skylink import Skylink
from tests.chaos.arena import certificates
from tests.chaos.fault_proxy import FaultProxies, ProxyConfig, fault_proxies
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import noise

FILE = skyfiles.of_files({"f": noise(200_000)})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def heard() -> list[Any]:
    return []


@pytest.fixture(scope="module")
def proxies(authority: tuple[Path, str, str], heard: list[Any]) -> Iterator[FaultProxies]:
    """Two proxies before one portal, the second with TLS."""
    _, good, expired = authority
    with in_thread(FakePortal()) as portal:
        portal.add(FILE)
        port = urlsplit(portal.url).port
        assert port is not None
        configs = [ProxyConfig(port), ProxyConfig(port, good, expired)]
        with fault_proxies(configs, heard.append) as running:
            yield running


def get(proxies: FaultProxies, *, seconds: float = 20.0, **headers: str) -> httpx.Response:
    url = f"{proxies.urls[0]}/{FILE.name}/f"
    return httpx.get(url, headers=headers, timeout=seconds, verify=False)


def test_healthy(proxies: FaultProxies) -> None:
    """A healthy proxy changes nothing."""
    proxies.set_mode(0, "")
    assert get(proxies).content == FILE.payload
    part = get(proxies, Range="bytes=5-9")
    assert (part.status_code, part.content) == (206, FILE.payload[5:10])


@pytest.mark.parametrize("mode", ["refuse", "lost", "stall"])
def test_no_answer(proxies: FaultProxies, mode: str) -> None:
    """The request fails; with the mode ended it works again."""
    proxies.set_mode(0, mode)
    try:
        with pytest.raises(httpx.TransportError):
            get(proxies, seconds=1.0)
    finally:
        proxies.set_mode(0, "")
    assert get(proxies).content == FILE.payload


@pytest.mark.parametrize("mode", ["reset", "cut", "flip", "short", "metadata"])
def test_no_right_answer(proxies: FaultProxies, mode: str) -> None:
    """Whatever comes is not what the portal sent."""
    proxies.set_mode(0, mode, seed=3)
    for _ in range(4):
        try:
            answer = get(proxies)
        except httpx.TransportError:
            continue
        changed = answer.content != FILE.payload
        assert changed or answer.headers["svc-metadata"].encode() != FILE.metadata
    proxies.set_mode(0, "")


@pytest.mark.parametrize(
    ("mode", "statuses"),
    [
        ("missing", {404}),
        ("busy", {429}),
        ("busy, retry later", {429, 503}),
        ("failing", {500, 502, 503, 504}),
        ("redirect", {301, 302, 307, 308}),
    ],
)
def test_refusals(proxies: FaultProxies, mode: str, statuses: set[int]) -> None:
    """The portal is not asked."""
    proxies.set_mode(0, mode)
    assert get(proxies).status_code in statuses
    proxies.set_mode(0, "")


def test_ranges(proxies: FaultProxies) -> None:
    """A range is ignored, or another one."""
    proxies.set_mode(0, "ignored range")
    assert get(proxies, Range="bytes=5-9").content == FILE.payload
    proxies.set_mode(0, "wrong range")
    part = get(proxies, Range="bytes=5-9")
    assert part.status_code == 206
    assert part.content != FILE.payload[5:10]
    proxies.set_mode(0, "")


def test_tls(proxies: FaultProxies, authority: tuple[Path, str, str]) -> None:
    """The certificate is good, expired, or there is no TLS."""
    trusted = ssl.create_default_context(cafile=str(authority[0]))
    url = f"{proxies.urls[1]}/{FILE.name}/f"
    assert httpx.get(url, verify=trusted).content == FILE.payload
    for mode, reason in (("tls expired", "expired"), ("tls garbage", "SSL")):
        proxies.set_mode(1, mode)
        with pytest.raises(httpx.ConnectError, match=reason):
            httpx.get(url, verify=trusted)
        proxies.set_mode(1, "")
    assert httpx.get(url, verify=trusted).content == FILE.payload


def test_posts_are_told(proxies: FaultProxies, heard: list[Any]) -> None:
    """Each registry entry that comes is told, with the portal's answer if it was asked."""
    proxies.set_mode(0, "")
    answer = httpx.post(f"{proxies.urls[0]}/svc/registry", content=b"an entry", verify=False)
    assert answer.status_code == 404
    proxies.set_mode(0, "missing")
    httpx.post(f"{proxies.urls[0]}/svc/registry", content=b"another", verify=False)
    proxies.set_mode(0, "")
    told = [(each["body"], each["status"]) for each in heard if each["event"] == "post"]
    assert told == [("an entry", None), ("an entry", 404), ("another", None)]


def test_drip(proxies: FaultProxies) -> None:
    """The answer comes in small pieces, and at once when the fault ends."""
    proxies.set_mode(0, "drip", seed=3)
    url = f"{proxies.urls[0]}/{FILE.name}/f"
    with httpx.stream("GET", url, verify=False, timeout=20) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        assert 0 < len(first) < len(FILE.payload)
        proxies.set_mode(0, "")
        assert first + b"".join(pieces) == FILE.payload


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("silent", httpx.ReadTimeout),
        ("stalls in a body", httpx.ReadTimeout),
        ("resets", httpx.ReadError),
        ("closes at once", httpx.RemoteProtocolError),
    ],
)
def test_steady_faults(proxies: FaultProxies, mode: str, error: type[Exception]) -> None:
    """The same becomes of each request, for benchmarks."""
    proxies.set_mode(0, mode)
    for _ in range(3):
        with pytest.raises(error):
            get(proxies, seconds=0.5 if error is httpx.ReadTimeout else 20.0).raise_for_status()
    proxies.set_mode(0, "")


def test_a_head_that_drips(proxies: FaultProxies) -> None:
    """Byte by byte; all of it comes when the fault ends."""
    proxies.set_mode(0, "heads byte by byte")
    address = urlsplit(proxies.urls[0])
    with socket.create_connection((address.hostname, address.port), 20) as client:
        client.sendall(f"GET /{FILE.name}/f HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        begun = client.recv(10_000)
        assert len(begun) < 150
        proxies.set_mode(0, "")
        while b"\r\n\r\n" not in begun:
            begun += client.recv(10_000)
        assert begun.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("status", [404, 429, 503])
def test_steady_refusals(proxies: FaultProxies, status: int) -> None:
    proxies.set_mode(0, str(status))
    assert [get(proxies).status_code for _ in range(3)] == [status] * 3
    proxies.set_mode(0, "")


def test_steady_lies(proxies: FaultProxies) -> None:
    """One bit of what is read is another one; so is the skylink of an upload."""
    proxies.set_mode(0, "wrong bytes")
    differing = [a ^ b for a, b in zip(get(proxies).content, FILE.payload, strict=True) if a != b]
    assert differing == [1]
    url = f"{proxies.urls[0]}/svc/skyfile/f"
    proxies.set_mode(0, "")
    right = httpx.post(url, content=b"x", verify=False).json()["skylink"]
    proxies.set_mode(0, "wrong skylink")
    wrong = Skylink(httpx.post(url, content=b"x", verify=False).json()["skylink"])
    assert wrong != right
    assert wrong.bitfield == Skylink(right).bitfield
    proxies.set_mode(0, "")


def test_mixed(proxies: FaultProxies) -> None:
    """Some of the answers are right, others are not."""
    proxies.set_mode(0, "mixed", 0.7, seed=5)
    seen = set()
    for _ in range(12):
        try:
            seen.add(get(proxies, seconds=0.2).content == FILE.payload)
        except httpx.TransportError:
            seen.add(False)
    proxies.set_mode(0, "")
    assert seen == {True, False}

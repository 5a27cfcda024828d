"""A browser and a portal that all tests here share, and things to upload."""

import struct
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import Browser, running_browser
from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client


@pytest.fixture(scope="session")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """The browser, at an empty page, with no other settings and with scripts."""
    yield shared_browser
    shared_browser.cdp("Emulation.setScriptExecutionDisabled", value=False)
    shared_browser.cdp("Emulation.clearDeviceMetricsOverride")
    shared_browser.cdp("Emulation.setEmulatedMedia", features=[])
    shared_browser.upload_speed(-1)
    shared_browser.open("about:blank")
    shared_browser.requests()
    shared_browser.complaints()


@pytest.fixture(scope="session")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    """A portal that a browser may also reach by a name that is not of this machine."""
    path = tmp_path_factory.mktemp("portal") / "data"
    with portal_process(path, "--allow-host", "portal.example") as running:
        yield running


@pytest.fixture(scope="session")
def home(portal: PortalProcess) -> str:
    """The URL of the first page."""
    return f"http://localhost:{urlsplit(portal.url).port}/"


@pytest.fixture(scope="session")
def client(portal: PortalProcess) -> Iterator[Client]:
    with Client(base_url=portal.url, timeout=60) as connected:
        yield connected


def png(width: int, height: int) -> bytes:
    """Return a picture with a gradient."""
    rows = b"".join(
        b"\0"
        + bytes(v for x in range(width) for v in (40 + x * 90 // width, y * 200 // height, 180))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + end


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of many kinds."""
    path = tmp_path_factory.mktemp("files") / "holidays"
    (path / "more/deep").mkdir(parents=True)
    (path / "beach.png").write_bytes(png(64, 40))
    (path / "notes.txt").write_text("First line <b>\nGrüße\n")
    (path / "more/deep/data.json").write_text('{"a": 1}')
    (path / "clip.webm").write_bytes(Path(__file__).with_name("clip.webm").read_bytes())
    (path / "paper.pdf").write_bytes(
        b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>"
    )
    with wave.open(str(path / "sound.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16_000))
    return path


@pytest.fixture(scope="session")
def holidays(client: Client, folder: Path) -> str:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    content = {name: files[name].read_bytes() for name in sorted(files)}
    return client.upload(content, filename="holidays")

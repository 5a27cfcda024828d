"""The pictures in docs/images: made anew with SKYMOUNT_PICTURES=docs/images."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import MARKS, Browser
from tests.browser.conftest import png
from tests.portal_process import portal_process
from tests.server.http_client import Client

pytestmark = MARKS

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = ("portal-home.png", "portal-listing.png", "portal-phone.png")
_SIZE_LIMIT = 150 << 10  # bytes of one picture


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The first page of a portal with a few things, and the skylink of one."""
    with (
        portal_process(tmp_path_factory.mktemp("shown")) as portal,
        Client(base_url=portal.url) as client,
    ):
        client.upload_file("annual-report.pdf", b"%PDF-1.4" + bytes(2_400_000))
        client.upload({"index.html": b"<h1>", "style.css": bytes(40_000)}, filename="my-site")
        client.upload_file("podcast-012.mp3", bytes(31_000_000))
        photos = {f"beach-{n}.jpg": bytes(900_000 + n * 77_777) for n in range(1, 7)}
        more = {"raw/one.dng": bytes(2_000_000), "readme.txt": b"Summer", "map.svg": b"<svg/>"}
        link = client.upload({**photos, **more, "sunset.png": png(640, 400)}, filename="holidays")
        yield f"http://localhost:{urlsplit(portal.url).port}/", link


def size_of(picture: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def test_pictures(browser: Browser, shown: tuple[str, str], tmp_path: Path) -> None:
    """Each page can be drawn, on a desk and on a phone, in the light and in the dark."""
    home, link = shown
    chosen = os.environ.get("SKYMOUNT_PICTURES")
    directory = ROOT / chosen if chosen else tmp_path
    directory.mkdir(parents=True, exist_ok=True)
    for name, path, (width, height), scheme in (
        (NAMES[0], f"?stored={link}", (960, 1010), "light"),
        (NAMES[1], f"{link}/", (960, 800), "light"),
        (NAMES[2], "", (390, 800), "dark"),
    ):
        browser.cdp(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        browser.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        browser.open(home + path)
        browser.find("h1")
        browser.script(
            """
            document.activeElement.blur();
            // The mounts of this machine are nothing for readers.
            for (const each of document.querySelectorAll("[id^=mount-]"))
              each.closest(".copyable").remove();
            """
        )
        picture = browser.driver.get_screenshot_as_png()
        assert size_of(picture) == (width, height)
        assert len(picture) < _SIZE_LIMIT
        (directory / name).write_bytes(picture)


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_shown(name: str) -> None:
    """Each one that is kept is on a page of the documentation."""
    pages = (ROOT / "README.md").read_text() + (ROOT / "docs/portal.md").read_text()
    assert f"images/{name}" in pages
    assert len((ROOT / "docs/images" / name).read_bytes()) < _SIZE_LIMIT

"""A browser whose proxy replaces the Host header, so that it refuses styles and scripts."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import MARKS, Browser
from tests.nginx import needs_nginx, nginx_before
from tests.portal_process import PortalProcess

pytestmark = [*MARKS, needs_nginx]

_LINE = "proxy_set_header Host $http_host;"


@pytest.fixture(scope="module")
def behind(portal: PortalProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The first page behind nginx, which speaks HTTP/1.1 and leaves no trace."""
    with nginx_before(portal.url, tmp_path_factory.mktemp("nginx") / "nginx") as url:
        yield f"http://portal.example:{urlsplit(url).port}/"


def test_a_page_without_its_styles_says_why(browser: Browser, behind: str, home: str) -> None:
    """W1: it can be read, and what it says is not seen where all is well."""
    browser.open(behind)
    arrived = urlsplit(home).netloc.replace("localhost", "127.0.0.1")
    said = browser.text(".unstyled")
    assert f"the host that arrived here is {arrived}" in said
    assert _LINE in said
    assert browser.complaints()
    if path := os.environ.get("SKYMOUNT_PICTURES"):
        Path(path, "unstyled.png").write_bytes(browser.driver.get_screenshot_as_png())
    assert browser.find("input[type=file]").is_displayed()
    browser.open(home)
    assert not browser.script("return document.querySelector('.unstyled').checkVisibility()")
    assert _LINE not in browser.driver.find_element("css selector", "body").text

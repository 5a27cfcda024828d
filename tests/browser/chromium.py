"""A headless Chromium, driven over WebDriver; nothing of it is left, and it asks nobody else."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.mount.keys import needs

LIMIT = 60.0
"""Seconds until something that should happen in a browser counts as missing."""

AXE = Path(__file__).with_name("axe.min.js")

MARKS = [
    needs("chromium", "chromedriver"),
    pytest.mark.xdist_group("browser"),  # one browser at a time
    pytest.mark.timeout(300),
]
"""For each module of tests that use a browser."""

T = TypeVar("T")

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root cannot have it
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--window-size=1100,900",
    "--lang=en-US",
    "--host-resolver-rules=MAP portal.example 127.0.0.1",
)


def eventually(condition: Callable[[], T]) -> T:
    """Wait until a condition holds; return what it gave. Elements of a page that has just been left
    do not count.
    """
    deadline = time.monotonic() + LIMIT
    while True:
        with suppress(StaleElementReferenceException):
            if found := condition():
                return found
        assert time.monotonic() < deadline, "it never was so"
        time.sleep(0.05)


@dataclass
class Browser:
    """A browser with one window."""

    driver: Chrome
    downloads: Path

    def open(self, url: str) -> None:
        self.driver.get(url)

    def cdp(self, command: str, **arguments: Any) -> Any:
        """Send a command of Chromium's own protocol."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def upload_speed(self, speed: int) -> None:
        """Set how many bytes may be sent in a second; -1 for no bound."""
        self.cdp(
            "Network.emulateNetworkConditions",
            offline=False,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=speed,
        )

    def find(self, css: str) -> WebElement:
        """Wait for an element that is shown, and return it."""

        def shown() -> WebElement | None:
            found = self.driver.find_elements(By.CSS_SELECTOR, css)
            return found[0] if found and found[0].is_displayed() else None

        return eventually(shown)

    def input(self, css: str) -> WebElement:
        """Wait for an input of files, which may lie unseen behind its label, and return it."""
        return eventually(lambda: self.all(css))[0]

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def link(self, text: str) -> WebElement:
        return eventually(lambda: self.driver.find_elements(By.LINK_TEXT, text))[0]

    def text(self, css: str) -> str:
        """Wait for an element that is shown; return its text."""
        return eventually(lambda: (self.find(css).text,))[0]

    def script(self, code: str, *arguments: Any) -> Any:
        """Run a function body in the page; it may be asynchronous."""
        return self.driver.execute_script(f"return (async () => {{ {code} }})()", *arguments)

    def wait_for_path(self, path: str) -> None:
        """Wait until the page at a path has come."""

        def is_there() -> bool:
            is_at = urlsplit(self.driver.current_url).path == path
            return is_at and bool(self.driver.execute_script("return document.readyState !== 'x'"))

        eventually(is_there)

    def requests(self) -> list[str]:
        """Return the URLs of requests since the last call."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def complaints(self) -> list[str]:
        """Return what pages have caused in the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def serious_faults(self) -> list[str]:
        """Return what axe-core finds in the page that is serious or worse."""
        self.driver.execute_script(AXE.read_text())
        found = self.script("return await axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {[node['html'] for node in each['nodes']]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]


@contextmanager
def running_browser(directory: Path) -> Iterator[Browser]:
    downloads = directory / "downloads"
    downloads.mkdir()
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*_FLAGS, f"--user-data-dir={directory / 'profile'}"):
        options.add_argument(flag)
    options.add_experimental_option(
        "prefs",
        {"download.default_directory": str(downloads), "download.prompt_for_download": False},
    )
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    own = {**os.environ, "HOME": str(directory), "TZ": "UTC", "XDG_RUNTIME_DIR": str(directory)}
    driver = Chrome(options=options, service=Service("/usr/bin/chromedriver", env=own))
    try:
        driver.set_page_load_timeout(LIMIT)
        driver.set_script_timeout(LIMIT)
        yield Browser(driver, downloads)
    finally:
        driver.quit()

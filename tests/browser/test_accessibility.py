"""The pages for the keyboard, screen readers, the dark, and phones."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import MARKS, Browser, eventually
from tests.portal_process import PortalProcess, portal_process
from tests.server.http_client import Client
from tests.server.registry_entries import OWNER, put, signed

pytestmark = MARKS


@pytest.fixture(scope="module")
def paths(client: Client, portal: PortalProcess, holidays: str) -> list[str]:
    """One of each page."""
    (portal.data / "hns.zone").write_text(f"holidays svc://{holidays}\nbroken x\n")
    put(client, signed("page"))
    return [
        "",
        f"?stored={holidays}",
        f"{holidays}/more/",
        *(f"-/view/{holidays}/{name}" for name in ("beach.png", "notes.txt", "clip.webm")),
        "-/registry",
        f"-/registry?key={OWNER.public_key.hex()}",
        "nothing",
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 360)])
def test_axe_finds_nothing_serious(
    browser: Browser, home: str, paths: list[str], scheme: str, width: int
) -> None:
    """Pages keep to what axe-core knows of WCAG; none is wider than a phone."""
    browser.cdp(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    browser.cdp(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=800,
        deviceScaleFactor=1,
        mobile=width < 500,
    )
    for path in paths:
        browser.open(home + path)
        browser.find("h1")
        assert browser.serious_faults() == [], path
        wide = browser.script("return document.documentElement.scrollWidth")
        assert wide <= width, path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    path = tmp_path_factory.mktemp("guarded")
    file = path / "password"
    file.write_text("open sesame")
    file.chmod(0o600)
    with portal_process(path / "data", "--password-file", str(file)) as running:
        yield running


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_signing_in_by_keyboard(
    browser: Browser, guarded: PortalProcess, tmp_path: Path, scripts: bool
) -> None:
    """B9: a wrong password is said, the right one opens the page, until one signs out."""
    browser.cdp("Emulation.setScriptExecutionDisabled", value=not scripts)
    home = guarded.url.replace("127.0.0.1", "localhost") + "/"
    browser.open(home)
    browser.find("#password").send_keys("wrong", Keys.ENTER)
    assert "not the password" in browser.text("#wrong")
    if scripts:
        assert browser.serious_faults() == []
    browser.find("#password").send_keys("open sesame", Keys.ENTER)
    browser.find("#upload")
    (tmp_path / "secret.txt").write_text("secret")
    browser.input("#files").send_keys(str(tmp_path / "secret.txt"))
    if not scripts:
        browser.find("#upload button.button").click()
    assert "secret.txt" in browser.text("#stored h2")
    browser.find(".sign-out button").click()
    browser.find("#password")


def test_the_keyboard_reaches_everything(browser: Browser, home: str, holidays: str) -> None:
    """The first key leads past the head; each control can be reached, and seen when it is."""
    browser.open(f"{home}{holidays}/")
    body = browser.find("body")
    body.send_keys(Keys.TAB)
    assert browser.driver.switch_to.active_element.text == "Skip to the content"
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    eventually(lambda: urlsplit(browser.driver.current_url).fragment == "main")
    reached = []
    for _ in range(40):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        active = browser.driver.switch_to.active_element
        if active.tag_name == "body":
            break
        reached.append(active.text or str(active.get_attribute("id")))
        outline = browser.script("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached[-1]
    assert {"Download as zip", "tar", "q", "more", "beach.png", "skylink"} <= set(reached)

"""What names look like in a browser, and what is shown after somebody has signed out."""

from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from skymount.wording import visible
from tests.browser.chromium import MARKS, Browser, eventually
from tests.browser.test_upload import drop
from tests.portal_process import portal_process
from tests.server.http_client import Client

pytestmark = MARKS

_PLACES = """
const element = arguments[0], range = document.createRange(), found = [];
const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  for (let at = 0; at < node.length; at += 1) {
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    found.push([node.data[at], range.getBoundingClientRect().x]);
  }
}
return found.sort((one, other) => one[1] - other[1]).map(([char]) => char).join("");
"""


def seen(browser: Browser, css: str) -> str:
    """Return the characters of an element as they stand from left to right."""
    return str(browser.driver.execute_script(_PLACES, browser.find(css)))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("invoice_\u202egpj.exe", "invoice_\\u202egpj.exe"),
        ("a\u2067b\u200b.txt", "a\\u2067b\\u200b.txt"),
        ("\u05d0\u05d1\u05d2.pdf", "pdf.\u05d2\u05d1\u05d0"),
        ("plain.txt", "plain.txt"),
    ],
    ids=["override", "isolate", "hebrew", "latin"],
)
def test_a_name_reads_as_it_is(
    browser: Browser, home: str, client: Client, name: str, shown: str
) -> None:
    """B12: direction characters turn nothing; right-to-left letters run from right to left."""
    link = client.upload({name: b"x", "other": b"y"}, filename=name)
    for path, css in {
        "": "tbody th a",
        f"?stored={link}": "#stored h2 bdi",
        f"{link}/": "h1",
        f"-/view/{link}/{quote(name)}": "h1",
    }.items():
        browser.open(home + path)
        assert seen(browser, css) == shown
        assert visible(browser.driver.title) == browser.driver.title
    browser.open(f"{home}{link}/")
    eventually(
        lambda: (
            shown
            in {seen(browser, "tbody tr:nth-child(1) th a")}
            | {seen(browser, "tbody tr:nth-child(2) th a")}
        )
    )
    browser.link(visible(name)).click()
    browser.wait_for_path(f"/-/view/{link}/{quote(name)}")
    assert seen(browser, "h1") == shown


@pytest.mark.parametrize(
    "name", ["invoice_\u202egpj.exe", "\U000e0041\u061c.txt", "\u05d0\u05d1.pdf", "می\u200cخواهم"]
)
def test_names_of_what_is_sent(browser: Browser, home: str, tmp_path: Path, name: str) -> None:
    """B12: scripts show them as the portal does."""
    (tmp_path / name).write_bytes(bytes(4 << 20))
    browser.open(home)
    browser.upload_speed(100_000)
    drop(browser, tmp_path / name)
    eventually(lambda: "%" in browser.text("#progress-text"))
    assert browser.text("#progress-what bdi") == visible(name)
    browser.find("#cancel").click()
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    browser.input("#files").send_keys(f"{tmp_path / 'x' / name}\n{tmp_path / 'y' / name}")
    assert browser.text("#problem bdi") == visible(name)


@pytest.mark.parametrize("host", ["localhost", "portal.example"])
def test_back_after_signing_out(browser: Browser, tmp_path: Path, host: str) -> None:
    """B9: it shows the sign-in, also where the browser had kept the pages whole in memory."""
    password = tmp_path / "password"
    password.write_text("open sesame")
    password.chmod(0o600)
    given = ("--allow-host", "portal.example", "--password-file", str(password))
    with portal_process(tmp_path / "data", *given) as portal:
        with Client(base_url=portal.url, auth=("", "open sesame")) as client:
            client.upload_file("the list", b"x")
        home = f"http://{host}:{urlsplit(portal.url).port}/"
        browser.open(home)
        browser.find("#password").send_keys("open sesame")
        browser.find("main button").click()
        assert browser.text("tbody a") == "the list"
        for path in ("-/registry", "?page=1"):
            browser.open(home + path)
            browser.find("table, #keys")
        browser.find(".sign-out button").click()
        browser.find("#password")
        for path in ("?page=1", "-/registry", ""):
            browser.driver.back()
            eventually(lambda path=path: browser.driver.current_url == home + path)
            browser.find("#password")
            assert browser.all("table, #keys") == []

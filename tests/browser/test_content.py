"""Listings and previews in a browser; sites at hosts of their own."""

import zipfile
from pathlib import Path
from urllib.parse import urlsplit

from tests.browser.chromium import MARKS, Browser, eventually
from tests.server.http_client import Client

pytestmark = MARKS

_SITE = {
    "index.html": b"<title>Home</title><h1>Home</h1><a href='sub/page.html'>to a page</a>"
    b"<a href='/nowhere'>to nowhere</a><script src='/site.js'></script>",
    "sub/page.html": b"<title>Sub</title><h1>Sub page</h1><a href='../'>back</a>",
    "site.js": b"document.body.append('script ran');",
    "404.html": b"<title>Lost</title><h1>Lost</h1>",
    "files/a.txt": b"a",
    "files/b.txt": b"b",
}


def test_down_and_up(browser: Browser, home: str, holidays: str) -> None:
    """B4: by links, to the deepest directory and back."""
    browser.open(f"{home}{holidays}")
    assert browser.text("h1") == "holidays"
    rows = [row.text for row in browser.all("tbody th")]
    assert rows == ["more", "beach.png", "clip.webm", "notes.txt", "paper.pdf", "sound.wav"]
    browser.link("more").click()
    browser.wait_for_path(f"/{holidays}/more/")
    browser.link("deep").click()
    browser.wait_for_path(f"/{holidays}/more/deep/")
    browser.link("Up").click()
    browser.wait_for_path(f"/{holidays}/more/")
    browser.link("holidays").click()
    browser.wait_for_path(f"/{holidays}/")


def test_previews(browser: Browser, home: str, holidays: str) -> None:
    """B4: they load and play; from one file to the next by links."""
    browser.open(f"{home}{holidays}/")
    browser.link("beach.png").click()
    picture = browser.find(".preview img")
    eventually(lambda: picture.get_property("naturalWidth") == 64)
    browser.link("clip.webm").click()
    video = browser.find("video")
    eventually(lambda: video.get_property("videoWidth") == 64)
    browser.link("notes.txt").click()
    browser.wait_for_path(f"/-/view/{holidays}/notes.txt")
    assert browser.text("pre") == "First line <b>\nGrüße"
    browser.link("paper.pdf").click()
    browser.wait_for_path(f"/-/view/{holidays}/paper.pdf")
    frame = urlsplit(str(browser.find("iframe").get_attribute("src")))
    assert frame.hostname is not None
    assert frame.hostname.endswith(".localhost")
    browser.link("sound.wav").click()
    sound = browser.find("audio")
    eventually(lambda: sound.get_property("duration") == 1)
    assert browser.complaints() == []


def test_downloads(browser: Browser, home: str, holidays: str, folder: Path) -> None:
    """B4: of a file, and of a directory as zip."""
    browser.open(f"{home}-/view/{holidays}/notes.txt")
    browser.link("Download").click()
    notes = browser.downloads / "notes.txt"
    eventually(notes.exists)
    eventually(lambda: notes.read_bytes() == (folder / "notes.txt").read_bytes())
    browser.open(f"{home}{holidays}/more/")
    browser.link("Download as zip").click()
    packed = browser.downloads / "more.zip"
    eventually(packed.exists)
    eventually(lambda: zipfile.is_zipfile(packed))
    with zipfile.ZipFile(packed) as archive:
        assert archive.namelist() == ["more/deep/data.json"]


def test_search_in_a_folder(browser: Browser, home: str, holidays: str) -> None:
    """B4: by a part of the name; sorted by a click on a heading."""
    browser.open(f"{home}{holidays}/")
    browser.find("#q").send_keys("O")
    browser.find(".search button").click()
    eventually(lambda: "q=O" in browser.driver.current_url)
    assert [row.text for row in browser.all("tbody th")] == ["more", "notes.txt", "sound.wav"]
    browser.link("Size").click()
    eventually(lambda: "sort=size" in browser.driver.current_url)
    assert browser.find("[aria-sort=ascending]").text.startswith("Size")


def test_a_site(browser: Browser, home: str, client: Client) -> None:
    """B5: its links, its scripts and its 404 page work at its own host, listings at the portal."""
    pages = {"errorpages": '{"404": "/404.html"}', "tryfiles": '["index.html"]'}
    link = client.upload(_SITE, **pages)
    browser.open(f"{home}-/view/{link}")
    browser.link("Open the site").click()
    eventually(lambda: browser.driver.title == "Home")
    host = urlsplit(browser.driver.current_url).hostname or ""
    assert host.endswith(".localhost")
    assert "script ran" in browser.text("body")
    browser.link("to a page").click()
    eventually(lambda: browser.driver.title == "Sub")
    assert urlsplit(browser.driver.current_url).path == "/sub/page.html"
    browser.link("back").click()
    eventually(lambda: browser.driver.title == "Home")
    browser.link("to nowhere").click()
    eventually(lambda: browser.driver.title == "Lost")
    assert urlsplit(browser.driver.current_url).hostname == host


def test_text_is_read_as_it_was_written(browser: Browser, home: str, client: Client) -> None:
    """Text, HTML and a script that name no charset, and HTML that names another."""
    polish = "Zażółć gęślą jaźń"
    link = client.upload_file("t.txt", polish.encode(), "text/plain")
    browser.open(f"{home}{link}")
    assert browser.text("pre") == polish
    script = f"document.body.append('{polish}')".encode()
    site = {
        "index.html": f"<!DOCTYPE html><p>{polish}</p><script src='a.js'></script>".encode(),
        "old.html": f"<meta charset=iso-8859-2><p>{polish}</p>".encode("iso-8859-2"),
        "a.js": script,
    }
    link = client.upload(site)
    browser.open(f"{home}{link}/")
    eventually(lambda: browser.text("body") == f"{polish}\n{polish}")
    browser.open(f"{home}{link}/old.html")
    assert browser.text("p") == polish
    assert browser.script("return document.characterSet") == "ISO-8859-2"


def test_a_missing_page_of_a_site(browser: Browser, home: str, client: Client) -> None:
    """B10: the page of the portal has its style there too, and leads back to the portal."""
    link = client.upload({"index.html": b"<title>Plain</title>", "a": b""})
    browser.open(f"{home}{link}/")
    eventually(lambda: browser.driver.title == "Plain")
    browser.open(browser.driver.current_url + "nothing")
    assert browser.text("h1") == "Not found"
    shown = browser.script("return getComputedStyle(document.querySelector('.card')).borderRadius")
    assert shown != "0px"
    browser.link("To the first page").click()
    eventually(lambda: browser.driver.current_url == home)

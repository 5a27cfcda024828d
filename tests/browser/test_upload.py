"""Uploads in a browser: by choice, by drop, with progress, cancelled; and what it shows then."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import MARKS, Browser, eventually
from tests.nginx import needs_nginx, nginx_before
from tests.portal_process import PortalProcess, portal_command, portal_environment
from tests.server.http_client import Client

pytestmark = MARKS


def stored_link(browser: Browser) -> str:
    """Wait until the page says «Stored»; return the skylink that it shows."""
    assert "Stored" in browser.text("#stored h2")
    return str(browser.find("#skylink").get_property("value"))


def drop(browser: Browser, *paths: Path) -> None:
    """Drop files or folders on the page, as from a file manager."""
    at = browser.find("#drop").rect
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        browser.cdp("Input.dispatchDragEvent", type=kind, x=at["x"] + 50, y=at["y"] + 20, data=data)


def files_of(client: Client, link: str) -> list[str]:
    return sorted(client.get(f"/svc/metadata/{link}").json()["subfiles"])


def test_files_by_choice(browser: Browser, home: str, client: Client, tmp_path: Path) -> None:
    """B1: the skylink, a link to look at it, the command; and it is the first in the list."""
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(name)
    browser.open(home)
    browser.input("#files").send_keys(f"{tmp_path / 'one.txt'}\n{tmp_path / 'two.txt'}")
    link = stored_link(browser)
    assert files_of(client, link) == ["one.txt", "two.txt"]
    assert client.get(f"/{link}/two.txt").text == "two.txt"
    command = f"skymount download {link} --portal {home.rstrip('/')}"
    assert browser.find("#command").get_property("value") == command
    assert link in str(browser.find("tbody a").get_attribute("href"))
    browser.link("Look at it").click()
    browser.wait_for_path(f"/-/view/{link}")
    assert "one.txt" in browser.text("table")


def test_a_folder_by_choice(browser: Browser, home: str, client: Client, folder: Path) -> None:
    """B1: with paths below it."""
    browser.open(home)
    browser.input("#folder").send_keys(str(folder))
    link = stored_link(browser)
    assert "holidays" in browser.text("#stored h2")
    assert "more/deep/data.json" in files_of(client, link)


def test_names_and_types(browser: Browser, home: str, client: Client, tmp_path: Path) -> None:
    """Each name arrives as it is, and the types are those of every other client."""
    types = {
        'q"x.txt': "text/plain",
        "q%22x.txt": "text/plain",
        "back\\slash.md": "text/markdown",
        "it's (é) *.webp": "image/webp",
        "a.html.gz": "application/gzip",
        "film.ts": "video/mp2t",
        "README": "",
    }
    for name in types:
        (tmp_path / name).write_text(name)
    browser.open(home)
    browser.input("#files").send_keys("\n".join(str(tmp_path / name) for name in types))
    link = stored_link(browser)
    metadata = client.get(f"/svc/metadata/{link}").json()
    subfiles = metadata["subfiles"]
    assert {name: sub.get("contenttype", "") for name, sub in subfiles.items()} == types
    for name, sub in subfiles.items():
        assert sub["len"] == len(name.encode())
        assert client.get(f"/{link}/{quote(name)}").text == name


def test_files_and_folders_by_drop(
    browser: Browser, home: str, client: Client, folder: Path, tmp_path: Path
) -> None:
    """B1: a folder with all that is below it, alone or with a file beside it."""
    browser.open(home)
    drop(browser, folder)
    link = stored_link(browser)
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert files_of(client, link) == sorted(names)
    (tmp_path / "beside.txt").write_text("beside")
    browser.open(home)
    drop(browser, folder, tmp_path / "beside.txt")
    both = files_of(client, stored_link(browser))
    assert both == sorted(["beside.txt", *(f"holidays/{name}" for name in names)])


def files_in(directory: Path, names: Iterable[str]) -> Path:
    """Make files with what is called like them in a new directory."""
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)
    return directory


def test_one_name_everywhere(
    browser: Browser, home: str, portal: PortalProcess, tmp_path: Path
) -> None:
    """B2: that of the metadata, on the page and by commands; several files are `files`."""
    photos = files_in(tmp_path / "photos2026", ["a.jpg", "more/b.jpg"])
    alone = files_in(tmp_path / "alone", ["only.txt"])
    chosen = files_in(tmp_path, ["a.txt", "b.txt"])
    for name, dropped in {
        "photos2026": [photos],
        "alone": [alone],
        "files": [chosen / "a.txt", chosen / "b.txt"],
        "a.txt": [chosen / "a.txt"],
    }.items():
        browser.open(home)
        drop(browser, *dropped)
        link = stored_link(browser)
        assert browser.text("#stored h2") == f"✓ Stored: {name}"
        assert browser.text("tbody a") == name
        for command in (("list", "--limit", "1"), ("show", link)):
            said = subprocess.check_output(
                portal_command(*command, "--json", "--data", str(portal.data)),
                env=portal_environment(),
            )
            rows = json.loads(said)
            row = rows[0] if isinstance(rows, list) else rows
            assert (row["skylink"], row["name"]) == (link, name)


# As Firefox hands over what is dropped; Chromium gives the second one of a name another name.
_DROP = """
const [files, folders] = arguments, moved = new DataTransfer();
for (const name of files) moved.items.add(new File([name], name.slice(name.lastIndexOf("/") + 1)));
const entry = (name) => {
  const file = (taken) => taken(new File([name], name));
  return {isFile: true, fullPath: `/${name}`, file};
};
const folder = (name) => {
  const below = [entry(name)];
  const createReader = () => ({readEntries: (taken) => taken(below.splice(0))});
  return {isDirectory: true, createReader};
};
if (folders.length) {
  const found = [...files.map(entry), ...folders.map(folder)];
  DataTransferItem.prototype.webkitGetAsEntry = () => found.pop();
  for (const each of folders) moved.items.add(new File([], each));
}
document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true}));
"""


@pytest.mark.parametrize(
    ("files", "folders", "told"),
    [
        (["x/a.txt", "x/b", "y/a.txt"], [], "Two files have the name a.txt: one of 7 bytes, "),
        ([], ["both/b", "other", "both/b"], "Two files have the name both/b: one of 6 bytes, "),
        (["both"], ["both/in/a"], "A file and a folder have the name both."),
    ],
)
def test_two_of_one_name(
    browser: Browser, home: str, tmp_path: Path, files: list[str], folders: list[str], told: str
) -> None:
    """B1: the page says which before it sends anything."""
    browser.open(home)
    browser.requests()
    browser.driver.execute_script(_DROP, files, folders)
    said = [browser.text("#problem")]
    if not folders:
        browser.script("document.querySelector('#problem').hidden = true")
        chosen = files_in(tmp_path, files)
        browser.input("#files").send_keys("\n".join(str(chosen / name) for name in files))
        said.append(browser.text("#problem"))
    for each in said:
        assert each.startswith(told)
        assert each.endswith("Nothing was sent: rename one of them, or upload one after the other.")
    assert [url for url in browser.requests() if "upload" in url] == []
    browser.input("#files").send_keys(str(files_in(tmp_path, ["one"]) / "one"))
    stored_link(browser)


def test_folders_without_files(browser: Browser, home: str, tmp_path: Path) -> None:
    """B1: the page says that there are none; it can be used again."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "nested/a/b").mkdir(parents=True)
    (tmp_path / "nested/c").mkdir()
    browser.open(home)
    for folder in ("empty", "nested"):
        browser.script("document.querySelector('#problem').hidden = true")
        drop(browser, tmp_path / folder)
        assert browser.text("#problem") == "There are no files in it."
        assert browser.find("#drop").is_displayed()


def test_many_files(browser: Browser, home: str, client: Client, tmp_path: Path) -> None:
    """B1: how many files were found is shown meanwhile."""
    names = [f"{folder}/{number}" for folder in "ab" for number in range(400)]
    many = files_in(tmp_path / "many", names)
    browser.open(home)
    browser.script(
        "sessionStorage.said = ''; new MutationObserver(() => {"
        "sessionStorage.said += `${document.querySelector('#progress').textContent}\n`;"
        "}).observe(document.querySelector('#progress'), {childList: true, subtree: true})"
    )
    drop(browser, many)
    assert files_of(client, stored_link(browser)) == sorted(names)
    said = browser.script("return sessionStorage.said")
    for text in ("looks for the files", "100 files found", "800 files found", "800 files, "):
        assert text in said
    assert "opens what it sends" in said


def test_what_the_browser_could_not_do(
    browser: Browser, home: str, client: Client, tmp_path: Path
) -> None:
    """B10: nobody cancelled it. The page says what happened, and names the command."""
    big = tmp_path / "big"
    big.write_bytes(bytes(8 << 20))
    before = client.get("/svc/stats").json()["numfiles"]
    command = f"skymount upload PATH --portal {home.rstrip('/')}"
    browser.open(home)
    browser.upload_speed(200_000)
    drop(browser, big)
    eventually(lambda: "%" in browser.text("#progress-text"))
    browser.script("window.stop()")
    said = browser.text("#problem")
    assert said.startswith("It was not stored: the browser could not send 1 file of 8.4 MB")
    assert said.endswith(command)
    drop(browser, big)
    eventually(lambda: "%" in browser.text("#progress-text"))
    os.truncate(big, 1)  # the browser refuses to send what has changed
    said = browser.text("#problem")
    assert said.startswith("It was not stored: the connection broke, or the browser could not")
    assert said.endswith(command)
    browser.script("Blob = class { constructor() { throw new RangeError('too many') } }")
    drop(browser, big)
    eventually(lambda: "could not read the files (too many)" in browser.text("#problem"))
    browser.script(
        "const file = (_, failed) => failed(new Error('gone'));"
        "DataTransferItem.prototype.webkitGetAsEntry = () => ({isFile: true, fullPath: '/x', file})"
    )
    drop(browser, big)
    eventually(lambda: "could not read the files, after 0 files (gone)" in browser.text("#problem"))
    assert client.get("/svc/stats").json()["numfiles"] == before


@needs_nginx
def test_the_limit_of_a_proxy(browser: Browser, home: str, tmp_path: Path) -> None:
    """B10: the page says whose limit it is, and what it is called there."""
    (tmp_path / "big").write_bytes(bytes(200_000))
    (tmp_path / "small").write_bytes(b"small")
    more = "client_max_body_size 100k; proxy_set_header Host $http_host;"
    with nginx_before(home.rstrip("/"), tmp_path / "nginx", more) as proxy:
        browser.open(proxy)
        browser.input("#files").send_keys(str(tmp_path / "big"))
        said = browser.text("#problem")
        assert "a proxy before the portal does not take 200 KB at once" in said
        assert "client_max_body_size" in said
        browser.input("#files").send_keys(str(tmp_path / "small"))
        stored_link(browser)


def test_progress_and_cancel(browser: Browser, home: str, client: Client, tmp_path: Path) -> None:
    """B1: how much is sent is shown; what is cancelled is not stored."""
    (tmp_path / "big").write_bytes(bytes(8 << 20))
    before = client.get("/svc/stats").json()["numfiles"]
    browser.open(home)
    browser.upload_speed(200_000)
    browser.input("#files").send_keys(str(tmp_path / "big"))
    bar = browser.find("#bar")
    eventually(lambda: 0 < float(str(bar.get_property("value"))) < 1)
    eventually(lambda: "%" in browser.text("#progress-text"))
    assert "big, 8.4 MB" in browser.text("#progress-what")
    browser.find("#cancel").click()
    assert "cancelled" in browser.text("#problem")
    assert browser.find("#drop").is_displayed()
    assert client.get("/svc/stats").json()["numfiles"] == before
    browser.upload_speed(-1)
    browser.input("#files").send_keys(str(tmp_path / "big"))
    assert client.get(f"/{stored_link(browser)}").content == bytes(8 << 20)


def test_what_went_wrong_is_shown(browser: Browser, home: str, tmp_path: Path) -> None:
    """B10: also when scripts upload; the page can be used again."""
    (tmp_path / "file").write_text("x")
    browser.open(home)
    browser.script("document.querySelector('#upload').elements.token.value = 'stale'")
    browser.input("#files").send_keys(str(tmp_path / "file"))
    assert "this page is not current" in browser.text("#problem")
    browser.script("document.querySelector('#upload').dataset.limit = '0'; location.hash = ''")
    assert browser.find("#drop").is_displayed()


def test_copy(browser: Browser, home: str, client: Client) -> None:
    """B1: a button copies, and says so to those who cannot see it."""
    link = client.upload_file("to copy", b"copied")
    browser.open(f"{home}?stored={link}")
    browser.find("#stored .copy").click()
    eventually(lambda: browser.script("return document.querySelector('#said').textContent"))
    search = browser.find("#q")
    search.send_keys(Keys.CONTROL, "v")
    assert search.get_property("value") == link
    search.send_keys(Keys.ENTER)
    eventually(lambda: urlsplit(browser.driver.current_url).query.startswith("q="))
    assert browser.text("tbody a") == "to copy"
    assert len(browser.all("tbody tr")) == 1


def test_search_and_empty_list(browser: Browser, home: str, client: Client) -> None:
    """B2: by a part of the name; what matches nothing says so."""
    client.upload_file("A needle.txt", b"needle")
    browser.open(home)
    browser.find("#q").send_keys("needle", Keys.ENTER)
    assert browser.text("tbody a") == "A needle.txt"
    browser.open(f"{home}?q=nothing-like-it")
    assert "Nothing matches" in browser.text("main")
    browser.link("Show all").click()
    browser.find("tbody")


def test_without_scripts(
    browser: Browser, home: str, client: Client, folder: Path, tmp_path: Path
) -> None:
    """B1: a plain form uploads, and listings and previews are as they are with scripts."""
    browser.cdp("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(home)
    (tmp_path / "plain.txt").write_text("plain")
    browser.input("#files").send_keys(str(tmp_path / "plain.txt"))
    browser.find("#upload button.button").click()
    link = stored_link(browser)
    assert client.get(f"/{link}").text == "plain"
    browser.open(home)
    browser.input("#folder").send_keys(str(folder))
    browser.find("#upload button.button").click()
    link = stored_link(browser)
    assert "more/deep/data.json" in files_of(client, link)
    browser.link("Look at it").click()
    browser.link("more").click()
    browser.link("deep").click()
    browser.link("data.json").click()
    assert browser.text("pre") == '{"a": 1}'


def test_no_request_goes_elsewhere(browser: Browser, home: str, holidays: str) -> None:
    """B7: nor does the console have any complaint."""
    browser.requests()
    for path in ("", f"?stored={holidays}", f"{holidays}/", f"-/view/{holidays}/beach.png"):
        browser.open(home + path)
        browser.find("h1")
    hosts = {urlsplit(url).netloc for url in browser.requests() if url.startswith("http")}
    assert hosts == {urlsplit(home).netloc}
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["portal.example"])
def test_by_a_name_without_a_secure_context(
    browser: Browser, home: str, client: Client, name: str
) -> None:
    """B1: copying and uploading work where the browser grants pages less."""
    link = client.upload_file("to copy", b"copied")
    browser.open(f"{home}?stored={link}".replace("localhost", name))
    assert browser.script("return isSecureContext") is False
    browser.find("#stored .copy").click()
    search = browser.find("#q")
    search.send_keys(Keys.CONTROL, "v")
    assert search.get_property("value") == link
    assert json.loads(browser.script("return JSON.stringify(document.cookie)")) == ""
    assert browser.driver.find_element(By.ID, "drop").is_displayed()

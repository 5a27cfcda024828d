"""A hostile upload: what its scripts try, at its own host, in a sandbox, and as a file name."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import MARKS, Browser, eventually
from tests.portal_process import PortalProcess
from tests.server.http_client import Client

pytestmark = MARKS

_ATTACK = b"""<!doctype html><title>attack</title><iframe id="frame" src="PORTAL/"></iframe>
<script>
const portal = "PORTAL", found = {};
const loaded = new Promise((done) => addEventListener("load", done));  // with the frame
const attempt = async (name, what) => {
  try { found[name] = String(await what()); } catch (error) { found[name] = "refused"; }
};
const html = {headers: {Accept: "text/html"}};
const form = new FormData();
form.append("files[]", new Blob(["forged"]), "forged");
(async () => {
  await attempt("home", async () => (await fetch(portal + "/", html)).text());
  await attempt("registry", async () => (await fetch(portal + "/-/registry", html)).text());
  await attempt("skykeys", async () => (await fetch(portal + "/svc/skykeys")).text());
  await attempt("stats", async () => (await fetch(portal + "/svc/stats", {method: "POST"})).text());
  for (const url of ["/svc/skyfile", "/-/upload"]) {
    await attempt(url, async () =>
      (await fetch(portal + url, {method: "POST", body: form})).text());
    await attempt("opaque" + url, async () =>
      (await fetch(portal + url, {method: "POST", body: form, mode: "no-cors"})).type);
  }
  await attempt("worker", async () => {
    const script = portal + "/SKYLINK/worker.js";
    return (await navigator.serviceWorker.register(script, {scope: portal + "/"})).scope;
  });
  await attempt("storage", async () => { localStorage.setItem("a", "b"); return localStorage.a; });
  await loaded;
  await attempt("frame", async () =>
    document.getElementById("frame").contentDocument.body.innerHTML);
  await attempt("opener", async () => window.opener.document.title);
  document.title = JSON.stringify(found);
})();
</script>"""


def attack(client: Client, portal: str) -> str:
    """Upload it; return its skylink."""
    worker = client.upload({"worker.js": b"self.onfetch = null;", "other": b""})
    page = _ATTACK.replace(b"PORTAL", portal.rstrip("/").encode())
    return client.upload_file("attack.html", page.replace(b"SKYLINK", worker.encode()))


def result(browser: Browser) -> Mapping[str, str]:
    """Wait for what the attempts gave."""
    eventually(lambda: browser.driver.title.startswith("{"))
    found: Mapping[str, str] = browser.script("return JSON.parse(document.title)")
    return found


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "portal.example"])
def test_a_hostile_page(
    browser: Browser, home: str, client: Client, portal: PortalProcess, name: str
) -> None:
    """B6: it reads no page, uploads nothing, registers no worker, and frames no page. B8: nor does
    a form that it sends without reading the answer.
    """
    own = home.replace("localhost", name)
    link = attack(client, own)
    before = client.get("/svc/stats").json()["numfiles"]
    browser.open(own)
    browser.open(own + link)
    found = result(browser)
    assert found.keys() > {"home", "registry", "skykeys", "worker", "frame"}
    allowed = {"storage": "b"} if name == "localhost" else {}
    for attempt, gave in found.items():
        if attempt == "storage":
            assert gave == ("refused" if name == "portal.example" else "b")
        elif not attempt.startswith("opaque"):
            assert gave in ("refused", allowed.get(attempt)), attempt
    assert client.get("/svc/stats").json()["numfiles"] == before
    origin = browser.script("return self.origin")
    host = urlsplit(browser.driver.current_url).hostname or ""
    assert origin == "null" if name == "portal.example" else host.endswith(".localhost")
    browser.driver.switch_to.frame("frame")
    assert browser.all("#upload") == []
    browser.driver.switch_to.default_content()


def test_a_hostile_error_page(browser: Browser, home: str, client: Client) -> None:
    """B6: a site's error page has not the portal's origin either, whatever else is asked for."""
    script = b"<title>page</title><script>document.title = 'ran as ' + self.origin</script>"
    link = client.upload({"e.html": script, "b": b""}, errorpages='{"404": "/e.html"}')
    for name in ("localhost", "portal.example"):
        for path in ("nothing?format=zip", "nothing"):
            own = home.replace("localhost", name)
            browser.open(f"{own}{link}/{path}")
            eventually(lambda: browser.driver.title.startswith("ran as "))
            assert browser.driver.title != f"ran as {own.rstrip('/')}"


def test_hostile_names(browser: Browser, home: str, client: Client) -> None:
    """B6: names are text, in lists, listings, previews and links."""
    name = "\"><img src=x onerror=document.title='ran'><script>document.title='ran'<p>'&amp;"
    link = client.upload({name: b"1", "a/" + name: b"2"}, filename=name)
    single = client.upload_file(f"x{name}", b"x")
    for path in ("", f"?stored={single}", f"{link}/", f"{link}/a/", f"-/view/{single}"):
        browser.open(home + path)
        assert "onerror" in browser.text("main")
        assert "ran" not in browser.driver.title.partition(" · ")[0].split("'")[0]
        assert browser.all("main img") == []
    assert browser.complaints() == []


def test_a_picture_with_scripts(browser: Browser, home: str, client: Client) -> None:
    """B5: an SVG is a picture in its preview, and runs only at its own host."""
    svg = (
        b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">'
        b"<script>top.document.title = 'ran'</script></svg>"
    )
    link = client.upload_file("a.svg", svg)
    browser.open(f"{home}-/view/{link}")
    picture = browser.find(".preview img")
    eventually(lambda: picture.get_property("naturalWidth") == 9)
    assert browser.driver.title == "a.svg · skymount"
    browser.link("Open at its own address").click()
    eventually(lambda: browser.driver.title == "ran")
    assert (urlsplit(browser.driver.current_url).hostname or "").endswith(".localhost")

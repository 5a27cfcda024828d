"""Pages: what all of them have, their styles and scripts, and errors."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from skymount.server.pages.rendering import readable_size, readable_time, title_of
from skymount.wire.skylink import parse_skylink
from tests.portal_process import portal_process
from tests.server.http_client import Client, assert_same_headers, message_of
from tests.server.pages.page_client import ACCEPT, assert_page, page


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 KB"),
        (9949, "9.9 KB"),
        (9950, "10 KB"),
        (999_499, "999 KB"),
        (999_500, "1.0 MB"),
        (5 << 30, "5.4 GB"),
        (10**30, "1000000000000 EB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert readable_size(size) == text


def test_times() -> None:
    assert readable_time(0) == "1970-01-01T00:00:00Z"
    assert readable_time(-1) == "1970-01-01T00:00:00Z"
    assert readable_time(1e18) == "9999-12-31T23:59:59Z"  # files may have any time


def test_templates_are_for_those_who_want_pages() -> None:
    """A portal that nobody opens in a browser does not load jinja2, and a mount never does."""
    code = (
        "import sys\n"
        "from skymount.cli.commands import mount\n"
        "from skymount.daemon import daemonize\n"
        "mounts = set(sys.modules)\n"
        "from skymount.server import main\n"
        "assert 'jinja2' not in sys.modules\n"
        "assert not any(name.startswith('skymount.server') for name in mounts)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_are_isolated_and_written_out(client: Client) -> None:
    """B12: in lists, listings and previews; markup in them stays text. Links lead to the file."""
    name = "a<b>\u202egpj.exe"
    link = client.upload({name: b"1", f"d\u200b/{name}": b"2"}, filename=f"all{name}")
    shown = 'a&lt;b&gt;<span class="unseen">\\u202e</span>gpj.exe</bdi>'
    for url in ("/", f"/?stored={link}", f"/-/view/{link}/"):
        assert f"<bdi>all{shown}" in page(client, url).text
    for url in (f"/{link}/", f"/-/view/{link}/d%E2%80%8B/", f"/-/view/{link}/{quote(name)}"):
        assert f"<bdi>{shown}" in page(client, url).text
    assert '<bdi>d<span class="unseen">\\u200b</span></bdi>' in page(client, f"/{link}/").text
    for url in ("/", f"/{link}/", f"/-/view/{link}/{quote(name)}", f"/?stored={link}"):
        assert not {"\u202e", "\u200b"} & set(page(client, url).text)
    assert page(client, f"/?q={quote(name)}").text.count("\u202e") == 1  # in the field itself
    assert client.get(f"/{link}/{quote(name)}").content == b"1"
    with_slash = client.get(f"/{link}/").text  # for programs
    assert f'<a href="{quote(name)}">a&lt;b&gt;\\u202egpj.exe</a>' in with_slash
    refused = page(client, f"/{link}/no\u202e", status=404)
    assert '/no<span class="unseen">\\u202e</span>' in refused.text


def test_a_policy_for_an_ipv6_address(client: Client) -> None:
    """B7: policies have no such addresses, so the whole origin is named."""
    policy = page(client, "/", {"Host": "[::1]:80"}).headers["content-security-policy"]
    assert "script-src 'self';" in policy
    policy = page(client, "/", {"Host": "localhost:81"}).headers["content-security-policy"]
    assert "script-src localhost:81/-/assets/;" in policy


def test_assets_are_kept_by_browsers_and_change_their_url(client: Client) -> None:
    """B7: each one that a page or a style names is there, with its type."""
    found = re.findall(r'"(/-/assets/[\w.]+\?[0-9a-f]{12})"', page(client, "/").text)
    style = client.get("/-/assets/style.css")
    pictures = [f"/-/assets/{name}" for name in re.findall(r"url\(([\w.]+)\)", style.text)]
    assert len({*found, *pictures}) == 8
    for url in (*found, *pictures):
        answer = client.get(url)
        assert answer.status_code == 200, url
        assert answer.headers["content-type"].startswith(("text/", "image/svg+xml"))
        assert "immutable" in answer.headers["cache-control"]
        assert "http:" not in re.sub(r"http://www\.w3\.org/2000/svg", "", answer.text)
    for name in ("x", "..", "%2e%2e%2fhome.py", "style.css/x"):
        assert client.get(f"/-/assets/{name}").status_code == 404


def test_search_engines_are_asked_to_list_nothing(client: Client, tmp_path: Path) -> None:
    """B13: where it is asked for, by a header of each answer and by a file for all."""
    assert client.get("/robots.txt").status_code == 404
    assert "x-robots-tag" not in page(client, "/").headers
    with (
        portal_process(tmp_path, "--noindex", "--require-agent") as portal,
        Client(base_url=portal.url, headers={"User-Agent": "Sia-Agent"}) as asking,
    ):
        robots = httpx.get(f"{portal.url}/robots.txt")
        assert robots.text == "User-agent: *\nDisallow: /\n"
        assert_same_headers(httpx.head(f"{portal.url}/robots.txt"), robots)
        assert robots.headers["content-type"] == "text/plain; charset=utf-8"
        site = asking.upload({"index.html": b"site", "robots.txt": b"User-agent: x"})
        own = asking.get("/robots.txt", headers={"Host": f"{parse_skylink(site).base32}.localhost"})
        assert own.text == "User-agent: x"
        for answer in (
            own,
            asking.get("/", headers={"Accept": ACCEPT}),
            asking.get(f"/{site}/"),
            asking.get("/svc/skykeys", headers={"Sec-Fetch-Site": "cross-site"}),
            asking.get("/", headers={"Host": "other.example"}),
            asking.options("/"),
        ):
            assert answer.headers["x-robots-tag"] == "noindex, nofollow"


@pytest.mark.parametrize(
    ("url", "headers", "status", "said"),
    [
        ("/nothing/here", {}, 404, ">Not found<"),
        ("/svc/skyfile", {}, 405, "cannot be done"),
        ("/svc/metadata/nonsense", {}, 400, "cannot be understood"),
        ("/?" + "&a=b" * 101, {}, 400, "failed to parse query"),
        ("/hns/nobody", {}, 404, "No records found for nobody"),
        ("/", {"Host": "evil.example"}, 421, "another name"),
        ("/", {"Host": "a b"}, 400, "cannot be understood"),
        ("/", {"Service-Worker": "script"}, 403, "not allowed"),
    ],
)
def test_errors_are_pages_for_browsers(
    client: Client, url: str, headers: dict[str, str], status: int, said: str
) -> None:
    """B10: others get the JSON or text that they always got, with the same status."""
    answer = page(client, url, headers, status)
    assert said.lower() in answer.text.lower()
    assert answer.text.lower().count(">not found<") <= 1  # nothing is said twice
    assert 'lang="en"' in answer.text
    other = client.get(url, headers=headers)
    assert "text/html" not in other.headers.get("content-type", "")


def test_what_is_no_page_stays_as_it_is(client: Client) -> None:
    """B10: requests that change something outside the pages are answered as ever."""
    answer = client.post("/svc/skyfile", headers={"Accept": ACCEPT, "Content-Type": "text/plain"})
    assert answer.status_code == 400
    message_of(answer)
    form = client.post("/-/sign-in", headers={"Accept": ACCEPT}, data={"token": "x"})
    assert form.status_code == 403
    assert_page(form)


@pytest.mark.parametrize("status", [400, 412, 451, 599])
def test_each_status_has_a_name(status: int) -> None:
    """B10: also those that this portal never sends itself."""
    assert title_of(status)[0].isupper()

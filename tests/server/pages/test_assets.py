"""Styles, scripts and pictures of pages."""

import re
from pathlib import Path

import httpx

from skymount.wire.skylink import parse_skylink
from tests.portal_process import portal_process
from tests.server.http_client import Client
from tests.server.pages.page_client import ACCEPT, page


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
        portal_process(tmp_path / "data", "--noindex") as portal,
        Client(base_url=portal.url) as asking,
    ):
        robots = asking.get("/robots.txt")
        assert robots.text == "User-agent: *\nDisallow: /\n"
        assert robots.headers["content-type"] == "text/plain; charset=utf-8"
        assert asking.head("/robots.txt").headers["content-length"] == str(len(robots.content))
        link = asking.upload({"a": b"1", "b": b"2"})
        for url in ("/", f"/{link}/", f"/-/view/{link}/a", f"/{link}/a"):
            assert (
                asking.get(url, headers={"Accept": ACCEPT}).headers["x-robots-tag"]
                == "noindex, nofollow"
            )
        site = asking.upload({"index.html": b"site", "robots.txt": b"User-agent: x"})
        host = f"{parse_skylink(site).base32}.localhost"
        own = asking.get("/robots.txt", headers={"Host": host})
        assert own.text == "User-agent: x"
        assert own.headers["x-robots-tag"] == "noindex, nofollow"
        for refused in (
            asking.get("/svc/skykeys", headers={"Sec-Fetch-Site": "cross-site"}),
            asking.get("/", headers={"Host": "other.example"}),
            asking.options("/"),
        ):
            assert refused.headers["x-robots-tag"] == "noindex, nofollow"
    with portal_process(tmp_path / "data", "--noindex", "--require-agent") as portal:
        assert httpx.get(f"{portal.url}/robots.txt").text == "User-agent: *\nDisallow: /\n"

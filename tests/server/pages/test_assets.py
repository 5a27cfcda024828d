"""Styles, scripts and pictures of pages."""

import re

from tests.server.http_client import Client
from tests.server.pages.page_client import page


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

"""Asks for pages as a browser does."""

import re
from collections.abc import Mapping
from html.parser import HTMLParser

import httpx

from tests.server.http_client import Client

ACCEPT = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


class _NoCode(HTMLParser):
    """Fails on code or styles within a page."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "style"
        found = dict(attrs)
        assert tag != "script" or found.get("src")
        assert not [name for name in found if name.startswith("on") or name == "style"]
        assert not [value for value in found.values() if value and "javascript:" in value]


def page(
    client: Client, url: str, headers: Mapping[str, str] | None = None, status: int = 200
) -> httpx.Response:
    """Get a page, which has the headers that each page has."""
    answer = client.get(url, headers={"Accept": ACCEPT, **(headers or {})})
    assert answer.status_code == status, answer.text
    assert_page(answer)
    return answer


def assert_page(answer: httpx.Response) -> None:
    """Check what holds for each page."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "Accept" in answer.headers["vary"] or answer.request.method == "POST"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    _NoCode().feed(answer.text)


def token_of(answer: httpx.Response) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', answer.text)
    assert found is not None
    return found[1]


def sign_in(client: Client, password: str, **headers: str) -> httpx.Response:
    form = {"token": token_of(page(client, "/")), "password": password}
    return client.post("/-/sign-in", data=form, headers={"Accept": ACCEPT, **headers})


def elsewhere(client: Client, url: str, **headers: str) -> httpx.Response:
    """Get what is at a host of its own, as a browser does; no name is looked up."""
    host, slash, path = url.removeprefix("//").partition("/")
    return client.get(slash + path, headers={"Accept": ACCEPT, "Host": host, **headers})


def listed_names(answer: httpx.Response) -> list[str]:
    """Return the names in the list of the first page, in order."""
    found = re.findall(r'<th scope="row"><a href="/-/view/[^"]+"[^>]*><bdi>([^<]*)<', answer.text)
    return [str(name) for name in found]

"""Which requests are for pages."""

from collections.abc import Mapping

import pytest
from starlette.requests import Request

from skymount.server.http.page_requests import HAS_PAGES, accepts_html, is_page_path, wants_page
from tests.server.http_client import request_of


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        ("text/html", True),
        ("text/html,application/xhtml+xml,*/*;q=0.8", True),
        ("image/png , TEXT/HTML;level=1;q=0.2", True),
        ("text/html;q=0", False),
        ("text/html; level=1; q=0.000, */*", False),
        ("*/*", False),
        ("text/*", False),
        ("text/html5", False),
        ("application/text/html", False),
        ("", False),
    ],
)
def test_accept(accept: str, found: bool) -> None:
    """B11: a browser names HTML; wildcards, as programs send them, do not count."""
    assert accepts_html({"accept": accept}) is found


def test_own_pages() -> None:
    assert is_page_path("/")
    assert is_page_path("/-/upload")
    assert not is_page_path("/-")
    assert not is_page_path("/svc/skyfile")


def test_what_is_answered_with_a_page() -> None:
    """B10: reads, and the forms of pages."""
    html = {"accept": "text/html"}
    assert wants_page(asking("GET", "/svc/stats", html))
    assert wants_page(asking("POST", "/-/upload", html))
    assert not wants_page(asking("POST", "/svc/skyfile", html))
    assert not wants_page(asking("GET", "/", {}))
    assert not wants_page(asking("GET", "/", {**html, "user-agent": "Java/21.0.4"}))
    assert not wants_page(asking("GET", "/", html, has_pages=False))


def asking(method: str, path: str, headers: Mapping[str, str], has_pages: bool = True) -> Request:
    request = request_of(headers=headers)
    request.scope.update({"method": method, "path": path, HAS_PAGES: has_pages})
    return request

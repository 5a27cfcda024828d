"""Which requests are for pages."""

import pytest

from skymount.server.http.page_requests import accepts_html, is_page_path, wants_page


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
    assert wants_page("GET", "/svc/stats", html)
    assert wants_page("POST", "/-/upload", html)
    assert not wants_page("POST", "/svc/skyfile", html)
    assert not wants_page("GET", "/", {})

"""Who asks, and which requests are for pages."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from skymount.server.http.clients import (
    Kind,
    Requester,
    is_page_path,
    prefers_html,
)
from skymount.server.http.messages import Request
from skymount.wire.dialect import SKYNET, SVC
from tests.server.http_client import request_of
from tests.server.pages.page_client import ACCEPT

_CHROMIUM = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/142.0.0.0", "accept": "*/*"}
_PIP = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, "
    "text/html; q=0.01"
)
_JAVA = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"


def fetched(mode: str, used_as: str = "", **more: str) -> dict[str, str]:
    """Return what a browser sends over a connection that it takes for secure."""
    dest = {"sec-fetch-dest": used_as} if used_as else {}
    return {**_CHROMIUM, "sec-fetch-mode": mode, **dest, **more}


@pytest.mark.parametrize(
    ("accept", "found"),
    [
        (ACCEPT, True),
        ("text/html", True),
        ("text/html,application/xhtml+xml,*/*;q=0.8", True),
        ("image/png;q=0.1 , TEXT/HTML;level=1;q=0.2", True),
        ("image/png , TEXT/HTML;level=1;q=0.2", False),
        (_PIP, False),
        ("text/html;q=0.9, */*", False),
        ("text/html;q=0", False),
        ("text/html; level=1; q=0.000, */*", False),
        ("*/*", False),
        ("text/*", False),
        ("text/html5", False),
        ("application/text/html", False),
        ("", False),
        (",;,text/html;q=x;q=", True),
        ("a/b;q=0.1," * 500 + "text/html", False),
    ],
)
def test_accept(accept: str, found: bool) -> None:
    """B11: a browser names HTML first; wildcards, as programs send them, do not count."""
    assert prefers_html(accept) is found


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        # browsers
        (fetched("navigate", "document", accept=ACCEPT), Kind.PAGE),
        (fetched("navigate", "iframe"), Kind.PAGE),
        (fetched("no-cors", "image"), Kind.PART),
        (fetched("no-cors", "script"), Kind.PART),
        (fetched("no-cors", "empty"), Kind.PART),  # a prefetch
        (fetched("cors", "script", origin="http://a"), Kind.PART),  # a module
        (fetched("cors", "font", origin="http://a"), Kind.PART),
        (fetched("same-origin", "worker"), Kind.PART),
        (fetched("cors", "empty", origin="http://a"), Kind.SCRIPT),
        (fetched("cors", "empty"), Kind.SCRIPT),
        (fetched("same-origin", "empty", accept="text/html"), Kind.SCRIPT),
        # older ones, and over http to another machine
        ({"accept": ACCEPT}, Kind.PAGE),
        ({"accept": ACCEPT, "origin": "http://a"}, Kind.PAGE),  # a form
        ({"accept": "*/*", "origin": "http://a"}, Kind.SCRIPT),
        # programs
        ({}, Kind.PROGRAM),
        ({"user-agent": "curl/8.5.0", "accept": "*/*"}, Kind.PROGRAM),
        ({"user-agent": "node", "accept": "*/*", "sec-fetch-mode": "cors"}, Kind.PROGRAM),
        ({"user-agent": "pip/25", "accept": _PIP}, Kind.PROGRAM),
        ({"user-agent": "Java/17.0.12", "accept": _JAVA}, Kind.PROGRAM),
        ({"user-agent": "Sia-Agent"}, Kind.AGENT),
        ({"user-agent": "x svc-agent/1", "sec-fetch-mode": "cors"}, Kind.AGENT),
        ({"user-agent": "Sia-Agent", "accept": ACCEPT}, Kind.AGENT),
        ({"user-agent": "Sia-Agent", "origin": "http://a"}, Kind.AGENT),
    ],
)
def test_kinds(headers: dict[str, str], kind: Kind) -> None:
    found = Requester.of(headers)
    assert found.kind is kind
    assert (found.dialect is not None) == (kind is Kind.AGENT)


def test_the_dialect_of_an_agent() -> None:
    for dialect in (SVC, SKYNET):
        assert Requester.of({"user-agent": f"sdk/1 {dialect.agent}"}).dialect is dialect


@pytest.mark.parametrize("name", ["Sec-Fetch-Mode", "Sec-Fetch-Dest", "Accept", "User-Agent"])
def test_what_is_not_named_decides_nothing(name: str) -> None:
    """B11: two requests that differ only in headers that `Vary` does not name are of one kind."""
    values = {
        "sec-fetch-mode": ("", "navigate", "no-cors", "cors"),
        "sec-fetch-dest": ("", "empty", "image"),
        "accept": ("*/*", ACCEPT),
        "user-agent": ("curl/8", "Sia-Agent", "Java/17"),
    }
    key = name.lower()
    others = [each for each in values if each != key]
    for first in values[others[0]]:
        for second in values[others[1]]:
            for third in values[others[2]]:
                rest = dict(zip(others, (first, second, third), strict=True))
                rest = {each: value for each, value in rest.items() if value}
                found = [
                    Requester.of(rest | ({key: value} if value else {})) for value in values[key]
                ]
                for one in found:
                    if name not in one.told_by:
                        assert {each.kind for each in found} == {one.kind}
                    if name not in one.shown_by:
                        assert {each.is_browser for each in found} == {one.is_browser}


def test_own_pages() -> None:
    assert is_page_path("/")
    assert is_page_path("/-/upload")
    assert not is_page_path("/-")
    assert not is_page_path("/svc/skyfile")


def test_what_is_answered_with_a_page() -> None:
    """B10: reads, and the forms of pages."""
    html = {"accept": "text/html"}
    assert asking("GET", "/svc/stats", html).wants_page
    assert asking("POST", "/-/upload", html).wants_page
    assert not asking("POST", "/svc/skyfile", html).wants_page
    assert not asking("GET", "/", {}).wants_page
    assert not asking("GET", "/", {**html, "user-agent": "Java/21.0.4"}).wants_page
    assert not asking("GET", "/", html, has_pages=False).wants_page


def asking(method: str, path: str, headers: Mapping[str, str], has_pages: bool = True) -> Request:
    request = request_of(headers=headers, path=path, method=method)
    request.asker = replace(request.asker, has_pages=has_pages)
    return request

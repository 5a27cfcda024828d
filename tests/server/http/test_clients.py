"""Who asks, and by way of which proxy."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from skymount.errors import MalformedError
from skymount.server.http.clients import (
    Client,
    Kind,
    Requester,
    RequestHost,
    TrustedProxies,
    WrongHost,
    came_through_proxy,
    find_wrong_host,
    is_page_path,
    prefers_html,
)
from skymount.server.http.messages import Request
from skymount.server.http.parsing import Headers
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


_PROXIES = TrustedProxies.parse(["127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"])


def told(peer: str, *headers: tuple[str, str], proxies: TrustedProxies = _PROXIES) -> Client:
    given = Headers([(name.lower(), value) for name, value in headers])
    return proxies.client(peer, "http", given)


_HTTPS = ("X-Forwarded-Proto", "https")


@pytest.mark.parametrize(
    ("sent", "address"),
    [
        (["192.0.2.7"], "192.0.2.7"),
        (["192.0.2.7, 198.51.100.1"], "198.51.100.1"),  # the first is what the client claims
        (["192.0.2.7, 10.2.3.4, 127.0.0.1"], "192.0.2.7"),
        (["192.0.2.7", "10.2.3.4"], "192.0.2.7"),
        (["192.0.2.7:4711"], "192.0.2.7"),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["2001:db8::1"], "2001:db8::1"),
        (["::ffff:192.0.2.7"], "192.0.2.7"),
        (["2001:db8::1%\x1b[31m from 192.0.2.9"], "2001:db8::1"),  # a zone is any text
        (["nonsense"], "127.0.0.1"),
        (["192.0.2.7, nonsense, 10.2.3.4"], "10.2.3.4"),
        (["10.0.0.1"], "10.0.0.1"),
        ([""], "127.0.0.1"),
        ([], "127.0.0.1"),
        (["192.0.2.7" + ", 10.0.0.1" * 10_000], "10.0.0.1"),
    ],
)
def test_the_address_of_a_client(sent: list[str], address: str) -> None:
    """The last one that is no trusted proxy; of very many only the last are read."""
    found = told("127.0.0.1", *(("X-Forwarded-For", value) for value in sent))
    assert found == Client(address, "http")


@pytest.mark.parametrize(
    ("sent", "scheme"),
    [
        (["https"], "https"),
        (["HTTPS "], "https"),
        (["http"], "http"),
        (["http, https"], "https"),
        (["https", "http"], "http"),
        (["ftp"], "http"),
        ([""], "http"),
    ],
)
def test_the_scheme_of_a_client(sent: list[str], scheme: str) -> None:
    found = told("10.1.1.1", *(("X-Forwarded-Proto", value) for value in sent))
    assert found == Client("10.1.1.1", scheme)


@pytest.mark.parametrize("peer", ["192.0.2.1", "11.0.0.1", "fe80::1", ""])
def test_others_are_not_believed(peer: str) -> None:
    assert told(peer, _HTTPS, ("X-Forwarded-For", "1.2.3.4")) == Client(peer, "http")


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1"])
def test_nobody_is_believed_by_default(peer: str) -> None:
    assert told(peer, _HTTPS, proxies=TrustedProxies()) == Client(peer, "http")


@pytest.mark.parametrize("peer", ["::ffff:127.0.0.1", "::1", "fd00::5"])
def test_forms_of_a_proxy(peer: str) -> None:
    assert told(peer, _HTTPS).scheme == "https"


@pytest.mark.parametrize("text", ["", "proxy", "10.0.0.1/8", "1.2.3.4:80", "10.0.0.0/33"])
def test_what_is_no_proxy(text: str) -> None:
    with pytest.raises(MalformedError, match="not the address or network of a proxy"):
        TrustedProxies.parse([text])


def headers_of(**sent: str) -> Headers:
    return Headers([(name.replace("_", "-").lower(), value) for name, value in sent.items()])


@pytest.mark.parametrize(
    ("version", "is_browser", "sent", "found"),
    [
        ("1.1", True, {}, False),
        ("1.0", True, {}, True),
        ("1.0", False, {}, False),  # an old program
        ("1.1", False, {"Via": "1.1 x"}, True),
        ("1.1", True, {"Forwarded": "for=192.0.2.1"}, True),
        ("1.1", True, {"X_Forwarded_For": "192.0.2.1"}, True),
        ("1.1", True, {"X_Forwarded_Proto": "https"}, True),
        ("1.1", True, {"X_Real_IP": "192.0.2.1"}, True),
    ],
)
def test_the_traces_of_a_proxy(
    version: str, is_browser: bool, sent: dict[str, str], found: bool
) -> None:
    assert came_through_proxy(version, headers_of(**sent), is_browser=is_browser) == found


_SAME = {"Sec_Fetch_Site": "same-origin"}
_PAGE = {**_SAME, "Referer": "https://portal.example/-/registry?a#b"}
_OWN = "127.0.0.1:4280"


@pytest.mark.parametrize(
    ("host", "is_proxied", "public", "sent", "expected"),
    [
        (_OWN, False, "", {}, None),
        (_OWN, True, "", {}, ""),
        ("localhost:4280", True, "portal.example", {}, "portal.example"),
        ("localhost:8080", True, "", {}, None),  # a proxy of one's own passes it on
        ("localhost", True, "", {}, None),
        ("portal.example", True, "portal.example", {}, None),
        (_OWN, False, "", _PAGE, "portal.example"),
        ("portal.example", False, "", _PAGE, None),
        ("portal.example", False, "", {**_SAME, "Origin": "https://portal.example:81"}, ":81"),
        ("portal.example:81", True, "", {**_SAME, "Origin": "https://portal.example:81"}, None),
        (_OWN, False, "", {**_PAGE, "Sec_Fetch_Site": "cross-site"}, None),
        (_OWN, False, "", {**_SAME, "Origin": "null"}, None),
        (_OWN, False, "", {**_SAME, "Referer": "x" * 9999}, None),
        (_OWN, True, "", {"X_Forwarded_Host": "portal.example"}, "portal.example"),
        ("inner", True, "", {"X_Forwarded_Host": "a.example, b.example:8"}, "b.example:8"),
        ("a.example:8", True, "", {"X_Forwarded_Host": "a.example, b.example"}, None),
        (_OWN, True, "", {"X_Forwarded_Host": _OWN}, None),
        (_OWN, True, "", {"X_Forwarded_Host": "a b\x01" + "," * 9999}, ""),
        (f"{'a' * 55}.localhost:4280", True, "", {}, None),
    ],
)
def test_a_host_header_that_a_proxy_has_replaced(
    host: str, is_proxied: bool, public: str, sent: dict[str, str], expected: str | None
) -> None:
    """W1: by what the browser says, the proxy, or the address that the request came to."""
    found = find_wrong_host(
        RequestHost.parse(host), _OWN, headers_of(**sent), is_proxied=is_proxied, public=public
    )
    if expected == ":81":
        expected = "portal.example:81"
    assert found == (None if expected is None else WrongHost(host, expected))

"""What a trusted proxy says about a client."""

import pytest

from skymount.errors import MalformedError
from skymount.server.http.clients import (
    Client,
    TrustedProxies,
    WrongHost,
    came_through_proxy,
    find_wrong_host,
)
from skymount.server.http.origins import RequestHost
from skymount.server.http.parsing import Headers

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

"""Names and origins of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError
from skymount.server.http.clients import RequestHost, parse_name, parse_origin
from skymount.wire.http.host import is_loopback

_BASE32 = "0123456789abcdefghijklmnopqrstuv" + "a" * 23


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", RequestHost("localhost", "")),
        ("Example.ORG.:80", RequestHost("example.org", "80")),
        ("example.org:", RequestHost("example.org", "")),
        ("[::1]:4280", RequestHost("[::1]", "4280")),
        (f"{_BASE32.upper()}.a.b:1", RequestHost("a.b", "1", f"/{_BASE32}")),
        (f"{_BASE32}x.a", RequestHost(f"{_BASE32}x.a", "")),
        (_BASE32, RequestHost(_BASE32, "")),
        ("name.hns.localhost:1", RequestHost("localhost", "1", "/hns/name")),
        ("sub.name.hns.a.b", RequestHost("a.b", "", "/hns/sub.name")),
        ("hns.localhost", RequestHost("hns.localhost", "")),
        ("my.hns.example", RequestHost("my.hns.example", "")),
        ("a.hns.my.hns.example", RequestHost("my.hns.example", "", "/hns/a")),
    ],
)
def test_hosts(text: str, expected: RequestHost) -> None:
    """Case and last dot do not count; a name of our own selects nothing."""
    assert RequestHost.parse(text, {"my.hns.example"}) == expected


@given(st.text(max_size=80) | st.from_regex(r"[\[\]a-z0-9.:_-]{0,80}", fullmatch=True))
def test_any_text_is_a_host_or_malformed(text: str) -> None:
    """And a host can be written and read again."""
    try:
        host = RequestHost.parse(text)
    except MalformedError:
        return
    is_loopback(host.name)
    assert RequestHost.parse(host.authority, {host.name}) == RequestHost(host.name, host.port)


def test_names() -> None:
    """A name has no port; IPv6 may go without brackets."""
    assert parse_name("Example.org.") == "example.org"
    assert parse_name("::1") == parse_name("[::1]") == "[::1]"
    for text in ("", "a:1", "a/b", "ä", "[::1]:1", "http://a"):
        with pytest.raises(MalformedError):
            parse_name(text)


def test_origins() -> None:
    """As browsers write them: lower case, no default port."""
    assert parse_origin("HTTPS://Example.org:443/") == "https://example.org"
    assert parse_origin("http://example.org:80") == "http://example.org"
    assert parse_origin("http://example.org:443") == "http://example.org:443"
    assert parse_origin("chrome-extension://abc") == "chrome-extension://abc"
    assert parse_origin("*") == "*"
    assert parse_origin("null") == "null"
    for text in ("", "example.org", "http://", "http://a/b", "http://a@b", "http://a b", "*.a"):
        with pytest.raises(MalformedError):
            parse_origin(text)
    for text in ("x://:", "http://:80", "http://a:", "http://a:80:80", "http://a:x", "http://[a"):
        with pytest.raises(MalformedError):  # no browser says so: they would allow nothing
            parse_origin(text)
    assert parse_origin("https://[::1]:8080") == "https://[::1]:8080"

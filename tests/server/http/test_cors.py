"""Origins of web pages."""

import pytest

from skymount.errors import MalformedError
from skymount.server.http.origins import parse_origin


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

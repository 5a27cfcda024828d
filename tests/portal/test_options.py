"""Addresses of portals: what is one, and what must not be in it."""

import pytest

from skymount.errors import MalformedError
from skymount.portal.options import DEFAULT_PORTAL_URL, PortalOptions, parse_portal_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://localhost", "http://localhost"),
        ("https://portal.example/", "https://portal.example"),
        (" https://portal.example:8443/base/path// ", "https://portal.example:8443/base/path"),
        ("http://[::1]:4280", "http://[::1]:4280"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("HTTPS://Portal.Example", "https://Portal.Example"),
    ],
)
def test_good_address(text: str, url: str):
    """An address is kept without a trailing slash."""
    assert parse_portal_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "portal.example",
        "ftp://portal.example",
        "http://",
        "http:///path",
        "http://host:0",
        "http://host:99999",
        "http://host:port",
        "http://[::1",
        "http://host?query",
        "http://host#fragment",
        "file:///etc/passwd",
        "",
        "//host",
    ],
)
def test_bad_address(text: str):
    """Anything else is malformed, and the message quotes it."""
    with pytest.raises(MalformedError):
        parse_portal_url(text)


@pytest.mark.parametrize(
    "text", ["http://me:secret@host", "http://secret@host", "http://:secret@h"]
)
def test_credentials_in_an_address(text: str):
    """Credentials are refused, and not repeated in the message."""
    with pytest.raises(MalformedError) as caught:
        parse_portal_url(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:1", True),
        ("http://127.0.0.1", True),
        ("http://127.9.9.9:5", True),
        ("http://[::1]:5", True),
        ("http://10.0.0.1", False),
        ("https://portal.example", False),
        ("http://localhost.example", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_local_address(url: str, local: bool):
    """A portal on this machine is known by its address, without asking anybody for names."""
    assert PortalOptions(url).is_local is local


def test_options():
    """An empty address is the default portal; the key is not in the repr."""
    options = PortalOptions.parse("", api_key="secret")
    assert options.url == DEFAULT_PORTAL_URL
    assert "secret" not in repr(options)

"""Host names that mean this machine."""

import pytest

from skymount.errors import MalformedError
from skymount.wire.http.host import is_loopback, parse_loopback


def test_loopback() -> None:
    """Addresses of loopback, localhost and what is below it."""
    for name in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "a.localhost"):
        assert is_loopback(name)
    for name in ("", "0.0.0.0", "::", "10.0.0.1", "localhost.a", "127.0.0.1.a", "alocalhost"):
        assert not is_loopback(name)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_an_address_of_this_machine(text: str, found: tuple[str, int]) -> None:
    assert parse_loopback(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"),
        *("0.0.0.0:80", "[::]:80", "::1:80", "portal.example:80", "127.0.0.1:٣", "127.0.0.1:-1"),
    ],
)
def test_what_is_no_address_of_this_machine(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_loopback(text)

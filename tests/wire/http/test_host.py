"""Host names that mean this machine."""

from skymount.wire.http.host import is_loopback


def test_loopback() -> None:
    """Addresses of loopback, localhost and what is below it."""
    for name in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "a.localhost"):
        assert is_loopback(name)
    for name in ("", "0.0.0.0", "::", "10.0.0.1", "localhost.a", "127.0.0.1.a", "alocalhost"):
        assert not is_loopback(name)

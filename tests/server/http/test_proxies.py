"""What a trusted proxy says about a client."""

import pytest
from starlette.datastructures import Headers

from skymount.errors import MalformedError
from skymount.server.http.proxies import Client, TrustedProxies

_PROXIES = TrustedProxies.parse(["127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"])


def told(peer: str, *headers: tuple[str, str], proxies: TrustedProxies = _PROXIES) -> Client:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    return proxies.client(peer, "http", Headers(raw=raw))


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

"""Addresses of portals: what is one, and what must not be in it."""

import pytest

from skymount.errors import MalformedError, WrongTypeError
from skymount.portal.client.client import PortalClient
from skymount.settings import DEFAULT_SVC_PORTAL_URL, PortalOptions
from skymount.values import is_local, parse_portal_url, portal_identity
from skymount.wire.dialect import SKYNET, SVC


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
    "text",
    [
        "http://me:secret@host",
        "http://secret@host",
        "http://:secret@h",
        "ftp://me:secret@host",
        "http://me:secret@host:99999",
        "http://me:secret/@host",
        "me:secret@host",
    ],
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
        ("http://portal.localhost", True),
        ("http://localhost.example", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_local_address(url: str, local: bool):
    """A portal on this machine is known by its address, without asking anybody for names."""
    assert is_local(url) is local


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://portal.example", " HTTPS://Portal.Example:443/ "),
        ("http://portal.example/", "http://portal.example.:80"),
        ("http://bücher.example", "http://xn--bcher-kva.example"),
        ("http://[::1]:81/a", "http://[0:0::1]:81/a/"),
    ],
)
def test_two_spellings_of_an_address(one: str, other: str):
    assert portal_identity(one) == portal_identity(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://portal.example", "https://portal.example"),
        ("http://portal.example", "http://portal.example:81"),
        ("http://portal.example", "http://portal.example/a"),
        ("http://portal.example/a", "http://portal.example/A"),
        ("http://portal.example", "http://a.portal.example"),
    ],
)
def test_two_portals(one: str, other: str):
    assert portal_identity(one) != portal_identity(other)


def test_options():
    """An empty address is the default portal; the key is not in the repr."""
    options = PortalOptions.parse("", api_key="secret")
    assert options.url == DEFAULT_SVC_PORTAL_URL
    assert "secret" not in repr(options)


def test_parsed_options():
    """Each option lands where it belongs."""
    options = PortalOptions.parse(
        "https://portal.example/",
        api_key="key",
        custom_user_agent=" agent/1 ",
        headers={"Cookie": "a=b", "X-E": "é"},
        timeout=3,
        dialect="skynet",
        node_url="http://node.example/",
        ca_file="/etc/ca.pem",
        redirect_hosts=["Upload.example", "[::1]:81", "127.0.0.1", "bücher.example:443"],
        connections=2,
        connect_timeout=1.5,
        retries=0,
        on_upload_progress=print,
        read_only=True,
    )
    assert options == PortalOptions(
        "https://portal.example",
        dialect=SKYNET,
        api_key="key",
        user_agent="agent/1",
        connect_timeout=1.5,
        idle_timeout=3.0,
        connections=2,
        headers=(("Cookie", "a=b"), ("X-E", "é")),
        node_url="http://node.example",
        retries=0,
        on_upload_progress=print,
        redirect_hosts=(
            ("upload.example", None),
            ("::1", 81),
            ("127.0.0.1", None),
            ("xn--bcher-kva.example", 443),
        ),
        ca_file="/etc/ca.pem",
        read_only=True,
    )


def test_defaults():
    """Without options: the default portal, the default names, and the numbers of the docs."""
    options = PortalOptions.parse()
    assert options == PortalOptions()
    assert (options.url, options.dialect) == (DEFAULT_SVC_PORTAL_URL, SVC)
    assert PortalClient().url == PortalClient("").url == DEFAULT_SVC_PORTAL_URL
    assert (options.connect_timeout, options.idle_timeout) == (10, 35)  # as docs/library.md says
    assert (options.connections, options.retries) == (32, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", 5),
        ("api_key", b"key"),
        ("api_key", None),
        ("custom_user_agent", 5),
        ("headers", [("a", "b")]),
        ("headers", "a: b"),
        ("headers", {"a": 5}),
        ("headers", {b"a": "b"}),
        ("timeout", "5"),
        ("timeout", True),
        ("timeout", None),
        ("dialect", 5),
        ("node_url", None),
        ("redirect_hosts", None),
        ("redirect_hosts", "upload.example"),
        ("redirect_hosts", [5]),
        ("connections", 1.5),
        ("connections", True),
        ("connect_timeout", "1"),
        ("retries", "3"),
        ("retries", False),
        ("read_only", 1),
        ("on_upload_progress", 5),
        ("nonsense", 1),
        ("url", "http://host"),
    ],
)
def test_wrong_type(name: str, value: object):
    """A value of another type, or an option that there is not, is a WrongTypeError."""
    with pytest.raises(WrongTypeError):
        PortalClient("http://host", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("url", [5, None, b"http://host"])
def test_wrong_type_of_an_address(url: object):
    """So is an address that is not text."""
    with pytest.raises(WrongTypeError):
        PortalClient(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", "secret\ud800"),
        ("custom_user_agent", "secret\r\nX: y"),
        ("custom_user_agent", "secret€"),
        ("headers", {"X": "secret\n"}),
        ("headers", {"X": "secret\0"}),
        ("headers", {"X": "secret\x7f"}),
        ("headers", {"X": "secret\x85"}),
        ("headers", {"X": "secret\t"}),
        ("headers", {"X": "secret€"}),
        ("headers", {"": "secret"}),
        ("headers", {"a b": "secret"}),
        ("headers", {"a:": "secret"}),
        ("headers", {"é": "secret"}),
        ("headers", {"a\n": "secret"}),
        ("headers", {"Cookie": "secret", "cookie": "secret"}),
        *(
            ("headers", {name: "secret"})
            for name in [
                *("Host", "content-length", "Transfer-Encoding", "CONNECTION", "Keep-Alive", "TE"),
                *("Trailer", "Upgrade", "Proxy-Authorization", "Accept-Encoding", "Range"),
            ]
        ),
        ("timeout", 0),
        ("timeout", -1.5),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", 10**400),
        ("dialect", "unknown"),
        ("node_url", "http://me:secret@host"),
        ("redirect_hosts", ["me:secret@host"]),
        ("redirect_hosts", [""]),
        ("redirect_hosts", ["http://host"]),
        ("redirect_hosts", ["host/path"]),
        ("redirect_hosts", ["host:0"]),
        ("redirect_hosts", ["host?secret"]),
        ("redirect_hosts", ["a b"]),
        ("connections", 0),
        ("connections", 10**6),
        ("connect_timeout", 0),
        ("retries", -1),
        ("retries", 11),
    ],
)
def test_bad_value(name: str, value: object):
    """A value that cannot be used is malformed, and the message does not repeat it."""
    with pytest.raises(MalformedError) as caught:
        PortalClient("http://host", **{name: value})  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_overridden():
    """The options of a call replace those of the client, and leave the others."""
    options = PortalOptions.parse("http://host", api_key="one", headers={"X": "y"}, retries=1)
    assert options.overridden() is options
    other = options.overridden(api_key="two", headers={"Z": "w"}, timeout=1)
    assert (other.url, other.retries, other.api_key) == ("http://host", 1, "two")
    assert other.headers == (("Z", "w"),)
    assert other.idle_timeout == 1
    assert options.api_key == "one"


@pytest.mark.parametrize(
    "name",
    [
        *("retries", "connections", "node_url", "redirect_hosts", "connect_timeout", "url"),
        "read_only",
    ],
)
def test_not_for_one_call(name: str):
    """What belongs to the connections cannot be changed for one call."""
    with pytest.raises(WrongTypeError, match=name):
        PortalOptions().overridden(**{name: 1})  # type: ignore[arg-type]


def test_nothing_secret_is_shown():
    """Neither key nor header values are in the repr of options or client."""
    options = PortalOptions.parse(api_key="secret", headers={"Cookie": "secret"})
    for value in (options, PortalClient.of(options), PortalClient.of(options).http):
        assert "secret" not in repr(value) + str(value)


@pytest.mark.parametrize(
    "url",
    [
        *("http://exa mple", "http://h\x00st", "http://h\\x", "http://h/\ud800", "http://h/a\tb"),
        *("http://a..b", f"http://{'a' * 64}.example", "http://<h>"),
        *("http://1.2.3.256", "http://01.2.3.4", "http://[::g]", "http://h/" + "a" * 3000),
        *("http://h:" + "x" * 1000, "http://[::1]p", "http://h[1]", "http://\0\u2100"),
    ],
)
def test_address_that_no_request_can_have(url: str):
    """C3: what would fail with the first request is refused before it, and not repeated whole."""
    with pytest.raises(MalformedError) as caught:
        parse_portal_url(url)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_names_of_headers_are_not_repeated_at_length():
    """C3: nor is the name of a header."""
    for headers in ({"a " * 1000: "x"}, {"a" * 2000: "\n"}, {"a" * 2000: "x", "A" * 2000: "x"}):
        with pytest.raises(MalformedError) as caught:
            PortalOptions.parse(headers=headers)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
def test_number_that_is_too_long_to_be_written(name: str):
    """C3: a number of thousands of digits is out of range as any other."""
    with pytest.raises(MalformedError):
        PortalOptions.parse("", **{name: 10**5000})  # type: ignore[arg-type]

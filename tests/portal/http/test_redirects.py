"""Which redirects are followed: with a body, with credentials, and to which addresses."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest
import trio

from skymount.errors import BadContentError
from skymount.portal.client.client import PortalClient
from skymount.portal.client.registry import RegistryEntry
from skymount.portal.http.redirects import (
    Reach,
    RedirectTarget,
    next_request,
    reach_of,
    reach_of_host,
)
from skymount.portal.http.request import Call
from skymount.portal.http.stream import NotFollowedError, open_stream
from skymount.settings import PortalOptions
from skymount.wire.http.requests import Request
from skymount.wire.key_pair import SigningKeyPair
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, running
from tests.mount.namespaces import new_namespace
from tests.portal.redirect_space import Case

CONTENT = skyfiles.of_files({"f": b"content"})
KEY = "key of the portal"
PAIR = SigningKeyPair.from_seed("insecure seed of redirects")
ENTRY = RegistryEntry("key", b"data", 0)
TIMEOUT = 30.0

REACHES = {
    Reach.PUBLIC: "8.8.8.8 1.1.1.1 2606:4700::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1",
    Reach.LOOPBACK: "127.0.0.1 127.255.0.9 ::1 ::ffff:127.0.0.1 0.0.0.0 :: ::ffff:0.0.0.0 "
    "::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::1",
    Reach.PRIVATE: "10.0.0.1 172.16.0.1 172.31.255.255 192.168.0.1 fc00::1 fdff::1 fec0::1 "
    "::ffff:10.1.2.3 ::10.1.2.3 64:ff9b::a00:1 64:ff9b:1::1 192.0.2.1 198.18.0.1 240.0.0.1 "
    "255.255.255.255 0.1.2.3 2001:db8::1",
    Reach.SHARED: "100.64.0.1 100.127.255.255 ::ffff:100.64.0.1",
    Reach.LINK_LOCAL: "169.254.169.254 fe80::1 febf::1 fe80::1%eth0 ::ffff:169.254.0.1",
    Reach.MULTICAST: "224.0.0.1 239.1.2.3 ff02::1 ::ffff:224.0.0.1",
}


@pytest.mark.parametrize(
    ("address", "reach"), [(each, kind) for kind, text in REACHES.items() for each in text.split()]
)
def test_kind_of_an_address(address: str, reach: Reach):
    """C7: each address is of one kind, an IPv4 one within an IPv6 one as well."""
    assert reach_of(address) is reach
    assert reach_of_host(address) is reach


@pytest.mark.parametrize(
    ("host", "reach"),
    [
        *((host, Reach.LOOPBACK) for host in ("2130706433", "0x7f.1", "0177.0.0.1", "127.1", "0")),
        *((host, Reach.LOOPBACK) for host in ("0x7F000001", "017700000001", "127.0.0.1.")),
        *(
            (host, Reach.LOOPBACK)
            for host in ("localhost", "LOCALHOST.", "a.b.localhost", "x.localhost.")
        ),
        *((host, Reach.PRIVATE) for host in ("0xa.1", "167772161", "192.168.257", "0300.0250.1")),
        ("2852039166", Reach.LINK_LOCAL),
        ("134744072", Reach.PUBLIC),
        *((host, None) for host in ("portal.example", "localhost.example", "notlocalhost", "a.1")),
        *((host, None) for host in ("256.1.1.1", "", "0x", "xn--bcher-kva.example")),
    ],
)
def test_kind_that_a_host_tells(host: str, reach: Reach | None):
    """C7: a number is an address however it is spelled; localhost and below it is this machine."""
    assert reach_of_host(host) is reach
    if reach and host.replace(".", "").isalnum() and "localhost" not in host and host[-1] != ".":
        found = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
        assert {reach_of(str(each[4][0])) for each in found} == {reach}


@pytest.mark.parametrize("source", Reach)
@pytest.mark.parametrize("target", Reach)
def test_between_kinds(source: Reach, target: Reach):
    """C7: from anywhere to a public address, else within one kind; on loopback to the same host."""
    for keeps_host in (True, False):
        good = target is Reach.PUBLIC or (
            source is target and (keeps_host or target is not Reach.LOOPBACK)
        )
        allowed = RedirectTarget(source, keeps_host)
        if good:
            allowed.check_reach(target)
        else:
            with pytest.raises(NotFollowedError):
                allowed.check_reach(target)


def redirected(source: str, target: str, *hosts: str, method: str = "GET") -> httpx.Request:
    """Return the request that follows when a portal redirects there with 307."""
    call = Call(Request(method, "/a"), PortalOptions.parse(redirect_hosts=hosts), source)
    before = httpx.Request(method, source, headers={"Cookie": "secret", "X": "y"})
    then = httpx.Request(method, target, headers={"X": "y"})
    response = httpx.Response(307, extensions={"peer": None})
    response.next_request = then
    return next_request(call, before, response, None, frozenset([b"cookie"]))


@pytest.mark.parametrize(
    ("source", "target", "stays"),
    [
        ("http://a", "http://a/b", True),
        ("http://a", "http://A:80", True),
        ("http://a", "https://a", True),
        ("http://a:80", "https://a:443", True),
        ("http://a:81", "https://a:81", True),
        ("https://a", "https://a:443", True),
        ("http://a", "https://a:444", False),
        ("http://a:81", "https://a", False),
        ("http://a", "http://a:81", False),
        ("http://a", "https://a.", False),
        ("http://a", "https://b", False),
        ("http://a", "https://b.a", False),
        ("https://a", "https://a:80", False),
    ],
)
def test_what_is_the_same_origin(source: str, target: str, stays: bool):
    """C6, C7: from http to https of a host is no other origin, on default ports or the same one."""
    assert ("cookie" in redirected(source, target).headers) is stays
    if stays:
        redirected(source, target, method="POST")
    else:
        with pytest.raises(BadContentError, match="takes what is sent to another origin") as caught:
            redirected(source, target, method="POST")
        named = str(httpx.URL(target).copy_with(path="/"))[:-1].lower()
        assert f"redirected (307) from {source} to {named}" in caught.value.message


@pytest.mark.parametrize(
    ("target", "host", "good"),
    [
        ("https://b", "b", True),
        ("http://b", "b", True),
        ("https://b", "B:443", True),
        ("https://b:81", "b:81", True),
        ("https://b:81", "b", False),
        ("https://b", "b:80", False),
        ("https://b", "c.b", False),
        ("https://c.b", "b", False),
        ("https://bücher.example", "xn--bcher-kva.example", True),
        ("https://xn--bcher-kva.example", "bücher.example", True),
        ("http://[2606:4700::1]:81", "[2606:4700::1]:81", True),
    ],
)
def test_hosts_that_the_user_names(target: str, host: str, good: bool):
    """C7: what is sent goes to these, without credentials; C6: they get none."""
    if good:
        assert "cookie" not in redirected("http://a", target, host, method="POST").headers
    else:
        with pytest.raises(BadContentError, match="another origin"):
            redirected("http://a", target, host, method="POST")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_from_https_to_http(method: str):
    """C7: what was asked for in secret is not asked for in public, wherever that is."""
    redirected("https://portal.example", "https://portal.example/b", method=method)
    for target in ("http://portal.example", "http://b"):
        with pytest.raises(BadContentError, match="https to http"):
            redirected("https://portal.example", target, "portal.example", "b", method=method)


# --- on real sockets


@asynccontextmanager
async def two(
    host: str = "127.0.0.1", other: str = "127.0.0.1", *, is_named: bool = False
) -> AsyncIterator[tuple[FakePortal, FakePortal, PortalClient]]:
    """Yield a portal, something else that would answer, and a client of the portal."""
    async with running(FakePortal(host=host)) as portal, running(FakePortal(host=other)) as target:
        portal.add(CONTENT)
        target.add(CONTENT)
        named = [target.url.removeprefix("http://")] if is_named else []
        async with PortalClient(portal.url, api_key=KEY, retries=0, redirect_hosts=named) as client:
            yield portal, target, client


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_update_goes_nowhere_else(code: int):
    """C7: what has no answer but a status is posted where it belongs, or fails, and says why."""
    async with two() as (portal, other, client):
        portal.fault(fake.redirects(f"{other.url}/svc/registry", code), "POST")
        for call in (
            client.registry.set_entry(PAIR.private_key.hex(), ENTRY),
            client.delete_skykey(name="name"),
        ):
            with pytest.raises(BadContentError, match="is not followed") as caught:
                await call
            assert f"redirected ({code}) from {portal.url} to {other.url}" in caught.value.message
            assert caught.value.status == code
            assert KEY not in str(caught.value)
        assert other.accepted == 0


@pytest.mark.parametrize("code", [301, 302, 303])
async def test_update_does_not_become_a_get(code: int):
    """C7: that something else answers a GET does not say that an entry was set."""
    async with two() as (portal, _, client):
        portal.fault(fake.redirects("/svc/stats", code), "POST")
        portal.fault(lambda *_: fake.Reply(200, (), b"{}"), "GET")
        with pytest.raises(BadContentError, match="makes a GET of a POST"):
            await client.registry.set_entry(PAIR.private_key.hex(), ENTRY)
        assert [request.method for request in portal.requests] == ["POST"]


async def test_update_within_the_origin():
    """C7: an entry is posted again, with credentials, where the portal itself says."""
    async with two() as (portal, _, client):
        portal.fault(fake.redirects("/svc/registry?again", 307), "registry$")
        portal.fault(lambda *_: fake.Reply(204))
        await client.registry.set_entry(PAIR.private_key.hex(), ENTRY)
        first, second = portal.requests
        assert (second.method, second.target) == ("POST", "/svc/registry?again")
        assert (second.body, second.headers) == (first.body, first.headers)


async def test_credentials_of_a_target_are_not_shown():
    """C5: nor those that the portal puts into the address."""
    async with two() as (portal, other, client):
        host = other.url.removeprefix("http://")
        portal.fault(fake.redirects(f"http://admin:{'word' * 5}@{host}/", 307), "POST")
        with pytest.raises(BadContentError) as caught:
            await client.delete_skykey(name="name")
        assert other.url in str(caught.value)
        assert "word" not in str(caught.value)
        assert "admin" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "other", "good"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "localhost", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("127.0.0.1", "::1", False),
        ("127.0.0.1", "localhost", False),
        ("localhost", "127.0.0.1", False),
        ("::1", "127.0.0.1", False),
        ("127.0.0.1", "2130706433", False),
    ],
)
async def test_reading_from_another_name_of_this_machine(host: str, other: str, good: bool):
    """C7: on loopback a redirect stays with the host name, unless the user has named another."""
    listening = "127.0.0.1" if other.isdigit() else other
    for is_named in (False, True):
        async with two(host, listening, is_named=is_named) as (portal, target, client):
            url = target.url.replace(listening, other)
            portal.fault(fake.redirects(f"{url}/svc/metadata/{CONTENT.name}"))
            if good or (is_named and other == listening):
                assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata
                assert "authorization" not in target.requests[0].headers
            else:
                with pytest.raises(BadContentError, match="another name of this machine"):
                    await client.raw_metadata(CONTENT.skylink)
                assert target.accepted == 0


async def test_nothing_is_sent_before_the_address_is_checked():
    """C7: an address that a name did not have when it was looked up gets a connection, no byte."""
    asked: list[str] = []

    def check(address: str) -> None:
        asked.append(address)
        if len(asked) > 1:
            raise NotFollowedError("leads elsewhere")

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(NotFollowedError):
            await open_stream("127.0.0.1", port, None, TIMEOUT, check)
        with trio.fail_after(TIMEOUT):
            stream = await listener.accept()
            async with stream:
                assert await stream.receive_some() == b""
    assert asked == ["127.0.0.1", "127.0.0.1"]


PUBLIC, LOCAL, PRIVATE = "8.8.8.8", "127.0.0.1", "10.1.1.1"
NAME = "portal.example"

CASES = [
    (Case(PUBLIC, "9.9.9.9"), ""),
    (Case(PUBLIC, "[2606:4700::1]"), ""),
    (Case(PRIVATE, PUBLIC), ""),
    (Case(LOCAL, PUBLIC), ""),
    (Case(PRIVATE, "192.168.1.1"), ""),
    (Case(PRIVATE, "[fd00::1]"), ""),
    (Case(PUBLIC, LOCAL), "from a public to a loopback"),
    (Case(PUBLIC, "localhost"), "from a public to a loopback"),
    (Case(PUBLIC, "0.0.0.0"), "from a public to a loopback"),
    (Case(PUBLIC, "[::]"), "from a public to a loopback"),
    (Case(PUBLIC, "[::1]"), "from a public to a loopback"),
    (Case(PUBLIC, "[::ffff:127.0.0.1]"), "from a public to a loopback"),
    (Case(PUBLIC, "0x7f.1"), "from a public to a loopback"),
    (Case(PUBLIC, "192.168.1.1"), "from a public to a private"),
    (Case(PUBLIC, "[fd00::1]"), "from a public to a private"),
    (Case(PUBLIC, "[fec0::1]"), "from a public to a private"),
    (Case(PUBLIC, "[64:ff9b::a01:101]"), "from a public to a private"),
    (Case(PUBLIC, "[2002:a01:101::1]"), "from a public to a private"),
    (Case(PUBLIC, "100.64.0.1"), "from a public to a shared"),
    (Case(PUBLIC, "169.254.1.1"), "from a public to a link-local"),
    (Case(PRIVATE, LOCAL), "from a private to a loopback"),
    (Case(PRIVATE, "100.64.0.1"), "from a private to a shared"),
    (Case("100.64.0.1", PRIVATE), "from a shared to a private"),
    (Case(LOCAL, PRIVATE), "from a loopback to a private"),
    (Case(PUBLIC, "9.9.9.9", "POST"), "takes what is sent to another origin"),
    (Case(PUBLIC, LOCAL, "POST"), "takes what is sent to another origin"),
]
NAMED = [
    (Case(PUBLIC, NAME, names={NAME: ["9.9.9.9"] * 9}), "", 1),
    (Case(PUBLIC, NAME, names={NAME: [LOCAL] * 9}), "from a public to a loopback", 0),
    (Case(PUBLIC, NAME, names={NAME: ["9.9.9.9", LOCAL]}), "from a public to a loopback", 1),
    (Case(NAME, PRIVATE, names={NAME: [PUBLIC] * 9}), "from a public to a private", 0),
    (Case(NAME, NAME, names={NAME: [PUBLIC, LOCAL, LOCAL]}), "from a public to a loopback", 0),
    (Case(NAME, "localhost", names={NAME: [LOCAL] * 9}), "another name of this machine", 0),
    (Case(NAME, NAME, names={NAME: [LOCAL] * 9}), "", 1),
]
"""With the connections that the target gets: one when the name has changed in between."""


def test_between_addresses_of_every_kind():
    """C7: no redirect leads from elsewhere to this machine or a network behind it; what counts is
    the address that the connection is made to. From http to https a body and, C6, credentials go
    along, on the default ports.
    """
    root = Path(__file__).resolve().parents[3]
    code = f"import sys; sys.path[:0] = [{str(root)!r}, {str(root / 'src')!r}]\n"
    code += "from tests.portal.redirect_space import main; main()"
    expected = [(case, said, int(not said)) for case, said in CASES] + NAMED
    with new_namespace(network=True) as space:
        found = json.loads(space.python(code, json.dumps([asdict(case) for case, *_ in expected])))
    for (case, words, connections), (said, accepted) in zip(expected, found["cases"], strict=True):
        assert bool(said) is bool(words), (case, said)
        assert words in said, (case, said)
        assert accepted == connections, (case, said)
    (same, sent), (other, kept) = found["upgrades"]
    assert (same, len(sent), len(kept)) == ("", 1, 0)
    assert sent[0].startswith("Basic ")
    assert "redirected (308) from http://10.1.1.1 to https://10.1.1.1:8443" in other

"""The rules that hold for every endpoint: password, agent, host names, web pages."""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from skymount.server.config import PortalConfig
from skymount.server.http.access import AccessRules
from skymount.server.http_error import HttpError
from skymount.wire.dialect import PRESETS
from skymount.wire.skylink import Skylink
from tests.portal_process import (
    PortalProcess,
    failing_start,
    portal_process,
)
from tests.server.http_client import Client, message_of, portal_client
from tests.server.raw_connection import exchange

_RAW = {"Content-Type": "application/octet-stream"}
_TRIAL = "/svc/skyfile?filename=a&dryrun=1"
_PASSWORD = "pässword: with a colon"
_OWN_PAGE = "https://app.example"  # allowed by the flags of `guarded`
_FOREIGN = "https://evil.example"
_PREFIXES = tuple(dialect.prefix for dialect in PRESETS.values())

_PROTECTED = [
    ("POST", "skyfile"),
    ("POST", "skyfile/some/path"),
    ("POST", "some/path"),
    ("POST", "registry"),
    ("POST", "pin/{link}"),
    ("POST", "restore"),
    ("POST", "blocklist"),
    ("POST", "portals"),
    ("POST", "createskykey"),
    ("POST", "addskykey"),
    ("POST", "deleteskykey"),
    ("GET", "skykey"),
    ("GET", "skykeys"),
    ("HEAD", "skykeys"),
]
_OPEN = [
    ("GET", "skylink/{link}"),
    ("HEAD", "skylink/{link}"),
    ("GET", "registry"),
    ("GET", "metadata/{link}"),
    ("GET", "root"),
    ("GET", "basesector/{link}"),
    ("GET", "trustless/basesector/{link}"),
    ("GET", "resolve/{link}"),
    ("GET", "stats"),
    ("GET", "blocklist"),
    ("GET", "portals"),
]
_OUTSIDE = ["/{link}", "/file/{link}", "/hns/example", "/hnsres/example", "/"]
_LINK = "A" * 46


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a portal with a password, an allowed page and a name."""
    directory = tmp_path_factory.mktemp("guarded")
    secret = directory / "password"
    secret.touch(0o600)
    secret.write_text(_PASSWORD + "\n")
    flags = ["--password-file", str(secret), "--allow-origin", _OWN_PAGE + "/"]
    with portal_process(directory / "data", *flags, "--allow-host", "Portal.Example.") as running:
        yield running.url


@pytest.fixture(scope="module")
def stranger(guarded: str) -> Iterator[Client]:
    """A client of it that does not know the password."""
    with Client(base_url=guarded) as connected:
        yield connected


@pytest.fixture(scope="module")
def owner(guarded: str) -> Iterator[Client]:
    with Client(base_url=guarded, headers=_basic(_PASSWORD)) as connected:
        yield connected


def _basic(password: str, user: str = "") -> dict[str, str]:
    pair = f"{user}:{password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


@pytest.mark.parametrize("prefix", _PREFIXES)
def test_without_the_password_they_are_refused(stranger: Client, prefix: str) -> None:
    """401 with the message and the challenge that clients know."""
    for method, path in _PROTECTED:
        answer = stranger.request(method, f"/{prefix}/{path.format(link=_LINK)}", headers=_RAW)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Basic realm="SiaAPI"'
        if method != "HEAD":
            assert message_of(answer) == "API authentication failed."


def test_open_endpoints_take_credentials(stranger: Client, owner: Client) -> None:
    """They answer alike without a password, with the right one and with a wrong one."""
    link = owner.upload_file("a", b"content")
    paths = [(method, f"/{prefix}/{path}") for prefix in _PREFIXES for method, path in _OPEN]
    for method, path in (*paths, *(("GET", path) for path in _OUTSIDE)):
        url = path.format(link=link)
        status = stranger.request(method, url).status_code
        assert status != 401
        assert owner.request(method, url).status_code == status
        assert stranger.request(method, url, headers=_basic("wrong")).status_code == status


@pytest.mark.parametrize(
    ("credentials", "status"),
    [
        *((_basic(_PASSWORD, user)["Authorization"], 200) for user in ("", "user", "ü")),
        *((_basic(wrong)["Authorization"], 401) for wrong in ("", "wrong", _PASSWORD[:-1])),
        (_basic(_PASSWORD)["Authorization"].replace("Basic", "Bearer"), 401),
        (_basic(_PASSWORD)["Authorization"] + "!", 401),
        ("Basic", 401),
        ("Basic " + base64.b64encode(_PASSWORD.encode().replace(b":", b"")).decode(), 401),
        (_basic(_PASSWORD, "u" * 30_000)["Authorization"], 401),
        ("Basic \xff", 401),
    ],
)
def test_credentials(stranger: Client, credentials: str, status: int) -> None:
    """Any user name goes with the password. Wrong, of another scheme, not base64, without a colon,
    too long they are refused.
    """
    raw = [(b"authorization", credentials.encode("latin-1")), (b"content-type", b"a/b")]
    answer = stranger.post(_TRIAL, content=b"x", headers=raw)
    assert answer.status_code == status


def test_a_browser_is_not_asked_for_the_password(stranger: Client) -> None:
    """It would keep it, and send it for every page."""
    answer = stranger.get("/svc/skykeys", headers={"User-Agent": "Mozilla/5.0 (X11) Firefox/1"})
    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers


@pytest.mark.parametrize(("flags", "status"), [([], 401), (["--until-eof"], 200)])
def test_the_password_may_come_from_the_environment(
    tmp_path: Path, flags: list[str], status: int
) -> None:
    """SKYMOUNT_PORTAL_PASSWORD; a mount's own portal does not look at it."""
    secret = {"SKYMOUNT_PORTAL_PASSWORD": _PASSWORD}
    with portal_client(tmp_path, *flags, environment=secret) as client:
        assert client.post(_TRIAL, content=b"x", headers=_RAW).status_code == status
        known = client.post(_TRIAL, content=b"x", headers=_RAW | _basic(_PASSWORD))
        assert known.status_code == 200


def test_the_agent_rule(tmp_path: Path) -> None:
    """Off by default; if on, only downloads work without the token of some dialect."""
    with (
        portal_client(tmp_path, "--require-agent") as client,
    ):
        answer = client.get("/svc/registry")
        assert answer.status_code == 400
        first = "Browser access disabled due to security vulnerability."
        assert message_of(answer).startswith(first)
        for dialect in PRESETS.values():
            agent = {"User-Agent": f"x {dialect.agent}/2"}
            posted = client.post(
                "/svc/skyfile?filename=a", content=b"x", headers=_RAW | agent
            ).json()
            assert client.get("/skynet/stats", headers=agent).status_code != 400
        link = posted["skylink"]
        for path in ("/{}", "/file/{}", "/svc/skylink/{}", "/skynet/skylink/{}"):
            assert client.get(path.format(link)).content == b"x"


def test_names_of_the_portal(stranger: Client) -> None:
    """421 for a Host that is not loopback: a page could make its own name lead here."""
    given = "portal.example,PORTAL.example.:80"
    for hosts, status, said in (
        ("evil.example,localhost.evil.example,10.0.0.1:4280,[::2]", 421, "--allow-host"),
        (f"{given},LOCALHOST:1,a.localhost,127.1.2.3:80,[::1]:80", 200, "uptime"),
        ("http://localhost,[::1,a:b,a@b,,a b", 400, "not a host"),
    ):
        for host in hosts.split(","):
            answer = stranger.get("/svc/stats", headers={"Host": host})
            assert answer.status_code == status, host
            assert said in answer.text


def test_content_hosts(client: Client) -> None:
    """``<base32>.<host>/<path>`` is the content of the skylink (docs/wire.md 4.1)."""
    link = client.upload({"index.html": b"start", "dir/index.html": b"below"})
    label = Skylink(link).base32
    for base in ("localhost", "a.localhost:4280"):
        host = {"Host": f"{label}.{base}"}
        assert client.get("/", headers=host).content == b"start"
        assert client.get("/dir/index.html", headers=host).content == b"below"
        answer = client.get("/dir", headers=host)
        assert answer.status_code == 308
        assert answer.headers["location"] == "dir/"
        assert answer.headers["skynet-portal-api"] == f"http://{base}"
    assert client.get("/", headers={"Host": f"{label}.evil.example"}).status_code == 421
    answer = client.post("/svc/skyfile?filename=a", headers=_RAW | {"Host": f"{label}.localhost"})
    assert answer.status_code == 405


def test_no_service_worker_of_the_portals_origin(stranger: Client, owner: Client) -> None:
    """403 by every path that serves content, to allowed pages and with the password too.

    An upload would stand between the browser and every other page, uploads to come included.
    """
    link = owner.upload({"sw.js": b"// worker", "index.html": b"start"})
    worker = {"Service-Worker": "script", "Sec-Fetch-Dest": "serviceworker"}
    for path in (f"/{link}", f"/{link}/sw.js", f"/svc/skylink/{link}/sw.js", "/hns/example/a", "/"):
        for more in ({}, {"Origin": _OWN_PAGE}, {"Host": "portal.example"}, _basic(_PASSWORD)):
            answer = stranger.get(path, headers=worker | more)
            assert answer.status_code == 403, path
            assert "Service Worker" in message_of(answer)
    assert stranger.get(f"/{link}/sw.js").content == b"// worker"


def test_a_service_worker_under_the_host_of_its_content(client: Client) -> None:
    """It is served, and may not reach further than the browser lets it by itself."""
    link = client.upload({"sw.js": b"// worker", "index.html": b"start"})
    host = {"Host": f"{Skylink(link).base32}.localhost", "Service-Worker": "script"}
    answer = client.get("/sw.js", headers=host)
    assert (answer.status_code, answer.content) == (200, b"// worker")
    assert "service-worker-allowed" not in answer.headers
    answer = client.get("/sw.js", headers=host | {"Host": "example.hns.localhost"})
    assert answer.status_code == 404


def test_every_answer_names_the_portal(client: Client, portal: PortalProcess) -> None:
    """The address as the client wrote it, in every dialect, errors included."""
    for path in ("/", "/svc/stats", "/" + _LINK):
        headers = client.get(path).headers
        for dialect in PRESETS.values():
            assert headers[dialect.portal_api_header] == portal.url
            assert headers[dialect.server_api_header] == portal.url
    answer = client.get("/", headers={"Host": "localhost"})
    assert answer.headers["svc-portal-api"] == "http://localhost"


def allowed_origin(answer: httpx.Response) -> str:
    """Return the origin whose pages may read an answer; without one there are no CORS headers."""
    found = [value for name, value in answer.headers.items() if name.startswith("access-control-")]
    return str(answer.headers["access-control-allow-origin"]) if found else ""


def preflight(client: Client, path: str, origin: str, method: str, **more: str) -> httpx.Response:
    asked = {"Origin": origin, "Access-Control-Request-Method": method, **more}
    return client.options(path, headers=asked)


def test_pages_cannot_read_by_default(client: Client) -> None:
    """No CORS headers, and no consent to what a browser asks in advance."""
    link = client.upload_file("a", b"x")
    answer = client.get(f"/{link}", headers={"Origin": _FOREIGN})
    assert (answer.content, allowed_origin(answer)) == (b"x", "")
    assert "Origin" in answer.headers["vary"]
    asked = preflight(client, f"/{link}", _FOREIGN, "GET")
    assert (asked.status_code, allowed_origin(asked)) == (403, "")


def test_pages_cannot_change_anything_by_default(client: Client, portal: PortalProcess) -> None:
    """403, for pages of the portal itself too: they are somebody's upload."""
    for headers, status in (
        ({"Origin": _FOREIGN}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": portal.url}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 403),
        ({"Sec-Fetch-Site": "none", "Origin": _FOREIGN}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
    ):
        posted = client.post(_TRIAL, content=b"x", headers=_RAW | headers)
        assert posted.status_code == status, headers
        assert status == 200 or "--allow-origin" in message_of(posted)
        assert client.get("/svc/skykeys", headers=headers).status_code == status, headers


def test_content_of_the_portal_may_read(client: Client, portal: PortalProcess) -> None:
    """A page on a content host of this portal sees what it reads, but no skykeys."""
    port = urlsplit(portal.url).port
    page, host = f"http://{'a' * 55}.localhost:{port}", {"Host": f"localhost:{port}"}
    for path, method, origin in (
        (f"/{_LINK}", "HEAD", page),
        ("/svc/skykeys", "GET", ""),
        ("/svc/skyfile", "POST", ""),
    ):
        asked = preflight(client, path, page, method, **host)
        assert (asked.status_code, allowed_origin(asked)) == (204 if origin else 403, origin)
        assert not origin or asked.headers["access-control-allow-methods"] == "GET, HEAD"
        answer = client.request(method, path, headers=host | {"Origin": page})
        assert allowed_origin(answer) == origin
    other = host | {"Origin": f"http://{'a' * 55}.localhost:1"}
    assert not allowed_origin(client.get("/", headers=other))


def test_allowed_pages_do_everything(stranger: Client) -> None:
    """CORS as on a public portal (docs/wire.md 9); errors are for the page to read too."""
    names = "authorization,content-type"
    more = {
        "Access-Control-Request-Headers": names,
        "Access-Control-Request-Private-Network": "true",
    }
    asked = preflight(stranger, "/svc/skyfile", _OWN_PAGE, "POST", **more)
    assert asked.status_code == 204
    methods = "GET, POST, HEAD, OPTIONS, PUT, PATCH, DELETE"
    for name, value in (("methods", methods), ("headers", names), ("private-network", "true")):
        assert asked.headers[f"access-control-allow-{name}"] == value
    page = _RAW | {"Origin": _OWN_PAGE}
    refused = stranger.post(_TRIAL, content=b"x", headers=page)
    posted = stranger.post(_TRIAL, content=b"x", headers=page | _basic(_PASSWORD))
    assert (refused.status_code, posted.status_code) == (401, 200)
    for answer in (asked, refused, posted):
        assert allowed_origin(answer) == _OWN_PAGE
        assert answer.headers["access-control-allow-credentials"] == "true"
        exposed = set(answer.headers["access-control-expose-headers"].lower().split(", "))
        assert {"skynet-skylink", "svc-skylink", "svc-metadata", "content-range", "etag"} <= exposed


def test_the_password_stands_for_the_page(stranger: Client, owner: Client) -> None:
    """A page that is not allowed needs it; without it the page is refused, not asked."""
    page = _RAW | {"Origin": _FOREIGN}
    assert stranger.post(_TRIAL, content=b"x", headers=page).status_code == 403
    answer = owner.post(_TRIAL, content=b"x", headers=page)
    assert (answer.status_code, allowed_origin(answer)) == (200, "")


def test_all_pages_can_be_allowed(tmp_path: Path) -> None:
    """``--allow-origin '*'``; the answer names the page, as browsers demand with credentials."""
    with portal_client(tmp_path, "--allow-origin", "*") as client:
        for origin in (_FOREIGN, "null"):
            answer = client.post(_TRIAL, content=b"x", headers=_RAW | {"Origin": origin})
            assert (answer.status_code, allowed_origin(answer)) == (200, origin)


def test_it_does_not_listen_in_public_without_a_password(tmp_path: Path) -> None:
    """The error says what to do; a password or ``--insecure`` is what it takes."""
    for address in ("0.0.0.0:0", "[::]:0"):
        said = failing_start("--listen", address, "--data", str(tmp_path))
        assert "--password-file" in said
        assert "--insecure" in said


_ADDRESSES = ("0.0.0.0", "10.1.2.3:80", "127.0.0.1", "[::1]:4280", "[2001:db8::1]", "localhost")
_STRANGE = ("evil.example", "127.0.0.1.evil.example", "1.2.3", "0x7f.1", "1.2.3.4.5")


@pytest.mark.parametrize(
    ("settings", "accepted", "refused"),
    [
        ({}, (), _STRANGE),
        ({"allow_hosts": ("portal.example",)}, ("portal.example",), _STRANGE),
        ({"password": b"secret"}, _STRANGE, ()),
        (
            {"password": b"secret", "allow_hosts": ("portal.example",)},
            ("portal.example",),
            _STRANGE,
        ),
        ({"host": "Portal.Example"}, ("portal.example:80",), _STRANGE),
    ],
    ids=["open", "open with a name", "password", "password and name", "where it listens"],
)
def test_names_in_public(
    tmp_path: Path, settings: dict[str, Any], accepted: Sequence[str], refused: Sequence[str]
) -> None:
    """Addresses, loopback names and given ones: a page could make any other name lead here. It does
    not have the password: with one every name will do, unless some are given.
    """
    config = PortalConfig(tmp_path, insecure=True, **{"host": "0.0.0.0", **settings})
    rules = AccessRules.of(config, on_loopback=False)
    for host in (*accepted, *_ADDRESSES):
        assert rules.host(host, "/").authority == host.lower()
    for host in refused:
        with pytest.raises(HttpError, match="this portal is not"):
            rules.host(host, "/")


def test_a_public_portal(tmp_path: Path) -> None:
    with portal_process(tmp_path, "--listen", "0.0.0.0:0", "--insecure") as portal:
        url = f"http://127.0.0.1:{urlsplit(portal.url).port}/svc/stats"
        for host, status in (("10.1.2.3", 200), ("evil.example", 421)):
            assert httpx.get(url, headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--allow-origin", "example.org", "not an origin"),
        ("--allow-host", "example.org:80", "not a host name"),
        ("--password-file", "/none", "cannot be read"),
        ("--access-log", "/", "Is a directory"),
        ("--public-url", "portal.example", "portal.example"),
        ("--trusted-proxy", "proxy.example", "proxy.example"),
    ],
)
def test_unusable_flags_are_told(tmp_path: Path, flag: str, value: str, said: str) -> None:
    """One line, exit code 1."""
    common = ["--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    assert said in failing_start(*common, flag, value)


def test_a_request_without_a_host(portal: PortalProcess) -> None:
    """HTTP/1.0 needs none (H1): it counts as one for the address. Any other does."""
    address = portal.url.encode()
    for line, status in (
        (b"GET / HTTP/1.0\r\n", b"200"),
        (b"OPTIONS / HTTP/1.0\r\n", b"204"),
        (b"HEAD / HTTP/1.0\r\nHost: 127.0.0.1\r\n", b"200"),
        (b"GET / HTTP/1.0\r\nHost:\r\n", b"400"),
        (b"GET / HTTP/1.0\r\nHost: other.example\r\n", b"421"),
        (b"GET / HTTP/1.1\r\n", b"400"),
        (b"GET / HTTP/1.2\r\n", b"505"),
    ):
        answer = exchange(portal.url, line + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status), line
        if b"Host" not in line and b"1.0" in line:
            assert b"svc-portal-api: " + address + b"\r\n" in answer.lower()

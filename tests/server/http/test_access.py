"""The rules that hold for every endpoint: password, agent, host names, web pages."""

import base64
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.server.config import PortalConfig
from skymount.server.http.access import AccessRules, needs_agent, needs_password
from skymount.server.http_error import HttpError
from skymount.wire.dialect import PRESETS
from skymount.wire.skylink import Skylink
from tests.portal_process import (
    PortalProcess,
    failing_start,
    portal_process,
)
from tests.server.http_client import Client, message_of
from tests.server.raw_connection import exchange

_RAW = {"Content-Type": "application/octet-stream"}
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
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortalProcess]:
    """A portal with a password, an allowed page and a name."""
    directory = tmp_path_factory.mktemp("guarded")
    secret = directory / "password"
    secret.touch(0o600)
    secret.write_text(_PASSWORD + "\n")
    flags = ["--password-file", str(secret), "--allow-origin", _OWN_PAGE + "/"]
    with portal_process(directory / "data", *flags, "--allow-host", "Portal.Example.") as running:
        yield running


@pytest.fixture(scope="module")
def stranger(guarded: PortalProcess) -> Iterator[Client]:
    """A client of it that does not know the password."""
    with Client(base_url=guarded.url) as connected:
        yield connected


@pytest.fixture(scope="module")
def owner(guarded: PortalProcess) -> Iterator[Client]:
    with Client(base_url=guarded.url, headers=_basic(_PASSWORD)) as connected:
        yield connected


def _basic(password: str, user: str = "") -> dict[str, str]:
    pair = f"{user}:{password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


@pytest.mark.parametrize("prefix", _PREFIXES)
def test_which_endpoints_need_the_password(prefix: str) -> None:
    """The list of docs/wire.md 9, in every dialect."""
    for method, path in _PROTECTED:
        assert needs_password(method, f"/{prefix}/{path.format(link=_LINK)}"), path
    for method, path in _OPEN:
        assert not needs_password(method, f"/{prefix}/{path.format(link=_LINK)}"), path
    for path in _OUTSIDE:
        assert not needs_password("GET", path.format(link=_LINK)), path


@given(st.sampled_from(("GET", "POST", "OPTIONS")), st.text())
def test_the_rules_take_any_path(method: str, path: str) -> None:
    """Whatever is sent has an answer."""
    assert needs_password(method, path) in (True, False)
    assert needs_agent(path) in (True, False)


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
    for client, headers in ((stranger, {}), (owner, {}), (stranger, _basic("wrong"))):
        assert client.get(f"/{link}", headers=headers).content == b"content"
    for method, path in _OPEN:
        url = f"/svc/{path.format(link=link)}"
        plain = stranger.request(method, url)
        assert plain.status_code != 401
        assert owner.request(method, url).status_code == plain.status_code


def test_any_user_name_goes_with_the_password(stranger: Client) -> None:
    """Only the password counts."""
    url = "/svc/skyfile?filename=a&dryrun=1"
    for user in ("", "user", "ü"):
        answer = stranger.post(url, content=b"x", headers=_RAW | _basic(_PASSWORD, user))
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "credentials",
    [
        *(_basic(wrong)["Authorization"] for wrong in ("", "wrong", _PASSWORD[:-1])),
        _basic(_PASSWORD)["Authorization"].replace("Basic", "Bearer"),
        _basic(_PASSWORD)["Authorization"] + "!",
        "Basic",
        "Basic " + base64.b64encode(_PASSWORD.encode().replace(b":", b"")).decode(),
        _basic(_PASSWORD, "u" * 30_000)["Authorization"],
        "Basic \xff",
    ],
)
def test_wrong_credentials_are_refused(stranger: Client, credentials: str) -> None:
    """Wrong, of another scheme, not base64, without a colon, too long."""
    raw = [(b"authorization", credentials.encode("latin-1")), (b"content-type", b"a/b")]
    answer = stranger.post("/svc/skyfile?filename=a&dryrun=1", content=b"x", headers=raw)
    assert answer.status_code == 401


def test_a_refused_upload_gets_its_answer(stranger: Client) -> None:
    """The 401 comes although the body was not waited for."""
    answer = stranger.post("/svc/skyfile?filename=a", content=b"x" * (9 << 20), headers=_RAW)
    assert answer.status_code == 401


def test_a_browser_is_not_asked_for_the_password(stranger: Client) -> None:
    """It would keep it, and send it for every page."""
    answer = stranger.get("/svc/skykeys", headers={"User-Agent": "Mozilla/5.0 (X11) Firefox/1"})
    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers


def test_the_password_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SKYMOUNT_PORTAL_PASSWORD; a mount's own portal does not look at it."""
    monkeypatch.setenv("SKYMOUNT_PORTAL_PASSWORD", _PASSWORD)
    for flags, status in (([], 401), (["--until-eof"], 200)):
        with portal_process(tmp_path, *flags) as portal:
            url = f"{portal.url}/svc/skyfile?filename=a&dryrun=1"
            assert httpx.post(url, content=b"x", headers=_RAW).status_code == status
            answer = httpx.post(url, content=b"x", headers=_RAW | _basic(_PASSWORD))
            assert answer.status_code == 200


def test_the_agent_rule(tmp_path: Path) -> None:
    """Off by default; if on, only downloads work without the token of some dialect."""
    with (
        portal_process(tmp_path, "--require-agent") as portal,
        Client(base_url=portal.url) as client,
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


def test_other_names_are_refused(client: Client) -> None:
    """421 for a Host that is not loopback: a page could make its own name lead here."""
    for host in ("evil.example", "localhost.evil.example", "10.0.0.1:4280", "[::2]"):
        answer = client.get("/svc/stats", headers={"Host": host})
        assert answer.status_code == 421
        assert "--allow-host" in message_of(answer)
    for host in ("LOCALHOST:1", "a.localhost", "127.0.0.1", "127.1.2.3:80", "[::1]:4280"):
        assert client.get("/svc/stats", headers={"Host": host}).status_code != 421


@pytest.mark.parametrize("host", ["", "a b", "http://localhost", "a@localhost", "[::1", "a:b"])
def test_a_malformed_host_is_refused(client: Client, host: str) -> None:
    """400, whatever is there in place of a name."""
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 400
    assert "not a host" in message_of(answer)


def test_names_can_be_allowed(stranger: Client) -> None:
    """``--allow-host``, in any case, with or without the last dot."""
    for host in ("portal.example", "PORTAL.example.:80"):
        assert stranger.get("/svc/stats", headers={"Host": host}).status_code != 421
    assert stranger.get("/svc/stats", headers={"Host": "other.example"}).status_code == 421


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
    below = ("", "/sw.js")
    paths = [f"/{link}{path}" for path in below] + [f"/file/{link}{path}" for path in below]
    paths += [f"/{prefix}/skylink/{link}/sw.js" for prefix in _PREFIXES]
    paths += ["/hns/example/sw.js", f"/{Skylink(link).base32}/sw.js", "/"]
    for path in paths:
        for more in ({}, {"Origin": _OWN_PAGE}, {"Sec-Fetch-Site": "same-origin"}):
            answer = stranger.get(path, headers=worker | more)
            assert answer.status_code == 403, path
            assert "Service Worker" in message_of(answer)
        assert owner.get(path, headers=worker).status_code == 403
        assert stranger.get(path, headers={"Service-Worker": "Script"}).status_code == 403
        assert stranger.get(path, headers=worker | {"Host": "portal.example"}).status_code == 403
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


def test_pages_cannot_read_by_default(client: Client) -> None:
    """No CORS headers, and no consent to what a browser asks in advance."""
    link = client.upload_file("a", b"x")
    answer = client.get(f"/{link}", headers={"Origin": _FOREIGN})
    assert answer.content == b"x"
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert "Origin" in answer.headers["vary"]
    ask = {"Origin": _FOREIGN, "Access-Control-Request-Method": "GET"}
    answer = client.options(f"/{link}", headers=ask)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_pages_cannot_change_anything_by_default(client: Client, portal: PortalProcess) -> None:
    """403, for pages of the portal itself too: they are somebody's upload."""
    url = "/svc/skyfile?filename=a&dryrun=1"
    for headers in (
        {"Origin": _FOREIGN},
        {"Origin": "null"},
        {"Origin": portal.url},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none", "Origin": _FOREIGN},
    ):
        answer = client.post(url, content=b"x", headers=_RAW | headers)
        assert answer.status_code == 403, headers
        assert "--allow-origin" in message_of(answer)
        assert client.get("/svc/skykeys", headers=headers).status_code == 403, headers
    answer = client.post(url, content=b"x", headers=_RAW | {"Sec-Fetch-Site": "none"})
    assert answer.status_code == 200


def test_content_of_the_portal_may_read(client: Client, portal: PortalProcess) -> None:
    """A page on a content host of this portal sees what it reads, but no skykeys."""
    port = urlsplit(portal.url).port
    page = f"http://{'a' * 55}.localhost:{port}"
    host = {"Host": f"localhost:{port}", "Origin": page}
    answer = client.get("/svc/stats", headers=host)
    assert answer.headers["access-control-allow-origin"] == page
    ask = host | {"Access-Control-Request-Method": "HEAD"}
    answer = client.options(f"/{_LINK}", headers=ask)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-methods"] == "GET, HEAD"
    for path, method in (("/svc/skykeys", "GET"), ("/svc/skyfile", "POST")):
        ask = host | {"Access-Control-Request-Method": method}
        for answer in (
            client.options(path, headers=ask),
            client.request(method, path, headers=host),
        ):
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
    other = host | {"Origin": f"http://{'a' * 55}.localhost:1"}
    assert "access-control-allow-origin" not in client.get("/", headers=other).headers


def test_allowed_pages_do_everything(stranger: Client) -> None:
    """CORS as on a public portal (docs/wire.md 9); errors are for the page to read too."""
    page = {"Origin": _OWN_PAGE}
    ask = page | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    asked = stranger.options("/svc/skyfile", headers=ask)
    assert asked.status_code == 204
    methods = "GET, POST, HEAD, OPTIONS, PUT, PATCH, DELETE"
    assert asked.headers["access-control-allow-methods"] == methods
    assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
    assert asked.headers["access-control-allow-private-network"] == "true"
    url = "/svc/skyfile?filename=a&dryrun=1"
    refused = stranger.post(url, content=b"x", headers=_RAW | page)
    posted = stranger.post(url, content=b"x", headers=_RAW | page | _basic(_PASSWORD))
    assert (refused.status_code, posted.status_code) == (401, 200)
    for answer in (asked, refused, posted):
        assert answer.headers["access-control-allow-origin"] == _OWN_PAGE
        assert answer.headers["access-control-allow-credentials"] == "true"
        exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
        for name in ("skynet-skylink", "svc-skylink", "svc-metadata", "content-range", "etag"):
            assert name in exposed


def test_the_password_stands_for_the_page(stranger: Client, owner: Client) -> None:
    """A page that is not allowed needs it; without it the page is refused, not asked."""
    url, page = "/svc/skyfile?filename=a&dryrun=1", {"Origin": _FOREIGN}
    assert stranger.post(url, content=b"x", headers=_RAW | page).status_code == 403
    answer = owner.post(url, content=b"x", headers=_RAW | page)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_all_pages_can_be_allowed(tmp_path: Path) -> None:
    """``--allow-origin '*'``; the answer names the page, as browsers demand with credentials."""
    with portal_process(tmp_path, "--allow-origin", "*") as portal:
        for origin in (_FOREIGN, "null"):
            answer = httpx.post(
                f"{portal.url}/svc/skyfile?filename=a&dryrun=1",
                content=b"x",
                headers=_RAW | {"Origin": origin},
            )
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == origin


def test_options_without_a_page(client: Client) -> None:
    """204, as on a public portal."""
    answer = client.options("/svc/skyfile")
    assert (answer.status_code, answer.content) == (204, b"")


def test_it_does_not_listen_in_public_without_a_password(tmp_path: Path) -> None:
    """The error says what to do; a password or ``--insecure`` is what it takes."""
    for address in ("0.0.0.0:0", "[::]:0"):
        said = failing_start("--listen", address, "--data", str(tmp_path))
        assert "--password-file" in said
        assert "--insecure" in said


_ADDRESSES = ("0.0.0.0", "10.1.2.3:80", "127.0.0.1", "[::1]:4280", "[2001:db8::1]", "localhost")


def _status(portal: PortalProcess, host: str) -> int:
    url = f"http://127.0.0.1:{urlsplit(portal.url).port}/svc/skykeys"
    return httpx.get(url, headers={"Host": host}).status_code


def test_names_in_public_without_a_password(tmp_path: Path) -> None:
    """Addresses, loopback names and given ones: a page could make any other name lead here."""
    with portal_process(tmp_path, "--listen", "0.0.0.0:0", "--insecure") as portal:
        for host in _ADDRESSES:
            assert _status(portal, host) == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "1.2.3", "0x7f.1", "1.2.3.4.5"):
            assert _status(portal, host) == 421, host
    flags = ["--listen", "0.0.0.0:0", "--insecure", "--allow-host", "portal.example"]
    with portal_process(tmp_path, *flags) as portal:
        for host in ("portal.example", *_ADDRESSES):
            assert _status(portal, host) == 200, host
        assert _status(portal, "evil.example") == 421


def test_names_in_public_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name, as a page does not have the password; unless some are given."""
    monkeypatch.setenv("SKYMOUNT_PORTAL_PASSWORD", _PASSWORD)
    with portal_process(tmp_path, "--listen", "0.0.0.0:0", "--insecure") as portal:
        for host in ("any.example", *_ADDRESSES):
            assert _status(portal, host) == 401, host
    flags = ["--listen", "0.0.0.0:0", "--allow-host", "portal.example"]
    with portal_process(tmp_path, *flags) as portal:
        assert _status(portal, "any.example") == 421
        for host in ("portal.example", *_ADDRESSES):
            assert _status(portal, host) == 401, host


def test_the_name_to_listen_at_is_the_portals(tmp_path: Path) -> None:
    """Whatever kind of address it leads to."""
    config = PortalConfig(tmp_path, host="Portal.Example", insecure=True)
    rules = AccessRules.of(config, on_loopback=False)
    assert rules.host("portal.example:80", "/").name == "portal.example"
    with pytest.raises(HttpError):
        rules.host("other.example", "/")


def test_unusable_flags_are_told(tmp_path: Path) -> None:
    """One line, exit code 1."""
    common = ["--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    assert "not an origin" in failing_start(*common, "--allow-origin", "example.org")
    assert "not a host name" in failing_start(*common, "--allow-host", "example.org:80")
    assert "cannot be read" in failing_start(*common, "--password-file", str(tmp_path / "none"))


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

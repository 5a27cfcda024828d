"""A portal behind proxies that speak TLS, as docs/portal.md configures them."""

import csv
import html
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from tests.nginx import needs_nginx, nginx_before
from tests.portal_process import portal_process
from tests.ports import unused_port
from tests.server.http_client import Client, portal_client
from tests.server.pages.page_client import ACCEPT, page, sign_in, token_of
from tests.server.raw_connection import PATIENCE, eventually
from tests.skymount_process import end

_PUBLIC = "https://portal.example"
_NAMES = ("svc-portal-api", "skynet-portal-api", "svc-server-api", "skynet-server-api")
_PAGE = (Path(__file__).parents[2] / "docs/portal.md").read_text()


def told(answer: httpx.Response) -> set[str]:
    """Return what the portal says its address is."""
    return {answer.headers[name] for name in _NAMES}


def recipe(beginning: str) -> str:
    return beginning + _PAGE.partition(beginning)[2].partition("```")[0]


def test_the_public_address(tmp_path: Path) -> None:
    """Its name is accepted; who comes by another address is told the public one too."""
    with portal_client(tmp_path, "--public-url", f"{_PUBLIC}/") as client:
        link = client.upload_file("f.txt", b"text")
        assert told(client.get(f"/{link}")) == {_PUBLIC}
        assert client.get("/", headers={"Host": "other.example"}).status_code == 421
        client.headers["Host"] = "portal.example"
        forged = {"X-Forwarded-Proto": "ftp", "X-Forwarded-Host": "evil"}
        assert told(client.get(f"/{link}", headers=forged)) == {_PUBLIC}
        shown = page(client, f"/-/view/{link}").text
        assert f"skymount download {link} --portal {_PUBLIC}" in shown
        sent = client.post(
            "/-/upload",
            headers={"Origin": _PUBLIC, "Accept": ACCEPT},
            data={"token": token_of(page(client, "/"))},
            files={"files[]": ("a.txt", b"a")},
        )
        assert sent.status_code == 303, sent.text


def test_forwarded_headers_count_from_trusted_proxies_only(tmp_path: Path) -> None:
    sent = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
    for options, scheme in (
        ((), "http"),
        (("--trusted-proxy", "192.0.2.0/24"), "http"),
        (("--trusted-proxy", "127.0.0.1"), "https"),
    ):
        with portal_process(tmp_path / scheme / str(len(options)), *options) as portal:
            answer = httpx.get(f"{portal.url}/svc/stats", headers=sent)
            assert told(answer) == {portal.url.replace("http", scheme)}


needs_haproxy = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")


def certificate(root: Path) -> tuple[trustme.CA, Path, Path]:
    authority = trustme.CA()
    made = authority.issue_cert("portal.example")
    key, chain = root / "key.pem", root / "chain.pem"
    made.private_key_pem.write_to_path(str(key))
    for part in made.cert_chain_pems:
        part.write_to_path(str(chain), append=True)
    return authority, key, chain


@contextmanager
def nginx(portal_url: str, root: Path) -> Iterator[tuple[str, trustme.CA]]:
    """Run nginx with the location that the documentation has; yields its address with TLS."""
    authority, key, chain = certificate(root)
    address = f"127.0.0.1:{unused_port()}"
    start = "location / {\n    proxy_pass http://127.0.0.1:4280;\n    proxy_http_version 1.1;\n"
    found = [part.partition("```")[0] for part in _PAGE.split(start)[1:]]
    [location] = [start + part for part in found if "X-Forwarded-For" in part]
    location = location.replace("http://127.0.0.1:4280", portal_url)
    tls = f"listen {address} ssl; ssl_certificate {chain}; ssl_certificate_key {key};"
    with nginx_before(portal_url, root / "nginx", f"}}\nserver {{ {tls} {location}"):
        yield address, authority


@contextmanager
def caddy(portal_url: str, root: Path) -> Iterator[tuple[str, trustme.CA]]:
    """Run Caddy as the documentation says, but with a certificate of ours, at another port."""
    authority, key, chain = certificate(root)
    port = unused_port()
    site = recipe("portal.example {\n").replace(
        "127.0.0.1:4280", portal_url.removeprefix("http://")
    )
    site = site.replace("portal.example {", f"https://portal.example:{port} {{\n tls {chain} {key}")
    config = root / "Caddyfile"
    config.write_text("{\n admin off\n auto_https disable_redirects\n}\n" + site)
    env = {"HOME": str(root), "PATH": "/usr/bin:/bin"}
    command = ["caddy", "run", "--config", config, "--adapter", "caddyfile"]
    with (root / "caddy.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=root)

    def listens() -> bool:
        assert process.poll() is None, (root / "caddy.log").read_text()
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(listens)
        yield f"127.0.0.1:{port}", authority
    finally:
        end(process)


@contextmanager
def haproxy_of(config: str, root: Path) -> Iterator[Path]:
    """Run HAProxy; yield the socket that tells its state."""
    file, told = root / "haproxy.cfg", Path(tempfile.mkdtemp(prefix="skymount-")) / "told"
    file.write_text(f"global\n    stats socket {told}\n\n{config}")
    with (root / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(["haproxy", "-db", "-f", file], stdout=log, stderr=log)
    try:
        eventually(lambda: told.exists() or process.poll() is not None)
        assert process.poll() is None, (root / "haproxy.log").read_text()
        yield told
    finally:
        end(process)
        shutil.rmtree(told.parent)


def servers_up(told: Path) -> dict[str, bool]:
    """Return which servers HAProxy takes for working by its checks, by backend."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(PATIENCE)
        asked.connect(str(told))
        asked.sendall(b"show stat\n")
        table = b"".join(iter(lambda: asked.recv(65536), b"")).decode()
    rows = csv.DictReader(table.removeprefix("# ").splitlines())
    return {
        row["pxname"]: row["status"].startswith("UP") and row["check_status"].endswith("L7OK")
        for row in rows
        if row["svname"] == "one"
    }


@contextmanager
def haproxy(portal_url: str, root: Path) -> Iterator[tuple[str, trustme.CA]]:
    """Run HAProxy as the documentation says, with a certificate of ours, at another port."""
    authority, key, chain = certificate(root)
    pem, address = root / "both.pem", f"127.0.0.1:{unused_port()}"
    pem.write_bytes(chain.read_bytes() + key.read_bytes())
    config = recipe("defaults\n    mode http\n").replace(
        "/etc/haproxy/portal.example.pem", str(pem)
    )
    config = config.replace("bind :443", f"bind {address}")
    config = config.replace("127.0.0.1:4280", portal_url.removeprefix("http://"))
    with haproxy_of(config, root) as told:
        eventually(lambda: servers_up(told) == {"skymount": True})
        yield address, authority


@needs_haproxy
def test_checks_of_haproxy(tmp_path: Path) -> None:
    """H1, H3: by HTTP/1.0 without a Host, which is its default, and by HTTP/1.1 with any."""
    checks = {
        "plain": "option httpchk",
        "root": "option httpchk GET /",
        "head": "option httpchk HEAD /",
        "health": "option httpchk GET /-/health",
        "ready": "option httpchk GET /-/health?ready",
        "named": "option httpchk\n"
        "    http-check send meth GET uri /-/health ver HTTP/1.1 hdr Host any.example",
        "old": "option httpchk GET /-/health HTTP/1.0",
    }
    with portal_process(tmp_path / "data") as portal:
        server = f"server one {portal.url.removeprefix('http://')} check inter 200 fall 1 rise 1"
        config = "defaults\n    mode http\n    timeout connect 60s\n    timeout server 60s\n"
        config += "    timeout client 60s\n    timeout check 60s\n"
        config += f"frontend all\n    bind 127.0.0.1:{unused_port()}\n"
        for name, check in checks.items():
            config += f"backend {name}\n    {check}\n    {server}\n"
        with haproxy_of(config, tmp_path) as told:
            eventually(lambda: servers_up(told) == dict.fromkeys(checks, True))
            stored = portal.data / "v1/skyfiles"
            away = stored.rename(tmp_path / "away")
            without_storage = {name: name in ("plain", "root", "head") for name in checks}
            eventually(lambda: servers_up(told) == without_storage)
            away.rename(stored)
            eventually(lambda: servers_up(told) == dict.fromkeys(checks, True))


@pytest.mark.parametrize(
    "proxy",
    [
        pytest.param(haproxy, marks=needs_haproxy),
        pytest.param(nginx, marks=needs_nginx),
        pytest.param(
            caddy,
            marks=pytest.mark.skipif(not shutil.which("caddy"), reason="caddy is not installed"),
        ),
    ],
)
@pytest.mark.parametrize("options", [("--public-url", _PUBLIC), ("--allow-host", "portal.example")])
def test_documented_proxies(
    tmp_path: Path,
    proxy: Callable[[str, Path], AbstractContextManager[tuple[str, trustme.CA]]],
    options: tuple[str, str],
) -> None:
    """Clients are told the public address, also where only the scheme is forwarded."""
    trust = ("--trusted-proxy", "127.0.0.1")
    with (
        portal_process(tmp_path / "data", *options, *trust) as portal,
        proxy(portal.url, tmp_path) as (address, authority),
    ):
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with Client(base_url=portal.url) as client, httpx.Client(verify=context) as behind:
            link = client.upload_file("f.txt", b"text")
            answer = behind.get(
                f"https://{address}/{link}",
                headers={"Host": "portal.example"},
                extensions={"sni_hostname": "portal.example"},
            )
        assert (answer.status_code, answer.text) == (200, "text")
        assert told(answer) == {_PUBLIC}


@contextmanager
def nginx_with(location: str, root: Path) -> Iterator[str]:
    """Run nginx with a location of one's own; yield its address."""
    address = f"127.0.0.1:{unused_port()}"
    server = f"}}\nserver {{ listen {address}; location / {{ {location} }}"
    with nginx_before("http://127.0.0.1:1", root, server):
        yield address


_LINE = "Add to nginx: proxy_set_header Host $http_host;"


@needs_nginx
def test_a_proxy_that_replaces_the_host(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """W1, W2: nginx by itself. Pages, the 403, and one line of the log say what to do."""
    secret = {"SKYMOUNT_PORTAL_PASSWORD": "secret"}
    with (
        portal_process(tmp_path / "data", environment=secret) as portal,
        nginx_with(f"proxy_pass {portal.url};", tmp_path / "nginx") as address,
        Client(base_url=f"http://{address}", headers={"Host": "portal.example"}) as client,
    ):
        arrived = urlsplit(portal.url).netloc
        for _ in range(3):
            first = page(client, "/")
            said = (
                f"the host that arrived here is {arrived}, and not the one that the browser shows"
            )
            assert f'role="alert">Most of this page will not work: {said}: a proxy' in first.text
            assert _LINE in first.text
        origin = {"Origin": "https://portal.example"}
        for site in ({}, {"Sec-Fetch-Site": "same-origin"}):
            refused = sign_in(client, "secret", **origin, **site)
            assert refused.status_code == 403
            assert f"{arrived}, and not portal.example: a proxy" in refused.text
            assert _LINE in refused.text
        with Client(base_url=portal.url, auth=("", "secret")) as owner:
            link = owner.upload({"index.html": b"<script>1</script>"})
            shown = client.get(f"/{link}/", headers={"Accept": ACCEPT})
            assert shown.status_code == 200, shown.headers
            assert shown.headers["content-security-policy"].startswith("sandbox")
            directly = owner.get(f"/{link}/", headers={"Accept": ACCEPT})
            assert ".localhost:" in directly.headers["location"]
            assert "not work" not in page(owner, "/").text
    lines = [line for line in capfd.readouterr().err.splitlines() if "Host header" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"WARNING: the host that arrived here is {arrived}, and not ")
    assert _LINE in lines[0]


@needs_nginx
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_proxy_that_loses_the_port(tmp_path: Path, version: str) -> None:
    """W1: as with `$host` in nginx. A browser says where it is, whatever the version of HTTP."""
    location = f"proxy_http_version {version}; proxy_set_header Host $host; proxy_pass "
    with (
        portal_process(tmp_path / "data", "--allow-host", "portal.example") as portal,
        nginx_with(f"{location}{portal.url};", tmp_path / "nginx") as address,
        Client(base_url=f"http://{address}", headers={"Host": "portal.example:81"}) as client,
    ):
        first = page(client, "/")
        assert "not work" not in first.text
        assert "If this page has no styles" in first.text
        here = {"Sec-Fetch-Site": "same-origin", "Referer": "https://portal.example:81/"}
        said = "the host that arrived here is portal.example, and not portal.example:81: a proxy"
        assert said in page(client, "/", here).text


@needs_nginx
def test_a_proxy_that_sends_a_name_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """W1: that of an `upstream` block. Each name is one line of the log, and not too many are."""
    with portal_process(tmp_path / "data") as portal:
        upstream = f"}}\nupstream inner {{ server {urlsplit(portal.url).netloc};"
        address = f"127.0.0.1:{unused_port()}"
        location = "location / { proxy_pass http://inner; }"
        server = f"{upstream} }}\nserver {{ listen {address}; {location}"
        with (
            nginx_before(portal.url, tmp_path / "nginx", server),
            Client(base_url=f"http://{address}") as client,
        ):
            for _ in range(3):
                refused = page(client, "/", status=421)
                assert "this portal is not 'inner'" in html.unescape(refused.text)
                assert "--allow-host inner" in refused.text
                assert _LINE in refused.text
        with Client(base_url=portal.url) as client:
            for number in range(200):
                assert client.get("/", headers={"Host": f"n{number}.example"}).status_code == 421
    lines = [line for line in capfd.readouterr().err.splitlines() if "this portal is not" in line]
    assert len(lines) == 100
    assert lines[0].startswith("WARNING: this portal is not 'inner' (start it with --allow-host")


def test_nobody_is_sent_to_a_host_of_his_own_machine(tmp_path: Path, client: Client) -> None:
    """W2: after a proxy, or while the portal has a public address."""
    link = client.upload({"index.html": b"<script>1</script>"})
    with portal_client(tmp_path, "--public-url", _PUBLIC) as public:
        public.upload({"index.html": b"<script>1</script>"})
        for asked, name, status in (
            (client, "X-Forwarded-For", 200),
            (client, "Via", 200),
            (client, "Forwarded", 200),
            (client, "Other", 307),
            (public, "Other", 200),
        ):
            answer = asked.get(f"/{link}/", headers={"Accept": ACCEPT, name: "1.1 a"})
            assert answer.status_code == status, name

"""A portal behind proxies that speak TLS, as docs/portal.md configures them."""

import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from tests.nginx import needs_nginx, nginx_before
from tests.portal_process import failing_start, portal_process
from tests.ports import unused_port
from tests.server.http_client import Client
from tests.server.pages.page_client import ACCEPT, page, token_of
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
    with (
        portal_process(tmp_path, "--public-url", f"{_PUBLIC}/") as portal,
        Client(base_url=portal.url) as client,
    ):
        link = client.upload_file("f.txt", b"text")
        for host in ("portal.example", "localhost"):
            assert told(client.get(f"/{link}", headers={"Host": host})) == {_PUBLIC}
        forged = {"Host": "portal.example", "X-Forwarded-Proto": "ftp", "X-Forwarded-Host": "evil"}
        assert told(client.get("/svc/stats", headers=forged)) == {_PUBLIC}
        assert client.get("/", headers={"Host": "other.example"}).status_code == 421
        shown = page(client, f"/-/view/{link}", {"Host": "portal.example"}).text
        assert f"skymount download {link} --portal {_PUBLIC}" in shown
        form = page(client, "/", {"Host": "portal.example"})
        sent = client.post(
            "/-/upload",
            headers={"Host": "portal.example", "Origin": _PUBLIC, "Accept": ACCEPT},
            data={"token": token_of(form)},
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


@pytest.mark.parametrize(
    "option", [("--public-url", "portal.example"), ("--trusted-proxy", "proxy.example")]
)
def test_settings_that_cannot_be(tmp_path: Path, option: tuple[str, str]) -> None:
    data = str(tmp_path)
    said = failing_start("--listen", "127.0.0.1:0", "--data", data, *option)
    assert option[1] in said


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
    with (root / "caddy.log").open("wb") as log:
        command = ["caddy", "run", "--config", config, "--adapter", "caddyfile"]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=root)
    try:
        for _ in range(200):
            try:
                httpx.get(f"http://127.0.0.1:{port}", timeout=5)
                break
            except httpx.TransportError:
                assert process.poll() is None, (root / "caddy.log").read_text()
                time.sleep(0.1)
        yield f"127.0.0.1:{port}", authority
    finally:
        end(process)


@pytest.mark.parametrize(
    "proxy",
    [
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

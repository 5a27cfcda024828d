"""What commands and a mount say of real servers that refuse them: who says what, and what to do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.cli.doctor.http_server import http_server
from tests.nginx import needs_nginx, nginx_before
from tests.portal_process import running_portal
from tests.ports import unused_port
from tests.skymount_process import Sandbox, end, run

LINK = "AACb2MDhsNe3cSkyyoxbKCJJSSOy5n39OrY2A9cN_fGrOg"
NO_PORTAL = "; is this the address of a portal?"

COMMANDS = [
    f"ls {LINK}",
    f"cat {LINK}",
    f"metadata {LINK}",
    f"download {LINK} saved",
    "upload file",
    "publish file --key home --as site",
    "registry get home name",
    "registry set home name text",
    "db delete home name",
    "db get home name",
    "db set home name file",
    "hns resolve example",
    "skykey list",
    "skykey create name",
]


@pytest.fixture(scope="module")
def web_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of ``python -m http.server``, which knows GET and HEAD."""
    root = tmp_path_factory.mktemp("pages")
    (root / "index.html").write_text("<h1>Hello</h1>")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().split()[5].decode()
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


@pytest.fixture
def home(sandbox: Sandbox) -> Sandbox:
    """A home with a key and a JSON file, where commands run."""
    sandbox.succeed("key", "generate", "home")
    (sandbox.root / "home/file").write_text('{"a": 1}')
    return sandbox


def said_by(box: Sandbox, command: str) -> str:
    """Return the one line of a command that fails."""
    done = box.skymount(*command.split(), cwd=box.root / "home")
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("skymount: ").rstrip("\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_web_server_that_is_no_portal(home: Sandbox, web_server: str, command: str) -> None:
    """L4: What it says of content, entries and names is not believed."""
    said = said_by(home.with_env(SKYMOUNT_PORTALS=web_server), command)
    assert said.startswith("the server does not know the requests of a portal: HTTP status ")
    assert f" {web_server}/" in said
    assert said.endswith(NO_PORTAL)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_web_server_with_a_page_for_everything(home: Sandbox, command: str) -> None:
    with http_server(body=b"<p>Hello</p>", kind="text/html") as url:
        said = said_by(home.with_env(SKYMOUNT_PORTALS=url), command)
    assert said.startswith("the server sends a web page, not what a portal does")
    assert said.endswith(NO_PORTAL)


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_a_server_that_says_yes_to_everything(home: Sandbox, body: bytes) -> None:
    with http_server(body=body) as url:
        box = home.with_env(SKYMOUNT_PORTALS=url)
        for command in (f"ls {LINK}", "upload file", "registry get home name", "skykey create x"):
            assert said_by(box, command).endswith(NO_PORTAL)


def test_content_is_not_absent_where_no_portal_is(home: Sandbox, web_server: str) -> None:
    """L4, E2: to a mount it is a failure, and its reason has the advice."""
    with home.mounted("--portal", web_server) as mount:
        assert "the server does not know the requests of a portal" in mount.warnings
        skylinks = mount.path / "skylinks"
        assert "Input/output error" in run(["ls", skylinks / LINK / "x"]).stderr
        [*_, last] = mount.status()["failed_operations"]
        assert last["reason"].endswith(NO_PORTAL)
        assert (last["errno"], last["portal"]) == ("EIO", web_server)


def test_a_web_server_beside_a_portal(home: Sandbox, web_server: str, portal: str) -> None:
    """L4: the portal lacks the content, and the other server cannot say that."""
    both = home.with_env(SKYMOUNT_PORTALS=f"{portal} {web_server}")
    assert said_by(both, f"ls {LINK}").endswith(NO_PORTAL)
    alone = home.with_env(SKYMOUNT_PORTALS=portal)
    assert alone.fail("ls", LINK, code=3) == f"{LINK}: no portal has it"


def test_a_portal_that_speaks_another_dialect(home: Sandbox) -> None:
    with http_server(path="/skynet/") as url:
        said = said_by(home.with_env(SKYMOUNT_PORTALS=url), f"ls {LINK}")
    assert said.startswith("it speaks the dialect skynet, not svc: ")
    assert said.endswith('; set dialect = "skynet"')


# One's own portal


def test_a_skykey_whose_name_is_taken(home: Sandbox, portal: str) -> None:
    """The portal runs, and its words say enough."""
    box = home.with_env(SKYMOUNT_PORTALS=portal)
    box.succeed("skykey", "create", "taken twice")
    said = box.fail("skykey", "create", "taken twice")
    assert said.startswith("failed to create skykey: Skykey name already used by another key (POST")
    assert said.endswith("/svc/createskykey)")


def test_a_portal_that_is_full(home: Sandbox, tmp_path: Path) -> None:
    with running_portal(tmp_path, "--max-storage", "1 KiB") as url:
        (home.root / "home/large").write_bytes(os.urandom(4096))
        said = said_by(home.with_env(SKYMOUNT_PORTALS=url), "upload large")
    assert said.startswith("failed to upload file: this portal stores at most 1 KiB (POST ")
    assert said.endswith(")")


def test_a_wrong_key(home: Sandbox, portal: str, tmp_path: Path) -> None:
    """Whatever changes something says that it is wrong, and `doctor` knows before."""
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    link = home.upload(home.root / "home/file", portal)
    with running_portal(tmp_path, "--password-file", str(tmp_path / "password")) as url:
        for key, advice in (("guess", "the api_key is wrong"), ("", "set api_key in")):
            box = home.with_env(SKYMOUNT_PORTALS=url, SKYMOUNT_API_KEY=key)
            for command in (f"pin {link} --from {portal} --to {url}", "upload file"):
                said = said_by(box, command)
                assert said.partition("; ")[0].startswith("API authentication failed")
                assert f"; {advice}" in said
            found = {
                each["subject"]: each
                for each in json.loads(box.skymount("doctor", "--json").stdout)
            }
            of_portal = found[f"portal {url}"]
            if key:
                assert (of_portal["level"], of_portal["advice"]) == ("failure", advice)
            else:
                assert of_portal["level"] == "ok"
                assert of_portal["text"].endswith("to change something there, it wants an api_key")
        good = home.with_env(SKYMOUNT_PORTALS=url, SKYMOUNT_API_KEY="secret")
        found = json.loads(good.skymount("doctor", "--json").stdout)
        text = next(each["text"] for each in found if each["subject"] == f"portal {url}")
        assert text == "it answers, in the dialect svc"


# Servers before a portal


@needs_nginx
def test_nginx_with_limits(home: Sandbox, portal: str) -> None:
    limits = "client_max_body_size 1k; location /svc/createskykey { return 429; }"
    (home.root / "home/large").write_bytes(os.urandom(4096))
    with nginx_before(portal, home.root / "nginx", limits) as url:
        box = home.with_env(SKYMOUNT_PORTALS=url)
        said = said_by(box, "upload large")
        assert said.startswith(f"HTTP status 413 ({HTTPStatus(413).phrase}) from nginx/")
        assert "its operator can allow more (client_max_body_size in nginx)" in said
        said = said_by(box, "skykey create name")
        assert said.startswith("HTTP status 429 (Too Many Requests) from nginx/")
        assert "too many requests for a server before the portal; try again later" in said
        assert box.fail("ls", LINK, code=3) == f"{LINK}: no portal has it"


@needs_nginx
def test_nginx_without_its_portal(home: Sandbox) -> None:
    nobody = f"http://127.0.0.1:{unused_port()}"
    with nginx_before(nobody, home.root / "nginx") as url:
        said = said_by(home.with_env(SKYMOUNT_PORTALS=url), f"ls {LINK}")
    assert said.startswith("HTTP status 502 (Bad Gateway) from nginx/")
    assert "the portal behind this server does not answer as it should: is it running?" in said


def test_a_redirect_to_a_login_page(home: Sandbox) -> None:
    with (
        http_server(body=b"<p>Log in</p>", kind="text/html") as login,
        http_server(redirect=f"{login}/login") as url,
    ):
        said = said_by(home.with_env(SKYMOUNT_PORTALS=url), f"ls {LINK}")
    assert said.startswith(f"it is redirected to {login}/login, a web page (GET {url}/")
    assert said.endswith("wants you to log in first, do so in a browser")


# Proxies of the environment


@contextmanager
def strict_proxy() -> Iterator[str]:
    """Run a proxy that wants a password, whatever it is asked for."""
    code = (
        "from http.server import *\n"
        "class Handler(BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_error(407)\n"
        "    do_HEAD = do_POST = do_CONNECT = do_GET\n"
        "server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)\n"
        "print(server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        end(process)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("command", [f"ls {LINK}", "registry get home name"])
def test_a_proxy_that_wants_a_password(home: Sandbox, scheme: str, command: str) -> None:
    variable = f"{scheme.upper()}_PROXY"
    with strict_proxy() as proxy:
        box = home.with_env(SKYMOUNT_PORTALS=f"{scheme}://portal.invalid")
        said = said_by(box.with_env(**{variable: f"http://{proxy}"}), command)
        assert f"the proxy http://{proxy}" in said
        assert said.endswith(
            f"give it a name and a password: {variable}=http://NAME:PASSWORD@{proxy}"
        )
        said = said_by(box.with_env(**{variable: f"http://me:secret@{proxy}"}), command)
        assert said.endswith(f"the name or the password of the proxy in {variable} is wrong")
        assert "secret" not in said

"""The access log and the figures of a real portal, and the programs that read them."""

import json
import os
import pty
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.portal_process import (
    PortalProcess,
    portal_command,
    portal_environment,
    portal_process,
)
from tests.server.http.test_access_log import COMBINED
from tests.server.http_client import Client
from tests.server.pages.page_client import ACCEPT, page, sign_in, token_of
from tests.server.raw_connection import connect, eventually, exchange

_PASSWORD = "the password"
_CLIENT = {"X-Forwarded-For": "203.0.113.7", "User-Agent": 'a "client"'}
_PAGE = (Path(__file__).parents[2] / "docs/portal.md").read_text()
LOGROTATE = shutil.which("logrotate", path=f"{os.environ['PATH']}:/usr/sbin")


@dataclass(frozen=True)
class Observed:
    """A portal with a password, an access log and figures."""

    portal: PortalProcess
    log: Path

    def client(self, password: str = "", user: str = "") -> Client:
        auth = (user, password) if password else None
        return Client(base_url=self.portal.url, headers=_CLIENT, auth=auth, timeout=120)

    def lines(self, count: int) -> list[dict[str, str]]:
        """Return so many lines, which come soon."""
        return lines_of(self.log, count)


def lines_of(log: Path, count: int) -> list[dict[str, str]]:
    eventually(lambda: log.exists() and log.read_bytes().count(b"\n") >= count)
    found = [COMBINED.fullmatch(line) for line in log.read_bytes().splitlines(keepends=True)]
    assert all(found)
    assert len(found) == count
    return [
        {name: value.decode() for name, value in each.groupdict().items()} for each in found if each
    ]


def figures_of(client: httpx.Client) -> dict[str, float]:
    """Return the values by name and labels, ``name{kind,status}``."""
    answer = client.get("/-/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        f"{sample.name}{{{','.join(sample.labels.values())}}}": sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.fixture
def observed(tmp_path: Path) -> Iterator[Observed]:
    log, secret = tmp_path / "access.log", {"SKYMOUNT_PORTAL_PASSWORD": _PASSWORD}
    options = ("--trusted-proxy", "127.0.0.1", "--metrics", "--access-log", str(log))
    with portal_process(tmp_path / "data", *options, environment=secret) as portal:
        yield Observed(portal, log)


def test_pages_about_a_skylink_name_it(observed: Observed) -> None:
    """AL2: a listing for people or for programs, and a preview."""
    with observed.client(_PASSWORD) as owner:
        link = owner.upload({"a": b"1", "b": b"2"})
        owner.get(f"/{link}/")
        for url in (f"/{link}", f"/-/view/{link}", f"/-/view/{link}/a"):
            page(owner, url)
    assert [line["skylink"] for line in observed.lines(5)] == [link] * 5


def test_each_request_is_a_line(observed: Observed) -> None:
    """AL1, AL2: who, what, how much; of what is no request, and of who goes away, too."""
    with observed.client(_PASSWORD, "me") as owner, observed.client() as visitor:
        link = owner.upload_file("SECRET", b"content")
        assert visitor.get(f"/{link}", headers={"Referer": "http://a/?q=SECRET"}).text == "content"
        visitor.head(f"/{link}?attachment=true&jwt=SECRET")
        assert visitor.post("/svc/skyfile", auth=("me", "SECRET")).status_code == 401
        assert sign_in(visitor, _PASSWORD).status_code == 303
        stored = visitor.post(
            "/-/upload",
            data={"token": token_of(page(visitor, "/"))},
            files={"files[]": ("a", b"a")},
            headers={"Accept": ACCEPT},
        )
    for count, sent in enumerate((b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), 9):
        with connect(observed.portal.url) as connection:
            connection.sendall(sent)
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
        observed.lines(count)
    with connect(observed.portal.url) as connection:
        connection.sendall(b"POST /svc/skyfile?filename=x HTTP/1.1\r\nHost: localhost\r\n")
        connection.sendall(b"Authorization: Basic OnRoZSBwYXNzd29yZA==\r\nContent-Length: 9\r\n")
        connection.sendall(b"Content-Type: a/b\r\n\r\n")
    lines = observed.lines(11)
    page_link = httpx.URL(stored.headers["location"]).params["stored"]
    sizes = {line["request"]: line["size"] for line in lines}
    assert [
        tuple(line[name] for name in ("user", "request", "status", "skylink")) for line in lines
    ] == [
        ("me", "POST /svc/skyfile HTTP/1.1", "200", link),
        ("-", f"GET /{link} HTTP/1.1", "200", link),
        ("-", f"HEAD /{link}?attachment=true&jwt=... HTTP/1.1", "200", link),
        ("-", "POST /svc/skyfile HTTP/1.1", "401", "-"),
        ("-", "GET / HTTP/1.1", "200", "-"),
        ("owner", "POST /-/sign-in HTTP/1.1", "303", "-"),
        ("owner", "GET / HTTP/1.1", "200", "-"),
        ("owner", "POST /-/upload HTTP/1.1", "303", page_link),
        ("-", "-", "400", "-"),
        ("-", "GET / HTTP/1.1", "400", "-"),
        ("owner", "POST /svc/skyfile?filename=... HTTP/1.1", "499", "-"),
    ]
    assert {line["address"] for line in lines[:8]} == {"203.0.113.7"}
    assert {line["agent"] for line in lines[:8]} == {r"a \x22client\x22"}
    assert lines[1]["referer"] == "http://a/?q=..."
    assert (sizes[f"GET /{link} HTTP/1.1"], lines[2]["size"]) == ("7", "0")
    assert "SECRET" not in observed.log.read_text()
    assert observed.log.stat().st_mode & 0o777 == 0o600


def test_the_file_is_opened_again(observed: Observed) -> None:
    """AL4: on SIGHUP; what cannot be opened again is written to as before."""
    moved = observed.log.with_suffix(".1")
    with observed.client() as client:
        client.get("/svc/portals")
        observed.lines(1)
        observed.log.rename(moved)
        client.get("/svc/portals")
        lines_of(moved, 2)
        observed.portal.process.send_signal(signal.SIGHUP)
        eventually(observed.log.exists)
        client.get("/svc/portals")
        observed.lines(1)
        lines_of(moved, 2)
        observed.log.unlink()
        observed.log.mkdir()
        observed.portal.process.send_signal(signal.SIGHUP)
        assert client.get("/svc/portals").status_code == 200


@pytest.mark.skipif(not LOGROTATE, reason="logrotate is not installed")
def test_logrotate(observed: Observed) -> None:
    """AL4: with the documented lines."""
    start = "/var/log/skymount/access.log {\n"
    config = start + _PAGE.partition(start)[2].partition("```")[0]
    told = "systemctl kill --signal HUP skymount-portal.service"
    assert told in config
    config = config.replace(told, f"kill -HUP {observed.portal.process.pid}")
    file = observed.log.with_name("logrotate.conf")
    file.write_text(config.replace("/var/log/skymount/access.log", str(observed.log)))
    file.chmod(0o600)
    observed.log.parent.chmod(0o700)
    state = observed.log.with_name("state")
    with observed.client() as client:
        client.get("/svc/portals")
        observed.lines(1)
        subprocess.run([LOGROTATE, "-f", "-s", state, file], check=True, timeout=60)
        eventually(observed.log.exists)
        client.get("/svc/portals?x=1")
        assert observed.lines(1)[0]["request"] == "GET /svc/portals?x=... HTTP/1.1"
    lines_of(observed.log.with_name("access.log.1"), 1)


@pytest.mark.skipif(not shutil.which("goaccess"), reason="goaccess is not installed")
def test_goaccess(observed: Observed) -> None:
    """AL1: it takes each line."""
    with observed.client(_PASSWORD) as client:
        link = client.upload_file("a", b"content")
        for path in (f"/{link}", "/svc/stats", "/none?a=b"):
            client.get(path)
    observed.lines(4)
    report = observed.log.with_name("report.json")
    options = ["--log-format=COMBINED", "--no-global-config", "-o", report]
    subprocess.run(
        ["goaccess", observed.log, *options],
        check=True,
        timeout=60,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    general = json.loads(report.read_text())["general"]
    assert (general["valid_requests"], general["failed_requests"]) == (4, 0)


def test_standard_error(tmp_path: Path) -> None:
    """AL1: with a dash; SIGHUP is as without an access log."""
    with (
        (tmp_path / "log").open("wb") as log,
        portal_process(tmp_path / "data", "--access-log", "-", log=log) as portal,
    ):
        assert httpx.get(f"{portal.url}/svc/portals").status_code == 200
        assert lines_of(tmp_path / "log", 1)[0]["address"] == "127.0.0.1"
        portal.process.send_signal(signal.SIGHUP)
        assert portal.process.wait(60) == -signal.SIGHUP


def test_figures(observed: Observed) -> None:
    """MT1: of what was answered, by which kind and how; and of what is stored."""
    with observed.client(_PASSWORD) as owner, observed.client() as visitor:
        assert figures_of(owner)["skymount_server_stored_skyfiles{}"] == 0
        link = owner.upload_file("a", b"content")
        for url in (f"/{link}", f"/{link}", f"/{link}", f"/skynet/skylink/{link}", "/none"):
            visitor.get(url)
        assert visitor.post("/svc/skyfile").status_code == 401
        assert visitor.get("/svc/skykeys", auth=("", "a guess")).status_code == 401
        found = figures_of(owner)
    expected = {
        **{
            f"requests_total{{{kind}}}": count
            for kind, count in (
                ("skylink,200", 4),
                ("skyfile,200", 1),
                ("skyfile,401", 1),
                ("skykeys,401", 1),
                ("other,404", 1),
            )
        },
        "sent_bytes_total{skylink}": 28,
        "request_seconds_count{skylink}": 4,
        "request_seconds_bucket{skylink,+Inf}": 4,
        "wrong_passwords_total{}": 1,
        "stored_skyfiles{}": 1,
    }
    assert {name: found.get(f"skymount_server_{name}") for name in expected} == expected
    for name in ("request_seconds_sum{skylink}", "stored_bytes{}"):
        assert found[f"skymount_server_{name}"] > 0
    assert not [name for name in found if name.endswith("_created")]


def test_figures_are_not_for_strangers(observed: Observed, client: Client, tmp_path: Path) -> None:
    """MT1, MT2: they need the password; without one only loopback addresses get them."""
    with observed.client() as stranger, observed.client(_PASSWORD) as owner:
        for auth in (None, ("", "a guess")):
            assert stranger.get("/-/metrics", auth=auth).status_code == 401
        owned = {"Origin": observed.portal.url, "Sec-Fetch-Site": "same-origin"}
        answer = owner.get("/-/metrics", headers=owned)
        assert not [name for name in answer.headers if name.startswith("access-control")]
    options = ("--metrics", "--require-agent", "--allow-host", "portal.example")
    trusted = ("--trusted-proxy", "127.0.0.1")
    with portal_process(tmp_path / "open", *options, *trusted) as portal:
        url = f"{portal.url}/-/metrics"
        assert httpx.get(url).status_code == httpx.head(url).status_code == 200
        for name, value in (
            ("X-Forwarded-For", "203.0.113.7"),
            ("X-Forwarded-For", "127.0.0.1"),
            ("Origin", "https://evil.example"),
            ("Via", "1.1 Caddy"),
            ("Sec-Fetch-Site", "same-origin"),
            ("Host", "portal.example"),
        ):
            assert httpx.get(url, headers={name: value}).status_code == 403, (name, value)
        as_nginx = b"GET /-/metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"
        assert exchange(portal.url, as_nginx).startswith(b"HTTP/1.1 403 ")
    assert client.get("/-/metrics").status_code == 404


def test_in_a_terminal(tmp_path: Path) -> None:
    """AL4: SIGHUP opens the file again, but it ends when its terminal is closed."""
    log = tmp_path / "access.log"
    options = ("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    terminal, inside = pty.openpty()
    command = portal_command("serve", *options, "--access-log", str(log))
    with subprocess.Popen(
        ["setsid", "--ctty", *command],
        env=portal_environment(),
        stdin=inside,
        stdout=subprocess.PIPE,
    ) as portal:
        os.close(inside)
        assert portal.stdout is not None
        assert portal.stdout.readline().startswith(b"listening on")
        log.unlink()
        portal.send_signal(signal.SIGHUP)
        eventually(log.exists)
        os.close(terminal)
        assert portal.wait(60) == 0

"""Guesses of the password at a real portal, by both ways in, and what fail2ban sees of them."""

import re
import select
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.portal_process import portal_process
from tests.server.http_client import Client
from tests.server.pages.page_client import page, sign_in, token_of
from tests.server.raw_connection import PATIENCE, connect

_PASSWORD = "the password"
_GUESSER, _OTHER = "203.0.113.7", "198.51.100.1"
_PAGE = (Path(__file__).parents[2] / "docs/portal.md").read_text()


@dataclass(frozen=True)
class Guarded:
    """A portal with a password behind a proxy that it trusts, which is the test."""

    url: str
    log: Path

    def client(self, address: str, password: str = "", user: str = "") -> Client:
        auth = (user, password) if password else None
        return Client(
            base_url=self.url, headers={"X-Forwarded-For": address}, auth=auth, timeout=120
        )

    def lines(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "wrong password" in line]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    secret = {"SKYMOUNT_PORTAL_PASSWORD": _PASSWORD}
    options = ("--trusted-proxy", "127.0.0.1")
    with (
        (tmp_path / "log").open("wb") as log,
        portal_process(tmp_path / "data", *options, environment=secret, log=log) as portal,
    ):
        yield Guarded(portal.url, tmp_path / "log")


def skykeys(client: Client) -> int:
    return client.get("/svc/skykeys").status_code


def flood(guarded: Guarded, request: bytes) -> bytes:
    """Send many requests at once; return the first answer."""
    with ExitStack() as stack:
        guesses = [stack.enter_context(connect(guarded.url)) for _ in range(24)]
        for guess in guesses:
            guess.sendall(request)
        answered, _, _ = select.select(guesses, [], [], PATIENCE)
        return answered[0].recv(4096)


def test_guesses_are_refused_and_nobody_else_is(guarded: Guarded) -> None:
    """PW1, PW2, PW3, PW4: by both ways in, which count together."""
    with (
        guarded.client(_GUESSER) as visitor,
        guarded.client(_GUESSER) as owner,
        guarded.client(_GUESSER, _PASSWORD) as program,
        guarded.client(_OTHER, _PASSWORD) as elsewhere,
        guarded.client(_GUESSER, "a guess") as guesser,
    ):
        assert sign_in(owner, _PASSWORD).status_code == 303
        assert skykeys(program) == 200
        for _ in range(3):
            assert skykeys(guesser) == 401
        refused = sign_in(visitor, "a guess")
        assert (refused.status_code, "not the password" in refused.text) == (403, True)
        assert guesser.get("/svc/stats").status_code == 200  # which needs no password
        assert visitor.get("/svc/skykeys").status_code == 401
        assert guarded.lines() == [f"WARNING: a wrong password from {_GUESSER}"] * 4

        form = urlencode({"token": token_of(page(visitor, "/")), "password": "a guess"})
        head = f"HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: {_GUESSER}\r\n"
        basic = b64encode(f":{_PASSWORD}x".encode()).decode()
        typed = "Content-Type: application/x-www-form-urlencoded\r\n"
        posted = f"POST /-/sign-in {head}{typed}Content-Length: {len(form)}\r\n\r\n{form}"
        asked = f"GET /svc/skykeys {head}Authorization: Basic {basic}\r\n\r\n"
        for request in (asked, posted):
            answer = flood(guarded, request.encode())
            assert answer.startswith(b"HTTP/1.1 429")
            assert re.search(rb"retry-after: \d+\r\n", answer.lower())
            assert skykeys(program) == 200
            assert skykeys(elsewhere) == 200
            assert "Sign out" in page(owner, "/").text


@pytest.mark.skipif(not shutil.which("fail2ban-regex"), reason="fail2ban is not installed")
def test_fail2ban(guarded: Guarded, tmp_path: Path) -> None:
    """PW4: by the documented filter; a line that is made up does not count."""
    with guarded.client(_GUESSER, "a guess") as one, guarded.client("2001:db8::7", "b") as other:
        assert (skykeys(one), skykeys(other)) == (401, 401)
    start = "[Definition]\n"
    (tmp_path / "filter.conf").write_text(start + _PAGE.partition(start)[2].partition("```")[0])
    found = guarded.lines()
    assert len(found) == 2
    lines = [
        *found,
        *(f"Nov 28 10:00:00 host env[12]: {line}" for line in found),
        *(f"2026-11-28 10:00:00,123 {line.replace(':', '', 1)}" for line in found),
        *(f"ERROR: GET '/{line}': broken" for line in found),
        "WARNING: a wrong password from unix:",
    ]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    command = ["fail2ban-regex", "--out", "ip", tmp_path / "lines", tmp_path / "filter.conf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.split()) == ["2001:db8::7"] * 3 + [_GUESSER] * 3

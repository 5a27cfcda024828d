"""``skymount portal serve``: where it listens, and what it says when it cannot."""

from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.portal_process import portal_process
from tests.skymount_process import Sandbox


def test_a_port_that_is_taken(sandbox: Sandbox, portal: str) -> None:
    address = portal.removeprefix("http://")
    said = sandbox.fail("portal", "serve", "--listen", address)
    assert address in said
    assert "in use" in said


def test_an_address_that_is_none(sandbox: Sandbox) -> None:
    for address in ("4280", ":4280", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"):
        said = sandbox.fail("portal", "serve", "--listen", address, code=2)
        assert "is not HOST:PORT" in said


def test_what_is_for_us_alone_is_not_shown(sandbox: Sandbox) -> None:
    assert "until-eof" not in sandbox.succeed("portal", "serve", "--help")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_its_last_line_says_where_it_listens(tmp_path: Path, listen: str) -> None:
    """Port 0 picks a free one, which the line has."""
    with portal_process(tmp_path, "--listen", listen) as portal:
        address = urlsplit(portal.url)
        assert address.port
        assert httpx.get(f"{portal.url}/svc/stats").status_code == 200

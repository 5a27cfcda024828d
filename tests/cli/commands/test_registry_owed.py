"""What `skymount registry retry` sends to portals that lack something (G19, W4)."""

from contextlib import closing
from pathlib import Path

import httpx
import pytest

from skymount.keyring import Keyring
from skymount.portal.ledger.ledger import Ledger
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, hash_data_key
from tests.portal_process import running_portal
from tests.ports import unused_port
from tests.server.registry_entries import put
from tests.skymount_process import Sandbox


@pytest.fixture
def pair(box: Sandbox, owner: str) -> SigningKeyPair:
    return Keyring(Path(box.root / "data/skymount/keys")).get("home")


def test_content_goes_with_the_entry(
    box: Sandbox, portal: str, pair: SigningKeyPair, tmp_path: Path
) -> None:
    """A portal that was away gets the files too, under the same skylink."""
    port = unused_port()
    away = f"http://127.0.0.1:{port}"
    both = box.with_env(SKYMOUNT_PORTALS=f"{portal} {away}")
    page = tmp_path / "page.html"
    page.write_text("hello")
    link = both.skymount("publish", page, "--key", "home", "--as", "site").stdout.strip()
    _, reason, line = box.succeed("registry", "pending").splitlines()
    assert f"owed to {away}" in reason
    assert "1 of 1 stay pending" in both.skymount("registry", "retry").stderr
    with running_portal(tmp_path, "--listen", f"127.0.0.1:{port}"):
        number = line.split()[0]
        assert both.succeed("registry", "retry") == f"{number}: home/site, revision 0\n"
        alone = box.with_env(SKYMOUNT_PORTALS=away)
        assert alone.succeed("cat", link) == "hello"
    assert box.succeed("registry", "pending") == ""


def test_write_that_something_newer_won_over_is_said(
    box: Sandbox, portal: str, pair: SigningKeyPair
) -> None:
    """It is kept as a change in conflict, until it overwrites what is there."""
    tweak = hash_data_key("greeting")
    with httpx.Client(base_url=portal, headers={"User-Agent": "tests"}) as client:
        put(client, Entry(tweak, b"theirs", 9).sign(pair.private_key))
    with closing(Ledger.open(box.root / "state/skymount/ledger.sqlite3")) as ledger:
        mine = Entry(tweak, b"mine", 3).sign(pair.private_key)
        ledger.owe(mine, "greeting", [portal], "down", is_own=True)
    done = box.skymount("registry", "retry")
    assert "revision 9 won" in done.stderr
    *_, line = box.succeed("registry", "pending").splitlines()
    assert '"mine"' in line
    number = line.split()[0]
    assert "1 of 1 stay pending" in box.skymount("registry", "retry").stderr
    assert (
        box.succeed("registry", "retry", "--overwrite") == f"{number}: home/greeting, revision 10\n"
    )
    assert box.succeed("registry", "get", "home", "greeting").strip() == "mine"

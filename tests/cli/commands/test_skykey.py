"""``skymount skykey``: keys of a node by name or id; the keys themselves only when asked for."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from skymount.wire.skykey import Kind, Skykey
from tests.cli.helpers import piped_badly, piped_well
from tests.portal_process import running_portal
from tests.skymount_process import Sandbox

GIVEN = Skykey(Kind.PUBLIC, bytes(range(32)), bytes(range(24)), "given")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[str]:
    """A portal without skykeys."""
    with running_portal(tmp_path) as url:
        yield url


@pytest.fixture
def box(sandbox: Sandbox, node: str) -> Sandbox:
    return sandbox.with_env(SKYMOUNT_PORTALS=node)


def test_the_life_of_a_key(box: Sandbox) -> None:
    assert box.succeed("skykey", "list") == ""
    key_id = box.succeed("skykey", "create", "holidays").rstrip()
    line = f"{key_id}  private-id  holidays\n"
    assert box.succeed("skykey", "list") == line
    assert box.succeed("skykey", "get", "holidays") == line
    assert box.succeed("skykey", "get", "--id", key_id) == line
    assert box.succeed("skykey", "delete", "holidays") == ""
    assert box.succeed("skykey", "list") == ""


def test_results_as_json(box: Sandbox) -> None:
    made = json.loads(box.succeed("skykey", "create", "--json", "--type", "public-id", "a"))
    assert set(made) == {"name", "id", "type"}
    assert (made["name"], made["type"]) == ("a", "public-id")
    assert json.loads(box.succeed("skykey", "get", "--json", "a")) == made
    assert json.loads(box.succeed("skykey", "list", "--json")) == [made]
    shown = json.loads(box.succeed("skykey", "get", "--json", "--show-key", "a"))
    assert Skykey.parse(shown.pop("skykey")).id == made["id"]
    assert shown == made
    gone = json.loads(box.succeed("skykey", "delete", "--json", "--id", made["id"]))
    assert gone == {"name": None, "id": made["id"], "deleted": True}


def test_a_key_that_somebody_gave(box: Sandbox) -> None:
    """It comes by standard input, so that no other user sees it."""
    assert piped_well(box, f"{GIVEN.text}\n", "skykey", "add") == f"{GIVEN.id}\n"
    assert box.succeed("skykey", "get", "--show-key", "given") == f"{GIVEN.text}\n"
    assert box.succeed("skykey", "list", "--show-key").endswith(f"  {GIVEN.text}\n")
    box.succeed("skykey", "delete", "given")
    added = json.loads(piped_well(box, GIVEN.text, "skykey", "add", "--json"))
    assert added == {"name": "given", "id": GIVEN.id, "type": "public-id"}


def test_a_key_is_shown_only_when_asked_for(box: Sandbox) -> None:
    assert box.succeed("skykey", "create", "--show-key", "a").startswith("skykey:")
    secret = box.succeed("skykey", "get", "--show-key", "a").removeprefix("skykey:")[:40]
    for command in (["list"], ["list", "--json"], ["get", "a"], ["get", "--json", "a"]):
        assert secret not in box.succeed("skykey", *command)


def test_an_upload_is_encrypted_with_it(box: Sandbox, node: str) -> None:
    (box.root / "file").write_text("content")
    box.succeed("skykey", "create", "holidays")
    plain = box.succeed("upload", "file")
    encrypted = box.succeed("upload", "--skykey-name", "holidays", "file")
    assert encrypted != plain
    assert httpx.get(f"{node}/{encrypted.rstrip()}").content == b"content"


def test_a_node_of_its_own(sandbox: Sandbox, node: str, portal: str) -> None:
    """Skykeys are where node_url says, everything else is at the portal."""
    box = sandbox.with_env(SKYMOUNT_PORTALS=portal, SKYMOUNT_NODE_URL=node)
    box.succeed("skykey", "create", "at-the-node")
    there = sandbox.with_env(SKYMOUNT_PORTALS=node)
    assert "at-the-node" in there.succeed("skykey", "list")
    here = sandbox.with_env(SKYMOUNT_PORTALS=portal)
    assert "at-the-node" not in here.succeed("skykey", "list")


# Refusals


def test_a_key_that_is_not_there(box: Sandbox) -> None:
    for command in ("get", "delete"):
        said = box.fail("skykey", command, "absent", code=3)
        assert "No Skykey with that name" in said
        assert "No Skykey" in box.fail("skykey", command, "--id", GIVEN.id, code=3)


def test_a_name_that_is_taken(box: Sandbox) -> None:
    box.succeed("skykey", "create", "a")
    assert "already used by another key" in box.fail("skykey", "create", "a")


@pytest.mark.parametrize(
    "arguments",
    [
        ["create"],
        ["create", ""],
        ["create", "--type", "bogus", "a"],
        ["create", "n" * 129],
        ["get"],
        ["get", "--id", "bogus"],
        ["get", "--id", GIVEN.id, "name"],
        ["delete"],
        ["delete", "--id", GIVEN.id, "name"],
    ],
)
def test_wrong_use(box: Sandbox, arguments: list[str]) -> None:
    box.fail("skykey", *arguments, code=2)


@pytest.mark.parametrize("text", ["", "junk", "skykey:junk", GIVEN.text[:-30]])
def test_what_is_no_key(box: Sandbox, text: str) -> None:
    """What was given is not repeated: it may be a key with a slip in it."""
    said = piped_badly(box, text, "skykey", "add")
    assert GIVEN.text[10:30] not in said


def test_a_key_on_the_command_line_is_refused_and_not_repeated(box: Sandbox) -> None:
    said = box.fail("skykey", "add", GIVEN.text, code=2)
    assert GIVEN.text not in said

"""``skymount skylink``."""

import json
import sys

import pytest

from skymount.wire.registry_entry import entry_link
from skymount.wire.skylink import Skylink
from tests.skymount_process import Sandbox

LINK = "XABvi7JtJbQSMAcDwnUnmp2FKDPjg8_tTTFP4BwMSxVdEg"
BASE32 = "bg06v2tidkir84hg0s1s4t97jaeoaa1jse1svrad657u070c9calq4g"
ROOT = "6f8bb26d25b412300703c275279a9d852833e383cfed4d314fe01c0c4b155d12"
ENTRY = entry_link(bytes(32), bytes(32))


@pytest.mark.parametrize(
    ("link", "path"),
    [
        (LINK, ""),
        (BASE32, ""),
        (f"svc://{LINK}", ""),
        (f"SIA:{BASE32}", ""),
        (f"https://portal.example/{LINK}/a/b%20c?download=true", "/a/b%20c"),
        (f"https://{BASE32}.portal.example/a", "/a"),
        (f"{LINK}/ä", "/ä"),
    ],
)
def test_parse_takes_any_form(sandbox: Sandbox, link: str, path: str) -> None:
    assert sandbox.succeed("skylink", "parse", link) == f"{LINK}{path}\n"


def test_parse_gives_the_other_form(sandbox: Sandbox) -> None:
    assert sandbox.succeed("skylink", "parse", "--base32", f"{LINK}/a") == f"{BASE32}/a\n"


def test_parse_as_json(sandbox: Sandbox) -> None:
    found = json.loads(sandbox.succeed("skylink", "parse", "--json", f"{LINK}/a"))
    assert found == {"skylink": LINK, "base32": BASE32, "path": "/a"}


@pytest.mark.parametrize("link", ["", "bogus", LINK[:-1], "ftp://" + LINK, "https://[/", "x" * 65])
@pytest.mark.parametrize("command", ["parse", "inspect"])
def test_what_is_no_skylink_is_wrong_usage(sandbox: Sandbox, command: str, link: str) -> None:
    assert sandbox.fail("skylink", command, link, code=2)


def test_inspect(sandbox: Sandbox) -> None:
    """For people: a line for each fact."""
    lines = sandbox.succeed("skylink", "inspect", BASE32).splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines)
    assert facts == {
        "skylink:": LINK,
        "base32:": BASE32,
        "link:": f"svc://{LINK}",
        "version:": "1",
        "bitfield:": "92",
        "offset:": "0",
        "fetch_size:": "163840",
        "merkleroot:": ROOT,
    }


def test_inspect_as_json(sandbox: Sandbox) -> None:
    found = json.loads(sandbox.succeed("skylink", "inspect", "--json", f"{LINK}/a"))
    assert found == {
        "skylink": LINK,
        "base32": BASE32,
        "link": f"svc://{LINK}/a",
        "version": 1,
        "bitfield": 92,
        "offset": 0,
        "fetch_size": 163840,
        "merkleroot": ROOT,
        "path": "/a",
    }


def test_inspect_a_link_to_an_entry(sandbox: Sandbox) -> None:
    """A v2 skylink has no place in a sector, but an entry."""
    found = json.loads(sandbox.succeed("skylink", "inspect", "--json", str(ENTRY)))
    assert found == {
        "skylink": str(ENTRY),
        "base32": ENTRY.base32,
        "link": f"svc://{ENTRY}",
        "version": 2,
        "bitfield": 1,
        "entry_id": ENTRY.root.hex(),
    }


def test_a_skylink_in_the_middle_of_a_sector(sandbox: Sandbox) -> None:
    packed = Skylink.v1(bytes(32), 5000, 8192)
    found = json.loads(sandbox.succeed("skylink", "inspect", "--json", str(packed)))
    assert (found["offset"], found["fetch_size"]) == (8192, 8192)


def test_the_dialect_gives_the_scheme(sandbox: Sandbox) -> None:
    """By a flag, or the configuration."""
    shown = sandbox.succeed("skylink", "inspect", "--dialect", "skynet", LINK)
    assert f"sia://{LINK}\n" in shown
    sandbox.configure('dialect = "skynet"\n')
    assert sandbox.succeed("skylink", "inspect", LINK) == shown
    assert "dialect" in sandbox.fail("skylink", "inspect", "--dialect", "bogus", LINK, code=2)


def test_no_portal_is_asked(sandbox: Sandbox) -> None:
    """Neither library that could is loaded."""
    code = (
        "import sys\nimport skymount.cli\n"
        "try:\n    skymount.cli.main()\nexcept SystemExit: pass\n"
        "print(*sorted({'trio', 'httpx', 'socket', 'nacl'} & set(sys.modules)), file=sys.stderr)"
    )
    done = sandbox.run(sys.executable, "-c", code, "skylink", "parse", LINK)
    assert (done.stdout, done.stderr) == (f"{LINK}\n", "\n")

"""``skymount hns``: domains that a portal resolves."""

import json
from pathlib import Path

import pytest

from skymount.wire.registry_entry import entry_link
from tests.portal_process import PortalProcess
from tests.skymount_process import Sandbox

KEY, TWEAK = "ab" * 32, "cd" * 32


@pytest.fixture
def box(sandbox: Sandbox, names: PortalProcess) -> Sandbox:
    """Commands in it do not warn that no name is verified."""
    return sandbox.with_env(SKYMOUNT_PORTALS=names.url, SKYMOUNT_VERIFY="off")


@pytest.fixture
def site(box: Sandbox, names: PortalProcess) -> str:
    """The skylink of what the domain example stands for."""
    directory = box.directory("site")
    (directory / "index.html").write_text("hello")
    (directory / "two words.txt").write_text("words")
    skylink = box.upload(directory, names.url)
    box.succeed("portal", "hns", "set", "--data", names.data, "example", skylink)
    return skylink


def test_resolve(box: Sandbox, site: str) -> None:
    for name in ("example", "EXAMPLE.", "hns://example"):
        assert box.succeed("hns", "resolve", name) == f"svc://{site}\n"
    link = f"svc://{site}"
    found = json.loads(box.succeed("hns", "resolve", "--json", "example"))
    assert found == {"skylink": link, "data": {"skylink": link}}


def test_a_name_that_leads_to_a_registry_entry(box: Sandbox, names: PortalProcess) -> None:
    box.succeed("portal", "hns", "set", "--data", names.data, "entry", f"{KEY}/{TWEAK}")
    link = entry_link(bytes.fromhex(KEY), bytes.fromhex(TWEAK))
    assert box.succeed("hns", "resolve", "entry") == f"svc://{link}\n"
    assert "registry" in json.loads(box.succeed("hns", "resolve", "--json", "entry"))["data"]


def test_a_name_that_nobody_has(box: Sandbox, site: str) -> None:
    said = box.fail("hns", "resolve", "nobody", code=3)
    assert said.startswith("nobody: the portal knows no such name")
    assert "nobody" in box.fail("download", "hns://nobody/x", code=3)


def test_downloading(box: Sandbox, site: str) -> None:
    """`skymount download` does it; the command of before says so."""
    said = box.fail("hns", "download", "--force", "example/index.html", "x", code=2)
    assert said.startswith("it was removed: use `skymount download hns://DOMAIN/PATH`")
    box.succeed("download", "hns://example/two%20words.txt")
    assert (box.root / "two words.txt").read_text() == "words"


@pytest.mark.parametrize(
    "arguments",
    [
        ["resolve"],
        ["resolve", "a b"],
        ["resolve", ""],
        ["download"],
        ["download", "a b/x"],
        ["download", "example", ""],
        ["download", "hns://"],
    ],
)
def test_wrong_use(box: Sandbox, arguments: list[str]) -> None:
    box.fail("hns", *arguments, code=2)


def test_names_work_wherever_links_do(box: Sandbox, site: str, tmp_path: Path) -> None:
    assert box.succeed("cat", "hns://example/index.html") == "hello"
    assert box.succeed("ls", "hns://example") == "index.html\ntwo words.txt\n"

"""``skymount hns``: domains that a portal resolves."""

import json
import zipfile
from pathlib import Path
from urllib.parse import unquote

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


def test_a_file_is_downloaded_under_its_name(box: Sandbox, site: str) -> None:
    for name in ("example/index.html", "hns://example/two%20words.txt"):
        assert box.succeed("hns", "download", name) == ""
    assert (box.root / "index.html").read_text() == "hello"
    assert (box.root / "two words.txt").read_text() == "words"


def test_where_a_download_goes(box: Sandbox, site: str) -> None:
    out = box.succeed("hns", "download", "--json", "example/index.html", "other.html")
    assert json.loads(out) == {"path": "other.html", "size": 5, "verified": "no"}
    box.succeed("hns", "download", "example/index.html", box.directory("there"))
    assert (box.root / "there/index.html").read_text() == "hello"


def test_a_download_to_stdout(box: Sandbox, site: str) -> None:
    before = set(box.root.iterdir())
    assert box.succeed("hns", "download", "example/two%20words.txt", "-") == "words"
    assert box.succeed("hns", "download", "example", "-") == "hello"
    box.fail("hns", "download", "--json", "example", "-", code=2)
    assert "nobody: " in box.fail("hns", "download", "nobody", "-", code=3)
    assert set(box.root.iterdir()) == before


def test_a_directory_without_an_index_page_comes_as_an_archive(
    box: Sandbox, names: PortalProcess
) -> None:
    directory = box.directory("plain")
    for name in ("a", "b"):
        (directory / name).write_text(name)
    skylink = box.upload(directory, names.url)
    box.succeed("portal", "hns", "set", "--data", names.data, "plain", skylink)
    box.succeed("hns", "download", "plain", "plain.zip")
    with zipfile.ZipFile(box.root / "plain.zip") as archive:
        assert sorted(archive.namelist()) == ["a", "b"]


def test_what_is_there_is_replaced_only_by_force(box: Sandbox, site: str) -> None:
    file = box.root / "index.html"
    file.write_text("mine")
    for more in ([], ["index.html"], ["."]):
        said = box.fail("hns", "download", "example/index.html", *more)
        assert said.endswith("index.html: it exists already; use --force to replace it")
    assert file.read_text() == "mine"
    box.succeed("hns", "download", "--force", "example/index.html")
    assert file.read_text() == "hello"


def test_a_directory_is_never_replaced(box: Sandbox, site: str) -> None:
    box.directory("index.html")
    for more in ([], ["--force"]):
        said = box.fail("hns", "download", *more, "example/index.html")
        assert said == "index.html: it is not a regular file, and is not replaced"


def test_a_device_is_written_to(box: Sandbox, site: str) -> None:
    out = box.skymount("hns", "download", "--json", "example/index.html", "/dev/null").stdout
    assert json.loads(out) == {"path": "/dev/null", "size": 5, "verified": "no"}


def test_a_place_that_is_not_there(box: Sandbox, site: str) -> None:
    said = box.fail("hns", "download", "example/index.html", "absent/x")
    assert said == "absent: no such directory"


@pytest.mark.parametrize("name", ["example/..", "example/a/%2e%2e", "example/..%2f.."])
def test_a_download_stays_where_it_belongs(box: Sandbox, site: str, name: str) -> None:
    box.skymount("hns", "download", name)
    assert {path.name for path in box.root.parent.iterdir()} == {"sandbox"}


@pytest.mark.parametrize("name", ["-rf", "%1b%5b2J", "a%0ab"])
def test_a_name_that_no_tool_expects(box: Sandbox, names: PortalProcess, name: str) -> None:
    """Another name takes its place."""
    directory = box.directory("odd")
    (directory / unquote(name)).write_text("odd")
    link = box.upload(directory, names.url)
    box.succeed("portal", "hns", "set", "--data", names.data, "odd", link)
    box.skymount("hns", "download", f"odd/{name}")
    assert (box.root / "download").read_text() == "odd"


def test_a_name_that_nobody_has(box: Sandbox, site: str) -> None:
    """Nothing is left of a download that fails."""
    before = set(box.root.iterdir())
    said = box.fail("hns", "resolve", "nobody", code=3)
    assert said.startswith("nobody: the portal knows no such name")
    assert "nobody/x: " in box.fail("hns", "download", "nobody/x", code=3)
    assert "example/absent: " in box.fail("hns", "download", "example/absent", code=3)
    assert set(box.root.iterdir()) == before


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

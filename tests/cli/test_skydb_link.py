"""Documents of skydb on the command line."""

import pytest

from skymount.cli.key_argument import EntryArgument
from skymount.cli.skydb_link import parse_skydb_path
from skymount.errors import MalformedError
from tests.skymount_process import Sandbox

KEY = "ab" * 32


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("skydb/home/doc.json", EntryArgument("home", "doc", hashed=False)),
        (f"skydb/{KEY}/a%2Fb.json", EntryArgument(KEY, "a/b", hashed=False)),
        (f"skydb/home/{KEY}.json", EntryArgument("home", KEY, hashed=True)),
        ("skydb/home/%.json", EntryArgument("home", "", hashed=False)),
    ],
    ids=["plain", "escaped", "hashed", "empty"],
)
def test_names_as_in_a_mount(text: str, entry: EntryArgument) -> None:
    assert parse_skydb_path(text) == entry


@pytest.mark.parametrize(
    "text", ["A" * 46, "hns://example", "registry/home/doc", "skydb", "/tmp/x"]
)
def test_what_is_no_such_path(text: str) -> None:
    assert parse_skydb_path(text) is None


@pytest.mark.parametrize("text", ["skydb/", "skydb/home", "skydb/home/", "skydb/home/a/b.json"])
def test_paths_that_name_no_document(text: str) -> None:
    with pytest.raises(MalformedError, match="a document is skydb/KEY/DATAKEY"):
        parse_skydb_path(text)


@pytest.mark.mount
def test_a_path_inside_a_mount(sandbox: Sandbox, portal: str) -> None:
    """W6: `skymount pin` takes it too."""
    with sandbox.mounted("--portal", portal) as mount:
        path = mount.path / "skydb" / KEY / "absent.json"
        said = sandbox.fail("pin", path, "--from", portal, "--to", "http://127.0.0.1:1", code=3)
        assert said == "'absent': there is no such document"

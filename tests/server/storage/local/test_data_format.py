"""The mark that keeps a version from a data directory that it does not understand."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import skymount
from skymount.errors import StorageError
from skymount.server.storage.local.data_format import FORMAT, FORMAT_FILE, check_format
from tests.portal_commands import ABSENT
from tests.portal_process import portal_process
from tests.server.http_client import Client
from tests.server.registry_entries import get, put, signed
from tests.skymount_process import Sandbox

COMMANDS = (
    "serve --listen 127.0.0.1:0",
    "list",
    f"show {ABSENT}",
    f"remove {ABSENT}",
    f"pin {ABSENT}",
    f"unpin {ABSENT}",
    "gc --keep 1d",
    "verify",
    "export archive.tar",
    "import archive.tar",
    f"hns set example {ABSENT}",
    "hns remove example",
    "hns list",
)


def _registry_version(data: Path) -> int:
    with closing(sqlite3.connect(data / "entries.sqlite3")) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


def _state(data: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of all but the lock, which says which process has it."""
    found = {path: path.stat() for path in data.rglob("*") if path.name != "lock"}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def test_every_command_refuses_a_newer_format(sandbox: Sandbox, tmp_path: Path) -> None:
    """RT9: one line with the version that it takes, exit code 1, and nothing is changed."""
    data, archive = tmp_path / "data", tmp_path / "archive.tar"
    with portal_process(data):
        pass
    sandbox.succeed("portal", "export", archive, "--data", data)
    (data / FORMAT_FILE).write_text('{"format": 7, "skymount": "9.8.7", "more": [1]}\n')
    before = _state(data)
    for command in COMMANDS:
        words = command.replace("import archive.tar", f"import {archive}").split()
        said = sandbox.fail("portal", *words, "--data", data)
        assert "has format 7 of skymount 9.8.7" in said, command
        assert f"knows formats up to {FORMAT}" in said, command
    assert _state(data) == before


def test_a_directory_of_an_earlier_version(sandbox: Sandbox, tmp_path: Path) -> None:
    """RT9: it is read as it is, and gets the newest format when a portal starts on it."""
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        link = client.upload_file("a", b"content")
        put(client, signed("entry", b"data", 5))
    mark = json.loads((tmp_path / FORMAT_FILE).read_text())
    assert mark == {"format": FORMAT, "skymount": skymount.__version__}
    (tmp_path / FORMAT_FILE).unlink()
    with closing(sqlite3.connect(tmp_path / "entries.sqlite3")) as database:
        database.execute("PRAGMA user_version = 1")
    report = sandbox.succeed("portal", "export", tmp_path / "tar", "--json", "--data", tmp_path)
    assert json.loads(report)["entries"] == 1
    assert not (tmp_path / FORMAT_FILE).exists()
    with portal_process(tmp_path) as portal, Client(base_url=portal.url) as client:
        assert check_format(tmp_path) == FORMAT
        assert client.get(f"/{link}").content == b"content"
        assert get(client, "entry") is not None


def test_versions_that_do_not_know_the_mark(tmp_path: Path) -> None:
    """RT9: they knew version 1 of the registry only, and open it when they start."""
    with portal_process(tmp_path):
        pass
    assert _registry_version(tmp_path) == 2


@pytest.mark.parametrize(
    "mark",
    [b"", b"2", b"{", b'{"format": 0, "skymount": "1"}', b"\xff" * 9999, b"[" * 4096],
    ids=["empty", "number", "cut", "zero", "noise", "deep"],
)
def test_a_damaged_mark(tmp_path: Path, mark: bytes) -> None:
    """RT9: nobody guesses what it was."""
    (tmp_path / FORMAT_FILE).write_bytes(mark)
    with pytest.raises(StorageError, match="is damaged: remove it if"):
        check_format(tmp_path)


def test_the_version_of_a_mark_is_not_trusted(tmp_path: Path) -> None:
    """RT9: it is printed, so it is one line without control characters."""
    mark = {"format": 9, "skymount": "1\n\x1b[31m"}
    (tmp_path / FORMAT_FILE).write_text(json.dumps(mark))
    with pytest.raises(StorageError) as caught:
        check_format(tmp_path)
    assert str(caught.value).isprintable()

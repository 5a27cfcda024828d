"""The reference SDK for Python, as it is on the package index, against the embedded portal.

It speaks the `skynet` preset. scripts/setup --dev puts it where only these tests find it.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.portal_process import running_portal

_SDK = Path(sys.prefix) / "reference-sdk"
_DRIVER = Path(__file__).with_name("driver.py")
_LIMIT = 60  # seconds for a few calls; a bound for what hangs
_PASSWORD = "the password"
_FILES = {
    "file1": b"test\n",
    "file3": bytes(range(256)) * 20_000,  # more than a sector
    "dir1/file2": b"two\n",
    "dir1/deep er/ünïcode +%.txt": b"three\n",
    "empty": b"",
}
_FILE1 = "sia://AAA4Vhdgu6HxAcS-O4FvwQsiwJW-tUNV4C3zyrBQZ91vtg"  # of file1, sent as a raw body


def sdk(url: str, *calls: tuple[Any, ...], cwd: Path | None = None, **options: str) -> list[Any]:
    """Make calls of one client of the SDK in a process of its own; return their results."""
    assert _SDK.is_dir(), "the reference SDK is missing: run scripts/setup --dev"
    environment = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-S", str(_DRIVER), url],  # -S: without what .venv holds besides
        input=json.dumps([options, calls]),
        env=environment | {"PYTHONPATH": str(_SDK), "PYTHONUTF8": "1"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert isinstance(results, list)
    return results


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory of files."""
    for name, content in _FILES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "site"


def test_a_file_goes_up_and_comes_back(portal: str, site: Path, tmp_path: Path) -> None:
    """upload_file, get_metadata and download_file; the skylink is that of every portal."""
    copy = tmp_path / "copy"
    found = sdk(portal, ("upload_file", str(site / "file1")))
    assert found == [_FILE1]
    assert sdk(portal, ("get_metadata", _FILE1), ("download_file", str(copy), _FILE1)) == [
        {"filename": "file1", "length": 5},
        None,
    ]
    assert copy.read_bytes() == b"test\n"


def test_a_directory_goes_up_and_comes_back(portal: str, site: Path, tmp_path: Path) -> None:
    """upload_directory; each file by its path, and the whole as a zip, are what they were."""
    skylink = sdk(portal, ("upload_directory", "site"), cwd=site.parent)[0]
    copies = tmp_path / "copies"
    copies.mkdir()
    targets = {name: copies / str(number) for number, name in enumerate(_FILES)}
    calls = [
        ("download_file", str(target), f"{skylink}/{quote(name)}")
        for name, target in targets.items()
    ]
    sdk(portal, *calls, ("download_file", str(copies / "zip"), skylink))
    assert {name: target.read_bytes() for name, target in targets.items()} == _FILES
    with zipfile.ZipFile(copies / "zip") as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == _FILES


def test_metadata_of_a_directory(portal: str, site: Path) -> None:
    """get_metadata names the directory and every file, and is what HEAD says."""
    skylink = sdk(portal, ("upload_directory", "site"), cwd=site.parent)[0]
    metadata = sdk(portal, ("get_metadata", skylink))[0]
    assert metadata["filename"] == "site"
    assert metadata["length"] == sum(map(len, _FILES.values()))
    sizes = {name: record.get("len", 0) for name, record in metadata["subfiles"].items()}
    assert sizes == {name: len(content) for name, content in _FILES.items()}
    head = httpx.head(f"{portal}/{skylink.removeprefix('sia://')}?format=zip")
    assert json.loads(head.headers["skynet-file-metadata"]) == metadata


def test_names_are_the_callers(portal: str, site: Path) -> None:
    """custom_filename and custom_dirname are what the metadata says."""
    file, directory = sdk(
        portal,
        ("upload_file", str(site / "file1"), {"custom_filename": "testname"}),
        ("upload_directory", str(site), {"custom_dirname": "testdir"}),
    )
    found = sdk(portal, ("get_metadata", file), ("get_metadata", directory))
    assert [metadata["filename"] for metadata in found] == ["testname", "testdir"]


def test_a_missing_file_is_refused(portal: str) -> None:
    """What is not there has status 404, and the SDK sees the reason."""
    status, body = sdk(portal, ("download_file_request", _FILE1[:-3] + "AAA"))[0]
    assert (status, list(json.loads(body))) == (404, ["message"])


def test_portal_with_a_password(site: Path, tmp_path: Path) -> None:
    """The api_key of the client, or of a call, is the portal's password; reading needs none."""
    secret = tmp_path / "password"
    secret.touch(0o600)
    secret.write_text(_PASSWORD)
    path = str(site / "file1")
    with running_portal(tmp_path, "--password-file", str(secret)) as url:
        refused, wrong, accepted = sdk(
            url,
            ("upload_file_request", path),
            ("upload_file_request", path, {"api_key": "another"}),
            ("upload_file_request", path, {"api_key": _PASSWORD}),
        )
        assert [refused[0], wrong[0], accepted[0]] == [401, 401, 200]
        assert sdk(url, ("upload_file", path), api_key=_PASSWORD) == [_FILE1]
        assert sdk(url, ("get_metadata", _FILE1))[0]["filename"] == "file1"


def test_portal_that_wants_an_agent(site: Path, tmp_path: Path) -> None:
    """custom_user_agent, of a call or of the client, opens what is closed to browsers."""
    path = str(site / "file1")
    with running_portal(tmp_path, "--require-agent") as url:
        refused, accepted = sdk(
            url,
            ("upload_file_request", path),
            ("upload_file_request", path, {"custom_user_agent": "Sia-Agent"}),
        )
        assert [refused[0], accepted[0]] == [400, 200]
        assert sdk(url, ("upload_file", path), custom_user_agent="Sia-Agent") == [_FILE1]


def test_a_slash_behind_the_portals_address(portal: str, site: Path) -> None:
    """The address may end in a slash."""
    assert sdk(f"{portal}/", ("upload_file", str(site / "file1"))) == [_FILE1]

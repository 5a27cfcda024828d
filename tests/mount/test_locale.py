"""A locale that is not UTF-8: names are the bytes of the file system, and UTF-8 for portals."""

import os
import shutil
from pathlib import Path

import pytest

from tests.skymount_process import Sandbox, mounts_at, output, run

pytestmark = pytest.mark.skipif(
    shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/en_US").exists(),
    reason="no locale can be made here",
)


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("locales")
    run(["localedef", "-i", "en_US", "-f", "ISO-8859-1", path / "en_US.ISO-8859-1"])
    assert any(path.iterdir())
    return path


@pytest.fixture
def latin(sandbox: Sandbox, locales: Path) -> Sandbox:
    """A sandbox whose commands run in a locale with ISO-8859-1."""
    return sandbox.with_env(LOCPATH=str(locales), LC_ALL="en_US.ISO-8859-1")


def test_names_are_published_as_the_disk_has_them(
    sandbox: Sandbox, latin: Sandbox, portal: str
) -> None:
    directory = sandbox.directory("site")
    (directory / "ü").mkdir()
    (directory / "ü/żółć.txt").write_text("text")
    assert latin.upload(directory, portal) == sandbox.upload(directory, portal)


def test_a_mount_point_is_found_again(sandbox: Sandbox, latin: Sandbox, portal: str) -> None:
    path = sandbox.directory("é")
    with latin.mounted("--portal", portal, at=path):
        assert str(path) in latin.skymount("status").stdout
        assert latin.skymount("umount", path).returncode == 0
        assert mounts_at(path) == []


def test_files_are_saved_under_the_names_that_were_published(
    sandbox: Sandbox, latin: Sandbox, portal: str
) -> None:
    directory = sandbox.directory("site")
    (directory / "żółć.txt").write_text("text")
    skylink = sandbox.upload(directory, portal)
    assert latin.skymount("download", skylink, "copy", "--portal", portal).returncode == 0
    assert output(["ls", sandbox.root / "copy"]).decode() == "żółć.txt\n"


def test_a_mount_point_that_is_not_utf8(sandbox: Sandbox, portal: str) -> None:
    """In any locale."""
    path = sandbox.directory(os.fsdecode(b"m\xff"))
    with sandbox.mounted("--portal", portal, at=path):
        assert "m\\xff  running for" in sandbox.succeed("status", path)
        assert '"state":"running"' in sandbox.succeed("status", "--json", path)
        assert sandbox.succeed("umount", path) == ""

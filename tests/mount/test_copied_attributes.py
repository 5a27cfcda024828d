"""Programs that copy extended attributes, out of the mount and back into it."""

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests.mount.keys import Owner, needs
from tests.skymount_process import output, run

COPIES = {
    "cp": "cp -a $from $to",
    "mv": "cp -a $from $spare && mv $spare $to",
    "tar": "tar --xattrs --xattrs-include='*' -C $(dirname $from) -cf - $(basename $from) | "
    "tar --xattrs --xattrs-include='*' -C $(dirname $to) -xf -",
    "shutil": "$python -c 'import shutil, sys; shutil.copy2(*sys.argv[1:])' $from $to",
    "rsync": "rsync -aXI $from $to",
}


def copy(how: str, source: Path, target: Path) -> None:
    spare = tempfile.mktemp()
    names = {"from": str(source), "to": str(target), "python": sys.executable, "spare": spare}
    done = run(["sh", "-e", "-c", COPIES[how]], env={**os.environ, **names})
    assert (done.returncode, done.stderr) == (0, "")


@needs("rsync")
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("subtree", ["registry", "skydb"])
def test_out_and_back(files: Path, how: str, subtree: str, tmp_path: Path) -> None:
    """A4: None is listed (A1), so no copy has it."""
    place = files.parent.parent / subtree / files.name
    file, copied = place / f"{how}.json", tmp_path / f"{how}.json"
    file.write_text("[1]")
    copy(how, file, copied)
    assert json.loads(copied.read_text()) == [1]
    assert os.listxattr(copied) == []
    copied.write_text("[2]")
    os.setxattr(copied, "user.skymount.revision", b"1")  # from an older version
    copy(how, copied, file)
    assert json.loads(file.read_text()) == [2]


@needs("rsync")
@pytest.mark.parametrize("how", COPIES)
def test_out_of_a_skylink(owner: Owner, files: Path, how: str, portal: str, tmp_path: Path) -> None:
    """A1: `user.mime_type` is listed, and copied; what says how a file is now is not."""
    source = tmp_path / f"{how}.txt"
    source.write_text(how)
    skylink = owner.sandbox.upload(source, portal)
    source.unlink()
    file = files.parent.parent / "skylinks" / skylink / source.name
    copy(how, file, source)
    assert sorted(os.listxattr(source)) == ["user.mime_type", "user.xdg.origin.url"]
    assert source.read_text() == how
    entry = files / source.name
    copy(how, file, entry)
    assert entry.read_text() == how


def test_set_and_removed(files: Path) -> None:
    """A4: To set or remove one that begins with `user.skymount.` succeeds and has no effect."""
    (files / "x").write_text("data")
    revision = os.getxattr(files / "x", "user.skymount.revision")
    os.setxattr(files / "x", "user.skymount.revision", b"99")
    os.removexattr(files / "x", "user.skymount.revision")
    assert os.getxattr(files / "x", "user.skymount.revision") == revision
    for name in ("user.mime", "user.other"):
        output([sys.executable, "-c", SET, files / "x", name])


SET = """
import errno, os, sys
try:
    os.setxattr(sys.argv[1], sys.argv[2], b"x")
except OSError as error:
    assert error.errno == errno.EOPNOTSUPP
else:
    sys.exit("it was set")
"""

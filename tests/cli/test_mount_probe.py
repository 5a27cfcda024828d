"""Asking mounts for their status, where nothing is mounted: a file is as good."""

import os
from pathlib import Path

from skymount.cli.mount_probe import MountProber, MountState
from skymount.fs.mountpoint import MountInfo

MOUNTED = MountInfo("fuse.skymount", "skymount", os.getuid())
LIMIT = 20.0


def place(root: Path, name: str) -> Path:
    made = root / name / ".skymount"
    made.mkdir(parents=True)
    return made / "status.json"


def test_answers_come_in_order(tmp_path: Path) -> None:
    for name in "ab":
        place(tmp_path, name).write_text(name)
    paths = {str(tmp_path / name): MOUNTED for name in ("b", "a", "absent")}
    b, a, absent = MountProber(LIMIT).ask(paths)
    assert (a.text, a.state, a.path) == (b"a", MountState.RUNNING, str(tmp_path / "a"))
    assert b.text == b"b"
    assert (absent.state, absent.reason) == (MountState.UNREADABLE, "No such file or directory")


def test_an_endless_status_is_not_read(tmp_path: Path) -> None:
    place(tmp_path, "m").write_bytes(b" " * (2 << 20))
    [answer] = MountProber(LIMIT).ask({str(tmp_path / "m"): MOUNTED})
    assert answer.state is MountState.UNREADABLE
    assert "its status has more than 1 MiB" in answer.reason


def test_one_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    """E4: its answer counts when it comes; others do not wait for it."""
    os.mkfifo(place(tmp_path, "silent"))
    place(tmp_path, "m").write_text("m")
    paths = {str(tmp_path / name): MOUNTED for name in ("silent", "m")}
    prober = MountProber(0.5)
    for _ in range(2):
        silent, other = prober.ask(paths)
        assert silent.state is MountState.SILENT
        assert "no answer in 0.5 s" in silent.reason
        assert other.text == b"m"
    with open(tmp_path / "silent/.skymount/status.json", "wb") as pipe:
        pipe.write(b"late")
    [late] = prober.ask({str(tmp_path / "silent"): MOUNTED})
    assert late.text == b"late"

"""``skymount status`` on real mounts."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuse_device import NEEDS_MOUNTS
from tests.skymount_process import SKYMOUNT, Mount, Sandbox, end, output, run

pytestmark = NEEDS_MOUNTS

QUICK = 20.0
"""Seconds: the command's own limit of 2 s, and a busy machine."""


@pytest.fixture
def mount(box: Sandbox) -> Iterator[Mount]:
    with box.mounted() as mounted:
        yield mounted


def facts(box: Sandbox, mount: Mount, code: int = 0) -> dict[str, Any]:
    """Return what the command says of a mount, among those of other tests."""
    done = box.skymount("status", "--json", mount.path, limit=QUICK)
    assert (done.returncode, done.stderr) == (code, "")
    [found] = json.loads(done.stdout)
    assert found["mountpoint"] == str(mount.path)
    assert isinstance(found, dict)
    return found


def test_a_mount(box: Sandbox, mount: Mount, portal: str, tmp_path: Path) -> None:
    """E4: portals, caches, what is in use."""
    (tmp_path / "file").write_bytes(b"x" * 200_000)
    skylink = box.upload(tmp_path / "file", portal)
    file = mount.path / "skylinks" / skylink / "file"
    output(["cat", file])
    with subprocess.Popen(["tail", "-f", file], stdout=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        reading.stdout.read(1)
        shown = box.succeed("status", mount.path)
        found = facts(box, mount)
        reading.kill()
    first, *others = shown.splitlines()
    assert first.startswith(f"{mount.path}  running for ")
    assert f"pid {mount.daemon.pid}, " in first
    text = "\n".join(others)
    assert f"portals       {portal}  works, answers in " in text
    assert "% hits in " in text
    assert "1 skylink, 0 domains, 1 file open, 0 requests under way" in text
    assert found["state"] == "running"
    status = found["status"]
    assert status["open_files"] == 1
    assert status["requests"] == {"under_way": 0, "oldest": None}
    assert status["memory_cache"]["hits"] + status["memory_cache"]["misses"] > 0
    assert status["portal_health"][0]["requests"] == 0


def test_all_mounts(box: Sandbox, mount: Mount) -> None:
    """E4: those of the user, which are named nowhere."""
    done = box.skymount("status", "--json")
    assert str(mount.path) in [each["mountpoint"] for each in json.loads(done.stdout)]
    assert f"{mount.path}  running" in box.skymount("status").stdout


def test_what_is_not_our_mount(sandbox: Sandbox) -> None:
    path = sandbox.directory()
    assert f"{path}: nothing is mounted there" in sandbox.fail("status", path)
    assert "is mounted there, not skymount" in sandbox.fail("status", "/proc")


def test_a_daemon_that_is_stopped(box: Sandbox, mount: Mount) -> None:
    """E4: it is shown in 2 s, and works afterwards."""
    mount.daemon.signal(signal.SIGSTOP)
    try:
        found = facts(box, mount, code=1)
    finally:
        mount.daemon.signal(signal.SIGCONT)
    assert found["state"] in ("stopped", "silent")  # before Linux 6.17 it may be another's process
    if found["state"] == "stopped":
        assert f"kill -CONT {mount.daemon.pid}" in found["reason"]
    assert "status" not in found
    assert facts(box, mount)["state"] == "running"


def test_a_daemon_that_is_gone(box: Sandbox, mount: Mount) -> None:
    """E4: it is shown, with what to do."""
    mount.daemon.signal(signal.SIGKILL)
    mount.daemon.wait()
    found = facts(box, mount, code=1)
    assert found["state"] == "gone"
    assert f"skymount umount {mount.path}" in found["reason"]
    said = box.skymount("status", mount.path)
    assert f"{mount.path}  gone: its daemon is gone" in said.stdout


def test_a_daemon_that_is_busy(sandbox: Sandbox) -> None:
    """E4: It has taken the request, so that nothing ends the process that waits; the command ends
    all the same, and so does what reads its output.
    """
    path = sandbox.directory()
    script = Path(__file__).with_name("busy_mount.py")
    daemon = subprocess.Popen([sys.executable, script, path], stdout=subprocess.PIPE)
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"mounted\n"
        command = [*SKYMOUNT, "status", "--json", str(path)]
        done = sandbox.run("sh", "-c", '"$@" | cat', "-", *command, limit=QUICK)
        [found] = json.loads(done.stdout)
        assert found["state"] == "silent"
        assert "in 2 s" in found["reason"]
    finally:
        end(daemon)
        run(["fusermount3", "-uz", "--", path])


def test_watching(box: Sandbox) -> None:
    """An option that is gone is answered by what is instead."""
    assert "`watch skymount status`" in box.fail("status", "--watch", code=2)


def test_a_file(box: Sandbox, mount: Mount, portal: str, tmp_path: Path) -> None:
    """A1: `skymount status PATH` shows all attributes of a file or directory."""
    (tmp_path / "file.txt").write_bytes(b"text")
    skylink = box.upload(tmp_path / "file.txt", portal)
    file = mount.path / "skylinks" / skylink / "file.txt"
    first, *rows = box.succeed("status", file).splitlines()
    assert first == str(file)
    shown = dict(row.split(maxsplit=1) for row in rows)
    assert shown["user.skymount.skylink"] == skylink
    assert shown["user.skymount.verified"] == "yes"
    assert shown["user.mime_type"] == "text/plain"
    assert json.loads(box.succeed("status", "--json", file)) == {
        "path": str(file),
        "attributes": shown,
    }
    link = tmp_path / "link"
    link.symlink_to(mount.path)
    assert skylink in box.succeed("status", link / "skylinks" / skylink)
    assert "No such file" in box.fail("status", file.with_name("absent"))


def test_a_file_of_a_daemon_that_is_stopped(box: Sandbox, mount: Mount) -> None:
    """E4: The command does not wait for it."""
    mount.daemon.signal(signal.SIGSTOP)
    try:
        done = box.skymount("status", mount.path / "skylinks/file", limit=QUICK)
    finally:
        mount.daemon.signal(signal.SIGCONT)
    assert done.returncode == 1
    assert str(mount.path) in done.stdout

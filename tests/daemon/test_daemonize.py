"""The daemon, and what it tells the process that started it."""

import os
import sys
from pathlib import Path

import pytest

from tests.fakes.portal import FakePortal, in_thread
from tests.fuse_device import mounts
from tests.skymount_process import Done, Sandbox, clear_mounts, has_ended, mounts_at, read_status

_PROGRAM = """
import os, sys
from skymount.settings import Config
from skymount.daemon.daemonize import run_in_background
from skymount.daemon.log import log_to
from skymount.errors import MountError

mountpoint, url, log = sys.argv[1:]
config = Config(mountpoint=mountpoint, portals=(url,), disk_cache=0)
try:
    said = run_in_background(config, lambda: {log_to})
except MountError as error:
    print("MountError:", error)
else:
    print("portals:", said.portals, "warnings:", said.warnings)
"""
_TO_FILE = 'log_to(log, "info")'
_NOBODY = "http://127.0.0.1:9"


def start(sandbox: Sandbox, mountpoint: Path, url: str = _NOBODY, log_to: str = _TO_FILE) -> Done:
    program = _PROGRAM.format(log_to=log_to)
    return sandbox.run(sys.executable, "-c", program, mountpoint, url, sandbox.root / "log")


def test_mount_that_fails(sandbox: Sandbox) -> None:
    """The reason is the error of the start, and in the log."""
    absent = sandbox.root / "absent"
    done = start(sandbox, absent)
    assert done.stderr == ""
    assert done.stdout.startswith(f"MountError: {absent}: no such directory; ")
    assert "ERROR" in (sandbox.root / "log").read_text()


@pytest.mark.parametrize(
    ("log_to", "said"),
    [
        ("1 // 0", "ZeroDivisionError("),
        ("os._exit(3)", "the daemon ended before the tree answered"),
    ],
)
def test_daemon_that_breaks_down(sandbox: Sandbox, log_to: str, said: str) -> None:
    """Whatever it was, the start does not hang and does not succeed."""
    mountpoint = sandbox.directory()
    done = start(sandbox, mountpoint, log_to=log_to)
    assert done.stdout.startswith(f"MountError: {mountpoint}: {said}")


@mounts
def test_ready(sandbox: Sandbox) -> None:
    """The start ends when the tree answers; the daemon is in a session of its own, in /."""
    mountpoint = sandbox.directory()
    try:
        with in_thread(FakePortal()) as portal:
            done = start(sandbox, mountpoint, portal.url)
            assert done.stdout.startswith(f"portals: {portal.url} warnings: []\n")
            pid = read_status(mountpoint)["pid"]
            assert os.getsid(pid) == pid
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            sandbox.succeed("umount", mountpoint)
            assert has_ended(pid)
            assert mounts_at(mountpoint) == []
    finally:
        clear_mounts(mountpoint)


@mounts
def test_warnings(sandbox: Sandbox) -> None:
    """What the mount warns of is handed over; it works all the same."""
    mountpoint = sandbox.directory()
    try:
        done = start(sandbox, mountpoint)
        warning = (
            f"{_NOBODY} does not answer yet: Connection refused; "
            "is the portal running, and is the port right?; the tree works once it does"
        )
        assert done.stdout.startswith(f"portals: {_NOBODY} warnings: [{warning!r}]\n")
        assert read_status(mountpoint)["portals"] == [_NOBODY]
        sandbox.succeed("umount", mountpoint)
    finally:
        clear_mounts(mountpoint)

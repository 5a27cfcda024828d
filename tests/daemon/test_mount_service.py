"""The life of a mount in one process: what it needs, what it reports, and how it ends."""

import signal
import sys
from pathlib import Path

import pytest

from skymount.daemon.mount_service import run
from skymount.daemon.readiness import Report
from skymount.errors import MountError
from skymount.settings import Config
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import of_files
from tests.fuse_device import mounts
from tests.skymount_process import Sandbox, mounts_at, output

_PROGRAM = """
import sys
from skymount.settings import Config
from skymount.daemon.mount_service import run
from skymount.daemon.readiness import Report

def tell(*words):
    print(*words, flush=True)

config = Config(mountpoint=sys.argv[1], portals=(sys.argv[2],), disk_cache=1 << 20)
run(config, Report(lambda portals: tell("ready"), lambda text: tell("warning:", text)))
tell("ended")
"""


def test_mount_point_that_is_not_there(tmp_path: Path) -> None:
    """M2: nothing is started, and nobody is told that it is ready."""
    told: list[str] = []
    report = Report(ready=told.append, warning=told.append)
    with pytest.raises(MountError, match="no such directory"):
        run(Config(mountpoint=str(tmp_path / "absent")), report)
    assert told == []


@mounts
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_from_its_start_to_its_end(sandbox: Sandbox, number: signal.Signals) -> None:
    """It warns, serves, and returns after a signal, with nothing left mounted."""
    site = of_files({"a/b.txt": b"hello", "c": b""})
    path = sandbox.directory()
    with in_thread(FakePortal()) as portal:
        portal.add(site)
        command = [sys.executable, "-c", _PROGRAM, path, portal.url]
        with sandbox.foreground(command=command, at=path) as mount:
            assert output(["cat", path / "skylinks" / site.name / "a/b.txt"]) == b"hello"
            mount.process.send_signal(number)
            assert mount.wait() == 0
            assert mount.notify.receive() == ["STOPPING=1"]
            assert mount.process.stdout is not None
            warning, ready, ended = mount.process.stdout.read().decode().splitlines()
    assert warning.startswith("warning: disk_cache: hardly anything fits; ")
    assert (ready, ended) == ("ready", "ended")
    assert mounts_at(path) == []

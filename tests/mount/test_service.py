"""The daemon as a service: what it tells systemd, and the unit that starts it."""

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.mount.keys import until
from tests.mount.site import Site
from tests.skymount_process import SKYMOUNT, NotifySocket, Sandbox, mounts_at, output, run

UNIT = Path(__file__).resolve().parents[2] / "systemd/skymount@.service"


class _Unit(configparser.RawConfigParser):
    """A unit file, its keys as written."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def unit() -> _Unit:
    found = _Unit(strict=False)
    found.read_string(UNIT.read_text())
    return found


def test_ready_means_that_the_tree_answers(sandbox: Sandbox, site: Site) -> None:
    """M7: the unit is started when the tree answers."""
    with sandbox.foreground("--portal", site.portal) as mount:
        found = output(["cat", mount.path / "skylinks" / site.skylink / "one byte"])
        assert found == b"x"


@pytest.mark.parametrize("abstract", [False, True])
def test_messages_to_either_kind_of_socket(sandbox: Sandbox, portal: str, abstract: bool) -> None:
    """The daemon in the background speaks to it as well."""
    notify = NotifySocket(abstract=abstract)
    try:
        with sandbox.with_env(NOTIFY_SOCKET=notify.address).mounted("--portal", portal) as mount:
            assert notify.receive() == ["READY=1", f"STATUS=mounted at {mount.path}"]
            sandbox.succeed("umount", mount.path)
            assert notify.receive() == ["STOPPING=1"]
    finally:
        notify.close()


@pytest.mark.parametrize("address", ["absent/socket", "@nobody-listens-here", "x" * 200])
def test_a_socket_that_nobody_listens_at_is_no_obstacle(
    sandbox: Sandbox, portal: str, address: str
) -> None:
    with sandbox.with_env(NOTIFY_SOCKET=address).mounted("--portal", portal) as mount:
        assert mount.warnings == ""
        assert "NOTIFY_SOCKET" in sandbox.log.read_text()


def test_the_watchdog_hears_of_a_mount_that_answers(sandbox: Sandbox, portal: str) -> None:
    """M7: At least three times in the watchdog's time, the mount is asked and systemd told."""
    told = sandbox.with_env(WATCHDOG_USEC="300000")
    with told.foreground("--portal", portal) as mount:
        for _ in range(3):
            assert mount.notify.receive(mount.process) == ["WATCHDOG=1"]


def test_the_watchdog_hears_nothing_of_a_stopped_daemon(sandbox: Sandbox, portal: str) -> None:
    told = sandbox.with_env(WATCHDOG_USEC="300000")
    with told.foreground("--portal", portal) as mount:
        assert mount.notify.receive(mount.process) == ["WATCHDOG=1"]
        mount.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, mount.process.pid, os.WSTOPPED)
        while mount.notify.has_message:
            mount.notify.receive()
        try:
            assert subprocess.run(["sleep", "0.5"], check=True)
            assert not mount.notify.has_message
        finally:
            mount.process.send_signal(signal.SIGCONT)
        assert mount.notify.receive(mount.process) == ["WATCHDOG=1"]


def test_a_mount_that_fails_is_never_ready(sandbox: Sandbox) -> None:
    notify = NotifySocket()
    try:
        told = sandbox.with_env(NOTIFY_SOCKET=notify.address)
        told.fail("mount", "--foreground", "absent")
        assert not notify.has_message
    finally:
        notify.close()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_finds_no_fault_with_the_unit(sandbox: Sandbox) -> None:
    instance = sandbox.root / "skymount@home.service"
    shutil.copy(UNIT, instance)
    with tempfile.TemporaryDirectory(prefix="sm") as runtime:  # sockets of others want short paths
        short = sandbox.with_env(XDG_RUNTIME_DIR=runtime)
        for path in (UNIT, instance, *UNIT.parent.glob("skymount-portal.*")):
            done = short.run("systemd-analyze", "--user", "--man=no", "verify", path)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_leaves_fusermount3_its_privilege(unit: _Unit) -> None:
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert "NoNewPrivileges" not in service
    assert not [key for key in service if key.startswith(("Protect", "Private", "Restrict"))]


def test_the_unit_bounds_what_a_mount_takes(unit: _Unit) -> None:
    """Modes and cores as the daemon has them by itself (M8); memory for all its processes."""
    service = unit["Service"]
    assert (service["UMask"], service["LimitCORE"]) == ("0077", "0")
    assert service["MemoryHigh"] == "2G"
    assert service["TasksMax"] == "512"
    said = (UNIT.parents[1] / "docs/configuration.md").read_text()
    assert "| MemoryHigh | 2 GiB |" in said
    assert "| TasksMax | 512 |" in said


def test_the_unit_starts_and_stops_a_mount(sandbox: Sandbox, site: Site, unit: _Unit) -> None:
    """M7: Under systemd (`Type=notify`) the unit is started.

    By its own words: command, search path, signal.
    """
    service = unit["Service"]
    program = sandbox.root / "home/.local/bin/skymount"
    program.parent.mkdir(parents=True)
    words = " ".join(map(shlex.quote, SKYMOUNT))
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    path = sandbox.directory("a mount")
    sandbox.configure(
        f'portals = ["{site.portal}"]\n'
        f'[mounts.home]\nmountpoint = "{path}"\nmemory_cache = "9 MiB"\n'
    )
    name, _, value = service["Environment"].partition("=")
    value = value.replace("%h", str(sandbox.root / "home"))
    told = sandbox.with_env(**{name: value})
    command = service["ExecStart"].replace("%i", "home").split(" ")
    with told.foreground(command=command, at=path) as mount:
        found = output(["cat", path / "skylinks" / site.skylink / "one byte"])
        assert found == b"x"
        assert b"9437184" in output(["cat", path / ".skymount/status.json"])
        assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
        sandbox.run("/bin/kill", "-HUP", str(mount.process.pid))
        until(lambda: "SIGHUP: the configuration is as before" in mount.log.read_text())
        mount.process.send_signal(signal.SIGTERM)
        assert mount.notify.receive(mount.process) == ["STOPPING=1"]
        assert mount.wait() == 0
    assert mounts_at(path) == []


def test_the_unit_is_not_restarted_for_what_stays_wrong(sandbox: Sandbox, unit: _Unit) -> None:
    """The exit status of a wrong configuration, and that of M2."""
    sandbox.configure("[mounts.other]\n")
    said = sandbox.fail("mount", "--foreground", "--name", "home", code=2)
    assert "no table [mounts.home]; known ones: other" in said
    assert unit["Service"]["RestartPreventExitStatus"] == "2 4"


def test_the_environment_of_a_service_is_enough(sandbox: Sandbox, portal: str) -> None:
    """No terminal, no standard input, hardly a variable."""
    path = sandbox.directory()
    bare = {"PATH": os.environ["PATH"], "HOME": str(sandbox.root / "home")}
    bare["PYTHONPATH"] = sandbox.env["PYTHONPATH"]
    done = run([*SKYMOUNT, "mount", "--portal", portal, path], env=bare, cwd=Path("/"))
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert mounts_at(path) == ["fuse.skymount"]
    finally:
        sandbox.succeed("umount", path)

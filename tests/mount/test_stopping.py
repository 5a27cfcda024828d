"""The end of a mount: asked for, from outside, by signal, or by force."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from skymount.fs.mountpoint import is_served_by, mounted_at
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import describe, noise, unverifiable
from tests.mount.namespaces import DROP_OTHER_MOUNTS, NOBODY, Namespace, new_namespace
from tests.mount.proxy import Proxy
from tests.mount.site import BIG, Site
from tests.skymount_process import (
    LIMIT,
    Foreground,
    Mount,
    Sandbox,
    clear_mounts,
    end,
    mounts_at,
    output,
    run,
)

ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C"}

READ_ONCE = """
import os, sys

file = os.open(sys.argv[1], os.O_RDONLY)
os.write(1, os.pread(file, 1 << 20, 0))
"""

WITH_LONG_GRACE = """
from skymount.settings import Config
from skymount.daemon.mount_service import run
from skymount.daemon.readiness import Report
import logging, sys

logging.basicConfig(level=logging.INFO)
config = Config(mountpoint=sys.argv[1], portals=(sys.argv[2],), timeout=300)
run(config, Report(ready=lambda portals: None, warning=lambda text: None), stop_grace=100)
"""

HOLD = "import sys; file = open(sys.argv[1], 'rb'); print(flush=True); sys.stdin.read()"


@contextmanager
def hanging_read(
    mount: Foreground, site: Site, proxy: Proxy
) -> Iterator["subprocess.Popen[bytes]"]:
    """Read a file of which the portal sends nothing, though it has taken the request."""
    file = mount.path / "skylinks" / site.skylink / BIG
    output(["stat", file])
    proxy.stalling = True
    reader = subprocess.Popen(["cat", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert proxy.stalled.wait(30)
        yield reader
    finally:
        end(reader)


def test_umount_waits_until_the_daemon_is_gone(sandbox: Sandbox, portal: str) -> None:
    """M6: `skymount umount` returns when the daemon is gone."""
    with sandbox.mounted("--portal", portal) as mount:
        assert sandbox.succeed("umount", mount.path) == ""
        assert mount.daemon.ended
        assert mounts_at(mount.path) == []
        assert list(mount.path.iterdir()) == []


def test_umount_below_the_mount_point(sandbox: Sandbox, site: Site) -> None:
    with sandbox.mounted("--portal", site.portal) as mount:
        assert "nothing is mounted there" in sandbox.fail("umount", mount.path / "skylinks")
        assert mount.status()["pid"] == mount.daemon.pid


def test_umount_of_a_busy_mount_says_what_to_do(sandbox: Sandbox, site: Site) -> None:
    """It changes nothing; `--lazy` detaches, and the daemon ends with the last user."""
    with sandbox.mounted("--portal", site.portal) as mount:
        file = mount.skylink(site.skylink) / BIG
        user = subprocess.Popen(
            [sys.executable, "-c", HOLD, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert user.stdout is not None
            assert user.stdout.readline() == b"\n"
            said = sandbox.fail("umount", mount.path)
            assert said == (
                f"{mount.path}: it is in use; close what uses it (`fuser -vm {mount.path}` lists "
                f"it), or detach it with `skymount umount --lazy {mount.path}`"
            )
            assert output(["cat", file]) == (site.source / BIG).read_bytes()

            assert sandbox.succeed("umount", "--lazy", mount.path) == ""
            assert mounts_at(mount.path) == []
            assert not mount.daemon.ended
            found = output(["cat", f"/proc/{user.pid}/fd/3"])
            assert found == (site.source / BIG).read_bytes()
            user.communicate(b"", timeout=30)
        finally:
            end(user)
        mount.daemon.wait()


@pytest.fixture
def elsewhere(sandbox: Sandbox, site: Site) -> Iterator[tuple[Mount, subprocess.Popen[bytes]]]:
    """A mount, and a process that has it in a mount namespace of its own."""
    with sandbox.mounted("--portal", site.portal) as mount:
        holder = subprocess.Popen(
            ["unshare", "-m", "bash", "-c", DROP_OTHER_MOUNTS, mount.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"\n"
            yield mount, holder
        finally:
            end(holder)


root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a mount namespace so")


@root_only
def test_umount_leaves_the_daemon_to_another_namespace(
    sandbox: Sandbox, site: Site, elsewhere: tuple[Mount, subprocess.Popen[bytes]]
) -> None:
    """M6: It says so, and what ends the daemon; the last user of the mount does."""
    mount, holder = elsewhere
    done = sandbox.skymount("umount", mount.path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "also mounted in the mount namespace of process" in done.stderr
    assert f"`skymount umount --kill {mount.path}` ends it" in done.stderr
    assert mounts_at(mount.path) == []
    there = Path(f"/proc/{holder.pid}/root{mount.path}/skylinks/{site.skylink}/text.txt")
    assert output(["cat", there]) == (site.source / "text.txt").read_bytes()
    assert not mount.daemon.ended
    assert "nothing is mounted there" in sandbox.fail("umount", mount.path)
    holder.communicate(b"", timeout=30)
    mount.daemon.wait()


@root_only
@pytest.mark.parametrize("first", [[], ["umount"]])
def test_umount_kill_ends_the_daemon(
    sandbox: Sandbox, elsewhere: tuple[Mount, subprocess.Popen[bytes]], first: list[str]
) -> None:
    """M6: The other namespace gets ENOTCONN. It also works after an umount that left the daemon."""
    mount, holder = elsewhere
    for command in first:
        assert sandbox.skymount(command, mount.path).returncode == 0
    assert sandbox.succeed("umount", "--kill", mount.path) == ""
    assert mount.daemon.ended
    with pytest.raises(OSError, match="not connected"):
        os.listdir(f"/proc/{holder.pid}/root{mount.path}")


@root_only
def test_umount_of_a_mount_that_is_bound_elsewhere(sandbox: Sandbox, site: Site) -> None:
    other = sandbox.directory("other")
    with sandbox.mounted("--portal", site.portal) as mount:
        output(["mount", "--bind", mount.path, other])
        try:
            done = sandbox.skymount("umount", mount.path)
            assert done.returncode == 0
            assert f"also mounted at {other}" in done.stderr
            assert b"skylinks" in output(["ls", other])
        finally:
            output(["umount", other])
        mount.daemon.wait()


@root_only
def test_connection_that_is_aborted(sandbox: Sandbox, site: Site) -> None:
    """The daemon ends without a trace of a bug in its log; the next mount clears what is left."""
    control = sandbox.directory("control")
    with sandbox.mounted("--portal", site.portal) as mount:
        number = os.minor(os.stat(mount.path).st_dev)
        output(["mount", "-t", "fusectl", "none", control])
        try:
            (control / str(number) / "abort").write_text("1")
        finally:
            output(["umount", control])
        mount.daemon.wait()


@root_only
def test_umount_kill_leaves_other_namespaces_their_own_mounts(
    sandbox: Sandbox, portal: str
) -> None:
    """M6: What was mounted in them was never here, though at a path of the same name."""
    path = sandbox.directory()
    with new_namespace(network=False) as namespace:
        inside = sandbox.within(namespace.prefix)
        assert inside.skymount("mount", path, "--portal", portal).returncode == 0
        assert "nothing is mounted there" in sandbox.fail("umount", "--kill", path)
        assert "skylinks" in namespace.do("ls", path)
        assert inside.skymount("umount", path).returncode == 0


def test_a_daemon_that_ends_late_leaves_a_new_mount_alone(sandbox: Sandbox, portal: str) -> None:
    """M4: The kernel gives the number of a connection out again at once."""
    path = sandbox.directory()
    with sandbox.mounted("--portal", portal, at=path) as old:
        old.daemon.signal(signal.SIGSTOP)
        output(["fusermount3", "-uz", path])
        sandbox.succeed("mount", path, "--portal", portal)
        try:
            old.daemon.signal(signal.SIGCONT)
            old.daemon.wait()
            assert mounts_at(path) == ["fuse.skymount"]
            assert os.listdir(path)
        finally:
            sandbox.succeed("umount", path)


def test_umount_of_a_mount_whose_daemon_is_stopped(sandbox: Sandbox, site: Site) -> None:
    """M6: it says that the daemon is stopped, and what to do; the mount is as it was."""
    with sandbox.mounted("--portal", site.portal) as mount:
        mount.daemon.signal(signal.SIGSTOP)
        try:
            said = sandbox.fail("umount", mount.path)
        finally:
            mount.daemon.signal(signal.SIGCONT)
        assert f"is stopped; `kill -CONT {mount.daemon.pid}` lets it go on, " in said
        assert said.endswith(f"`skymount umount --lazy {mount.path}` detaches it")
        assert mount.status()["pid"] == mount.daemon.pid


def test_a_lazily_detached_mount_point_can_be_used_again(sandbox: Sandbox, site: Site) -> None:
    with sandbox.mounted("--portal", site.portal) as first:
        user = subprocess.Popen(["sleep", "600"], cwd=first.path / "skylinks")
        try:
            sandbox.succeed("umount", "-z", first.path)
            with sandbox.mounted("--portal", site.portal) as second:
                end(user)
                first.daemon.wait()
                assert second.status()["pid"] == second.daemon.pid
        finally:
            end(user)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts(sandbox: Sandbox, portal: str, number: signal.Signals) -> None:
    """M6: SIGTERM and SIGINT unmount as well."""
    with sandbox.foreground("--portal", portal) as mount:
        mount.process.send_signal(number)
        assert mount.notify.receive(mount.process) == ["STOPPING=1"]
        assert mount.wait() == 0
        assert mounts_at(mount.path) == []
        assert f"{number.name}: unmounting" in mount.log.read_text()
        assert "Traceback" not in mount.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_in_the_background_too(
    sandbox: Sandbox, portal: str, number: signal.Signals
) -> None:
    with sandbox.mounted("--portal", portal) as mount:
        mount.daemon.signal(number)
        mount.daemon.wait()
        assert mounts_at(mount.path) == []


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_signal_unmounts_while_a_read_hangs(
    sandbox: Sandbox, site: Site, proxy: Proxy, number: signal.Signals, times: int
) -> None:
    """M6: operations under way have 2 s to end.

    The portal has taken the request and is silent; the reader gets an error.
    """
    with sandbox.foreground("--portal", proxy.url) as mount:
        with hanging_read(mount, site, proxy) as reader:
            for _ in range(times):
                mount.process.send_signal(number)
            assert mount.wait() == 0
            assert mounts_at(mount.path) == []
            out, err = reader.communicate(timeout=30)
            assert (reader.returncode, out) == (1, b"")
            assert err
        assert "Traceback" not in mount.log.read_text()


def test_operations_under_way_have_two_seconds(sandbox: Sandbox, site: Site, proxy: Proxy) -> None:
    """M6: operations under way have 2 s to end; not less, and hardly more."""
    with (
        sandbox.foreground("--portal", proxy.url, "--timeout", "300") as mount,
        hanging_read(mount, site, proxy) as reader,
    ):
        begun = time.monotonic()
        mount.process.send_signal(signal.SIGTERM)
        assert mount.wait(8) == 0
        assert time.monotonic() - begun >= 2
        assert reader.communicate(timeout=30)[0] == b""


def test_an_operation_under_way_ends_as_if_nothing_was(sandbox: Sandbox) -> None:
    """M6: operations under way have 2 s to end: what takes less gets what it asked for."""
    payload = noise(32 << 10)
    content = unverifiable(describe({"f": payload}), payload)
    with in_thread(FakePortal()) as portal, sandbox.foreground("--portal", portal.url) as mount:
        portal.add(content)
        file = mount.path / "skylinks" / content.name / "f"
        output(["stat", file])
        portal.fault(fake.drips(8 << 10, 0.1), "GET.*concat")
        reader = subprocess.Popen(
            [sys.executable, "-c", READ_ONCE, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            while not portal.asked("GET.*concat"):
                assert reader.poll() is None
                time.sleep(0.005)
            mount.process.send_signal(signal.SIGTERM)
            assert reader.communicate(timeout=30) == (payload, b"")
            assert mount.wait() == 0
        finally:
            end(reader)


def test_a_second_signal_ends_at_once(sandbox: Sandbox, site: Site, proxy: Proxy) -> None:
    """M6: who sends a second signal does not wait for what is under way."""
    path = sandbox.directory()
    command = [sys.executable, "-c", WITH_LONG_GRACE, path, proxy.url]
    with (
        sandbox.foreground(command=command) as mount,
        hanging_read(mount, site, proxy) as reader,
    ):
        mount.process.send_signal(signal.SIGTERM)
        while "SIGTERM: unmounting" not in mount.log.read_text():
            assert mount.process.poll() is None
            time.sleep(0.01)
        mount.process.send_signal(signal.SIGTERM)
        assert mount.wait(20) == 0
        assert mounts_at(mount.path) == []
        assert reader.communicate(timeout=30)[0] == b""


def test_a_signal_unmounts_while_a_lookup_hangs(sandbox: Sandbox, site: Site, proxy: Proxy) -> None:
    proxy.stalling = True
    with sandbox.foreground("--portal", proxy.url) as mount:
        reader = subprocess.Popen(
            ["ls", mount.path / "skylinks" / site.skylink], stderr=subprocess.PIPE
        )
        try:
            assert proxy.stalled.wait(30)
            mount.process.send_signal(signal.SIGTERM)
            assert mount.wait() == 0
            assert reader.communicate(timeout=30)[1]
            assert mounts_at(mount.path) == []
        finally:
            end(reader)


def test_a_signal_unmounts_what_is_in_use(sandbox: Sandbox, site: Site) -> None:
    with sandbox.foreground("--portal", site.portal) as mount:
        user = subprocess.Popen(["sleep", "600"], cwd=mount.path / "skylinks")
        try:
            mount.process.send_signal(signal.SIGTERM)
            assert mount.wait() == 0
            assert mounts_at(mount.path) == []
        finally:
            end(user)


@pytest.mark.parametrize("option", ["-u", "-uz"])
def test_fusermount3_from_outside_ends_the_daemon(
    sandbox: Sandbox, portal: str, option: str
) -> None:
    """M6: `fusermount3 -u` by anyone ends the daemon too."""
    with sandbox.foreground("--portal", portal) as mount:
        output(["fusermount3", option, mount.path])
        assert mount.notify.receive(mount.process) == ["STOPPING=1"]
        assert mount.wait() == 0
        assert "unmounted" in mount.log.read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="umount is for root")
def test_umount_of_the_system_ends_the_daemon(sandbox: Sandbox, portal: str) -> None:
    with sandbox.mounted("--portal", portal) as mount:
        output(["umount", mount.path])
        mount.daemon.wait()
        assert mounts_at(mount.path) == []
    assert "unmounted" in sandbox.log.read_text()


def test_the_foreground_is_quiet_on_stdout_and_logs_to_stderr(
    sandbox: Sandbox, portal: str
) -> None:
    with sandbox.foreground("--portal", portal) as mount:
        sandbox.succeed("umount", mount.path)
        assert mount.wait() == 0
        assert mount.process.stdout is not None
        assert mount.process.stdout.read() == b""
        log = mount.log.read_text()
        assert f"{mount.path}: mounted, portals: {portal}" in log
        assert f"{mount.path}: unmounted" in log
    assert not sandbox.log.exists()


def test_a_foreground_mount_recovers_a_stale_one_and_says_so(sandbox: Sandbox, portal: str) -> None:
    with sandbox.mounted("--portal", portal) as stale:
        stale.daemon.signal(signal.SIGKILL)
        stale.daemon.wait()
        with sandbox.foreground("--portal", portal) as mount:
            assert "removed the mount of a skymount that no longer runs" in mount.log.read_text()


def test_nohup_is_heeded(sandbox: Sandbox, portal: str) -> None:
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "-", sys.executable, "-m", "skymount"]
    path = sandbox.directory()
    with sandbox.foreground(
        command=[*command, "mount", "--foreground", "--portal", portal, path]
    ) as mount:
        mount.process.send_signal(signal.SIGHUP)
        assert output(["ls", mount.path]) == b"hns\nregistry\nskydb\nskylinks\n"
        mount.process.send_signal(signal.SIGTERM)
        assert mount.wait() == 0


def test_a_daemon_that_is_killed_leaves_an_error_not_a_hang(sandbox: Sandbox, site: Site) -> None:
    with sandbox.mounted("--portal", site.portal) as mount:
        mount.daemon.signal(signal.SIGKILL)
        mount.daemon.wait()
        done = run(["cat", mount.skylink(site.skylink) / "text.txt"], env=ENV)
        assert "not connected" in done.stderr


# --- another user's mount


def test_who_serves_a_mount(sandbox: Sandbox, portal: str) -> None:
    """M6: It is the process that holds the FUSE connection, and is the owner's in all user ids."""
    with sandbox.mounted("--portal", portal) as mount:
        found = mounted_at(str(mount.path))
        assert found is not None
        assert is_served_by(found, mount.daemon.pid)
        assert not is_served_by(found, os.getpid())
        assert not is_served_by(replace(found, user_id=os.getuid() + 1), mount.daemon.pid)
        fdinfo = Path(f"/proc/{mount.daemon.pid}/fdinfo")
        if any("fuse_connection" in each.read_text() for each in fdinfo.iterdir()):
            assert not is_served_by(replace(found, connection="0"), mount.daemon.pid)


def _let_others_in(sandbox: Sandbox, space: Namespace) -> None:
    """Let users who are not root say --allow-other."""
    conf = sandbox.root / "fuse.conf"
    conf.write_text("user_allow_other\n")
    space.do("touch", "/etc/fuse.conf")
    space.do("mount", "--bind", conf, "/etc/fuse.conf")


def _another(space: Namespace) -> Sequence[str]:
    """Return the prefix of commands of yet another user."""
    number = NOBODY - 1
    return [*space.prefix, "setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be someone else")
def test_another_user_s_mount(sandbox: Sandbox, portal: str, mount_namespace: Namespace) -> None:
    """M6: Another user's mount is left alone, but by root, who waits for its daemon too."""
    nobody = sandbox.within(mount_namespace.as_nobody(sandbox.root))
    _let_others_in(sandbox, mount_namespace)
    path = sandbox.directory_of(NOBODY)
    with nobody.mounted("--portal", portal, "--allow-other", at=path) as mount:
        other = sandbox.within(_another(mount_namespace))
        said = f"{path}: the user with id {NOBODY} has mounted there, not you"
        assert other.fail("umount", path, cwd=Path("/")) == said
        assert other.fail("umount", "--lazy", path, cwd=Path("/")) == said
        assert other.fail("mount", path, "--portal", portal, cwd=Path("/")) == said
        assert mount.status()["pid"] == mount.daemon.pid
        root = sandbox.within(mount_namespace.prefix).with_env(
            HOME="/"
        )  # its own, as `sudo -H` has
        assert root.succeed("umount", path) == ""
        assert mount.daemon.ended
        assert mounts_at(path, mount_namespace.prefix) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be someone else")
@pytest.mark.parametrize("owner_of_victim", ["root", "nobody"])
@pytest.mark.parametrize("by", ["root", "nobody"])
def test_a_mount_that_names_another_process(
    sandbox: Sandbox, mount_namespace: Namespace, owner_of_victim: str, by: str
) -> None:
    """M6: Only a process that serves this mount and belongs to its owner is waited for and
    signalled, whatever a mount says, and whoever unmounts.
    """
    nobody = mount_namespace.as_nobody(sandbox.root)
    _let_others_in(sandbox, mount_namespace)
    path = sandbox.directory_of(NOBODY)
    prefixes = {"root": mount_namespace.prefix, "nobody": nobody}
    victim = subprocess.Popen([*prefixes[owner_of_victim], "sleep", "600"])
    script = sandbox.root / "impostor.py"  # where every user finds it
    script.write_bytes(Path(__file__).with_name("impostor.py").read_bytes())
    program = [sys.executable, script, path, str(victim.pid)]
    impostor = subprocess.Popen([*nobody, *program], stdout=subprocess.PIPE)
    try:
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == b"mounted\n"
        home = "/" if by == "root" else str(sandbox.root / "home")
        done = sandbox.within(prefixes[by]).with_env(HOME=home).skymount("umount", path)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == (
            f"skymount: warning: {path}: it names process {victim.pid}, which does not serve this "
            "mount for its owner; its daemon is not waited for\n"
        )
        assert mounts_at(path, mount_namespace.prefix) == []
        assert impostor.wait(LIMIT) == 0
        assert victim.poll() is None
    finally:
        clear_mounts(path, mount_namespace.prefix)
        end(victim)
        end(impostor)

"""``skymount mount``: exit 0 once the tree answers, else one line that says what to do."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from skymount.content.cache.block_format import BlockKey
from skymount.content.cache.block_store import BlockStore
from tests.cli.helpers import on_terminal
from tests.mount.keys import until
from tests.mount.namespaces import NOBODY, Namespace
from tests.mount.proxy import proxy_to
from tests.mount.site import BIG, Site
from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox, end, mounts_at, output, run

ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


def test_the_tree_answers_when_the_command_returns(sandbox: Sandbox, site: Site) -> None:
    """M1: goes to the background once the tree answers, with exit status 0.

    And there is nothing on stdout or stderr.
    """
    mountpoint = sandbox.directory()
    try:
        sandbox.succeed("mount", mountpoint, "--portal", site.portal)
        found = output(["cat", mountpoint / "skylinks" / site.skylink / "text.txt"])
        assert found == (site.source / "text.txt").read_bytes()
    finally:
        sandbox.skymount("umount", mountpoint)
    assert mounts_at(mountpoint) == []


def test_a_line_for_people(sandbox: Sandbox, portal: str) -> None:
    """M1: on a terminal, where it is mounted, the portals, and the log."""
    mountpoint, log = sandbox.directory(), sandbox.root / "log"
    try:
        said = on_terminal(sandbox, "mount", mountpoint, "--portal", portal, "--log-file", log)
        assert said == ("", f"mounted at {mountpoint}; portal: {portal}; log: {log}\r\n")
    finally:
        sandbox.skymount("umount", mountpoint)


def test_the_command_keeps_no_descriptor_open(sandbox: Sandbox, portal: str) -> None:
    """A shell that captures its output does not wait for the daemon."""
    mountpoint = sandbox.directory()
    script = 'said=$("$0" -m skymount mount "$1" --portal "$2" 2>&1 </dev/null); echo "said:$said"'
    try:
        done = sandbox.run("sh", "-c", script, sys.executable, mountpoint, portal)
        assert (done.stdout, done.stderr) == ("said:\n", "")
    finally:
        sandbox.skymount("umount", mountpoint)


def test_the_daemon_is_in_a_session_of_its_own(sandbox: Sandbox, portal: str) -> None:
    with sandbox.mounted("--portal", portal) as mount:
        stat = Path(f"/proc/{mount.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[3]) == mount.daemon.pid  # its session
        assert int(stat[4]) == 0  # its terminal
        assert os.readlink(f"/proc/{mount.daemon.pid}/cwd") == "/"


@pytest.mark.parametrize(
    "name", ["two words", "back\\slash, new\nline; \U0001f600 and %41", "-dash"]
)
def test_a_mount_point_of_any_name(sandbox: Sandbox, portal: str, name: str) -> None:
    mountpoint = sandbox.directory(name)
    with sandbox.mounted("--portal", portal, at=mountpoint) as mount:
        assert mount.status()["mountpoint"] == str(mountpoint)
        assert "mounted there already" in sandbox.fail("mount", mountpoint, "--portal", portal)
        sandbox.succeed("umount", mountpoint)
        mount.daemon.wait()
    assert mounts_at(mountpoint) == []


@pytest.mark.parametrize("text", ["./mnt/", "mnt/.", "~/../mnt"])
def test_a_mount_point_given_in_another_way(sandbox: Sandbox, portal: str, text: str) -> None:
    mountpoint = sandbox.directory()
    try:
        sandbox.succeed("mount", "--portal", portal, text)
        assert mounts_at(mountpoint) == ["fuse.skymount"]
        assert "mounted there already" in sandbox.fail("mount", "--portal", portal, text)
    finally:
        sandbox.succeed("umount", text)
    assert mounts_at(mountpoint) == []


def test_the_directory_itself_as_mount_point(sandbox: Sandbox, portal: str) -> None:
    mountpoint = sandbox.directory()
    try:
        sandbox.succeed("mount", "--portal", portal, ".", cwd=mountpoint)
        assert mounts_at(mountpoint) == ["fuse.skymount"]
    finally:
        sandbox.succeed("umount", mountpoint)


def test_a_mount_point_behind_a_symbolic_link(sandbox: Sandbox, portal: str) -> None:
    """It is known by either name."""
    mountpoint, link = sandbox.directory(), sandbox.root / "link"
    link.symlink_to("mnt")
    for name in (link, mountpoint):
        with sandbox.mounted("--portal", portal, at=link) as mount:
            assert "mounted there already" in sandbox.fail("mount", name, "--portal", portal)
            sandbox.succeed("umount", name)
            mount.daemon.wait()
        assert mounts_at(mountpoint) == []


def test_two_mounts_at_a_time(sandbox: Sandbox, site: Site) -> None:
    with (
        sandbox.mounted("--portal", site.portal, at=sandbox.directory("one")) as one,
        sandbox.mounted("--portal", site.portal, at=sandbox.directory("two")) as two,
    ):
        output(["diff", "-r", one.skylink(site.skylink), two.skylink(site.skylink)])
        sandbox.succeed("umount", one.path)
        assert two.status()["pid"] == two.daemon.pid


# Refusals


def test_an_absent_mount_point(sandbox: Sandbox) -> None:
    """M2: is one line on stderr that says what is wrong and what to do."""
    path = sandbox.root / "absent"
    assert (
        sandbox.fail("mount", path) == f"{path}: no such directory; make it with `mkdir -p {path}`"
    )


def test_a_mount_point_that_is_a_file(sandbox: Sandbox) -> None:
    path = sandbox.root / "file"
    path.touch()
    assert "not a directory" in sandbox.fail("mount", path)
    assert "not a directory" in sandbox.fail("mount", path / "below")


def test_a_mount_point_with_something_in_it(sandbox: Sandbox) -> None:
    """M2: is one line on stderr that says what is wrong and what to do."""
    (sandbox.directory() / "file").touch()
    assert "not empty; choose or make an empty one" in sandbox.fail("mount", "mnt")


def mounts_listed(path: Path) -> int:
    """Return how many mounts lie on each other there."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sum(line.split()[4] == str(path) for line in lines)


@pytest.mark.parametrize("before", ["nothing", "a killed daemon"])
def test_several_at_once(sandbox: Sandbox, portal: str, before: str) -> None:
    """M4: One mounts, and the others say so."""
    path = sandbox.directory()
    command = [*SKYMOUNT, "mount", "--portal", portal, path]
    if before == "a killed daemon":
        output(command, env=sandbox.env)
        pid = int(os.getxattr(path, "user.skymount.pid"))
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists())
    try:
        running = [
            subprocess.Popen(command, env=sandbox.env, stderr=subprocess.PIPE, text=True)
            for _ in range(5)
        ]
        said = [process.communicate(timeout=LIMIT)[1] for process in running]
        codes = [process.returncode for process in running]
        assert sorted(codes) == [0, 1, 1, 1, 1], said
        for code, text in zip(codes, said, strict=True):
            assert not code or "skymount is mounted there already" in text
        assert mounts_listed(path) == 1
        assert os.listdir(path)
    finally:
        sandbox.skymount("umount", path)
    assert mounts_listed(path) == 0


def test_a_lock_of_somebody_else(sandbox: Sandbox, portal: str) -> None:
    """Of the directory above: it concerns no mount."""
    path = sandbox.directory()
    holder = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        with sandbox.mounted("--portal", portal, at=path):
            pass
    finally:
        os.close(holder)


def test_mounted_already(sandbox: Sandbox, portal: str) -> None:
    with sandbox.mounted("--portal", portal) as mount:
        said = sandbox.fail("mount", mount.path, "--portal", portal)
        assert "skymount is mounted there already" in said
        assert f"`skymount umount {mount.path}`" in said
        assert mount.status()["pid"] == mount.daemon.pid
    assert mounts_at(mount.path) == []


def test_mounted_already_by_a_daemon_that_is_stopped(sandbox: Sandbox, portal: str) -> None:
    """M4: A mount of ours whose daemon is gone is cleared away; one whose daemon is stopped is not,
    and goes on when that does.
    """
    with sandbox.mounted("--portal", portal) as mount:
        mount.daemon.signal(signal.SIGSTOP)
        try:
            said = sandbox.fail("mount", mount.path, "--portal", portal)
            assert "skymount is mounted there already" in said
            assert mounts_at(mount.path) == ["fuse.skymount"]
        finally:
            mount.daemon.signal(signal.SIGCONT)
        assert mount.status()["pid"] == mount.daemon.pid
        assert not mount.daemon.ended


def test_inside_another_mount(sandbox: Sandbox, site: Site) -> None:
    with sandbox.mounted("--portal", site.portal) as mount:
        inside = mount.skylink(site.skylink) / "names"
        assert "not empty" in sandbox.fail("mount", inside, "--portal", site.portal)
        assert "no such directory" in sandbox.fail(
            "mount", mount.path / "x", "--portal", "http://x"
        )


def test_another_file_system_is_there(sandbox: Sandbox, mount_namespace: Namespace) -> None:
    """M4: Another program's mount is never touched.

    It is left alone, by mount and by umount.
    """
    path = sandbox.directory()
    mount_namespace.do("mount", "-t", "tmpfs", "theirs", path)
    inside = sandbox.within(mount_namespace.prefix)
    said = inside.fail("mount", path)
    assert "tmpfs (theirs) is mounted there; choose another directory, or unmount" in said
    assert "tmpfs is mounted there, not skymount" in inside.fail("umount", path)
    assert mounts_at(path, mount_namespace.prefix) == ["tmpfs"]


def test_allow_other_is_not_allowed(sandbox: Sandbox, mount_namespace: Namespace) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be someone else")
    prefix = mount_namespace.as_nobody(sandbox.root)
    path = sandbox.directory_of(NOBODY)
    conf = sandbox.root / "fuse.conf"
    conf.write_text("#user_allow_other\n")
    mount_namespace.do("touch", "/etc/fuse.conf")
    mount_namespace.do("mount", "--bind", conf, "/etc/fuse.conf")
    said = sandbox.within(prefix).fail(
        "mount", path, "--allow-other", "--portal", "http://127.0.0.1:9"
    )
    assert said == "--allow-other needs the line user_allow_other in /etc/fuse.conf"


def test_other_users_are_let_in_when_asked_for(
    sandbox: Sandbox, site: Site, mount_namespace: Namespace
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be someone else")
    nobody = mount_namespace.as_nobody(sandbox.root)
    inside = sandbox.within(mount_namespace.prefix)
    with inside.mounted("--portal", site.portal, "--allow-other") as mount:
        file = mount.skylink(site.skylink) / "text.txt"
        assert output([*nobody, "cat", file]) == (site.source / "text.txt").read_bytes()
        assert "Read-only" in run([*nobody, "touch", file], env=ENV).stderr


@pytest.mark.parametrize("place", ["file/below.log", "directory", "/proc/none/x.log"])
def test_a_log_file_that_cannot_be_written(sandbox: Sandbox, place: str) -> None:
    (sandbox.root / "file").touch()
    sandbox.directory("directory")
    path = sandbox.directory()
    said = sandbox.fail("mount", path, "--log-file", place, "--portal", "http://127.0.0.1:9")
    assert place in said
    assert "Error" not in said
    assert mounts_at(path) == []


def test_a_relative_log_file_lies_where_the_command_was_given(
    sandbox: Sandbox, portal: str
) -> None:
    with sandbox.mounted("--portal", portal, "--log-file", "own.log"):
        assert "mounted, portals:" in (sandbox.root / "own.log").read_text()


def test_a_log_file_that_is_a_link(sandbox: Sandbox, portal: str) -> None:
    (sandbox.root / "link.log").symlink_to(sandbox.root / "kept.log")
    with sandbox.mounted("--portal", portal, "--log-file", sandbox.root / "link.log"):
        assert "mounted, portals:" in (sandbox.root / "kept.log").read_text()
        assert (sandbox.root / "link.log").is_symlink()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_log_on_a_standard_stream(sandbox: Sandbox, portal: str, stream: str) -> None:
    """It is that of the command, a file or a pipe."""
    path, log = sandbox.directory(), sandbox.root / "log"
    command = [*SKYMOUNT, "mount", "--portal", portal, "--log-file", f"/dev/{stream}", path]
    with log.open("wb") as file:
        done = subprocess.run(
            command, env=sandbox.env, timeout=LIMIT, check=False, **{stream: file}
        )
    try:
        assert done.returncode == 0
        assert f"{path}: mounted, portals: {portal}" in log.read_text()
    finally:
        sandbox.succeed("umount", path)
    assert "unmounted" in log.read_text()


def test_a_state_directory_that_is_read_only(
    sandbox: Sandbox, portal: str, mount_namespace: Namespace
) -> None:
    """M3: It is a warning that nothing is logged."""
    state = sandbox.root / "state"
    mount_namespace.do("mount", "--bind", state, state)
    mount_namespace.do("mount", "-o", "remount,bind,ro", state)
    inside, path = sandbox.within(mount_namespace.prefix), sandbox.directory()
    done = inside.skymount("mount", path, "--portal", portal)
    try:
        assert done.returncode == 0, done.stderr
        assert "Read-only file system; nothing is logged" in done.stderr
        assert "skylinks" in mount_namespace.do("ls", path)
    finally:
        inside.skymount("umount", path)


def test_the_log_lies_in_the_state_directory(sandbox: Sandbox, portal: str) -> None:
    with sandbox.mounted("--portal", portal) as mount:
        assert f"{mount.path}: mounted, portals: {portal}" in sandbox.log.read_text()


# Portals that do not answer


def test_a_portal_that_is_away_is_a_warning(sandbox: Sandbox, site: Site) -> None:
    """M3: a portal that does not answer is a warning, and the tree works once it does.

    The tree works once it comes, without a new mount; also right after it was asked
    for in vain (R10).
    """
    with (
        proxy_to(site.portal, is_open=False) as proxy,
        sandbox.mounted("--portal", proxy.url) as mount,
    ):
        assert mount.warnings == (
            f"skymount: warning: {proxy.url} does not answer yet: Connection refused; is the "
            "portal running, and is the port right?; the tree works once it does\n"
        )
        file = mount.skylink(site.skylink) / BIG
        for _ in range(3):
            done = run(["cat", file], env=ENV)
            assert "Input/output error" in done.stderr
        proxy.open()
        assert output(["cmp", file, site.source / BIG]) == b""


def test_a_disk_cache_of_no_use(sandbox: Sandbox, site: Site) -> None:
    """K3: a mount that has less than 32 MiB warns."""
    options = ("--portal", site.portal, "--disk-cache")
    with sandbox.mounted(*options, "4 KiB") as mount:
        assert mount.warnings == (
            "skymount: warning: disk_cache: hardly anything fits; "
            "give it 32 MiB or more, or turn it off\n"
        )
    for size in ("32 MiB", "off"):
        with sandbox.mounted(*options, size) as mount:
            assert mount.warnings == ""


def test_a_smaller_disk_cache_than_before(sandbox: Sandbox, site: Site) -> None:
    """K3: the mount evicts what is too much, without a read."""
    store = BlockStore.open(sandbox.root / "cache/skymount", 64 << 20)
    for index in range(50):
        assert store.put(BlockKey("a link", 1 << 20, 1 << 30, index), bytes(1 << 20))
    with sandbox.mounted("--portal", site.portal, "--disk-cache", "32 MiB"):
        until(lambda: store.info().bytes <= 32 << 20)
    assert store.info().blocks == 29  # room for a sixteenth


def test_all_bytes_that_came_are_counted(sandbox: Sandbox, site: Site) -> None:
    """The status counts also what came in a base sector, whole small files among them."""
    with sandbox.mounted("--portal", site.portal) as mount:
        assert mount.status()["fetched"]["bytes"] == 0
        output(["ls", mount.skylink(site.skylink)])
        described = mount.status()["fetched"]["bytes"]
        assert described > 0
        output(["cat", mount.skylink(site.skylink) / BIG])
        assert mount.status()["fetched"]["bytes"] >= (site.source / BIG).stat().st_size


def test_a_portal_that_takes_connections_but_is_silent(sandbox: Sandbox, site: Site) -> None:
    """Mounting does not wait for its answer; what is asked of it times out."""
    with proxy_to(site.portal) as proxy:
        proxy.stalling = True
        with sandbox.mounted("--portal", proxy.url, "--timeout", "1") as mount:
            done = run(["ls", mount.skylink(site.skylink)], env=ENV)
            assert "timed out" in done.stderr
            assert mount.status()["portals"] == [proxy.url]


def test_a_portal_that_goes_away_and_comes_back(sandbox: Sandbox, site: Site) -> None:
    """What was read stays readable meanwhile."""
    with proxy_to(site.portal) as proxy, sandbox.mounted("--portal", proxy.url) as mount:
        tree = mount.skylink(site.skylink)
        text = output(["cat", tree / "text.txt"])
        proxy.close()
        assert output(["cat", tree / "text.txt", tree / "one byte"]) == text + b"x"
        assert output(["ls", tree / "many"]).count(b"\n") == 10
        assert "Input/output error" in run(["cat", tree / BIG], env=ENV).stderr
        port = int(proxy.url.rpartition(":")[2])
        with proxy_to(site.portal, port=port):
            assert output(["cmp", tree / BIG, site.source / BIG]) == b""


def test_a_second_portal_helps_out(sandbox: Sandbox, site: Site) -> None:
    with (
        proxy_to(site.portal, is_open=False) as away,
        sandbox.mounted("--portal", away.url, "--portal", site.portal) as mount,
    ):
        assert away.url in mount.warnings
        assert site.portal not in mount.warnings
        assert output(["cmp", mount.skylink(site.skylink) / BIG, site.source / BIG]) == b""


def test_a_name_server_that_does_not_answer_holds_up_nothing(
    sandbox: Sandbox, namespace: Namespace
) -> None:
    """M3: Mounting needs no network.

    Mounting never needs the network.
    """
    resolv = sandbox.root / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:5\n")
    namespace.do("mount", "--bind", resolv, "/etc/resolv.conf")
    silent = namespace.start(
        sys.executable,
        "-c",
        "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM);"
        "s.bind(('127.0.0.1', 53)); print(flush=True); sys.stdin.read()",
    )
    assert silent.stdout is not None
    assert silent.stdout.readline() == b"\n"
    url = "http://portal.example:4280"
    with sandbox.within(namespace.prefix).mounted("--portal", url, limit=15) as mount:
        assert f"{url} does not answer yet" in mount.warnings


# Stale mounts


def test_a_mount_whose_daemon_was_killed_is_recovered(sandbox: Sandbox, site: Site) -> None:
    """M4: A mount of ours whose daemon is gone is cleared away."""
    with sandbox.mounted("--portal", site.portal) as first:
        first.daemon.signal(signal.SIGKILL)
        first.daemon.wait()
        assert "not connected" in run(["ls", first.path], env=ENV).stderr
        with sandbox.mounted("--portal", site.portal) as second:
            assert second.daemon.pid != first.daemon.pid
            assert second.warnings == ""
            assert mounts_at(second.path) == ["fuse.skymount"]
            found = output(["cat", second.skylink(site.skylink) / "one byte"])
            assert found == b"x"


def test_a_stale_mount_that_is_in_use_is_recovered(sandbox: Sandbox, site: Site) -> None:
    with sandbox.mounted("--portal", site.portal) as first:
        user = subprocess.Popen(["sleep", "600"], cwd=first.path / "skylinks")
        try:
            first.daemon.signal(signal.SIGKILL)
            first.daemon.wait()
            with sandbox.mounted("--portal", site.portal) as second:
                assert mounts_at(second.path) == ["fuse.skymount"]
        finally:
            end(user)


def test_a_stale_mount_is_unmounted(sandbox: Sandbox, portal: str) -> None:
    with sandbox.mounted("--portal", portal) as mount:
        mount.daemon.signal(signal.SIGKILL)
        mount.daemon.wait()
        sandbox.succeed("umount", mount.path)
        assert mounts_at(mount.path) == []


def test_the_port_of_the_test_is_not_listened_at() -> None:
    """What the tests above call away really refuses connections."""
    with proxy_to("http://127.0.0.1:1", is_open=False) as proxy, socket.socket() as probe:
        port = int(proxy.url.rpartition(":")[2])
        assert probe.connect_ex(("127.0.0.1", port)) != 0

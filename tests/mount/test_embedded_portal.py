"""Without a portal named anywhere: the one at the default address, else one of our own.

Each test has a network of its own, in which the default port is free.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.namespaces import Namespace, skip_without_root
from tests.skymount_process import SKYMOUNT, Mount, Sandbox, Watched, output, read_status

DEFAULT = "http://127.0.0.1:4280"

LISTENS_AS_ANOTHER = """
import os, socket, sys
os.setuid(1234)
with socket.create_server(("127.0.0.1", 4280)):
    print(flush=True)
    sys.stdin.read()
"""

ANSWERS = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", 4280)).close()
except ConnectionRefusedError:
    print("no")
else:
    print("yes")
"""


@pytest.fixture
def alone(sandbox: Sandbox, namespace: Namespace) -> Sandbox:
    """A sandbox in a network where nobody else is."""
    skip_without_root()
    return sandbox.within(namespace.prefix)


@pytest.fixture
def something(sandbox: Sandbox) -> Path:
    path = sandbox.root / "something.txt"
    path.write_text("something")
    return path


def answers(namespace: Namespace) -> bool:
    return namespace.python(ANSWERS) == "yes\n"


def portal_of(mount: Mount) -> Watched:
    """Return the portal that a daemon started."""
    listed = Path(f"/proc/{mount.daemon.pid}/task/{mount.daemon.pid}/children").read_text()
    (pid,) = map(int, listed.split())
    assert b"portal\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return Watched(pid)


@pytest.fixture
def mount(alone: Sandbox) -> Iterator[Mount]:
    with alone.mounted() as made:
        yield made


def test_our_own_portal_is_started_and_used(alone: Sandbox, mount: Mount, something: Path) -> None:
    """M5: the mount starts an embedded portal at that address.

    Upload and mount find each other without being told anything.
    """
    assert mount.warnings == ""
    assert mount.status()["own_portal"] is True
    assert mount.status()["portals"] == [DEFAULT]
    skylink = alone.succeed("upload", something).strip()
    found = output([*mount.prefix, "cat", mount.skylink(skylink) / "something.txt"])
    assert found == b"something"


@pytest.mark.parametrize("way", ["umount", "fusermount3", "SIGTERM", "SIGKILL"])
def test_our_own_portal_ends_with_the_mount(
    alone: Sandbox, mount: Mount, namespace: Namespace, way: str
) -> None:
    """M5: which ends with the mount, also when the daemon is killed.

    However that ends.
    """
    portal = portal_of(mount)
    try:
        if way == "umount":
            alone.succeed("umount", mount.path)
        elif way == "fusermount3":
            namespace.do("fusermount3", "-u", mount.path)
        else:
            mount.daemon.signal(signal.Signals[way])
        mount.daemon.wait()
        portal.wait()
        assert not answers(namespace)
    finally:
        portal.end()


def test_what_was_published_is_there_at_the_next_mount(alone: Sandbox, something: Path) -> None:
    """M5: What was uploaded to it is kept."""
    with alone.mounted():
        skylink = alone.succeed("upload", something).strip()
        assert (alone.root / "data/skymount/portal").is_dir()
        alone.succeed("umount", alone.directory())
    with alone.mounted() as again:
        file = again.skylink(skylink) / "something.txt"
        assert output([*again.prefix, "cat", file]) == b"something"


def test_a_portal_at_the_default_address_is_used(
    alone: Sandbox, namespace: Namespace, something: Path
) -> None:
    """M5: Without a portal named anywhere the default address."""
    data = alone.root / "other-data"
    serve = [*SKYMOUNT, "portal", "serve", "--data", str(data)]
    portal = namespace.start(*serve, env=alone.env)
    assert portal.stdout is not None
    assert portal.stdout.readline() == f"listening on {DEFAULT}\n".encode()
    with alone.mounted() as mount:
        assert mount.warnings == ""
        assert mount.status()["own_portal"] is False
        skylink = alone.succeed("upload", something).strip()
        assert namespace.do("cat", mount.skylink(skylink) / "something.txt") == "something"
        alone.succeed("umount", mount.path)
        assert answers(namespace)


def test_a_portal_that_is_named_keeps_ours_from_being_started(
    alone: Sandbox, namespace: Namespace
) -> None:
    with alone.mounted("--portal", DEFAULT) as mount:
        assert "does not answer yet" in mount.warnings
        assert mount.status()["own_portal"] is False
        assert not answers(namespace)


def test_the_foreground_has_its_own_portal_too(alone: Sandbox, namespace: Namespace) -> None:
    with alone.foreground() as mount:
        assert answers(namespace)
        mount.process.send_signal(signal.SIGINT)
        assert mount.wait() == 0
        assert not answers(namespace)


def test_two_mounts_share_one_portal(alone: Sandbox, something: Path) -> None:
    with (
        alone.mounted(at=alone.directory("one")) as one,
        alone.mounted(at=alone.directory("two")) as two,
    ):
        assert one.status()["own_portal"] is True
        assert two.status()["own_portal"] is False
        skylink = alone.succeed("upload", something).strip()
        for each in (one, two):
            file = each.skylink(skylink) / "something.txt"
            assert output([*each.prefix, "cat", file]) == b"something"


def test_our_own_portal_that_does_not_start_is_a_warning(alone: Sandbox) -> None:
    """M3: with the reason, which is in the log too."""
    (alone.root / "data/skymount").mkdir()
    (alone.root / "data/skymount/portal").write_text("in the way")
    with alone.mounted(clean=False) as mount:
        said = "the embedded portal did not start: cannot use the data directory"
        assert said in mount.warnings
        assert " WARNING portal: cannot use the data directory" in alone.log.read_text()


def test_what_our_own_portal_says_is_in_the_log(alone: Sandbox) -> None:
    """By way of the daemon: the log becomes another file when it has grown."""
    with alone.mounted() as mount:
        portal = portal_of(mount)
        (alone.root / "data/skymount/portal/hns.zone").write_text("example nonsense\n" * 3)
        alone.run("ls", mount.path / "hns/example")
        said = [line for line in alone.log.read_text().splitlines() if "hns.zone" in line]
        assert len(said) == 3
        assert all(" WARNING portal: WARNING: " in line for line in said)
        assert os.readlink(f"/proc/{portal.pid}/fd/2").startswith("pipe:")


def test_a_mount_whose_portal_ends_with_another_mount_starts_its_own(
    alone: Sandbox, namespace: Namespace
) -> None:
    """M5: A second mount without a portal uses the same one, and starts its own within seconds when
    that ends.
    """
    with ExitStack() as first:
        first.enter_context(alone.mounted())
        with alone.mounted(at=alone.directory("second")) as second:
            assert read_status(second.path, alone.prefix)["own_portal"] is False
            first.close()
            deadline = time.monotonic() + 15
            while not read_status(second.path, alone.prefix)["own_portal"] or not answers(
                namespace
            ):
                assert time.monotonic() < deadline
                time.sleep(0.2)


def test_upload_without_any_portal_says_how_to_get_one(alone: Sandbox, something: Path) -> None:
    said = alone.fail("upload", something)
    assert "start a portal with `skymount portal serve` or `skymount mount`" in said


def test_a_portal_of_another_user_is_not_used(
    alone: Sandbox, namespace: Namespace, something: Path
) -> None:
    """M5: if that is another user, its portal is not used unless it is named. The mount then says
    so and starts its own on a free port, which the user's commands find, and they refuse to work
    without any.
    """
    if os.getuid() != 0:
        pytest.skip("only root can be someone else")
    theirs = namespace.start(sys.executable, "-c", LISTENS_AS_ANOTHER)
    assert theirs.stdout is not None
    assert theirs.stdout.readline() == b"\n"
    said = alone.fail("upload", something)
    assert said.startswith(f"{DEFAULT}: another user (uid 1234) listens there, who would see")
    with alone.mounted() as mount:
        own = mount.status()["portals"][0]
        assert own != DEFAULT
        assert mount.warnings == (
            f"skymount: warning: {DEFAULT}: another user (uid 1234) listens there, and is not "
            f"used by default; your own portal is at {own}\n"
        )
        skylink = alone.succeed("upload", something).strip()
        found = output([*mount.prefix, "cat", mount.skylink(skylink) / "something.txt"])
        assert found == b"something"


def test_no_descriptor_of_the_caller_is_kept(alone: Sandbox) -> None:
    """M1: neither the daemon nor its portal holds a lock or a pipe of whoever started it."""
    mountpoint, lock = alone.directory(), alone.root / "lock"
    script = """
        { flock -n "$2" "$0" -m skymount mount "$1" >"$2.said" 2>&1 || exit 7; } 9>&1 | cat
        flock -n "$2" true && test -d "$1/skylinks" && ! test -s "$2.said"
    """
    try:
        done = alone.run("sh", "-c", script, sys.executable, mountpoint, lock)
        assert done.returncode == 0, Path(f"{lock}.said").read_text()
    finally:
        alone.skymount("umount", mountpoint)

"""Where nothing can be mounted: `mount` and `doctor` say the same cause, and what to do (M2)."""

import errno
import json
import os
import platform
import shutil
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.namespaces import NOBODY, Namespace
from tests.skymount_process import Sandbox, mounts_at

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)

RIGHT = "right to mount"
DEVICE = "/dev/fuse"
HELPER = "fusermount3"
IN_CONTAINER = "in a container pass `--device /dev/fuse --cap-add SYS_ADMIN`"

# Refuses mount(2) and fsopen(2), with EPERM, to the command that is its argument.
SECCOMP = """
import ctypes, os, struct, sys
mount = {"x86_64": 165, "aarch64": 40}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 1, 0, mount), (0x15, 0, 1, 430), (6, 0, 0, 0x50001)]
code = b"".join(struct.pack("HBBI", *each) for each in [*code, (6, 0, 0, 0x7FFF0000)])
program = ctypes.create_string_buffer(code)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 5, ctypes.addressof(program)))
prctl = ctypes.CDLL(None).prctl
prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
assert prctl(22, 2, filter, 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""

Breaking = Callable[[Namespace, Path], None]


@dataclass(frozen=True)
class Machine:
    """A machine where nothing can be mounted, and what is said there."""

    name: str
    subject: str
    text: str
    advice: str
    prefix: Sequence[str] = ()
    """A command that runs ours; as nobody, further options of the setpriv that does."""
    is_nobody: bool = False
    breaks: Breaking = lambda namespace, scratch: None
    before: str = ""
    """How what libfuse says begins, if a mount had to be tried."""


def bind(source: str, place: str, options: str = "bind") -> Breaking:
    """Put a file, which may be one of the scratch directory, in the place of another one."""

    def breaks(namespace: Namespace, scratch: Path) -> None:
        (scratch / "empty").touch()
        (scratch / "none").write_text("mount_max = 0\n")
        plain = scratch / HELPER
        shutil.copyfile(_helper(), plain)
        plain.chmod(0o755)
        namespace.do("mount", "--bind", scratch / source, place)
        namespace.do("mount", "-o", f"remount,{options}", place)

    return breaks


def _helper() -> str:
    return os.path.realpath(shutil.which(HELPER) or "/usr/bin/fusermount3")


REFUSED = "fusermount3: mount failed: Operation not permitted: "
TAKEN = "the right to mount (CAP_SYS_ADMIN) is taken away here, from root too"
MACHINES = [
    Machine(
        "no device",
        DEVICE,
        "it is missing",
        f"`sudo modprobe fuse`, or {IN_CONTAINER}",
        breaks=lambda namespace, scratch: namespace.hide_fuse_device(scratch / "dev"),
    ),
    Machine(
        "null as device",
        DEVICE,
        "something else is in its place, as where a container hides it",
        IN_CONTAINER,
        breaks=bind("/dev/null", DEVICE),
    ),
    Machine(
        "file as device",
        DEVICE,
        "something else is in its place",
        "`sudo mknod -m 666 /dev/fuse c 10 229`",
        breaks=bind("empty", DEVICE),
    ),
    Machine(
        "device of others",
        DEVICE,
        "you may not use it",
        "let users in with `sudo chmod 666 /dev/fuse`",
        is_nobody=True,
        breaks=lambda namespace, _: namespace.do("chmod", "600", DEVICE) and None,
    ),
    Machine(
        "nodev",
        DEVICE,
        "it cannot be opened: Permission denied",
        IN_CONTAINER,
        breaks=bind(DEVICE, DEVICE, "bind,nodev"),
    ),
    Machine(
        "no helper",
        HELPER,
        "it is missing",
        "install the package fuse3",
        prefix=["env", "PATH=/nonexistent"],
        is_nobody=True,
    ),
    Machine(
        "container, root",
        RIGHT,
        TAKEN,
        IN_CONTAINER,
        prefix=["setpriv", "--bounding-set=-sys_admin"],
        before=REFUSED,
    ),
    Machine(
        "container, user",
        RIGHT,
        TAKEN,
        IN_CONTAINER,
        prefix=["--bounding-set=-sys_admin"],
        is_nobody=True,
        before=REFUSED,
    ),
    Machine(
        "no_new_privs",
        RIGHT,
        "no_new_privs keeps fusermount3 from getting its rights",
        "start this without NoNewPrivileges= (systemd) or `--security-opt no-new-privileges`",
        prefix=["--no-new-privs"],
        is_nobody=True,
        before=REFUSED,
    ),
    Machine(
        "no setuid",
        RIGHT,
        f"{_helper()} is not setuid root, so only root can mount",
        f"`sudo chown root {_helper()} && sudo chmod u+s {_helper()}`",
        is_nobody=True,
        breaks=bind(HELPER, _helper()),
        before=REFUSED,
    ),
    Machine(
        "nosuid",
        RIGHT,
        f"{_helper()} lies on a file system that is mounted nosuid",
        "mount that one without nosuid",
        is_nobody=True,
        breaks=bind(_helper(), _helper(), "bind,nosuid"),
        before=REFUSED,
    ),
    Machine(
        "too many mounts",
        RIGHT,
        "FUSE mounts already",
        "raise mount_max in /etc/fuse.conf",
        is_nobody=True,
        breaks=bind("none", "/etc/fuse.conf"),
        before="fusermount3: too many FUSE filesystems mounted; ",
    ),
    Machine(
        "user namespace",
        RIGHT,
        "the mounts here belong to an outer user namespace",
        "`unshare --user --map-root-user --mount`",
        prefix=["unshare", "--user"],
        before=REFUSED,
    ),
    Machine(
        "user namespace with root",
        RIGHT,
        "the mounts here belong to an outer user namespace",
        "`unshare --user --map-root-user --mount`",
        prefix=["unshare", "--user", "--map-root-user"],
        before=REFUSED,
    ),
    Machine(
        "user namespace without root",
        RIGHT,
        "this user namespace has no root, so fusermount3 has no more rights than you",
        "map root: `unshare --map-root-user`",
        prefix=["unshare", "--user", "--mount"],
        before=REFUSED,
    ),
    Machine(
        "seccomp",
        RIGHT,
        "seccomp or a security module such as AppArmor or SELinux forbids it",
        "`--cap-add SYS_ADMIN --security-opt apparmor=unconfined`",
        prefix=[sys.executable, "-c", SECCOMP],
        before=REFUSED,
    ),
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_the_cause_and_what_to_do(
    machine: Machine, sandbox: Sandbox, mount_namespace: Namespace
) -> None:
    """M2: It is 4 if nothing can be mounted here."""
    if machine.name == "seccomp":
        _skip_without_numbers()
    path, user = sandbox.directory(), mount_namespace.prefix
    if machine.is_nobody:
        user, path = mount_namespace.as_nobody(sandbox.root), sandbox.directory_of(NOBODY)
    machine.breaks(mount_namespace, sandbox.directory("scratch"))
    inside = sandbox.within([*user, *machine.prefix]).with_env(
        SKYMOUNT_PORTALS="http://127.0.0.1:9"
    )

    said = inside.fail("mount", path, code=4)
    place = f"{path}: " if machine.before else f"{machine.subject}: "
    assert said.startswith(place + machine.before)
    assert machine.text in said
    assert machine.advice in said

    done = inside.skymount("doctor", "--json")
    findings = [each for each in json.loads(done.stdout) if each["level"] == "failure"]
    (found,) = (each for each in findings if each["subject"] in (DEVICE, HELPER, RIGHT))
    assert found["subject"] == machine.subject
    assert machine.text in found["text"]
    assert machine.advice in found["advice"]
    assert done.returncode == 1
    assert mounts_at(path, mount_namespace.prefix) == []


def _skip_without_numbers() -> None:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("the numbers of system calls are not known here")


def test_a_mount_that_fails_for_another_reason_is_not_called_forbidden(sandbox: Sandbox) -> None:
    """As where the kernel's limit of mounts is reached."""
    _skip_without_numbers()
    code = SECCOMP.replace("0x50001", f"0x5{errno.ENOSPC:04x}")
    said = sandbox.within([sys.executable, "-c", code]).skymount("doctor").stdout
    assert f"failure  {RIGHT}: a mount to try it failed: No space left on device\n" in said


def test_the_right_to_mount_is_tried(sandbox: Sandbox, mount_namespace: Namespace) -> None:
    """M2: doctor mounts in a mount namespace that nobody else sees."""
    events = "import select, sys; f = open('/proc/self/mounts'); print(flush=True);"
    events += "p = select.poll(); p.register(f, select.POLLPRI); sys.stdin.read()"
    events += "; print(len(p.poll(0)), flush=True)"
    watcher = mount_namespace.start(sys.executable, "-c", events)
    assert watcher.stdout is not None
    assert watcher.stdin is not None
    assert watcher.stdout.readline() == b"\n"
    said = sandbox.within(mount_namespace.prefix).skymount("doctor").stdout
    assert "ok       right to mount: tried, where nobody sees it\n" in said
    watcher.stdin.close()
    assert watcher.stdout.readline() == b"0\n"


def test_it_is_tried_where_nothing_can_be_written(
    sandbox: Sandbox, mount_namespace: Namespace
) -> None:
    """As in a container with `--read-only`."""
    lock = "for each in / /tmp /var/tmp; do ! mountpoint -q $each ||"
    lock += ' mount -o remount,bind,ro $each || exit; done; exec "$@"'
    inside = sandbox.within([*mount_namespace.prefix, "sh", "-c", lock, "sh"])
    assert "ok       right to mount: tried" in inside.skymount("doctor").stdout


def test_a_daemon_in_the_foreground_says_the_same(sandbox: Sandbox) -> None:
    path = sandbox.directory()
    inside = sandbox.within(["setpriv", "--bounding-set=-sys_admin"])
    options = ("--foreground", "--portal", "http://127.0.0.1:9")
    said = inside.fail_of_many_lines("mount", path, *options, code=4)
    assert said.startswith(f"{path}: {REFUSED}{TAKEN}; {IN_CONTAINER}")


@pytest.mark.parametrize("capability", [b"", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0)])
def test_a_user_has_the_right_through_fusermount3(
    sandbox: Sandbox, mount_namespace: Namespace, capability: bytes
) -> None:
    """Whether that is setuid, or has a capability of its own, and whatever else is mounted."""
    prefix = mount_namespace.as_nobody(sandbox.root)
    path = sandbox.directory_of(NOBODY)
    odd = os.fsdecode(b"no UTF-8: \xff") + ", a new line to Python: \u2028"
    mount_namespace.do("mount", "-t", "tmpfs", "none", sandbox.directory(odd))
    if capability:
        bind(HELPER, _helper())(mount_namespace, sandbox.directory("scratch"))
        mount_namespace.python(
            f"import os; os.setxattr('{_helper()}', 'security.capability', {capability!r})"
        )
    inside = sandbox.within(prefix)
    assert "ok       right to mount: fusermount3 has it\n" in inside.skymount("doctor").stdout
    inside.skymount("mount", path, "--portal", "http://127.0.0.1:9")
    assert mounts_at(path, prefix) == ["fuse.skymount"]
    inside.succeed("umount", path)

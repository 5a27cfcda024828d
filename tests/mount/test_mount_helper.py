"""The real mount(8) with a real fstab, in a private name space."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.namespaces import NOBODY, Namespace
from tests.mount.site import Site
from tests.skymount_process import SKYMOUNT, Done, Sandbox, clear_mounts, mounts_at, output, run

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can call mount(8) so")

SBIN = Path("/usr/sbin")


@dataclass(frozen=True)
class Machine:
    """A machine on which skymount is installed, as far as mount(8) sees it."""

    box: Sandbox
    namespace: Namespace

    def mount(self, *args: str | Path) -> Done:
        """Run mount(8)."""
        return run([*self.namespace.prefix, "mount", *args], env=self.box.env, cwd=self.box.root)

    def link(self, name: str) -> None:
        self.namespace.do("ln", "-s", self.box.root / "bin/skymount", SBIN / name)

    def fstab(self, line: str) -> None:
        file = self.box.root / "fstab"
        file.write_text(f"{line} 0 0\n")
        self.namespace.do("mount", "--bind", file, "/etc/fstab")


@pytest.fixture
def machine(sandbox: Sandbox, mount_namespace: Namespace) -> Iterator[Machine]:
    """A /usr/sbin that tests may add to; the rest of it is as it was."""
    kept = sandbox.directory("sbin")
    mount_namespace.do("mount", "--bind", SBIN, kept)
    mount_namespace.do("mount", "-t", "tmpfs", "-o", "mode=755", "none", SBIN)
    mount_namespace.do("sh", "-c", f"ln -s {kept}/* {SBIN}")
    program = sandbox.directory("bin") / "skymount"
    code = "import sys; sys.argv[0] = sys.argv.pop(1); from skymount.__main__ import main; main()"
    program.write_text(f'#!/bin/sh\nexec {SKYMOUNT[0]} -c {shlex.quote(code)} "$0" "$@"\n')
    program.chmod(0o755)
    yield Machine(sandbox, mount_namespace)
    clear_mounts(sandbox.root, mount_namespace.prefix)


def test_several_at_once(machine: Machine, site: Site) -> None:
    """M4: One mounts, and the others say so."""
    machine.link("mount.skymount")
    path = machine.box.directory()
    command = [*machine.namespace.prefix, "mount", "-t", "skymount", site.portal, path]
    running = [
        subprocess.Popen(command, env=machine.box.env, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60)[1] for process in running]
    assert sorted(process.returncode != 0 for process in running) == [False, True, True], said
    assert sum("mounted there already" in text for text in said) == 2
    table = machine.namespace.do("cat", "/proc/self/mountinfo")
    assert sum(line.split()[4] == str(path) for line in table.splitlines()) == 1


def test_by_its_type(machine: Machine, site: Site) -> None:
    """mount -t skymount calls /sbin/mount.skymount."""
    machine.link("mount.skymount")
    path = machine.box.directory()
    done = machine.mount("-t", "skymount", site.portal, path)
    assert (done.returncode, done.stderr) == (0, "")
    prefix = machine.namespace.prefix
    assert mounts_at(path, prefix) == ["fuse.skymount"]
    assert output([*prefix, "cat", path / "skylinks" / site.skylink / "one byte"]) == b"x"
    machine.namespace.do("umount", path)
    assert mounts_at(path, prefix) == []


@pytest.mark.parametrize("linked", [True, False])
def test_by_its_type_as_the_kernel_shows_it(machine: Machine, site: Site, linked: bool) -> None:
    """Without a helper of ours mount(8) calls mount.fuse3, and that calls `skymount`."""
    if not linked and shutil.which("mount.fuse") is None:
        pytest.skip("no mount.fuse")
    machine.link("mount.fuse.skymount" if linked else "skymount")
    path = machine.box.directory("a mount")
    done = machine.mount("-t", "fuse.skymount", site.portal, path, "-o", "ro,noexec")
    assert (done.returncode, done.stderr) == (0, "")
    assert mounts_at(path, machine.namespace.prefix) == ["fuse.skymount"]
    options = machine.namespace.do("findmnt", "-no", "VFS-OPTIONS", path).strip().split(",")
    assert {"ro", "noexec", "nosuid", "nodev"} <= set(options)


def test_a_line_of_fstab(machine: Machine, site: Site) -> None:
    machine.link("mount.skymount")
    path = machine.box.directory()
    machine.box.configure(f'[mounts.home]\nportals = ["{site.portal}"]\nmemory_cache = "9 MiB"\n')
    machine.fstab(f"none {path} skymount name=home,noauto,x-systemd.automount,_netdev")
    done = machine.mount(path)
    assert (done.returncode, done.stderr) == (0, "")
    status = machine.namespace.do("cat", path / ".skymount/status.json")
    assert '"size": 9437184' in status


# Mounts autofs as systemd does, then what a line of fstab says, in the process group that may.
_AUTOMOUNT = """
import ctypes, os, subprocess, sys
_, pipe = os.pipe()
options = f"fd={pipe},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"systemd-1", os.fsencode(sys.argv[1]), b"autofs", 0, options.encode()):
    sys.exit(f"autofs: {os.strerror(ctypes.get_errno())}")
sys.exit(subprocess.call(["mount", *sys.argv[2:]], timeout=60))
"""


@pytest.mark.skipif("autofs" not in Path("/proc/filesystems").read_text(), reason="no autofs")
@pytest.mark.parametrize("user", ["", ",setuid=nobody"])
def test_over_an_automount(machine: Machine, site: Site, user: str) -> None:
    """x-systemd.automount: at the first access systemd mounts over autofs, which is root's."""
    namespace, box = machine.namespace, machine.box
    nobody = namespace.as_nobody(box.root)
    machine.link("mount.skymount")
    home, users = box.directory_of(NOBODY, "home of nobody"), box.root / "passwd"
    users.write_text(f"root:x:0:0::/root:/bin/sh\nnobody:x:{NOBODY}:{NOBODY}::{home}:/bin/sh\n")
    namespace.do("mount", "--bind", users, "/etc/passwd")
    path = box.directory_of(NOBODY)
    words = [sys.executable, "-c", _AUTOMOUNT, path, "-t", "skymount", site.portal, path, "-o"]
    done = run([*namespace.prefix, *words, f"x-systemd.automount{user}"], env=box.env)
    assert (done.returncode, done.stderr) == (0, "")
    assert mounts_at(path, namespace.prefix)[-1:] == ["fuse.skymount"]
    reader = nobody if user else namespace.prefix
    assert output([*reader, "cat", path / "skylinks" / site.skylink / "one byte"]) == b"x"


def test_an_unknown_option_in_fstab(machine: Machine) -> None:
    machine.link("mount.skymount")
    path = machine.box.directory()
    machine.fstab(f"none {path} skymount nmae=home")
    done = machine.mount(path)
    assert done.returncode != 0
    assert "skymount: unknown mount option nmae=home; known ones: " in done.stderr
    assert mounts_at(path, machine.namespace.prefix) == []


def test_a_mount_for_a_user(machine: Machine, site: Site) -> None:
    """Root mounts at start-up what is the user's: setuid=USER."""
    namespace, box = machine.namespace, machine.box
    nobody = namespace.as_nobody(box.root)
    machine.link("mount.skymount")
    home = box.directory_of(NOBODY, "home of ann")
    users = box.root / "passwd"
    line = f"ann:x:{NOBODY}:{NOBODY}::{home}:/bin/sh\n"
    users.write_text(Path("/etc/passwd").read_text() + line)
    namespace.do("mount", "--bind", users, "/etc/passwd")
    path = box.directory_of(NOBODY)
    machine.fstab(f"{site.portal} {path} skymount setuid=ann")
    done = machine.mount(path)
    assert (done.returncode, done.stderr) == (0, "")
    assert output([*nobody, "cat", path / "skylinks" / site.skylink / "one byte"]) == b"x"
    assert (home / ".local/state/skymount").stat().st_uid == NOBODY
    assert run([*namespace.prefix, "ls", path]).returncode != 0  # not even root
    words = ["umount", path]
    done = run([*nobody, *SKYMOUNT, *words], env=box.env | {"HOME": str(home)}, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")  # it finds the daemon, and waits for it

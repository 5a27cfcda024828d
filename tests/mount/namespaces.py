"""Private name spaces: a place where a test may mount, hide devices and use the default port
without anything outside taking notice. They vanish with the last process in them.
"""

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.portal_process import SOURCE
from tests.skymount_process import Done, close_pipes, end, output, run

NOBODY = 65534

_BRING_LOOPBACK_UP = """
import fcntl, socket, struct
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
"""

DROP_OTHER_MOUNTS = r"""
while read -r _ _ _ _ place rest; do
    case $rest in *' - fuse.skymount '*)
        place=$(printf '%b' "${place//\\/\\0}")
        [ "$place" = "${0%/}" ] || umount -l -- "$place" ;;
    esac
done </proc/self/mountinfo
echo
exec cat >/dev/null
"""
"""For bash in a new mount namespace: other tests' mounts must not stay mounted because of it, but
for the one at $0. Then it says that it is ready, and waits."""

_AS_USER = [] if os.getuid() == 0 else ["--user", "--map-root-user"]


@functools.cache
def why_impossible() -> str:
    """Return why there can be no namespaces here; empty when they can be made."""
    try:
        done = run(["unshare", *_AS_USER, "--mount", "--net", "true"])
        helper = run(["nsenter", "--version"])
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    return done.stderr.strip() if done.returncode else helper.stderr.strip()


def skip_without_root() -> None:
    """Skip a test that runs a portal in a name space: others than root need a user name space for
    that, in which root's directories belong to nobody, and a portal trusts no path through them.
    """
    if os.getuid() != 0:
        pytest.skip("root's directories belong to nobody in a user name space")


@dataclass(frozen=True)
class Namespace:
    """A mount name space of its own, perhaps a network too. `prefix` runs a command in it."""

    prefix: Sequence[str]
    stack: ExitStack
    """Ends what was started in it."""

    def run(self, *command: str | Path, stdin: str = "") -> Done:
        return run([*self.prefix, *command], stdin=stdin)

    def do(self, *command: str | Path) -> str:
        """Run a command in it that must succeed; return what it prints."""
        return os.fsdecode(output([*self.prefix, *command]))

    def start(
        self, *command: str | Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command in it, which is ended with the name space."""
        process = subprocess.Popen(
            [*self.prefix, *map(str, command)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.stack.callback(end, process)
        return process

    def python(self, code: str, *args: str | Path) -> str:
        """Run a few lines of Python in it."""
        return self.do(sys.executable, "-c", code, *args)

    def hide_fuse_device(self, scratch: Path) -> None:
        """Make a /dev without fuse."""
        scratch.mkdir()
        self.do("mount", "--rbind", "/dev", scratch)
        self.do("mount", "-t", "tmpfs", "none", "/dev")
        for name in ("null", "zero", "urandom", "tty"):
            self.do("touch", f"/dev/{name}")
            self.do("mount", "--bind", scratch / name, f"/dev/{name}")

    def as_nobody(self, home: Path) -> Sequence[str]:
        """Make the place fit for a user without rights; return the prefix that runs as one.

        `home` stays reachable.

        Such a user needs a /dev/fuse open to all, as it is on most machines, and directories on
        the way to the interpreter that can be passed through.
        """
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed")
        self.do("mount", "-t", "tmpfs", "none", "/dev/shm")
        self.do("mknod", "-m", "666", "/dev/shm/fuse", "c", "10", "229")
        self.do("mount", "--bind", "/dev/shm/fuse", "/dev/fuse")
        needed = {
            sys.prefix,
            sys.base_prefix,
            sysconfig.get_path("purelib"),
            str(SOURCE),
            str(home),
        }
        closed: dict[Path, list[Path]] = {}
        for path in sorted(map(Path, needed)):
            above = [p for p in reversed(path.parents) if not p.stat().st_mode & 0o001]
            if above:
                closed.setdefault(above[0], []).append(path)
        for number, (top, paths) in enumerate(closed.items()):
            keep = Path(f"/dev/shm/keep{number}")
            self.do("mkdir", keep)
            self.do("mount", "--rbind", top, keep)
            self.do("mount", "-t", "tmpfs", "-o", "mode=755", "none", top)
            for path in paths:
                self.do("mkdir", "-p", path)
                self.do("mount", "--rbind", keep / path.relative_to(top), path)
        prefix = [*self.prefix, "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}"]
        prefix.append("--clear-groups")
        probe = run([*prefix, sys.executable, "-c", "import skymount.cli, pyfuse3"], env=_PROBE_ENV)
        if probe.returncode:
            pytest.skip(
                f"an unprivileged user cannot run this Python: {probe.stderr.strip()[-200:]}"
            )
        return prefix


_PROBE_ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}


@contextmanager
def new_namespace(*, network: bool) -> Iterator[Namespace]:
    """Make a name space, with `network` one that has nothing but a loopback interface.

    Skips the test where that cannot be done.
    """
    reason = why_impossible()
    if reason:
        pytest.skip(f"no name spaces here: {reason}")
    kinds = ["--mount", "--net"] if network else ["--mount"]
    holder = subprocess.Popen(
        ["unshare", *_AS_USER, *kinds, "bash", "-c", DROP_OTHER_MOUNTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        enter = ["nsenter", f"--target={holder.pid}", *kinds]
        if _AS_USER:
            enter += ["--user", "--preserve-credentials"]
        with ExitStack() as stack:
            found = Namespace([*enter, "--"], stack)
            if network:
                found.python(_BRING_LOOPBACK_UP)
            yield found
    finally:
        close_pipes(holder)
        holder.wait(60)

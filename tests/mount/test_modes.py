"""What a mount keeps is its owner's alone, whatever the umask, and a crash leaves no keys."""

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.namespaces import Namespace, skip_without_root
from tests.skymount_process import Mount, Sandbox, output, run

_WIDE = ("sh", "-c", 'umask 0; ulimit -c unlimited; exec "$@"', "-")


def modes(below: Path) -> Iterator[tuple[Path, int]]:
    """Yield the path and mode of all that is there; sockets and links are not looked at."""
    for path in (below, *below.rglob("*")):
        found = path.lstat().st_mode
        if stat.S_ISREG(found) or stat.S_ISDIR(found):
            yield path, stat.S_IMODE(found)


def too_wide(below: Path) -> list[tuple[str, str]]:
    """Return what others may use in any way, and there must be something."""
    found = list(modes(below))
    assert len(found) > 1
    return [(str(path), oct(mode)) for path, mode in found if mode & 0o077]


def is_a_service(pid: int) -> None:
    """Check the umask of a process, and that it leaves no core, nor can again."""
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Umask:\t0077\n" in status
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (core,) = (line for line in limits if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["0", "0"]


@pytest.fixture
def fresh(sandbox: Sandbox) -> Sandbox:
    """A sandbox in which nothing is made yet, of somebody with the widest umask."""
    above = sandbox.root / "new"
    places = {f"XDG_{name}_HOME": str(above / name) for name in ("STATE", "DATA", "CACHE")}
    return sandbox.with_env(**places).within(_WIDE)


def used(sandbox: Sandbox, mount: Mount, portal: str) -> None:
    """Read through a mount and write to its registry, so that all its files are there."""
    file = sandbox.root / "large"
    file.write_bytes(os.urandom(3 << 20))
    skylink = sandbox.upload(file, portal)
    output(["cmp", file, mount.skylink(skylink) / "large"])
    entry = mount.path / "registry/home/greeting"
    assert run(["sh", "-c", 'printf hello >"$1"', "-", entry]).stderr == ""


def test_files_and_directories(fresh: Sandbox, portal: str) -> None:
    """M8: state, cache, keys and log, and the directories above that were missing."""
    fresh.succeed("key", "generate", "home")
    above = fresh.root / "new"
    with fresh.mounted("--portal", portal) as mount:
        used(fresh, mount, portal)
        is_a_service(mount.daemon.pid)
        fresh.succeed("umount", mount.path)
        mount.daemon.wait()
    assert too_wide(above) == []
    names = {path.name for path, _ in modes(above)}
    assert {"ledger.sqlite3", "home", "log"} <= names
    assert any(name.endswith(".log") for name in names)
    assert list((above / "CACHE").rglob("content/v1/*/*"))


def test_the_log_that_is_begun_anew(fresh: Sandbox, portal: str) -> None:
    """M8: its next file is as private as the first."""
    for is_long in (False, True):
        with fresh.mounted("--portal", portal) as mount:
            (log, *older) = sorted((fresh.root / "new/STATE/skymount/log").iterdir())
            assert bool(older) == is_long
            fresh.succeed("umount", mount.path)
            mount.daemon.wait()
        with log.open("a") as more:
            more.write("x" * (1 << 20))
    assert too_wide(log.parent) == []


def test_directories_that_were_made_too_wide(fresh: Sandbox, portal: str) -> None:
    """M8: the mount's own are closed."""
    state = fresh.root / "new/STATE/skymount"
    (state / "log").mkdir(parents=True)
    for path in (state, state / "log"):
        path.chmod(0o777)
    with fresh.mounted("--portal", portal):
        pass
    assert too_wide(state) == []


def test_the_foreground_and_its_portal(fresh: Sandbox, namespace: Namespace) -> None:
    """M8: likewise, and what is uploaded to a portal of the mount's own."""
    skip_without_root()
    alone = fresh.within([*namespace.prefix, *_WIDE])
    with alone.foreground() as mount:
        pid = mount.process.pid
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, listed)):
            is_a_service(each)
        assert len(listed) == 1
        file = alone.root / "file"
        file.write_text("content")
        alone.succeed("upload", file)
        mount.process.send_signal(signal.SIGINT)
        assert mount.wait() == 0
    assert too_wide(alone.root / "new/DATA") == []

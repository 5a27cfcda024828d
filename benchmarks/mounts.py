"""Mounts skymount and its peers, each in a process that ends with its `with` block."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine
from benchmarks.source import Shape, Skyfile
from skymount.wire.skylink import Skylink

WIDE_READ_AHEAD = 1024  # KiB: what skymount sets as root
USUAL_READ_AHEAD = 128  # KiB: what the kernel sets
_UNMOUNTING = 60.0  # seconds that a daemon may take to write out its cache and end


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mounted file system and its process."""

    place: Path
    process: "subprocess.Popen[str]" = field(repr=False)

    @property
    def memory(self) -> tuple[float, float]:
        """(resident now, resident at most) in MB."""
        return machine.memory(self.process.pid)

    def directory(self, skylink: Skylink) -> Path:
        """Return a skylink's directory, if this is skymount's mount."""
        return self.place / "skylinks" / str(skylink)

    def file(self, skyfile: Skyfile) -> Path:
        """Return the one file of a skyfile, if this is skymount's mount."""
        return self.directory(skyfile.skylink) / skyfile.payload.name


def environment(home: Path, **settings: str) -> dict[str, str]:
    """Return an environment in which a program keeps its files below `home`, not the user's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SKYMOUNT_")}
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        env[f"XDG_{name}_HOME"] = str(home / name.lower())
        (home / name.lower()).mkdir(parents=True, exist_ok=True)
    return env | settings


def _table() -> list[tuple[Path, str]]:
    """Return (mount point, type) of every mount."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields = line.split(b" ")
        place = fields[4].decode("unicode_escape").encode("latin-1")
        found.append((Path(os.fsdecode(place)), fields[fields.index(b"-") + 1].decode()))
    return found


def is_mounted(place: Path) -> bool:
    """Whether a FUSE file system is mounted there."""
    return any(path == place and kind.startswith("fuse") for path, kind in _table())


def unmount(place: Path) -> None:
    """Take a mount away, lazily if something uses it; none there is no error."""
    for option in ("-u", "-u", "-uz", "-uz"):
        if not is_mounted(place):
            return
        command = ("fusermount3", option, "--", str(place))
        subprocess.run(command, capture_output=True, check=False)


def unmount_below(work: Path) -> None:
    """Take away whatever is still mounted below a directory."""
    for place, kind in reversed(_table()):
        if kind.startswith("fuse") and work in place.parents:
            unmount(place)


def set_read_ahead(place: Path, kib: int) -> None:
    """Set how much the kernel asks a file system for at once, where root may say so."""
    device = place.stat().st_dev
    knob = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    if machine.IS_ROOT and knob.read_text().strip() != str(kib):
        knob.write_text(str(kib))


@contextmanager
def mounted(work: Path, *command: str | Path, env: Mapping[str, str]) -> Iterator[Mounted]:
    """Run a command that mounts in the foreground; MOUNTPOINT in it is a new directory."""
    with TemporaryDirectory(prefix="mnt-", dir=work) as directory:
        place = Path(directory) / "at"
        place.mkdir()
        log = work / "mounts.log"
        words = [place if word == "MOUNTPOINT" else word for word in command]
        with machine.process(*words, log=log, env=env) as daemon:
            try:
                machine.wait_until(
                    lambda: is_mounted(place) or daemon.poll() is not None, f"{command[0]} mounts"
                )
                if daemon.poll() is not None:
                    raise machine.BenchmarkError(f"{words}: ended; see {log}:\n{_tail(log)}")
                place.stat()  # answered: it runs
                yield Mounted(place, daemon)
            finally:
                unmount(place)
                try:
                    daemon.wait(_UNMOUNTING)
                except subprocess.TimeoutExpired:
                    pass  # `process` ends it


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


@contextmanager
def skymount(
    work: Path, portal: str, *, cache: Path | None = None, **settings: str
) -> Iterator[Mounted]:
    """Mount with skymount; without `cache` the cache on disk is a new, empty one.

    `settings` are configuration keys, given by the environment.
    """
    named = {f"SKYMOUNT_{key.upper()}": value for key, value in settings.items()}
    with TemporaryDirectory(prefix="home-", dir=work) as home:
        env = environment(Path(home), **named)
        if cache is not None:
            env["XDG_CACHE_HOME"] = str(cache)
        command = (*machine.SKYMOUNT, "mount", "--foreground", "MOUNTPOINT", "--portal", portal)
        with mounted(work, *command, env=env) as found:
            yield found


@contextmanager
def rclone(work: Path, portal: str, certificate: Path | None = None) -> Iterator[Mounted]:
    """Mount the portal's plain files with rclone's http backend and its defaults, read-only."""
    with TemporaryDirectory(prefix="home-", dir=work) as home:
        command = ("rclone", "mount", "--read-only", "--config", os.devnull, ":http:", "MOUNTPOINT")
        options: tuple[str | Path, ...] = ("--http-url", f"{portal}/")
        if certificate is not None:
            options += ("--ca-cert", certificate)
        with mounted(work, *command, *options, env=environment(Path(home))) as found:
            yield found


@contextmanager
def httpdirfs(work: Path, portal: str) -> Iterator[Mounted]:
    """Mount the portal's plain files with httpdirfs and its defaults, which include no cache.

    Its check for byte ranges ends it at the first read from nginx, which does have them.
    """
    with TemporaryDirectory(prefix="home-", dir=work) as home:
        command = ("httpdirfs", "-f", "--no-range-check", f"{portal}/", "MOUNTPOINT")
        with mounted(work, *command, env=environment(Path(home))) as found:
            yield found


@contextmanager
def bare(work: Path, shape: Shape) -> Iterator[Mounted]:
    """Mount the bare file system: a tree of zeros."""
    numbers = map(str, (shape.directories, shape.files, shape.size))
    command = (sys.executable, "-m", "benchmarks.bare", "MOUNTPOINT", *numbers)
    with mounted(work, *command, env=os.environ) as found:
        set_read_ahead(found.place, WIDE_READ_AHEAD)
        yield found


@contextmanager
def embedded_portal(work: Path) -> Iterator[str]:
    """Run the embedded portal with empty storage; yields its address."""
    with TemporaryDirectory(prefix="portal-", dir=work) as home:
        command = (*machine.SKYMOUNT, "portal", "serve", "--listen", "127.0.0.1:0", "--data", home)
        env = environment(Path(home))
        log = work / "portal.log"
        with machine.process(*command, log=log, env=env, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            words = server.stdout.readline().split()
            if not words:
                raise machine.BenchmarkError(f"the portal did not start:\n{_tail(log)}")
            yield words[-1]

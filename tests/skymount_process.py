"""Runs the ``skymount`` command as real processes, in a home directory of its own, and sees to it
that nothing of it is left: mounts are taken away and daemons ended, whatever a test did.

A test touches a mount only through commands that have a time limit: a file operation that blocks
must fail the test, not stop pytest.
"""

import ast
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from skymount.fs.subtree import ATTRIBUTES
from tests.command_server import MAX_INPUT, command_server
from tests.portal_process import SOURCE

LIMIT = 60.0
"""Seconds that any one command may take: a bound for what hangs, far above what is normal."""

SKYMOUNT = [sys.executable, "-m", "skymount"]

Done = subprocess.CompletedProcess[str]


class TimeLimitError(AssertionError):
    """A command did not end."""


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | bytes = b"",
    limit: float = LIMIT,
) -> Done:
    """Run a command to its end; its output is text, undecodable bytes as surrogates."""
    code, out, err = _run(command, env=env, cwd=cwd, stdin=stdin, limit=limit)
    return subprocess.CompletedProcess(command, code, os.fsdecode(out), os.fsdecode(err))


def output(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    limit: float = LIMIT,
) -> bytes:
    """Return what a command printed; it must succeed and have nothing to complain about."""
    code, out, err = _run(command, env=env, cwd=cwd, stdin=b"", limit=limit)
    assert (code, err) == (0, b""), f"{command}: exit {code}: {err!r}"
    return out


def _run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    stdin: str | bytes,
    limit: float,
) -> tuple[int, bytes, bytes]:
    process = subprocess.Popen(
        [os.fspath(word) for word in command],
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(os.fsencode(stdin), timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        close_pipes(process)
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:  # stuck in the kernel until the mount is gone
            process.returncode = -signal.SIGKILL
        raise TimeLimitError(f"still running after {limit} s: {command}") from None
    return process.returncode, out, err


def close_pipes(process: "subprocess.Popen[bytes]") -> None:
    """Close our ends of its standard streams."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that we started; a Popen never signals one whose end it has seen."""
    process.kill()
    process.wait(10)
    close_pipes(process)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie whose parent does not care."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


class Watched:
    """A process that is not our child, held by a descriptor so that its id cannot be reused."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def wait(self, limit: float = LIMIT) -> None:
        """Wait until it has ended."""
        ended, _, _ = select.select([self._descriptor], [], [], limit)
        if not ended:
            raise TimeLimitError(f"process {self.pid} is still running after {limit} s")

    @property
    def ended(self) -> bool:
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._descriptor, number)

    def end(self) -> None:
        """End it, by force if it does not go by itself."""
        if not select.select([self._descriptor], [], [], 5)[0]:
            self.signal(signal.SIGKILL)
            self.wait(10)
        os.close(self._descriptor)


def _mounts(prefix: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield (mount point, type) of all mounts, the oldest first."""
    table = Path("/proc/self/mountinfo").read_bytes()
    if prefix:
        table = output([*prefix, "cat", "/proc/self/mountinfo"])
    for line in table.splitlines():
        fields = line.split(b" ")
        place = fields[4].decode("unicode_escape").encode("latin-1")
        yield Path(os.fsdecode(place)), fields[fields.index(b"-") + 1].decode()


def mounts_at(path: Path, prefix: Sequence[str] = ()) -> list[str]:
    """Return the types of the file systems mounted at a path, the topmost last."""
    return [kind for place, kind in _mounts(prefix) if place == path]


def clear_mounts(below: Path, prefix: Sequence[str] = ()) -> None:
    """Take away whatever of ours is mounted at or below a path."""
    for option in ("-u", "-uz", "-uz"):
        for place, kind in reversed(list(_mounts(prefix))):
            if kind == "fuse.skymount" and (place == below or below in place.parents):
                run([*prefix, "fusermount3", option, "--", place])
    left = [place for place, kind in _mounts(prefix) if kind == "fuse.skymount"]
    assert not any(place == below or below in place.parents for place in left), left


def _without_link(path: Path) -> Path:
    try:
        return path.parent / os.readlink(path)
    except OSError:
        return path


class NotifySocket:
    """The socket that systemd would listen at for what a daemon has to say."""

    def __init__(self, *, abstract: bool = False) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._directory = tempfile.TemporaryDirectory(
            prefix="sm"
        )  # a short path: 107 bytes at most
        if abstract:
            self.address = f"@skymount-test-{uuid4().hex}"
            self._socket.bind("\0" + self.address[1:])
        else:
            self.address = f"{self._directory.name}/notify"
            self._socket.bind(self.address)

    @property
    def has_message(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive(self, sender: "subprocess.Popen[Any] | None" = None) -> list[str]:
        """Return the lines of the next message; fail when the sender ends without one."""
        for _ in range(int(LIMIT * 10)):
            ended = sender is not None and sender.poll() is not None
            if select.select([self._socket], [], [], 0 if ended else 0.1)[0]:
                return self._socket.recv(4096).decode().splitlines()
            assert not ended, "the daemon ended without a word"
        raise TimeLimitError(f"no message in {LIMIT} s")

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        self._directory.cleanup()


_XATTRS = """
import errno, os, sys
path, *names = sys.argv[1:]
found = {}
for name in names:
    try:
        found[name] = os.getxattr(path, name)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
print(found)
"""


def xattrs(path: Path) -> dict[str, str]:
    """Return the extended attributes of a file."""
    found = ast.literal_eval(
        output([sys.executable, "-IS", "-c", _XATTRS, path, *ATTRIBUTES]).decode()
    )
    assert isinstance(found, dict)
    return {name: os.fsdecode(value) for name, value in found.items()}


@dataclass(frozen=True)
class Mount:
    """A mount by a daemon in the background."""

    path: Path
    daemon: Watched
    warnings: str
    """What the command that mounted it said on stderr."""
    prefix: Sequence[str] = ()

    def skylink(self, name: str) -> Path:
        return self.path / "skylinks" / name

    def status(self) -> dict[str, Any]:
        """Return what the daemon says about itself."""
        return read_status(self.path, self.prefix)


def read_status(path: Path, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Return the content of a mount's status.json."""
    found = json.loads(output([*prefix, "cat", path / ".skymount/status.json"]))
    assert isinstance(found, dict)
    return found


@dataclass(frozen=True)
class Foreground:
    """A mount by a daemon that is our child."""

    path: Path
    process: "subprocess.Popen[bytes]"
    notify: NotifySocket
    log: Path

    def wait(self, limit: float = LIMIT) -> int:
        """Wait until it ends; return its exit code."""
        return self.process.wait(limit)


_UNANSWERED = "fuse_reply_* failed with No such file or directory"
"""What pyfuse3 says when the kernel no longer waits for an answer, as while it unmounts."""


@dataclass(frozen=True)
class Sandbox:
    """A home directory, and the commands that run in it. `prefix` goes before each of them."""

    root: Path
    prefix: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, root: Path, prefix: Sequence[str] = ()) -> "Sandbox":
        found = cls(root, prefix)
        for name in ("home", "config", "state", "data", "cache", "run"):
            (root / name).mkdir(parents=True)
        (root / "run").chmod(0o700)
        return found

    @property
    def env(self) -> dict[str, str]:
        """The whole environment of its commands: nothing leaks in from ours."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "TMPDIR") or name.startswith("COVERAGE_")
        }
        return {
            **kept,
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.root / "home"),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "XDG_STATE_HOME": str(self.root / "state"),
            "XDG_DATA_HOME": str(self.root / "data"),
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "PYTHONPATH": str(SOURCE),
            **self.environment,
        }

    @property
    def log(self) -> Path:
        """The log of its daemon in the background, of the last one if there are several."""
        found = self.logs
        return max(found, key=lambda log: log.stat().st_mtime_ns) if found else self.root / "no.log"

    @property
    def logs(self) -> list[Path]:
        """The logs of its daemons in the background, one for each mount point."""
        return list((self.root / "state/skymount/log").glob("*.log"))

    def with_env(self, **more: str) -> "Sandbox":
        """Return the same sandbox with more environment variables."""
        return Sandbox(self.root, self.prefix, {**self.environment, **more})

    def within(self, prefix: Sequence[str]) -> "Sandbox":
        """Return the same sandbox with another prefix."""
        return Sandbox(self.root, prefix, self.environment)

    def configure(self, text: str) -> Path:
        path = self.root / "config/skymount/config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path

    def directory(self, name: str = "mnt") -> Path:
        """Return an empty directory in it, to mount on."""
        path = self.root / name
        path.mkdir(exist_ok=True)
        return path

    def directory_of(self, user: int, name: str = "mnt") -> Path:
        """Return an empty directory; it and the whole sandbox belong to that user."""
        path = self.directory(name)
        for each in (self.root, *self.root.rglob("*")):
            os.chown(each, user, user, follow_symlinks=False)
        return path

    def run(self, *command: str | Path, cwd: Path | None = None, limit: float = LIMIT) -> Done:
        return run([*self.prefix, *command], env=self.env, cwd=cwd, limit=limit)

    def skymount(
        self,
        *args: str | Path,
        stdin: str | bytes = b"",
        cwd: Path | None = None,
        limit: float = LIMIT,
    ) -> Done:
        """Run ``skymount`` with arguments."""
        words = [os.fspath(word) for word in args]
        command, given = [*self.prefix, *SKYMOUNT, *words], os.fsencode(stdin)
        if not self._can_fork(words, given):
            return run(command, env=self.env, cwd=cwd or self.root, stdin=given, limit=limit)
        try:
            code, out, err = command_server().run(
                words, env=self.env, cwd=cwd or self.root, stdin=given, limit=limit
            )
        except TimeoutError:
            raise TimeLimitError(f"still running after {limit} s: {command}") from None
        return subprocess.CompletedProcess(command, code, os.fsdecode(out), os.fsdecode(err))

    def _can_fork(self, args: Sequence[str], stdin: bytes) -> bool:
        """Whether a fork of the command server does as well as a new interpreter."""
        is_plain = all(name.startswith(("SKYMOUNT_", "XDG_", "HOME")) for name in self.environment)
        return is_plain and not self.prefix and args[:1] != ["mount"] and len(stdin) <= MAX_INPUT

    def succeed(self, *args: str | Path, cwd: Path | None = None) -> str:
        """Run ``skymount``, which must have nothing to complain about; return what it prints."""
        done = self.skymount(*args, cwd=cwd)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def fail(self, *args: str | Path, code: int = 1, cwd: Path | None = None) -> str:
        """Run ``skymount``, which must fail; return its one line on stderr, without its prefix."""
        done = self.skymount(*args, cwd=cwd)
        assert done.stdout == ""
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.endswith("\n")
        if "--json" in args:
            found = json.loads(done.stderr)
            assert found["exit_code"] == code
            return str(found["error"])
        assert done.stderr.startswith("skymount: ")
        return done.stderr.removeprefix("skymount: ").rstrip("\n")

    def fail_of_many_lines(self, *args: str | Path, code: int = 1) -> str:
        """Run ``skymount``, which must fail; return the last line on stderr, below its log."""
        done = self.skymount(*args)
        assert done.returncode == code, done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith("skymount: "), done.stderr
        return last.removeprefix("skymount: ")

    def upload(self, path: Path, portal: str) -> str:
        """Publish a file or a directory; return its skylink."""
        return self.succeed("upload", "--all", "--portal", portal, "--", path).rstrip("\n")

    @contextmanager
    def mounted(
        self,
        *args: str | Path,
        at: Path | None = None,
        clean: bool = True,
        limit: float = LIMIT,
    ) -> Iterator[Mount]:
        """Mount in the background with these arguments; clear it away at the end.

        Unless `clean` is off, the daemon must not have logged an error.
        """
        path = self.directory() if at is None else at
        daemon = None
        try:
            done = self.skymount("mount", *args, "--", path, limit=limit)
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
            daemon = Watched(read_status(path, self.prefix)["pid"])
            yield Mount(path, daemon, done.stderr, self.prefix)
        finally:
            try:
                clear_mounts(_without_link(path), self.prefix)
            finally:
                if daemon is not None:
                    daemon.end()
        if clean:
            self.assert_clean_log()

    def assert_clean_log(self) -> None:
        """Check that no daemon of this sandbox logged what nobody foresaw."""
        for log in self.logs:
            lines = log.read_text(errors="replace").splitlines(keepends=True)
            text = "".join(line for line in lines if _UNANSWERED not in line)
            assert " ERROR " not in text, text
            assert "Traceback" not in text, text

    @contextmanager
    def foreground(
        self, *args: str | Path, command: Sequence[str | Path] = (), at: Path | None = None
    ) -> Iterator[Foreground]:
        """Mount in the foreground, as systemd would; yields once it says that it is ready.

        `command` replaces the whole command line.
        """
        path = self.directory() if at is None else at
        notify = NotifySocket()
        log = self.root / f"foreground-{uuid4().hex}.log"
        words = command or [*SKYMOUNT, "mount", "--foreground", *args, path]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [os.fspath(word) for word in [*self.prefix, *words]],
                env={**self.env, "NOTIFY_SOCKET": notify.address},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            try:
                ready = notify.receive(process)
            except AssertionError as error:
                raise AssertionError(f"{error}: {log.read_text()}") from None
            assert ready[0] == "READY=1"
            yield Foreground(path, process, notify, log)
        finally:
            try:
                clear_mounts(path, self.prefix)
            finally:
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
                close_pipes(process)
                notify.close()

"""Real servers for tests of shared storage: PostgreSQL and two object stores."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[4]
S3RVER = ROOT / ".venv/s3rver/node_modules/.bin/s3rver"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
BUCKET = "portals"
KEEPER = Path(__file__).with_name("keeper.py")

_START_TIME = 60.0  # seconds
_numbers = itertools.count()


def postgres_programs() -> Path | None:
    """Return the directory of PostgreSQL's programs, None if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[4])
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    return Path(named).resolve().parent if named else None


def _kept(
    command: list[str], log: Path, signal: str, directory: str = "", user: str = ""
) -> subprocess.Popen[bytes]:
    """Start a server that ends with its standard input, and so with this process."""
    keeper = [sys.executable, "-I", str(KEEPER), signal, directory, user]
    with open(log, "wb") as written:
        return subprocess.Popen(
            [*keeper, *command],
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )


@dataclass
class Postgres:
    """A PostgreSQL of its own, which listens on a Unix socket."""

    programs: Path
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    user: str | None = field(default_factory=lambda: "nobody" if os.geteuid() == 0 else None)

    def prepare(self) -> None:
        if self.user:  # it refuses to run as root
            shutil.chown(self.directory, self.user)
        self.directory.chmod(0o755)
        data = str(self.directory / "data")
        initdb = [self.programs / "initdb", "-D", data, "-U", "skymount", "-A", "trust", "-N"]
        subprocess.run(
            [*initdb, "--no-locale", "-E", "UTF8"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self.user,
            cwd="/",
        )

    def start(self) -> None:
        command = [str(self.programs / "postgres"), "-D", str(self.directory / "data")]
        settings = ["listen_addresses=", f"unix_socket_directories={self.directory}"]
        settings += ["shared_buffers=16MB", "max_connections=80", "fsync=off"]
        command += (word for setting in settings for word in ("-c", setting))
        log = self.directory / "log"
        self.process = _kept(command, log, "SIGQUIT", str(self.directory), self.user or "")
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + _START_TIME
        while True:
            try:
                self.execute("postgres", "SELECT 1")
                return
            except subprocess.CalledProcessError:
                assert self.process is not None
                said = (self.directory / "log").read_text(errors="replace")
                assert self.process.poll() is None, said
                assert time.monotonic() < until, said
                time.sleep(0.05)

    def stop(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.communicate(b"keep", _START_TIME)
            self.process = None

    def execute(self, database: str, statement: str) -> str:
        """Run a statement; return its rows as text."""
        command = [self.programs / "psql", "-h", str(self.directory), "-U", "skymount", "-At"]
        done = subprocess.run(
            [*command, "-v", "ON_ERROR_STOP=1", "-d", database, "-c", statement],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def new_database(self) -> str:
        """Make an empty database; return its name."""
        name = f"portals{next(_numbers)}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return name

    def url(self, database: str) -> str:
        return f"postgresql://skymount@/{database}?host={self.directory}"


@contextmanager
def running_postgres(programs: Path) -> Iterator[Postgres]:
    # Not below pytest's directories, which only their owner may enter.
    base = Path(tempfile.gettempdir())
    if not all(each.stat().st_mode & 0o001 for each in (base, *base.parents)):
        base = Path("/tmp")
    directory = Path(tempfile.mkdtemp(prefix="skymount-pg-", dir=base))
    server = Postgres(programs, directory)
    try:
        server.prepare()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[str]:
    """Run a server that says where it listens; yields its URL."""
    process = _kept(command, log, "SIGKILL")  # it has nothing to lose
    try:
        until = time.monotonic() + _START_TIME
        while not (found := re.search(r"(127\.0\.0\.1:\d+)", log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < until
            time.sleep(0.05)
        yield f"http://{found[1]}"
    finally:
        process.communicate(timeout=_START_TIME)


@contextmanager
def running_moto(directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with _running(command, directory / "moto.log") as url:
        httpx.put(f"{url}/{BUCKET}").raise_for_status()
        yield url


@contextmanager
def running_s3rver(directory: Path) -> Iterator[str]:
    command = [str(S3RVER), "-d", str(directory / "s3rver"), "-a", "127.0.0.1", "-p", "0", "-s"]
    with _running([*command, "--configure-bucket", BUCKET], directory / "s3rver.log") as url:
        yield url


@dataclass(frozen=True)
class Shared:
    """A prefix of an object store, and a database, both empty at first."""

    endpoint: str
    postgres: Postgres
    database: str
    prefix: str
    key_file: Path

    @classmethod
    def new(cls, endpoint: str, postgres: Postgres, directory: Path) -> "Shared":
        key_file = directory / "key"
        key_file.write_text("5a" * 32)
        key_file.chmod(0o600)
        number = next(_numbers)
        return cls(endpoint, postgres, postgres.new_database(), f"test/{number}", key_file)

    @property
    def arguments(self) -> list[str]:
        return [
            *("--store", f"s3://{BUCKET}/{self.prefix}", "--s3-endpoint", self.endpoint),
            *("--database", self.postgres.url(self.database), "--key-file", str(self.key_file)),
        ]

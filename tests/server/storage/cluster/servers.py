"""Real servers for tests of shared storage: PostgreSQL and two object stores."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.ports import unused_port

ROOT = Path(__file__).resolve().parents[4]
S3RVER = ROOT / ".venvs/s3rver/node_modules/.bin/s3rver"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
BUCKET = "portals"
WITH_PASSWORD = "guarded"
"""The one user of the database that needs a password, once it was made."""
KEEPER = Path(__file__).with_name("keeper.py")
ATOMIC_PUT = Path(__file__).with_name("atomic_put.js")

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
    command: list[str],
    log: Path,
    end: str,
    directory: str = "",
    user: str = "",
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a server that ends with its standard input, by a signal, and so with this process.

    `prefix` runs it in another place.
    """
    keeper = [*prefix, sys.executable, "-I", str(KEEPER), end, directory, user]
    with open(log, "wb") as written:
        return subprocess.Popen(
            [*keeper, *command],
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )


def descendants(process: int) -> list[int]:
    """Return a process' children, theirs and so on."""
    try:
        listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [each for child in map(int, listed) for each in (child, *descendants(child))]


@contextmanager
def frozen(keeper: subprocess.Popen[bytes] | None) -> Iterator[None]:
    """Have a server accept connections, as the kernel does that, and answer nothing."""
    assert keeper is not None
    stopped: list[int] = []
    try:
        # Again, as one of them may have started another one meanwhile.
        while found := [each for each in descendants(keeper.pid) if each not in stopped]:
            for process in found:
                stopped.append(process)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
        yield
    finally:
        for process in stopped:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


@dataclass
class Postgres:
    """A PostgreSQL of its own, which listens on a Unix socket."""

    programs: Path
    directory: Path
    settings: Sequence[str] = ()
    """Further ones, NAME=VALUE."""
    port: int = 5432
    """Part of the socket's name; also used where `settings` has an address."""
    process: subprocess.Popen[bytes] | None = None
    user: str | None = field(default_factory=lambda: "nobody" if os.geteuid() == 0 else None)
    prefix: Sequence[str] = ()

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
        rules = self.directory / "data/pg_hba.conf"
        trusted = "local all all trust\nhost all all 127.0.0.1/32 trust\n"
        rules.write_text(f"local all {WITH_PASSWORD} scram-sha-256\n{trusted}")

    def start(self) -> None:
        command = [str(self.programs / "postgres"), "-D", str(self.directory / "data")]
        settings = ["listen_addresses=", f"unix_socket_directories={self.directory}"]
        settings += ["shared_buffers=16MB", "max_connections=80", "fsync=off"]
        settings += [f"port={self.port}", *self.settings]
        command += (word for setting in settings for word in ("-c", setting))
        log = self.directory / "log"
        where = str(self.directory), self.user or "", self.prefix
        self.process = _kept(command, log, "SIGQUIT", *where)
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

    def stop(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """End it as a crash would, or as another signal asks it to."""
        if self.process is not None:
            if number != signal.SIGQUIT:
                os.kill(descendants(self.process.pid)[0], number)
                self.process.wait(_START_TIME)
            self.process.communicate(b"keep", _START_TIME)
            self.process = None

    def client(self, program: str) -> list[str]:
        """Return the beginning of a command line of one of its client programs."""
        where = ["-h", str(self.directory), "-p", str(self.port), "-U", "skymount"]
        return [str(self.programs / program), *where]

    def execute(self, database: str, statement: str) -> str:
        """Run a statement; return its rows as text."""
        done = subprocess.run(
            [*self.client("psql"), "-At", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", statement],
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
        return f"postgresql://skymount@/{database}?host={self.directory}&port={self.port}"


@contextmanager
def running_postgres(
    programs: Path, prefix: Sequence[str] = (), settings: Sequence[str] = (), port: int = 5432
) -> Iterator[Postgres]:
    # Not below pytest's directories, which only their owner may enter.
    base = Path(tempfile.gettempdir())
    if not all(each.stat().st_mode & 0o001 for each in (base, *base.parents)):
        base = Path("/tmp")
    directory = Path(tempfile.mkdtemp(prefix="skymount-pg-", dir=base))
    server = Postgres(programs, directory, settings, port, prefix=prefix)
    try:
        server.prepare()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _started(
    command: list[str], log: Path, prefix: Sequence[str] = ()
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server that says where it listens; return its process and URL."""
    process = _kept(command, log, "SIGKILL", prefix=prefix)  # it has nothing to lose
    try:
        until = time.monotonic() + _START_TIME
        while not (found := re.search(r"(127\.0\.0\.1:\d+)", log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < until
            time.sleep(0.05)
        return process, f"http://{found[1]}"
    except BaseException:
        process.communicate(timeout=_START_TIME)
        raise


@contextmanager
def running_moto(directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process, url = _started(command, directory / "moto.log")
    try:
        httpx.put(f"{url}/{BUCKET}").raise_for_status()
        yield url
    finally:
        process.communicate(timeout=_START_TIME)


@contextmanager
def verified_signatures(moto: str) -> Iterator[tuple[str, str]]:
    """Have moto verify signatures; yield the key and the secret of one who may do everything."""

    def manage(action: str, **parameters: str) -> str:
        scope = "Credential=any/20260101/us-east-1/iam/aws4_request"
        done = httpx.post(
            moto,
            data={"Action": action, "UserName": "portal", **parameters},
            headers={"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=, Signature="},
        )
        return done.raise_for_status().text

    rules = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rules]})
    manage("CreateUser")
    manage("PutUserPolicy", PolicyName="all", PolicyDocument=policy)
    made = manage("CreateAccessKey")
    key, secret = re.findall("<(?:AccessKeyId|SecretAccessKey)>([^<]+)<", made)
    turns_on, turns_off = b"0", b"inf"  # requests that are not verified
    httpx.post(f"{moto}/moto-api/reset-auth", content=turns_on).raise_for_status()
    try:
        yield key, secret
    finally:
        httpx.post(f"{moto}/moto-api/reset-auth", content=turns_off).raise_for_status()
        manage("DeleteAccessKey", AccessKeyId=key)
        manage("DeleteUserPolicy", PolicyName="all")
        manage("DeleteUser")


@contextmanager
def running_s3rver(directory: Path) -> Iterator[str]:
    server = S3rver(directory)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@dataclass
class S3rver:
    """An object store that keeps its objects in a directory. It may be started again."""

    directory: Path
    prefix: Sequence[str] = ()
    url: str = ""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port = self.url.rpartition(":")[2] or str(unused_port())
        # Listings of more than 1000 objects need a cipher that OpenSSL 3 has as a legacy.
        command = ["node", "--openssl-legacy-provider", "-r", str(ATOMIC_PUT)]
        command.append(str(S3RVER.resolve()))
        command += ["-d", str(self.directory / "s3rver"), "-s"]
        command += ["-a", "127.0.0.1", "-p", port, "--configure-bucket", BUCKET]
        self.process, self.url = _started(command, self.log, self.prefix)

    @property
    def log(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}.log")

    def stop(self) -> None:
        if self.process is not None:
            self.process.communicate(timeout=_START_TIME)
            self.process = None


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

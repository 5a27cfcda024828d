"""The object store and the database that portals share, and what they can do without a portal."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import machine
from benchmarks.portal_load import SMALL, Load, body_request, get_request, send_all, send_for
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.entries import UPDATE
from skymount.server.storage.cluster.migrations import Tables
from skymount.wire.skylink import SECTOR_SIZE
from tests.server.storage.cluster.servers import (
    BUCKET,
    S3RVER,
    Postgres,
    postgres_programs,
    running_postgres,
    running_s3rver,
)

_SECTORS = 6  # that are put or read at once

# An entry of random bytes, as large as one that names a skylink.
_SCRIPT = """\\set n random(1, 2000000000)
{}
"""
_VALUES = {
    "id": "sha256(:n::text::bytea)",
    "public_key": "sha256('owner'::bytea)",
    "tweak": "sha256(:n::text::bytea)",
    "data": "decode(repeat('64', 34), 'hex')",
    "revision": "'\\x0000000000000001'::bytea",
    "kind": "1",
    "signature": "decode(repeat('73', 64), 'hex')",
    "work": "sha256(:n::text::bytea)",
}
_LATENCY = re.compile(r"^\d+ \d+ (\d+) ", re.MULTILINE)  # in microseconds
_RATE = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


def port_of(url: str) -> int:
    """Return the port of a server's URL."""
    port = urlsplit(url).port
    assert port is not None
    return port


@dataclass(frozen=True, slots=True)
class Engines:
    """A running PostgreSQL and a running s3rver."""

    postgres: Postgres
    endpoint: str
    s3rver: int
    """Its process."""

    @property
    def processes(self) -> tuple[int, int]:
        """Those of s3rver and of PostgreSQL, which have all others as children."""
        assert self.postgres.process is not None
        return self.s3rver, self.postgres.process.pid

    def put_small(self, seconds: float, connections: int) -> Load:
        """Put objects of the size of a small file, without signatures."""
        return send_for(seconds, port_of(self.endpoint), _puts(SMALL), connections)

    def put_sectors(self, size: int) -> Load:
        """Put sectors, some at once."""
        puts = islice(_puts(SECTOR_SIZE), size // SECTOR_SIZE)
        return send_all(port_of(self.endpoint), puts, _SECTORS)

    def get_sectors(self, size: int) -> Load:
        """Get the sectors that were put."""
        gets = (get_request(_name(SECTOR_SIZE, each)) for each in range(size // SECTOR_SIZE))
        return send_all(port_of(self.endpoint), gets, _SECTORS)

    def update_entries(self, work: Path, seconds: float, connections: int) -> Load:
        """Run the statement of the registry by PostgreSQL's own load program."""
        database = self.postgres.new_database()
        with closing(Database.open(self.postgres.url(database), Tables.UPDATE)):
            pass
        script = work / f"{database}.sql"
        script.write_text(_SCRIPT.format(" ".join(_statement().split())))
        command = [*self.postgres.client("pgbench"), "--no-vacuum", "--protocol=prepared", "--log"]
        command += [
            f"--log-prefix={work / database}",
            f"--file={script}",
            f"--client={connections}",
        ]
        said = machine.run(*command, f"--time={max(1, round(seconds))}", "--jobs=2", database)
        logs = [each.read_text() for each in work.glob(f"{database}.*") if each != script]
        latencies = [int(found) / 1e6 for log in logs for found in _LATENCY.findall(log)]
        rate = _RATE.search(said)
        if rate is None or not latencies:
            raise machine.BenchmarkError(f"pgbench: {said}")
        return Load(len(latencies) / float(rate[1]), latencies)


def _statement() -> str:
    return UPDATE.replace("%s", "{}").format(*_VALUES.values())


def _name(size: int, number: int) -> str:
    return f"/{BUCKET}/bare-{size}/{number}"


def _puts(size: int) -> Iterator[bytes]:
    content = os.urandom(size)
    for number in count():
        yield body_request("PUT", _name(size, number), content)


def _children() -> set[int]:
    this = os.getpid()
    return {*map(int, Path(f"/proc/{this}/task/{this}/children").read_text().split())}


@contextmanager
def running_engines(work: Path) -> Iterator[Engines]:
    """Run both. PostgreSQL makes what it commits durable; s3rver does not."""
    programs = postgres_programs()
    if programs is None:
        raise machine.BenchmarkError("PostgreSQL is not installed")
    if not S3RVER.exists():
        raise machine.BenchmarkError("s3rver is not installed: see .ci/run")
    settings = ("fsync=on", "shared_buffers=256MB", "listen_addresses=127.0.0.1")
    with ExitStack() as stack:
        started = running_postgres(programs, settings=settings, port=machine.free_port())
        postgres = stack.enter_context(started)
        before = _children()
        directory = work / "s3rver"  # its log is beside it
        directory.mkdir()
        endpoint = stack.enter_context(running_s3rver(directory))
        (s3rver,) = _children() - before
        yield Engines(postgres, endpoint, s3rver)

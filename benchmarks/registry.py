#!/usr/bin/env python3
"""Measure entries and names in a mount whose portal is some way off; prints a table.

    .venv/bin/python benchmarks/registry.py [--rounds N] [--delay MILLISECONDS]

The portal is the embedded one, behind a proxy that holds back what passes by half the delay each
way, and counts requests; a new connection costs one delay more, as TCP's handshake does. Nothing is
left behind.
"""

import argparse
import asyncio
import contextlib
import ctypes
import http.client
import multiprocessing
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, hash_data_key

SKYMOUNT = [sys.executable, "-m", "skymount"]
ENTRIES = 100
WRITERS = 16
FILES = 10_000
SIGNATURES = 500
REGISTRY_TTL = 2.0  # seconds: the default
IDLE = 6.0  # seconds: more than httpx keeps a connection that nobody uses, unless told otherwise
HNS_TTL = 1.0  # seconds
ONE = f"one of {ENTRIES} writes in a row"
MANY = f"{ENTRIES} writes by {WRITERS} processes at once"
REQUEST = re.compile(rb"(GET|HEAD|POST) /\S* HTTP/1\.1\r\n")

fork = multiprocessing.get_context("fork")


# --- the portal that is some way off


class Proxy:
    """A proxy in a process of its own."""

    def __init__(self, upstream: str, delay: float) -> None:
        """`delay` is seconds that a round trip takes longer."""
        self._upstream = urlsplit(upstream)
        self._delay = delay
        self._count: Any = fork.Value(ctypes.c_ulong)
        self._port: Any = fork.Value(ctypes.c_int)
        self._ready = fork.Event()
        self._process: BaseProcess = fork.Process(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "Proxy":
        self._process.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port.value}"

    @property
    def requests(self) -> int:
        """How many passed so far."""
        return int(self._count.value)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port.value = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _accept(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        host, port = self._upstream.hostname, self._upstream.port
        server, requests = await asyncio.open_connection(host, port)
        await asyncio.sleep(self._delay)
        await asyncio.gather(
            self._forward(client, requests, is_request=True),
            self._forward(server, answers, is_request=False),
        )

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_request: bool
    ) -> None:
        """Pass on what comes, each piece half the delay after it came."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        clock = asyncio.get_running_loop().time

        async def send() -> None:
            while True:
                due, piece = await waiting.get()
                await asyncio.sleep(due - clock())
                if not piece:
                    target.close()
                    return
                target.write(piece)

        sending = asyncio.create_task(send())
        with contextlib.suppress(OSError):
            while piece := await source.read(1 << 20):
                if is_request:
                    with self._count.get_lock():
                        self._count.value += len(REQUEST.findall(piece))
                waiting.put_nowait((clock() + self._delay / 2, piece))
        waiting.put_nowait((clock() + self._delay / 2, b""))
        await sending


# --- commands


def run(*command: str, **options: Any) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, **options)
    return str(done.stdout)


@dataclass(frozen=True)
class Portal:
    """A running portal."""

    url: str
    pid: int


@contextmanager
def embedded_portal(data: Path) -> Iterator["Portal"]:
    """Run the embedded portal."""
    command = [*SKYMOUNT, "portal", "serve", "--listen", "127.0.0.1:0", "--data", str(data)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield Portal(server.stdout.readline().split()[-1], server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


@contextmanager
def skymount(place: Path, portal: str, **env: str) -> Iterator[Path]:
    """Mount."""
    place.mkdir(exist_ok=True)
    run(*SKYMOUNT, "mount", str(place), "--portal", portal, env={**os.environ, **env})
    try:
        yield place
    finally:
        run(*SKYMOUNT, "umount", str(place))


def read(path: Path) -> bytes:
    """Read a file as cat does."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fstat(file)
        return os.read(file, 4096)
    finally:
        os.close(file)


def write(path: Path, data: bytes) -> None:
    """Write a file as a shell's redirection does; closing it has the result."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(file, data)
    finally:
        os.close(file)


# --- the table


@dataclass
class Row:
    """What one thing took, round by round."""

    seconds: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)


@dataclass
class Table:
    """What everything took. `delay` is seconds of a round trip."""

    proxy: Proxy
    delay: float
    rows: dict[str, Row] = field(default_factory=dict)

    def measure(
        self, name: str, work: Callable[..., object], *args: object, count: int = 1
    ) -> None:
        """Do something and record what it took, divided by `count`."""
        before, start = self.proxy.requests, time.perf_counter()
        work(*args)
        seconds = time.perf_counter() - start
        self.add(name, seconds / count, (self.proxy.requests - before) // count)

    def add(self, name: str, seconds: float, requests: int) -> None:
        """Record what one round took."""
        row = self.rows.setdefault(name, Row())
        row.seconds.append(seconds)
        row.requests.append(requests)
        print(f"  {name}: {seconds * 1000:.3g} ms, {requests} requests", file=sys.stderr)

    def median(self, name: str) -> float:
        """Return the median of seconds."""
        return statistics.median(self.rows[name].seconds)

    def print(self) -> None:
        """Print every row."""
        print("| figure | median | least | most | time / delay | requests |")
        print("|---|---|---|---|---|---|")
        for name, row in self.rows.items():
            times = (statistics.median(row.seconds), min(row.seconds), max(row.seconds))
            columns = [f"{1000 * seconds:.3g} ms" for seconds in times]
            columns += [f"{times[0] / self.delay:.2f}" if any(row.requests) else ""]
            requests = sorted({*row.requests})
            columns += ["-".join(map(str, {requests[0]: None, requests[-1]: None}))]
            print(f"| {name} | {' | '.join(columns)} |")


# --- what is measured


def measure_requests(table: Table) -> None:
    """What a request costs without a mount, on an open connection."""
    address = urlsplit(table.proxy.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)

    def ask() -> None:
        key = "/svc/registry?publickey=ed25519%3A" + "ab" * 32 + "&datakey=" + "00" * 32
        connection.request("GET", key, headers={"User-Agent": "svc-agent"})
        connection.getresponse().read()

    ask()
    for _ in range(10):
        table.measure("one request, without a mount", ask)
    connection.close()


def measure_signing(table: Table, rounds: int) -> None:
    """Signing and verifying, one after the other."""
    pair = SigningKeyPair.from_seed("insecure seed of a benchmark")

    def sign() -> None:
        for number in range(SIGNATURES):
            entry = Entry(hash_data_key("key"), b"x" * 100, number)
            entry.sign(pair.private_key).verify()

    for _ in range(rounds):
        table.measure("signing and verifying one entry", sign, count=SIGNATURES)


def measure_entries(table: Table, directory: Path, rounds: int) -> None:
    """Single reads and writes."""
    for turn in range(rounds):
        known, new = directory / "known", directory / f"new-{turn}"
        table.measure("write of a new entry", write, new, b"%d" % turn)
        write(known, b"a%d" % turn)
        table.measure("read of a known entry, just written", read, known)
        time.sleep(REGISTRY_TTL + 0.1)
        table.measure("read of a known entry, last seen 2 s ago", read, known)
        table.measure("stat of a known entry, just read", os.stat, known)
        table.measure("write of a known entry, just read", write, known, b"b%d" % turn)
        table.measure("write of a known entry, just written", write, known, b"c%d" % turn)
        time.sleep(REGISTRY_TTL + 0.1)
        table.measure("stat of a known entry, last seen 2 s ago", os.stat, known)
        time.sleep(REGISTRY_TTL + 0.1)
        table.measure("write of a known entry, last seen 2 s ago", write, known, b"d%d" % turn)
        time.sleep(IDLE)
        table.measure("read of a known entry, nothing asked for 6 s", read, known)
        table.measure("append to a known entry, just written", append, known)
        table.measure("stat of an absent entry", known.with_name(f"absent-{turn}").exists)
        scratch = directory / f".known.sw{chr(97 + turn % 26)}"
        table.measure("write of a scratch file", write, scratch, b"e%d" % turn)
        table.measure("rename of it onto the entry", os.rename, scratch, known)
        table.measure("rename of an entry", os.rename, new, directory / f"moved-{turn}")
        table.measure("removal of an entry", os.unlink, directory / f"moved-{turn}")


def measure_documents(table: Table, directory: Path, rounds: int) -> None:
    """Single reads and writes of SkyDB."""
    for turn in range(rounds):
        known, new = directory / "document.json", directory / f"document-{turn}.json"
        table.measure("write of a new document", write, new, b"[%d]" % turn)
        write(known, b"[%d]" % turn)
        table.measure("read of a known document, just written", read, known)
        time.sleep(REGISTRY_TTL + 0.1)
        table.measure(
            "write of a known document, last seen 2 s ago", write, known, b"[1, %d]" % turn
        )


def append(path: Path) -> None:
    """Append to a file as a shell does."""
    with path.open("ab", buffering=0) as file:
        file.write(b"+")


def measure_many(table: Table, directory: Path, rounds: int, servers: dict[str, int]) -> None:
    """As many writes as there are entries, one after another and then by many processes.

    `servers` are the processes whose share of the processor is told, by name.
    """
    paths = [directory / f"many-{number}" for number in range(ENTRIES)]

    def write_all(chosen: list[Path], mark: bytes) -> None:
        for path in chosen:
            write(path, mark + path.name.encode())

    write_all(paths, b"first")
    for turn in range(rounds):
        table.measure(ONE, write_all, paths, b"s%d-" % turn, count=ENTRIES)
        start, stop = fork.Barrier(WRITERS + 1), fork.Barrier(WRITERS + 1)

        def work(mine: list[Path], turn: int = turn, start: Any = start, stop: Any = stop) -> None:
            start.wait()
            write_all(mine, b"p%d-" % turn)
            stop.wait()

        shares = [paths[number::WRITERS] for number in range(WRITERS)]
        writers = [fork.Process(target=work, args=(share,)) for share in shares]
        for writer in writers:
            writer.start()
        time.sleep(REGISTRY_TTL + 0.1)
        before = {name: cpu_time(pid) for name, pid in servers.items()}
        start.wait()
        table.measure(MANY, stop.wait)
        for name, pid in servers.items():
            table.add(f"processor time of the {name} for these", cpu_time(pid) - before[name], 0)
        for writer in writers:
            writer.join()


def cpu_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_find(table: Table, work: Path, portal: str, rounds: int) -> None:
    """A find in a domain's tree, by itself and while the domain's record changes."""
    links = []
    for mark in ("old", "new"):
        for number in range(FILES):
            file = work / mark / f"{number // 100:03}" / f"{number:05}-{mark}"
            if number % 100 == 0:
                file.parent.mkdir(parents=True)
            file.write_bytes(b"")
        links.append(run(*SKYMOUNT, "upload", str(work / mark), "--portal", portal).strip())

    def lead(link: str) -> None:
        run(*SKYMOUNT, "portal", "hns", "set", "--data", str(work / "portal"), "site", link)

    def find(tree: Path) -> None:
        found = run("find", str(tree), "-type", "f").splitlines()
        marks = {line.rpartition("-")[2] for line in found}
        if len(found) != FILES or len(marks) != 1:
            raise SystemExit(f"find saw {len(found)} files of {marks}")

    def until_new(tree: Path) -> None:
        while os.getxattr(tree, "user.skymount.skylink") != links[1].encode():
            time.sleep(0.001)

    for _ in range(rounds):
        lead(links[0])
        with skymount(work / "sky", table.proxy.url, SKYMOUNT_HNS_TTL=str(HNS_TTL)) as place:
            tree = place / "hns/site"
            table.measure(f"find of {FILES} files, cold", find, tree)
            table.measure("the same again", find, tree)
            finding = fork.Process(target=lambda tree=tree: [find(tree) for _ in range(12)])
            finding.start()
            lead(links[1])
            table.measure(f"until a changed record is seen (ttl {HNS_TTL:g} s)", until_new, tree)
            finding.join()
            if finding.exitcode:
                raise SystemExit("find did not see one tree")
            table.measure("the same in the new tree", find, tree)


def main() -> None:
    """Measure everything."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--delay", type=float, default=50.0, help="milliseconds of a round trip")
    given = options.parse_args()
    delay = given.delay / 1000
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("CONFIG", "DATA", "STATE", "CACHE"):
            os.environ[f"XDG_{name}_HOME"] = str(work / name.lower())
        portal = stack.enter_context(embedded_portal(work / "portal"))
        table = Table(stack.enter_context(Proxy(portal.url, delay)), delay)
        run(*SKYMOUNT, "key", "generate", "home")
        measure_signing(table, given.rounds)
        measure_requests(table)
        with skymount(work / "sky", table.proxy.url) as place:
            directory = place / "registry/home"
            write(directory / "warm-up", b"x")
            measure_entries(table, directory, given.rounds)
            measure_documents(table, place / "skydb/home", given.rounds)
            daemon = int(os.getxattr(place, "user.skymount.pid"))
            servers = {"daemon": daemon, "portal": portal.pid}
            measure_many(table, directory, given.rounds, servers)
        measure_find(table, work, portal.url, given.rounds)
    print(
        f"{time.strftime('%Y-%m-%d')}, Linux {platform.release()}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}, {given.delay:g} ms of added round-trip time, "
        f"{given.rounds} rounds\n"
    )
    table.print()
    waves = table.median(MANY) / table.median(ONE) * WRITERS / ENTRIES
    print(f"\n{MANY}: {waves:.2f} times the time of {ENTRIES}/{WRITERS} in a row")


if __name__ == "__main__":
    main()

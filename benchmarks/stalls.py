#!/usr/bin/env python3
"""Measure for how long a mount's event loop stands still when it gets the largest inputs that it
accepts; prints a table.

    .venv/bin/python benchmarks/stalls.py [--million N] [--details] [SCENE ...]

In the daemon a task sleeps a millisecond at a time, and notes by how much it came too late: nothing
else was answered meanwhile. Only as much of that counts as the daemon took of the processors, less
the time for which the loop could run and had none: what other programs take is left out. Told are
the worst, and how often it was over 5 ms. Nothing is left behind.
"""

import argparse
import gc
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from skymount.__main__ import main as skymount
from skymount.keyring import Keyring
from skymount.portal.ledger.ledger import Ledger
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.metadata import Metadata, Subfile, encode_metadata
from skymount.wire.registry_entry import hash_data_key
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, Headers, Reply, Request, in_thread
from tests.fakes.resolving import FakeRegistry
from tests.fakes.skyfiles import FakeSkyfile
from tests.portal_process import running_portal
from tests.server.registry_entries import link_of, signed
from tests.skymount_process import Sandbox

TICK = 0.001  # seconds
NOTED = 0.002  # seconds of a stall that is written down
BOUND = 0.005  # seconds that nothing may take


# --- in the daemon


class Notes:
    """What is noted, a line each: the time, what it is, and its milliseconds."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, kind: str, seconds: float, what: str) -> None:
        """Note something."""
        os.write(self._file, f"{time.monotonic()} {kind} {seconds * 1000:.2f} {what}\n".encode())


class Steps(trio.abc.Instrument):
    """Notes the long steps of single tasks."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._begun = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begun = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        taken = time.thread_time() - self._begun
        if taken > NOTED:
            self._notes.add("step", taken, f"{task.name} {' '.join(_calls(task.coro)[-4:])}")


def _calls(coro: Any) -> list[str]:
    """Return where a task stands, from the outside in."""
    found = []
    while getattr(coro, "cr_frame", None) is not None:
        found.append(f"{coro.cr_frame.f_code.co_name}:{coro.cr_frame.f_lineno}")
        coro = coro.cr_await
    return found


async def tick(notes: Notes) -> None:
    """Note how long the loop stands still."""
    schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def waited() -> float:
        """Return the seconds for which this thread could run, and had no processor."""
        return int(os.pread(schedule, 100, 0).split()[1]) / 1e9

    while True:
        begun, used, before = time.monotonic(), time.process_time(), waited()
        await trio.sleep(TICK)
        late = time.monotonic() - begun - TICK
        if late > NOTED:
            stalled = min(late - (waited() - before), time.process_time() - used)
            if stalled > NOTED:
                notes.add("stall", stalled, f"late {late * 1000:.1f}")


def meter(log: str, arguments: list[str]) -> None:
    """Run the ``skymount`` command with a task beside it that notes stalls."""
    notes, run, collecting = Notes(log), trio.run, 0.0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal collecting
        if phase == "start":
            collecting = time.thread_time()
        elif (taken := time.thread_time() - collecting) > NOTED / 2:
            notes.add("gc", taken, f"generation {info['generation']}")

    def run_with_meter(function: Callable[[], Any], **options: Any) -> Any:
        async def both() -> Any:
            trio.lowlevel.spawn_system_task(tick, notes)
            return await function()

        gc.callbacks.append(collected)
        return run(both, **options, instruments=[Steps(notes)])

    trio.run = run_with_meter
    sys.argv[1:] = arguments
    skymount()


# --- the scenes


@dataclass(frozen=True)
class Stalls:
    """What was noted in some time."""

    worst: float = 0.0
    """Milliseconds."""
    count: int = 0
    """Of those over the bound."""
    details: str = ""

    def __add__(self, other: "Stalls") -> "Stalls":
        worst, count = max(self.worst, other.worst), self.count + other.count
        return Stalls(worst, count, f"{self.details}\n{other.details}".strip("\n"))


Figure = tuple[str, Stalls]


class Stage:
    """A mount of a portal, of made-up content unless another is named, and what its meter noted."""

    def __init__(self, root: Path, *arguments: str, portal: str = "", **more: str) -> None:
        self._stack = ExitStack()
        self.portal = FakePortal()
        self._url = portal or self._stack.enter_context(in_thread(self.portal)).url
        home = root / "sandbox"
        made = Sandbox(home) if home.exists() else Sandbox.make(home)
        self.sandbox = made.with_env(**more)
        self._log = root / f"notes-{time.monotonic_ns()}"
        self._arguments = arguments

    def __enter__(self) -> "Stage":
        path = self.sandbox.directory()
        options = ["mount", "--foreground", "--portal", self._url, *self._arguments, str(path)]
        command = [sys.executable, __file__, "--meter", str(self._log), *options]
        mount = self._stack.enter_context(self.sandbox.foreground(command=command, at=path))
        self.path = mount.path
        time.sleep(0.3)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def skylink(self, name: object) -> Path:
        """Return the directory of a skylink."""
        return self.path / "skylinks" / str(name)

    def load(self, directory: Path, rest: float = 0.5) -> Stalls:
        """Have a tree loaded; return what was noted meanwhile."""
        return self.measured("test", "!", "-e", directory / "none", rest=rest)

    def forget_all(self) -> Stalls:
        """Have the kernel drop what it knows of the names; return what was noted meanwhile."""
        return self.measured("mount", "-i", "-o", "remount,ro", self.path)

    def measured(self, *command: object, rest: float = 0.5) -> Stalls:
        """Run a command; return what was noted meanwhile, and for some seconds after."""
        begun = time.monotonic()
        words = [str(word) for word in command]
        done = subprocess.run(words, check=False, capture_output=True, timeout=300)
        if done.returncode:
            print(f"    {words[0]} failed: {done.stderr[-200:]!r}")
        time.sleep(rest)
        stalls, details = [], []
        for line in self._log.read_text().splitlines():
            at, kind, taken, *what = line.split(" ")
            if float(at) >= begun:
                if kind == "stall":
                    stalls.append(float(taken))
                if kind != "stall" or float(taken) > BOUND * 1000:
                    after = float(at) - begun
                    details.append(f"    {after:8.3f} {kind} {taken} {' '.join(what)}")
        over = sum(each > BOUND * 1000 for each in stalls)
        return Stalls(max(stalls, default=0.0), over, "\n".join(details))


@contextmanager
def place() -> Iterator[Path]:
    """Yield a directory for a while."""
    with tempfile.TemporaryDirectory(prefix="stalls") as name:
        yield Path(name)


def skyfile_of(count: int, mark: str = "") -> FakeSkyfile:
    """Return content of so many files of a byte each."""
    names = [f"file-{n:07}{mark}.txt" for n in range(count)]
    found = {name: Subfile(0o644, name, "text/plain", n, 1) for n, name in enumerate(names)}
    raw = encode_metadata(Metadata("site", count, subfiles=found))
    return skyfiles.of_metadata(raw, b"x" * count)


def trees(million: int) -> Iterator[Figure]:
    """A tree of very many files: from base sectors, by hand of the kernel, and from disk."""
    big = skyfile_of(million)
    with place() as root:
        with Stage(root) as stage:
            stage.portal.add(big)
            link = stage.skylink(big.name)
            yield f"{million} files: loaded", stage.load(link, 3)
            yield "  find", stage.measured("find", link, "-name", "nothing")
            yield "  forgotten", stage.forget_all()
            yield "  ls -l", stage.measured("ls", "-l", link)
            status = stage.path / ".skymount/status.json"
            yield (
                "  df, attributes, status",
                (
                    stage.measured("df", stage.path)
                    + stage.measured("getfattr", "-d", "-m-", link)
                    + stage.measured("cat", status)
                ),
            )
        with Stage(root) as stage:
            stage.portal.add(big)
            yield "  loaded from disk", stage.load(stage.skylink(big.name), 2)


def words(million: int) -> Iterator[Figure]:
    """The same by a portal's word: in a header, and at the metadata endpoint."""
    for title, by_header, count in (
        ("header", True, million * 4 // 10),  # 64 MiB is the limit
        ("endpoint", False, million),
    ):
        big = skyfile_of(count)
        with place() as root, Stage(root) as stage:
            stage.portal.base_sectors = False
            stage.portal.metadata_header = by_header
            stage.portal.add(big)
            yield f"{count} files by {title}: loaded", stage.load(stage.skylink(big.name), 3)


def moving(million: int) -> Iterator[Figure]:
    """A name that leads to one large tree, then to another."""
    first, second = skyfile_of(million), skyfile_of(million, mark="b")
    with place() as root, Stage(root, SKYMOUNT_HNS_TTL="1") as stage:
        registry = FakeRegistry(stage.portal)
        stage.portal.add(first, second)
        registry.set(signed("key", bytes(first.skylink)))
        link = stage.skylink(link_of("key"))
        yield f"v2, {million} files: loaded", stage.load(link)
        yield "  listed", stage.measured("ls", "-U", link)
        registry.set(signed("key", bytes(second.skylink), 1))
        found = Stalls()
        for _ in range(12):
            found += stage.load(link)
        yield "  another in its place", found
        yield "  forgotten", stage.forget_all()


def metadata(_: int) -> Iterator[Figure]:
    """Metadata that the mount itself reads, of all sorts."""
    size = 95 << 10
    start = b'{"filename":"x","length":3,"mode":"",'
    numbers = start + b'"x":[' + b"1," * (size // 2 - 40) + b"1]}"
    lists = start + b'"x":[' + b"[]," * (size // 3 - 30) + b"[]]}"
    objects = start + b'"x":[' + b",".join(b'{"%x":{}}' % n for n in range(size // 13)) + b"]}"
    rejected = {f"{n:x}": {"offset": "a", "x": []} for n in range(2900)}
    odd = json.dumps({"filename": "x", "length": 3, "subfiles": rejected}).encode()
    deep = "/".join("a" * 2000)
    subfiles = {f"{n}/{deep}/x": Subfile(filename="x", len=1) for n in range(23)}
    with place() as root, Stage(root) as stage:
        for title, raw in (
            ("of 860 files", skyfile_of(860).metadata),
            ("of 2,900 rejected files", odd),
            ("of 46,000 directories", encode_metadata(Metadata("x", 3, subfiles=subfiles))),
            ("full of lists", lists),
            ("full of objects", objects),
            ("full of numbers", numbers),
        ):
            found = Stalls()
            for n in range(5):
                one = skyfiles.of_metadata(raw, bytes([65 + n]) * 3)
                stage.portal.add(one)
                found += stage.measured("stat", stage.skylink(one.name), rest=0.2)
            yield f"metadata of {len(raw) >> 10} KiB, {title}", found


def heads(_: int) -> Iterator[Figure]:
    """Heads of answers with as much in them as is taken."""
    for title, count, size in (
        ("240 short lines", 240, 1),
        ("240 lines of 500 bytes", 240, 500),
        ("7 lines of 16 KiB", 7, 16_000),
    ):
        more = tuple((b"X-%d" % n, b"y" * size) for n in range(count))

        def longer(_: Request, reply: Reply, more: Headers = more) -> Reply:
            return replace(reply, headers=(*reply.headers, *more))

        with place() as root, Stage(root) as stage:
            stage.portal.fault(longer)
            found = Stalls()
            for n in range(5):
                one = skyfiles.of_files({"f": bytes([65 + n])})
                stage.portal.add(one)
                found += stage.measured("stat", stage.skylink(one.name), rest=0.2)
            yield f"a head of {title}", found


def documents(_: int) -> Iterator[Figure]:
    """Large documents in skydb, at the embedded portal."""
    with place() as root, running_portal(root) as portal:
        for mib in (1, 10, 50):
            source = root / f"{mib}.json"
            rows = [{"id": n, "name": f"name {n}", "list": [n, n]} for n in range(mib * 17_500)]
            source.write_text(json.dumps(rows))
            with Stage(root, portal=portal) as stage:
                if mib == 1:
                    pair = SigningKeyPair.from_seed("insecure stalls")
                    Keyring(root / "sandbox/data/skymount/keys").add("home", pair)
                file = stage.path / f"skydb/home/{mib}.json"
                size = source.stat().st_size / (1 << 20)
                yield f"document of {size:.1f} MiB: written", stage.measured("cp", source, file)
                yield "  appended to", stage.measured("sh", "-c", f"echo >> {file}")
            with Stage(root, portal=portal) as stage:
                file = stage.path / f"skydb/home/{mib}.json"
                yield "  read", stage.measured("cat", file)
                yield "  read again", stage.measured("cat", file)


def registry(_: int) -> Iterator[Figure]:
    """A directory of many registry entries."""
    pair = SigningKeyPair.from_seed("insecure stalls")
    for count in (1_000, 10_000, 100_000):
        with place() as root, ExitStack() as stack:
            stage = Stage(root)
            path = stage.sandbox.root / "state/skymount/ledger.sqlite3"
            Ledger.open(path).close()
            with closing(sqlite3.connect(path)) as database:
                keys = [(hash_data_key(f"key {n}"), b"key %d" % n) for n in range(count)]
                database.executemany(
                    "INSERT INTO entries (public_key, tweak, data_key, named) VALUES (?, ?, ?, 1)",
                    [(pair.public_key, tweak, key) for tweak, key in keys],
                )
                database.commit()
            stack.enter_context(stage)
            directory = stage.path / "registry" / pair.public_hex
            yield f"{count} entries: listed", stage.measured("ls", "-U", directory)
            yield "  again", stage.measured("ls", "-U", directory)
            yield "  forgotten", stage.forget_all()


def small(_: int) -> Iterator[Figure]:
    """Many small units in the memory cache, pushed out by a large one."""
    with place() as root, Stage(root, "--memory-cache", "16 MiB") as stage:
        many = [skyfiles.of_files({"f": b"%07d" % n * 150}) for n in range(15_000)]
        large = skyfiles.of_files({"f": skyfiles.noise(12 << 20)})
        stage.portal.add(*many, large)
        files = [stage.skylink(one.name) / "f" for one in many]
        found = Stalls()
        for at in range(0, len(files), 500):
            found += stage.measured("cat", *files[at : at + 500], rest=0)
        yield f"{len(many)} skylinks read", found
        yield "  pushed out", stage.measured("cat", stage.skylink(large.name) / "f")


SCENES = (trees, words, moving, metadata, heads, documents, registry, small)


def main() -> None:
    """Measure."""
    if sys.argv[1:2] == ["--meter"]:
        meter(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", type=int, default=1_000_000, help="files in a large tree")
    parser.add_argument("--details", action="store_true", help="what was noted, line by line")
    parser.add_argument("scenes", nargs="*", help=" ".join(each.__name__ for each in SCENES))
    chosen = parser.parse_args()
    for scene in SCENES:
        if not chosen.scenes or scene.__name__ in chosen.scenes:
            for title, found in scene(chosen.million):
                print(f"{title:50} {found.worst:7.1f} ms {found.count:5}", flush=True)
                if chosen.details and found.details:
                    print(found.details)


if __name__ == "__main__":
    main()

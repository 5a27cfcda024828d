#!/usr/bin/env python3
"""Measure for how long a mount's event loop stands still when it gets the largest inputs that it
accepts; prints a table.

    .venv/bin/python benchmarks/stalls.py [--million N] [SCENE ...]

In the daemon a task sleeps a millisecond at a time, and notes by how much it came too late: nothing
else was answered meanwhile. Of that only as much counts as the daemon took of the processors, so
what other programs take is left out. The worst is told, and how often it was over 5 ms. Nothing is
left behind.
"""

import argparse
import gc
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

TICK = 0.001  # seconds
NOTED = 0.002  # seconds of a stall that is written down
BOUND = 0.005  # seconds that nothing may take


# --- in the daemon


def _waited(file: Any) -> float:
    """Return the seconds for which this thread could run, and had no processor."""
    return int(os.pread(file.fileno(), 100, 0).split()[1]) / 1e9


def meter(log: str, arguments: list[str]) -> None:
    """Run the ``skymount`` command with a task beside it that notes stalls."""
    import trio

    from skymount.__main__ import main

    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    run = trio.run

    def note(kind: str, seconds: float, what: str = "") -> None:
        os.write(notes, f"{time.monotonic()} {kind} {seconds * 1000:.2f} {what}\n".encode())

    async def tick() -> None:
        waiting = open("/proc/thread-self/schedstat", "rb", buffering=0)  # noqa: ASYNC230, SIM115
        while True:
            begun, used, waited = time.monotonic(), time.process_time(), _waited(waiting)
            await trio.sleep(TICK)
            late = time.monotonic() - begun - TICK
            if late > NOTED:
                stalled = min(
                    late - (_waited(waiting) - waited), time.process_time() - used
                )
                if stalled > NOTED:
                    note("stall", stalled, f"late {late * 1000:.1f}")

    class Steps(trio.abc.Instrument):
        """Notes the long steps of single tasks."""

        begun = 0.0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.begun = time.thread_time()

        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            taken = time.thread_time() - self.begun
            if taken > NOTED:
                frames = [
                    f"{frame.f_code.co_name}:{frame.f_lineno}" for frame, _ in _frames(task.coro)
                ]
                note("step", taken, f"{task.name} {' '.join(frames[-4:])}")

    def _frames(coro: Any) -> Iterator[tuple[Any, Any]]:
        while coro is not None and getattr(coro, "cr_frame", None) is not None:
            yield coro.cr_frame, None
            coro = coro.cr_await

    collected = 0.0

    def collecting(phase: str, info: dict[str, int]) -> None:
        nonlocal collected
        if phase == "start":
            collected = time.thread_time()
        elif (taken := time.thread_time() - collected) > NOTED / 2:
            note("gc", taken, f"generation {info['generation']}")

    def run_with_meter(function: Callable[[], Any], **options: Any) -> Any:
        async def both() -> Any:
            trio.lowlevel.spawn_system_task(tick)
            return await function()

        gc.callbacks.append(collecting)
        return run(both, **options, instruments=[Steps()] if log.endswith(".steps") else [])

    trio.run = run_with_meter
    sys.argv[1:] = arguments
    main()


# --- the scenes


@dataclass(frozen=True)
class Stalls:
    """What was noted in some time."""

    worst: float
    """Milliseconds."""
    count: int
    """Of those over the bound."""
    details: str


class Stage:
    """A mount of a portal of made-up content, and what its meter noted."""

    def __init__(self, root: Path, *arguments: str, portal: str = "") -> None:
        from tests.fakes.portal import FakePortal, in_thread
        from tests.skymount_process import Sandbox

        self.stack = ExitStack()
        self.portal = FakePortal()
        if not portal:
            portal = self.stack.enter_context(in_thread(self.portal)).url
        self.url = portal
        home = root / "sandbox"
        self.sandbox = Sandbox(home) if home.exists() else Sandbox.make(home)
        self.log = (
            root / f"notes-{time.monotonic_ns()}{'.steps' if os.environ.get('STEPS') else ''}"
        )
        self.arguments = arguments

    def __enter__(self) -> "Stage":
        path = self.sandbox.directory()
        options = ["mount", "--foreground", "--portal", self.url, *self.arguments, str(path)]
        command = [sys.executable, __file__, "--meter", str(self.log), *options]
        self.mount = self.stack.enter_context(self.sandbox.foreground(command=command, at=path))
        self.path = self.mount.path
        time.sleep(0.3)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def skylink(self, name: object) -> Path:
        """Return the directory of a skylink."""
        return self.path / "skylinks" / str(name)

    def measured(self, work: Callable[[], object], rest: float = 0.5) -> Stalls:
        """Do something, and return what was noted meanwhile."""
        begun = time.monotonic()
        work()
        time.sleep(rest)
        return self.noted(begun)

    def noted(self, begun: float) -> Stalls:
        """Return what was noted since."""
        stalls, details = [], []
        for line in self.log.read_text().splitlines():
            at, kind, taken, *what = line.split(" ")
            if float(at) >= begun:
                if kind == "stall":
                    stalls.append(float(taken))
                if kind != "stall" or float(taken) > BOUND * 1000:
                    details.append(f"    {float(at) - begun:8.3f} {kind} {taken} {' '.join(what)}")
        over = [each for each in stalls if each > BOUND * 1000]
        return Stalls(max(stalls, default=0.0), len(over), "\n".join(details))


def shell(*command: object) -> bytes:
    """Run a command in the mount."""
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=300)
    if done.returncode:
        print("    !", command[0], done.returncode, done.stderr[:200])
    return done.stdout


@contextmanager
def place() -> Iterator[Path]:
    """Yield a directory for a while."""
    with tempfile.TemporaryDirectory(prefix="stalls") as name:
        yield Path(name)


Figure = tuple[str, Stalls]


def skyfile_of(count: int, *, mark: str = "", per_directory: int = 0) -> Any:
    """Return content of so many files of a byte each."""
    from skymount.wire.metadata import Metadata, Subfile, encode_metadata
    from tests.fakes import skyfiles

    def path(n: int) -> str:
        directory = f"d{n // per_directory:05}/" if per_directory else ""
        return f"{directory}file-{n:07}{mark}.txt"

    kept = Path(os.environ.get("STALLS_KEPT", "/nonexistent")) / f"{count}-{mark}-{per_directory}"
    if kept.exists():
        raw = kept.read_bytes()
    else:
        found = {
            path(n): Subfile(0o644, path(n).rpartition("/")[2], "text/plain", n, 1)
            for n in range(count)
        }
        raw = encode_metadata(Metadata("site", count, subfiles=found))
        if kept.parent.exists():
            kept.write_bytes(raw)
    return skyfiles.of_metadata(raw, b"x" * count)


def forget_all(stage: Stage) -> None:
    """Have the kernel drop what it knows of the names of a mount."""
    shell("mount", "-i", "-o", "remount,ro", stage.path)


def trees(million: int) -> Iterator[Figure]:
    """Trees of very many files."""
    for count in (million,):
        big = skyfile_of(count)
        with place() as root:
            with Stage(root) as stage:
                stage.portal.add(big)
                link = stage.skylink(big.name)
                yield (
                    f"{count} files: loaded",
                    stage.measured(lambda: shell("test", "!", "-e", link / "x"), 3),
                )
                yield "  listed", stage.measured(lambda: shell("find", link, "-name", "nothing"))
                yield "  forgotten", stage.measured(lambda: forget_all(stage))
                yield "  ls -l", stage.measured(lambda: shell("ls", "-l", link))
                yield (
                    "  statfs, attributes, status",
                    stage.measured(
                        lambda: (
                            shell("df", stage.path),
                            shell("getfattr", "-d", "-m-", link),
                            shell("cat", stage.path / ".skymount/status.json"),
                        )
                    ),
                )
                yield "  unmounted", stage.measured(lambda: shell("umount", stage.path))
            with Stage(root) as stage:
                stage.portal.add(big)
                link = stage.skylink(big.name)
                yield (
                    "  loaded from disk",
                    stage.measured(lambda: shell("test", "!", "-e", link / "x"), 2),
                )


def heads(million: int) -> Iterator[Figure]:
    """The same, described by a header, and by the metadata endpoint."""
    for title, options, count in (
        ("header", {"base_sectors": False}, million * 4 // 10),
        ("endpoint", {"base_sectors": False, "metadata_header": False}, million),
    ):
        big = skyfile_of(count)
        with place() as root, Stage(root) as stage:
            for name, value in options.items():
                setattr(stage.portal, name, value)
            stage.portal.add(big)
            link = stage.skylink(big.name)
            yield (
                f"{count} files by {title}: loaded",
                stage.measured(lambda: shell("test", "!", "-e", link / "x"), 3),
            )


def moving(million: int) -> Iterator[Figure]:
    """A name that leads to one large tree, then to another."""
    from tests.fakes.resolving import FakeRegistry
    from tests.server.registry import link_of, signed

    first, second = skyfile_of(million), skyfile_of(million, mark="b")
    with place() as root:
        os.environ["SKYMOUNT_HNS_TTL"] = "1"
        stage = Stage(root)
        stage.sandbox = stage.sandbox.with_env(SKYMOUNT_HNS_TTL="1")
        with stage:
            registry = FakeRegistry(stage.portal)
            stage.portal.add(first, second)
            registry.set(signed("key", bytes(first.skylink)))
            link = stage.skylink(link_of("key"))
            yield (
                f"{million} files, v2: loaded",
                stage.measured(lambda: shell("test", "!", "-e", link / "x")),
            )
            shell("ls", "-U", link)
            registry.set(signed("key", bytes(second.skylink), 1))

            def look() -> None:
                for _ in range(12):
                    shell("test", "!", "-e", link / "x")
                    time.sleep(0.5)

            yield "  moved", stage.measured(look)
            yield "  the first forgotten", stage.measured(lambda: forget_all(stage))


def metadata(million: int) -> Iterator[Figure]:
    """Metadata that are read by the mount itself."""
    from skymount.wire.metadata import Metadata, encode_metadata
    from tests.fakes import skyfiles

    size = 95 << 10
    plain = skyfile_of(860)
    deep = "/".join("a" * 2000)
    odd = json.dumps(
        {
            "filename": "x",
            "length": 3,
            "subfiles": {f"{n:x}": {"offset": "a", "x": []} for n in range(2900)},
        }
    ).encode()
    lists = (
        b'{"filename":"x","length":3,"y":"","mode":"","x":[' + b"[]," * (size // 3 - 30) + b"[]]}"
    )
    dicts = (
        b'{"filename":"x","length":3,"mode":"","x":['
        + b",".join(b'{"%x":{}}' % n for n in range(size // 13))
        + b"]}"
    )
    numbers = b'{"filename":"x","length":3,"mode":"","x":[' + b"1," * (size // 2 - 40) + b"1]}"
    short = json.dumps(
        {
            "filename": "x",
            "length": 3,
            "subfiles": {f"{n:x}": {"len": 1} for n in range(size // 21)},
        }
    ).encode()
    deeper = encode_metadata(
        Metadata(
            "x",
            3,
            subfiles={f"{n}/{deep}/x": skyfiles.Subfile(filename="x", len=1) for n in range(23)},
        )
    )
    with place() as root, Stage(root) as stage:
        for title, raw in (
            ("of 860 files", plain.metadata),
            ("of many short files", short),
            ("of 2,900 rejected files", odd),
            ("full of lists", lists),
            ("full of objects", dicts),
            ("full of numbers", numbers),
            ("of 46,000 directories", deeper),
        ):
            worst = []
            for n in range(5):
                padded = raw[:-1] + b" " * (min(10, max(0, size - len(raw))) + n) + raw[-1:]
                one = skyfiles.of_metadata(padded, bytes([65 + n]) * 3)
                stage.portal.add(one)
                worst.append(
                    stage.measured(
                        lambda one=one: shell("stat", stage.skylink(one.name)),
                        0.2,  # type: ignore[misc]
                    )
                )
            title = f"metadata of {len(raw) >> 10} KiB, {title}"
            details = "\n".join(each.details for each in worst)
            yield (
                title,
                Stalls(
                    max(each.worst for each in worst), sum(each.count for each in worst), details
                ),
            )


def lines(million: int) -> Iterator[Figure]:
    """Heads of answers."""
    from dataclasses import replace

    from tests.fakes import skyfiles

    for title, more in (
        ("240 lines", [(b"X-%d" % n, b"y") for n in range(240)]),
        ("240 lines of 500 bytes", [(b"X-%d" % n, b"y" * 500) for n in range(240)]),
        ("7 lines of 16 KiB", [(b"X-%d" % n, b"y" * 16000) for n in range(7)]),
    ):
        with place() as root, Stage(root) as stage:
            stage.portal.fault(
                lambda _, reply, more=more: replace(reply, headers=(*reply.headers, *more))  # type: ignore[misc]
            )
            worst = []
            for n in range(5):
                one = skyfiles.of_files({"f": bytes([65 + n])})
                stage.portal.add(one)
                worst.append(
                    stage.measured(
                        lambda one=one: shell("stat", stage.skylink(one.name)),
                        0.2,  # type: ignore[misc]
                    )
                )
            details = "\n".join(each.details for each in worst)
            yield (
                f"a head of {title}",
                Stalls(
                    max(each.worst for each in worst), sum(each.count for each in worst), details
                ),
            )


def documents(million: int) -> Iterator[Figure]:
    """Large documents in skydb."""
    from skymount.keyring import Keyring
    from skymount.wire.keys import KeyPair
    from tests.portal_process import running_portal

    with place() as root, running_portal(root) as portal:
        stage = Stage(root, portal=portal)
        pair = KeyPair.from_seed("insecure stalls")
        Keyring(stage.sandbox.root / "data/skymount/keys").add("home", pair)
        for mib in (1, 10, 50):
            rows = ({"id": n, "name": f"name {n}", "list": [n, n + 1]} for n in itertools.count())
            text = json.dumps(list(itertools.islice(rows, mib * 17_500)))
            source = root / f"{mib}.json"
            source.write_text(text)
            with stage if mib == 1 else Stage(root, portal=portal) as here:
                stage = here
                file = stage.path / "skydb/home" / f"doc{mib}.json"
                yield (
                    f"document of {len(text) / (1 << 20):.1f} MiB: written",
                    stage.measured(lambda: shell("cp", source, file), 1),
                )
                yield (
                    "  appended to",
                    stage.measured(lambda: shell("sh", "-c", f"echo >> {file}"), 1),
                )
            with Stage(root, portal=portal) as stage:
                file = stage.path / "skydb/home" / f"doc{mib}.json"
                yield "  read", stage.measured(lambda: shell("cat", file), 1)
                yield "  read again", stage.measured(lambda: shell("cat", file), 1)
                stage = Stage(root, portal=portal)


def registry(million: int) -> Iterator[Figure]:
    """A directory of many registry entries."""
    from skymount.portal.ledger import Ledger
    from skymount.wire.keys import KeyPair
    from skymount.wire.registry import hash_data_key

    pair = KeyPair.from_seed("insecure stalls")
    for count in (1_000, 10_000, 100_000):
        with place() as root:
            stage = Stage(root)
            path = stage.sandbox.root / "state/skymount/ledger.sqlite3"
            ledger = Ledger.open(path)
            ledger.remember(pair.public_key, hash_data_key("first"), "first")
            ledger.close()
            database = sqlite3.connect(path)
            database.executemany(
                "INSERT INTO entries (public_key, tweak, data_key, named) VALUES (?, ?, ?, 1)",
                ((pair.public_key, hash_data_key(f"key {n}"), b"key %d" % n) for n in range(count)),
            )
            database.commit()
            database.close()
            with stage:
                directory = stage.path / "registry" / pair.public_key.hex()
                yield (
                    f"{count} entries: listed",
                    stage.measured(lambda: shell("ls", "-U", directory)),
                )
                yield "  again", stage.measured(lambda: shell("ls", "-U", directory))
                yield "  forgotten", stage.measured(lambda: forget_all(stage))


def small(million: int) -> Iterator[Figure]:
    """Many small units in the memory cache, pushed out by a large one."""
    from tests.fakes import skyfiles

    with place() as root, Stage(root, "--memory-cache", "16 MiB") as stage:
        many = [skyfiles.of_files({"f": b"%07d" % n * 150}) for n in range(15_000)]
        large = skyfiles.of_files({"f": skyfiles.noise(12 << 20)})
        stage.portal.add(*many, large)

        def look() -> None:
            for n in range(0, len(many), 500):
                shell("cat", *(stage.skylink(one.name) / "f" for one in many[n : n + 500]))

        yield f"{len(many)} skylinks read", stage.measured(look)
        file = stage.skylink(large.name) / "f"
        yield "  pushed out", stage.measured(lambda: shell("cat", file))


SCENES = (trees, heads, moving, metadata, lines, documents, registry, small)


def main() -> None:
    """Measure."""
    if sys.argv[1:2] == ["--meter"]:
        meter(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", type=int, default=1_000_000)
    parser.add_argument("--details", action="store_true")
    parser.add_argument("scenes", nargs="*", help=" ".join(each.__name__ for each in SCENES))
    chosen = parser.parse_args()
    for scene in SCENES:
        if not chosen.scenes or scene.__name__ in chosen.scenes:
            for title, found in scene(chosen.million):
                print(f"{title:60} {found.worst:7.1f} ms {found.count:5}", flush=True)
                if chosen.details:
                    print(found.details)


if __name__ == "__main__":
    main()

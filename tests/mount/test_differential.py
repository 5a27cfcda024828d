"""Random reading of a mount under faults, restarts and any size of cache, against the source bytes.

A seed decides everything but the order in which threads and processes run. With
``SKYMOUNT_DIFFERENTIAL=seconds`` in the environment new seeds are tried for so long.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path

import pytest

from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import FakeSkyfile, describe, noise
from tests.mount import random_reader
from tests.skymount_process import Mount, Sandbox, close_pipes

LIMIT = 100.0
"""Seconds that all reads of a seed may take: a bound for what hangs."""

RECOVERY = 90.0
"""Seconds after which all reads right when the portals do well again: a fetch that waits for one
that fell silent goes on for 35 (R2).
"""

READ_TIMEOUT = 4
"""Seconds; `timeout` of the mounts, so that silent portals do not hold up the tests."""

SEEDS = [0, 3, 5, 6, 10, 12, 16]
"""Chosen for their plans, which differ in everything that can, and do not wait for long."""

HARMLESS = [
    fake.short(1),
    fake.excess(b"!"),
    fake.closes_after(5000),
    fake.closes_after(-1),
    fake.resets_after(0),
    fake.resets_after(300_000),
    fake.ignores_range,
    fake.header(b"Content-Range", b"bytes 1-2/3"),
    fake.without_header(b"Content-Range"),
    fake.html,
    fake.endless_body,
    fake.status(503),
    fake.status(429),
    fake.drips(100_000, 0.01),
]
LIES = [
    fake.flips(7),
    fake.flips(-1),
    fake.flips(1_000_003),
    fake.swaps(noise(6 << 20, 99)),
]
SILENT = fake.stalls_after(40_000)


def _many(seed: int) -> dict[str, bytes]:
    """Return many small files, in another order than that of their names."""
    luck = random.Random(seed)
    numbers = list(range(150))
    luck.shuffle(numbers)
    sizes = [0, 1, 700, 4096, 9000, 40_000]
    return {f"d{n % 7}/{n:03}": noise(luck.choice(sizes), seed + n) for n in numbers}


def _unverifiable(files: dict[str, bytes], seed: int) -> FakeSkyfile:
    made = skyfiles.unverifiable(describe(files), b"".join(files.values()), seed)
    return replace(made, files=files)


def _contents() -> list[FakeSkyfile]:
    """Return content of every shape. A file of ten data pieces is not all there, for its size."""
    small = {"b.txt": noise(70_000, 2), "d/empty": b"", "d/a.txt": noise(30_001, 3)}
    large = {"z": noise((5 << 20) + 17, 6), "a": noise(100_000, 7), "m": noise(4 << 20, 8)}
    spread = {"s": noise((4 << 20) + 4097, 4), "r": noise(70_000, 5)}
    return [
        skyfiles.of_files(small),
        skyfiles.of_files(large),
        skyfiles.of_files(spread, pieces=10),
        skyfiles.of_files(_many(9000)),
        _unverifiable({"f": noise((3 << 20) + 5, 10)}, 21),
        _unverifiable(large, 22),
        _unverifiable(_many(10_000), 23),
    ]


@dataclass(frozen=True)
class World:
    """The contents, and the same bytes as plain files."""

    contents: list[FakeSkyfile]
    source: Path

    def pairs(self, mount: Path) -> list[tuple[str, str]]:
        """Return the source and the mounted path of each file."""
        return [
            (str(self.source / each.name / path), str(mount / "skylinks" / each.name / path))
            for each in self.contents
            for path in each.files
        ]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Content of every shape; tests only read it."""
    source = tmp_path_factory.mktemp("differential")
    made = World(_contents(), source)
    for each in made.contents:
        for path, data in each.files.items():
            file = source / each.name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    return made


@dataclass(frozen=True)
class Plan:
    """What a seed stands for."""

    seed: int
    concat: bool
    base_sectors: bool
    portals: int
    faults: float
    """How often a portal misbehaves."""
    lies: bool
    memory: str
    disk: str
    operations: int
    restarts: tuple[str, ...]

    @classmethod
    def of(cls, seed: int) -> "Plan":
        luck = random.Random(f"plan {seed}")
        base_sectors = luck.random() < 0.7
        faults = luck.choice([0.0, 0.1, 0.3])
        return cls(
            seed=seed,
            concat=luck.random() < 0.6,
            base_sectors=base_sectors,
            portals=luck.choice([1, 2]),
            faults=faults,
            lies=base_sectors and luck.random() < 0.7,
            memory=luck.choice(["32 KiB", "1 MiB", "4 MiB", "6 MiB", "16 MiB", "128 MiB"]),
            disk=luck.choice(["off", "3 MiB", "64 MiB", "2 GiB"]),
            operations=12,
            restarts=tuple(luck.choices(["KILL", "TERM", "lazy"], k=luck.choice([0, 1, 2]))),
        )


class Misbehaviour:
    """What goes wrong with each request: by the seed, the request, and how often it came."""

    def __init__(self, plan: Plan, contents: list[FakeSkyfile]) -> None:
        self._plan = plan
        self._verified = {each.name for each in contents if each.base is not None}
        self._seen: Counter[str] = Counter()
        self.is_on = plan.faults > 0

    def __call__(self, request: fake.Request, reply: fake.Reply) -> fake.Reply:
        """Return the reply that is sent instead."""
        if not self.is_on:
            return reply
        name = str(request)
        self._seen[name] += 1
        luck = random.Random(f"{self._plan.seed} {name} {self._seen[name]}")
        if luck.random() >= self._plan.faults:
            return reply
        if luck.random() < 0.02:
            return SILENT(request, reply)
        may_lie = self._plan.lies and any(each in request.path for each in self._verified)
        return luck.choice(HARMLESS + LIES if may_lie else HARMLESS)(request, reply)


def damage(cache: Path, luck: random.Random) -> int:
    """Change, cut or empty some of the files of a cache on disk; return of how many."""
    files = sorted(path for path in cache.rglob("*") if path.is_file())
    chosen = [path for path in files if luck.random() < 0.3]
    for path in chosen:
        data = bytearray(path.read_bytes())
        way = luck.choice(["flip", "cut", "empty", "other"])
        if way == "flip" and data:
            data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
        elif way == "cut":
            del data[luck.randrange(len(data) + 1) :]
        elif way == "empty":
            data.clear()
        else:  # a sound block in another's place
            data = bytearray(luck.choice(files).read_bytes())
        path.write_bytes(data)
    return len(chosen)


class Case:
    """A seed that is tried: portals, a mount that is replaced again and again, and a reader."""

    def __init__(self, plan: Plan, world: World, sandbox: Sandbox) -> None:
        self.plan = plan
        self.world = world
        self.sandbox = sandbox
        self.luck = random.Random(f"case {plan.seed}")
        self.path = sandbox.directory()
        self.restarts = sandbox.root / "restarts"
        self.listing = sandbox.root / "listing.json"
        self.listing.write_text(json.dumps(world.pairs(self.path)))
        self.misbehaviour = Misbehaviour(plan, world.contents)
        self.options: list[str] = []

    def run(self) -> None:
        """Read while things go wrong, then once more when all is well."""
        plan = self.plan
        self.restarts.write_text("0")
        self.sandbox.configure(f'timeout = {READ_TIMEOUT}\ndisk_cache = "{plan.disk}"\n')
        with ExitStack() as stack:
            for _ in range(plan.portals):
                portal = FakePortal(base_sectors=plan.base_sectors, concat=plan.concat)
                portal.add(*self.world.contents)
                portal.fault(self.misbehaviour)
                self.options += ["--portal", stack.enter_context(in_thread(portal)).url]
            self.options += ["--memory-cache", plan.memory]
            mount = self._mount(stack)
            for number in range(len(plan.restarts) + 1):
                reader = self._reader(number)
                if number < len(plan.restarts):
                    mount = self._restart(stack, mount, plan.restarts[number], reader)
                self._finish(reader)
            self.misbehaviour.is_on = False
            self._read_all()
        for log in self.sandbox.logs:
            assert "Traceback" not in log.read_text(errors="replace"), f"{plan}\n{self._log()}"

    def _mount(self, stack: ExitStack) -> Mount:
        return stack.enter_context(self.sandbox.mounted(*self.options, at=self.path, clean=False))

    def _reader(self, number: int) -> "subprocess.Popen[bytes]":
        faulty = str(int(self.plan.faults > 0))
        command = [random_reader.__file__, f"{self.plan.seed}.{number}", str(self.plan.operations)]
        return subprocess.Popen(
            [sys.executable, "-IS", *command, faulty, str(self.restarts), str(self.listing)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _restart(
        self, stack: ExitStack, mount: Mount, how: str, reader: "subprocess.Popen[bytes]"
    ) -> Mount:
        """End the daemon in some way while files are read, and mount again."""
        try:  # as many seconds later, or when nothing is read any more
            reader.wait(self.luck.uniform(0.0, 2.0))
        except subprocess.TimeoutExpired:
            pass
        self._count_restart()
        if how == "lazy":
            self.sandbox.succeed("umount", "--lazy", self.path)
        else:
            mount.daemon.signal(9 if how == "KILL" else 15)
            mount.daemon.wait()
            damage(self.sandbox.root / "cache", self.luck)
        mount = self._mount(stack)
        self._count_restart()
        return mount

    def _count_restart(self) -> None:
        following = self.restarts.with_suffix(".new")
        following.write_text(str(int(self.restarts.read_text()) + 1))
        following.replace(self.restarts)

    def _finish(self, reader: "subprocess.Popen[bytes]") -> None:
        try:
            _, said = reader.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(reader.pid, 9)
            close_pipes(reader)
            pytest.fail(f"a read hangs: {self.plan}")
        assert reader.returncode == 0, f"{self.plan}\n{said.decode()}\n{self._log()}"

    def _read_all(self) -> None:
        """Every file is the source, as soon as no fetch waits any more for who was silent."""
        stop = time.monotonic() + RECOVERY
        for each in self.world.contents:
            while True:
                command = ["diff", "-r", self.world.source / each.name]
                done = self.sandbox.run(*command, self.path / "skylinks" / each.name)
                if done.returncode == 0:
                    break
                assert done.returncode == 2, f"{self.plan}\n{done.stdout}\n{self._log()}"
                assert time.monotonic() < stop, f"{self.plan}\n{done.stderr}\n{self._log()}"

    def _log(self) -> str:
        return self.sandbox.log.read_text(errors="replace")[-5000:]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_wrong_byte(world: World, sandbox: Sandbox, seed: int) -> None:
    """R1: A read returns exactly the bytes of the content or fails.

    R2, T3, M4 and K2 too: it ends in time, a portal that lies is not believed, a mount whose daemon
    is gone is replaced, and a damaged block is a miss. When all is well again, all reads right.
    """
    Case(Plan.of(seed), world, sandbox).run()


@pytest.fixture
def more_seeds() -> Iterator[int]:
    """New seeds, for as many seconds as the environment says."""
    seconds = float(os.environ.get("SKYMOUNT_DIFFERENTIAL", "0"))
    if not seconds:
        pytest.skip("SKYMOUNT_DIFFERENTIAL=seconds is not set")
    stop, first = time.monotonic() + seconds, time.time_ns() // 1_000_000
    return takewhile(lambda _: time.monotonic() < stop, count(first))


@pytest.mark.timeout(0)
def test_no_wrong_byte_for_longer(world: World, more_seeds: Iterator[int], tmp_path: Path) -> None:
    """R1: as above, with seeds that nobody has tried."""
    for seed in more_seeds:
        sandbox = Sandbox.make(tmp_path / str(seed))
        Case(Plan.of(seed), world, sandbox).run()
        shutil.rmtree(sandbox.root)
        sys.stderr.write(f"seed {seed}: right\n")

"""A program that reads a mount in many ways at once and compares each byte with the source.

Needs nothing but the standard library. Arguments: seed, operations for each thread, whether portals
misbehave (0 or 1), a file whose number counts restarts (odd while one is under way), and a file of
JSON with pairs of source and mounted path. Exit 1 and the reason for a wrong byte or error.
"""

import errno
import filecmp
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

THREADS = 5
BUDGET = (
    8.0  # seconds after which nothing new is begun, so that failing portals do not take for ever
)
STUCK = 60.0  # seconds; what takes longer hangs, far beyond the time-out of any operation
PATIENCE = 6.0  # seconds that a program may take before it is told to end
GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT, errno.ENODEV, errno.ESTALE, errno.EBADF}
"""What a read may fail with while the daemon is replaced, or through what was opened before."""

MAP = """
import mmap, random, sys
luck = random.Random(sys.argv[3])
expected = open(sys.argv[1], "rb").read()
with open(sys.argv[2], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as found:
    for _ in range(20):
        at, size = luck.randrange(len(expected)), luck.choice([1, 4096, 70_000])
        assert found[at : at + size] == expected[at : at + size], at
"""


class WrongError(Exception):
    """A byte was wrong, or something else happened that must not."""


@dataclass
class World:
    """What all threads share."""

    pairs: list[tuple[Path, Path]]
    faulty: bool
    restarts: Path
    sources: dict[Path, bytes] = field(default_factory=dict)
    shared: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Open descriptors, with the number of restarts when they were opened."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    failures: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    good: int = 0

    def restarted(self) -> int:
        """Return how many beginnings and ends of restarts there were."""
        return int(self.restarts.read_text() or "0")

    def expected(self, source: Path) -> bytes:
        if source not in self.sources:
            self.sources[source] = source.read_bytes()
        return self.sources[source]


class Reader:
    """One thread. What it does depends on its seed only."""

    def __init__(self, world: World, seed: str) -> None:
        self.world = world
        self.luck = random.Random(seed)
        self.history: list[str] = []
        self.begun = time.monotonic()
        """When the last thing was begun."""

    def log(self, text: str) -> None:
        """Take note of what is done next."""
        self.history.append(text)
        self.begun = time.monotonic()

    def work(self, count: int) -> None:
        ways: list[Callable[[Path, Path], None]] = [
            self.at_random,
            self.at_random,
            self.on_shared_descriptor,
            self.on_shared_descriptor,
            self.in_order,
            self.in_order,
            self.backward,
            self.in_strides,
            self.around_the_page_cache,
            self.by_sendfile,
            self.storm,
            self.mapped,
            self.copied,
            self.packed,
        ]
        stop = time.monotonic() + BUDGET
        for number in range(count):
            if time.monotonic() > stop:
                return
            way, (source, mounted) = self.luck.choice(ways), self.somefile()
            self.log(f"{number}: {way.__name__} {mounted}")
            before = self.world.restarted()
            try:
                way(source, mounted)
            except OSError as error:
                self.judge(error, before)
            if self.world.failures:
                return

    def somefile(self) -> tuple[Path, Path]:
        """Return a file: of a random skylink, as one may have very many."""
        trees: dict[Path, list[tuple[Path, Path]]] = {}
        for pair in self.world.pairs:
            trees.setdefault(self._tree(pair[1]), []).append(pair)
        return self.luck.choice(self.luck.choice(list(trees.values())))

    def judge(self, error: OSError, before: int) -> None:
        """Take note of an error; WrongError if it is none of those that are allowed."""
        allowed = {errno.EIO, errno.ETIMEDOUT} if self.world.faulty else set[int]()
        now = self.world.restarted()
        if now != before or now % 2:
            allowed |= GONE | {errno.EIO, errno.ETIMEDOUT}
        if error.errno not in allowed:
            raise WrongError(f"{error!r} is not allowed") from error
        name = errno.errorcode[error.errno or 0]
        with self.world.lock:
            self.world.errors[name] = self.world.errors.get(name, 0) + 1

    # --- one range

    def compare(self, descriptor: int, source: Path, at: int, size: int) -> None:
        """Read a range; a shorter answer must go on, or be an error."""
        expected = self.world.expected(source)[at : at + size]
        self.log(f"  {at}+{size}")
        found = 0
        while found < len(expected):
            data = os.pread(descriptor, size - found, at + found)
            if data != expected[found : found + len(data)]:
                raise WrongError(f"wrong bytes at {at + found}: {_where(data, expected[found:])}")
            if not data:
                raise WrongError(f"nothing at {at + found}, {len(expected) - found} bytes early")
            found += len(data)
        with self.world.lock:
            self.world.good += found

    def somewhere(self, size: int) -> tuple[int, int]:
        length = self.luck.choice([1, 100, 4096, 5000, 32 << 10, 70_000, 300_000, 1 << 20, 3 << 20])
        borders = [0, 32 << 10, 1 << 20, 4 << 20, size]
        near = self.luck.choice(borders) + self.luck.randrange(-5000, 5000)
        at = self.luck.choice([self.luck.randrange(size + 1), min(size, max(0, near))])
        return at, length

    def opened(self, mounted: Path, flags: int = 0) -> "_Open":
        """Open a file, sometimes without what the kernel knows of it."""
        return _Open(mounted, flags, forget=self.luck.random() < 0.7)

    # --- ways of reading

    def at_random(self, source: Path, mounted: Path) -> None:
        size = len(self.world.expected(source))
        with self.opened(mounted) as descriptor:
            for _ in range(self.luck.randrange(1, 8)):
                self.compare(descriptor, source, *self.somewhere(size))

    def on_shared_descriptor(self, source: Path, mounted: Path) -> None:
        """Read random ranges through a descriptor that all threads use."""
        world, size = self.world, len(self.world.expected(source))
        with world.lock:
            if mounted not in world.shared or world.shared[mounted][1] != world.restarted():
                world.shared[mounted] = (os.open(mounted, os.O_RDONLY), world.restarted())
            descriptor = world.shared[mounted][0]
        if self.luck.random() < 0.5:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(self.luck.randrange(1, 5)):
            self.compare(descriptor, source, *self.somewhere(size))

    def in_order(self, source: Path, mounted: Path) -> None:
        """Read on from somewhere, in steps."""
        self._steps(source, mounted, self.luck.choice([1000, 4096, 65_536, 131_072, 1 << 20]), 1)

    def backward(self, source: Path, mounted: Path) -> None:
        """Read back from somewhere, in steps."""
        self._steps(source, mounted, self.luck.choice([4096, 5000, 131_072]), -1)

    def in_strides(self, source: Path, mounted: Path) -> None:
        self._steps(source, mounted, self.luck.choice([4096, 40_000]), self.luck.choice([2, 7, 33]))

    def _steps(self, source: Path, mounted: Path, step: int, stride: int) -> None:
        size = len(self.world.expected(source))
        at = self.luck.choice([0, self.luck.randrange(size + 1)])
        at = size if stride < 0 and not at else at
        with self.opened(mounted) as descriptor:
            for _ in range(self.luck.choice([10, 60])):
                if 0 <= at <= size:
                    self.compare(descriptor, source, at, step)
                at += step * stride

    def around_the_page_cache(self, source: Path, mounted: Path) -> None:
        """Read random ranges with O_DIRECT."""
        size = len(self.world.expected(source))
        with self.opened(mounted, os.O_DIRECT) as descriptor:
            for _ in range(self.luck.randrange(1, 6)):
                self.compare(descriptor, source, *self.somewhere(size))

    def by_sendfile(self, source: Path, mounted: Path) -> None:
        """Have the kernel copy a range."""
        expected = self.world.expected(source)
        at, size = self.somewhere(len(expected))
        expected = expected[at : at + size]
        target = os.memfd_create("target")
        try:
            with self.opened(mounted) as descriptor:
                while count := os.sendfile(target, descriptor, at, size):
                    at, size = at + count, size - count
                if os.pread(target, len(expected) + 1, 0) != expected:
                    raise WrongError("sendfile")
        finally:
            os.close(target)

    def storm(self, source: Path, mounted: Path) -> None:
        """Open, read a little and close, again and again."""
        for _ in range(self.luck.randrange(5, 30)):
            with self.opened(mounted) as descriptor:
                if self.luck.random() < 0.7:
                    self.compare(descriptor, source, 0, self.luck.choice([1, 4096, 20_000]))

    def mapped(self, source: Path, mounted: Path) -> None:
        """Map a file, in a process of its own: a page that cannot be had is a signal."""
        if self.world.expected(source):
            seed = str(self.luck.random())
            self._run([sys.executable, "-IS", "-c", MAP, source, mounted, seed], -signal.SIGBUS)

    def copied(self, _: Path, mounted: Path) -> None:
        """Copy all of the skylink, or the directory that a file is in."""
        tree = self._tree(mounted)
        target = Path(tempfile.mkdtemp())
        try:
            for before, after in self._copy(tree, target / "copy"):
                if not filecmp.cmp(before, after, shallow=False):
                    raise WrongError(f"{after} was copied wrong")
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def _copy(self, tree: Path, target: Path) -> Iterator[tuple[Path, Path]]:
        if self._run(["cp", "-r", "--no-preserve=mode", tree, target]):
            for before, after in self._below(tree):
                yield before, target / after.relative_to(tree)

    def packed(self, _: Path, mounted: Path) -> None:
        """Pack all of the skylink into an archive."""
        tree = self._tree(mounted)
        with tempfile.NamedTemporaryFile() as archive:
            if self._run(["tar", "-C", tree, "-cf", archive.name, "."]):
                with tarfile.open(archive.name) as found:
                    for before, after in self._below(tree):
                        file = found.extractfile(f"./{after.relative_to(tree)}")
                        if file is None or file.read() != self.world.expected(before):
                            raise WrongError(f"{after} was packed wrong")

    def _below(self, tree: Path) -> list[tuple[Path, Path]]:
        return [pair for pair in self.world.pairs if tree in pair[1].parents]

    def _tree(self, mounted: Path) -> Path:
        at = mounted.parts.index("skylinks")
        return Path(*mounted.parts[: at + 2])

    def _run(self, command: list[str | Path], other: int = 0) -> bool:
        """Run a program; whether it succeeded. It may fail only when reads may."""
        before = self.world.restarted()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        timer = threading.Timer(PATIENCE, process.terminate)
        timer.start()
        _, output = process.communicate()
        timer.cancel()
        if process.returncode == 0:
            return True
        if process.returncode == -signal.SIGTERM:
            return False
        said = output.decode(errors="replace")
        if "AssertionError" in said:
            raise WrongError(f"{command[0]}: {said}")
        restarted = self.world.restarted() != before or before % 2
        if not (self.world.faulty or restarted):
            raise WrongError(f"{command[0]} fails with {process.returncode}: {said}")
        assert process.returncode in {1, 2, other}, (command, process.returncode, said)
        return False


class _Open:
    """A descriptor for a while."""

    def __init__(self, path: Path, flags: int, *, forget: bool) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | flags)
        if forget:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the daemon may be gone
            os.close(self._descriptor)


def _where(found: bytes, expected: bytes) -> str:
    if len(found) > len(expected):
        return f"{len(found) - len(expected)} bytes behind the end"
    at = next(n for n in range(len(found)) if found[n] != expected[n])
    pages = f"{at} of {len(found)} on, page {at // mmap.PAGESIZE}"
    return f"from {pages}: {found[at : at + 16].hex()}, not {expected[at : at + 16].hex()}"


def main(seed: str, count: str, faulty: str, restarts: str, listing: str) -> None:
    listed = json.loads(Path(listing).read_text())
    pairs = [(Path(source), Path(mounted)) for source, mounted in listed]
    world = World(pairs, faulty == "1", Path(restarts))

    def run(reader: Reader) -> None:
        try:
            reader.work(int(count))
        except BaseException as problem:
            last = "\n".join(reader.history[-30:])
            world.failures.append(f"seed {seed}: {problem!r}\nafter\n{last}")

    readers = [Reader(world, f"{seed} {number}") for number in range(THREADS)]
    threads = [threading.Thread(target=run, args=(reader,), daemon=True) for reader in readers]
    for thread in threads:
        thread.start()
    for thread, reader in zip(threads, readers, strict=True):
        while thread.is_alive():
            thread.join(0.5)
            if time.monotonic() > reader.begun + STUCK:
                last = "\n".join(reader.history[-30:])
                world.failures.append(f"seed {seed}: it hangs in\n{last}")
                break
    if world.failures:
        sys.stderr.write("\n\n".join(world.failures))
        sys.stderr.flush()
        os._exit(1)  # a thread may hang
    sys.stdout.write(f"{world.good} bytes, errors {world.errors}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What all groups share: the sizes, the working directory, and the big file."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks import machine, source
from benchmarks.source import Shape, Skyfile


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is read; bytes unless another unit is named."""

    big: int
    tls: int
    """Of the file that is read over HTTPS."""
    distant: int
    """Of the file that is read over a distance."""
    slowly: int
    """Of the part of a file that httpdirfs reads, which waits for each 128 KiB."""
    reader: int
    """Of the file of each of many readers."""
    upload: int
    readers: int
    """That read at once."""
    reads: int
    """Of 4 KiB, by each of 16 readers."""
    small: Shape
    listed: Shape
    million: Shape
    looked_at: int
    """Skylinks that are listed one after the other."""
    blocks: int
    """In a cache on disk, of 1 MiB each."""
    requests: int
    """To a server, of one kind."""


FULL = Sizes(
    big=1 << 30,
    tls=512 << 20,
    distant=256 << 20,
    slowly=8 << 20,
    reader=16 << 20,
    upload=256 << 20,
    readers=64,
    reads=64,
    small=Shape(100, 100, 4096),
    listed=Shape(100, 1000, 16),
    million=Shape(1000, 1000, 4096),
    looked_at=100_000,
    blocks=200_000,
    requests=8_000,
)

QUICK = Sizes(
    big=24 << 20,
    tls=16 << 20,
    distant=16 << 20,
    slowly=1 << 20,
    reader=5 << 20,
    upload=8 << 20,
    readers=8,
    reads=4,
    small=Shape(20, 60, 4096),
    listed=Shape(10, 1000, 512),
    million=Shape(20, 1000, 4096),
    looked_at=500,
    blocks=2_000,
    requests=2_000,
)
"""To try whether the benchmarks run; the figures mean nothing."""


@dataclass(frozen=True)
class Plan:
    """One run."""

    work: Path
    """A directory of its own."""
    sizes: Sizes

    @cached_property
    def big(self) -> Skyfile:
        """The big file, made when it is first asked for, with its base sector."""
        return source.make_authentic(self.work, "big.bin", self.sizes.big)

    def directory(self, name: str) -> Path:
        """Make a directory."""
        path = self.work / name
        path.mkdir()
        return path


def make_cold(*skyfiles: Skyfile) -> None:
    """Drop the caches, and then let nginx have its files in memory: the same for all alike."""
    machine.drop_caches()
    for skyfile in skyfiles:
        machine.read_through(skyfile.payload)
        machine.read_through(skyfile.metadata)

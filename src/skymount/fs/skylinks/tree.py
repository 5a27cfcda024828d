"""A skyfile's listing as a file system: nodes, numbered as the rows of the listing.

`content.model.listing_builder` decides which names can be shown.
"""

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

from skymount.content.model.listing import DIRECTORY
from skymount.content.model.skyfile import Skyfile

_READ_BITS = 0o444
_SHOWN_BITS = 0o555
DIRECTORY_MODE = stat.S_IFDIR | 0o555


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file: an extent of the payload, in bytes, and its ``st_mode``."""

    offset: int
    size: int
    mode: int
    content_type: str


@dataclass(frozen=True, slots=True)
class TreeDirectory:
    """A directory; `Tree.children` knows what is in it."""

    mode = DIRECTORY_MODE


TreeNode: TypeAlias = TreeFile | TreeDirectory


class ChildRange(NamedTuple):
    """Children of a directory that are neighbours in the listing, in columns of equal length."""

    indexes: range
    names: Iterable[bytes]
    modes: Iterable[int]  # their ``st_mode``
    sizes: Iterable[int]
    positions: Iterable[int]  # where the listing continues behind each of them


class Tree:
    """The files and directories of a skyfile; node 0 is the root directory.

    The indexes depend on the metadata only, so inode numbers made of them are stable.
    """

    def __init__(self, skyfile: Skyfile) -> None:
        self.skyfile = skyfile
        self.listing = skyfile.listing

    def __len__(self) -> int:
        return len(self.listing)

    def node(self, index: int) -> TreeNode:
        if self.is_directory(index):
            return TreeDirectory()
        return TreeFile(*self.extent(index), self.mode(index), self.listing.content_type(index))

    def single_file(self) -> TreeFile | None:
        """Return the file that the whole skyfile is; None where a directory was uploaded."""
        listing, total = self.listing, self.skyfile.size
        if listing.rejected or listing.records > 1:
            return None
        if not listing.records:
            return TreeFile(0, total, stat.S_IFREG | _READ_BITS, "")
        only = listing.record(listing.filename)  # as uploads of one file are stored
        if only is None or sum(only[:2]) > total:
            return None
        row = listing.find(0, listing.filename.encode("utf-8", "surrogatepass"))
        if row is not None and not self.is_directory(row):
            return TreeFile(*only[:2], self.mode(row), listing.content_type(row))
        return TreeFile(*only[:2], stat.S_IFREG | _READ_BITS, "")

    def extent(self, index: int) -> tuple[int, int]:
        return self.listing.offsets[index], self.listing.sizes[index]

    def is_directory(self, index: int) -> bool:
        return self.listing.modes[index] == DIRECTORY

    def mode(self, index: int) -> int:
        return _st_mode(self.listing.modes[index])

    def size(self, index: int) -> int:
        found: int = self.listing.sizes[index]
        return found

    def child_ranges(self, directory: int, start: int) -> Iterator[ChildRange]:
        """Yield what a directory holds, from one child on, many at a time."""
        listing = self.listing
        for run in listing.runs(directory, start):
            rows = slice(run.start, run.stop)
            yield ChildRange(
                run,
                listing.names.run(run),
                map(_st_mode, listing.modes[rows]),
                listing.sizes[rows],
                listing.ends[rows],
            )


@cache  # there are few different modes
def _st_mode(mode: int) -> int:
    if mode == DIRECTORY:
        return DIRECTORY_MODE
    return stat.S_IFREG | (mode & _SHOWN_BITS or _READ_BITS)

"""A file or directory in a tree that was loaded. No IO: trees never change."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from skymount.file_api.location import Location
from skymount.file_api.os_errors import os_error
from skymount.fs.skylinks.tree import Tree, TreeFile
from skymount.policies import Verified
from skymount.wire.skylink import Skylink


@dataclass(frozen=True)
class Entry:
    """A row of a tree, and where it was found."""

    location: Location
    tree: Tree
    index: int
    is_whole: bool = False
    """Whether it is the skyfile itself, which is one file."""
    is_proved: bool = True
    """Whether it is proved that the root of the location leads to this tree."""

    @classmethod
    def find(cls, location: Location, tree: Tree, is_proved: bool = True) -> "Entry":
        """FileNotFoundError or NotADirectoryError, as for a path in a file system."""
        index = 0
        for name in location.names:
            if index and not tree.is_directory(index):
                raise os_error(errno.ENOTDIR, location)
            child = tree.listing.find(index, name.encode("utf-8", "surrogatepass"))
            if child is None:
                raise _missing(location, tree)
            index = child
        is_whole = not location.names and tree.single_file() is not None
        return cls(location, tree, index, is_whole, is_proved)

    @property
    def is_directory(self) -> bool:
        return not self.is_whole and self.tree.is_directory(self.index)

    @cached_property
    def file(self) -> TreeFile:
        """What is read; IsADirectoryError for a directory."""
        node = self.tree.single_file() if self.is_whole else self.tree.node(self.index)
        if not isinstance(node, TreeFile):
            raise os_error(errno.EISDIR, self.location)
        return node

    @property
    def name(self) -> str:
        """The last name of the path; of a skylink of a single file that of the file.

        The skylink or domain stands for a name that begins with a dot or that a mount cannot show:
        the upload chose it, and not whoever saves the file.
        """
        if self.location.names:
            return self.location.names[-1]
        name = self.tree.listing.filename if self.is_whole else ""
        is_shown = self.tree.listing.find(0, name.encode("utf-8", "surrogatepass")) is not None
        return name if is_shown and not name.startswith(".") else str(self.location.root)

    @property
    def size(self) -> int:
        return 0 if self.is_directory else self.file.size

    @property
    def verified(self) -> Verified:
        """How far the content is verified; what a domain leads to never is."""
        is_proved = self.is_proved and isinstance(self.location.root, Skylink)
        return self.tree.skyfile.verified if is_proved else Verified.NO

    def info(self) -> dict[str, object]:
        """Describe it as file systems of fsspec do."""
        common: dict[str, object] = {
            "name": self.location.path,
            "size": self.size,
            "type": "directory" if self.is_directory else "file",
            "skylink": str(self.tree.skyfile.skylink),
            "verified": self.verified.value,
        }
        if not self.is_directory:
            common |= {
                "filename": self.name,
                "mode": self.file.mode,
                "content_type": self.file.content_type,
            }
        return common

    def children(self) -> Iterator["Entry"]:
        """Return what is directly in a directory; NotADirectoryError for a file, at once."""
        if not self.is_directory:
            raise os_error(errno.ENOTDIR, self.location)
        listing = self.tree.listing
        return (
            self._below((listing.names[index].decode(),), index)
            for index in listing.children(self.index)
        )

    def descendants(self, maxdepth: int | None = None) -> Iterator["Entry"]:
        """Yield all that is below a directory, parents first."""
        if not self.is_directory:
            return
        listing, names = self.tree.listing, list[str]()
        above = [self.index]
        for index in range(self.index + 1, listing.ends[self.index]):
            while listing.parents[index] != above[-1]:
                above.pop()
                names.pop()
            name = listing.names[index].decode()
            if maxdepth is None or len(names) < maxdepth:
                yield self._below((*names, name), index)
            if self.tree.is_directory(index):
                above.append(index)
                names.append(name)

    def _below(self, names: tuple[str, ...], index: int) -> "Entry":
        location = self.location.joined(names)
        return Entry(location, self.tree, index, is_proved=self.is_proved)


def _missing(location: Location, tree: Tree) -> OSError:
    """Return the error for a path that is not in the tree, or cannot be shown."""
    why = dict(tree.listing.hidden).get("/".join(location.names), "")
    return os_error(errno.ENOENT, location, why and f"it cannot be shown: {why}")

"""Finds the subtree that an inode number belongs to, and keeps what is open by handle."""

from collections.abc import Mapping
from itertools import count

from skymount.fs.inode_space import InodeSpace, space_of
from skymount.fs.subtree import OpenDirectory, OpenFile, Subtree


class FileSystem:
    """The subtrees of one mount, and their open files and directories by handle."""

    def __init__(self, static: Subtree, subtrees: Mapping[InodeSpace, Subtree]) -> None:
        self._static = static
        self._subtrees = subtrees
        self.open_files: dict[int, OpenFile] = {}
        self.open_directories: dict[int, OpenDirectory] = {}
        self._handles = count(1)

    def subtree(self, inode: int) -> Subtree:
        space = space_of(inode)
        return self._static if space is None else self._subtrees.get(space, self._static)

    def usage(self) -> tuple[int, int]:
        """Return the bytes and files that the mount knows."""
        found = [each.usage() for each in self._subtrees.values()]
        return sum(size for size, _ in found), sum(files for _, files in found)

    def add_file(self, opened: OpenFile, inode: int = 0) -> int:
        opened.inode = inode
        self.open_files[handle := next(self._handles)] = opened
        return handle

    def add_directory(self, opened: OpenDirectory, inode: int = 0) -> int:
        opened.inode = inode
        self.open_directories[handle := next(self._handles)] = opened
        return handle

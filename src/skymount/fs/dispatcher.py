"""Finds the subtree that an inode number belongs to, and keeps what is open by handle."""

from collections.abc import Callable, Mapping

from skymount.fs.inode_space import InodeSpace, space_of
from skymount.fs.subtree import OpenDirectory, OpenFile, Subtree


class FileSystem:
    """The subtrees of one mount, and their open files and directories."""

    def __init__(
        self,
        static: Subtree,
        subtrees: Mapping[InodeSpace, Subtree],
        usage: Callable[[], tuple[int, int]],
    ) -> None:
        self._static = static
        self._subtrees = subtrees
        self.usage = usage
        """Returns (bytes, files) of what the mount knows."""
        self._directories: dict[int, OpenDirectory] = {}
        self._files: dict[int, OpenFile] = {}
        self._next_handle = 1

    def subtree(self, inode: int) -> Subtree:
        """Return the subtree that an inode number belongs to."""
        space = space_of(inode)
        return self._static if space is None else self._subtrees.get(space, self._static)

    def add_directory(self, opened: OpenDirectory) -> int:
        """Return a handle for an open directory."""
        self._directories[handle := self._new_handle()] = opened
        return handle

    def add_file(self, opened: OpenFile) -> int:
        """Return a handle for an open file."""
        self._files[handle := self._new_handle()] = opened
        return handle

    def _new_handle(self) -> int:
        handle = self._next_handle
        self._next_handle += 1
        return handle

    def directory(self, handle: int) -> OpenDirectory:
        """Return an open directory; KeyError when there is none."""
        return self._directories[handle]

    def file(self, handle: int) -> OpenFile:
        """Return an open file; KeyError when there is none."""
        return self._files[handle]

    def remove_directory(self, handle: int) -> OpenDirectory:
        """Take an open directory out, to be released; KeyError when there is none."""
        return self._directories.pop(handle)

    def remove_file(self, handle: int) -> OpenFile:
        """Take an open file out, to be released; KeyError when there is none."""
        return self._files.pop(handle)

"""Owns the directory tree inside one skyfile: which of its names can exist in a POSIX file system,
and what they are. Pure; no inode numbers, no IO.

What cannot be shown is listed with the reason, never dropped in silence, never altered.
"""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from skymount.content.skyfile import Skyfile
from skymount.wire.metadata import Metadata, Subfile

NAME_LIMIT = 255
"""Bytes in one name (NAME_MAX)."""

PATH_LIMIT = 4095
"""Bytes in a path inside a skylink (PATH_MAX); one beyond it could be listed but not opened."""

NODES_LIMIT = 4 << 20
"""Files and directories of one tree; what is over it is listed as not shown."""

_READ_BITS = 0o444


class File:
    """A file: an extent of the payload, in bytes, and its ``st_mode``."""

    __slots__ = ("content_type", "mode", "offset", "parent", "size")

    def __init__(self, parent: int, offset: int, size: int, mode: int, content_type: str) -> None:
        self.parent = parent
        self.offset = offset
        self.size = size
        self.mode = mode
        self.content_type = content_type


class Directory:
    """A directory: its children's indexes by name, in the order of their names."""

    __slots__ = ("children", "parent")

    mode = stat.S_IFDIR | 0o555

    def __init__(self, parent: int) -> None:
        self.parent = parent
        """Index of the directory above; the root is its own."""
        self.children: dict[bytes, int] = {}


Node: TypeAlias = File | Directory


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The files and directories of a skyfile; node 0 is the root directory.

    The indexes depend on nothing but the metadata, so inode numbers made of them are stable.
    """

    skyfile: Skyfile
    nodes: list[Node]
    hidden: tuple[tuple[str, str], ...]
    """(path, reason) of each file that cannot be shown."""


def build_tree(skyfile: Skyfile) -> Tree:
    """Build the tree of a skyfile from its metadata."""
    nodes: list[Node] = [Directory(0)]
    hidden = list(skyfile.metadata.rejected)
    for path, sub in _files(skyfile.metadata, skyfile.size):
        reason = _objection(path, sub, skyfile.size)
        if reason is None and len(nodes) >= NODES_LIMIT:
            reason = f"the tree has more than {NODES_LIMIT} files and directories"
        if reason is not None:
            hidden.append((path, reason))
            continue
        loser = _add(nodes, path.encode(), sub)
        if loser is not None:
            hidden.append((loser.decode(), "there is a directory of the same name"))
    return Tree(skyfile, nodes, tuple(hidden))


def _files(metadata: Metadata, size: int) -> Iterator[tuple[str, Subfile]]:
    """Yield each file by its path, those that share a directory one after another.

    Sorted by element: the order of a directory's listing, whatever the order in the JSON.
    """
    if not metadata.subfiles:
        yield metadata.filename, Subfile(mode=metadata.mode, filename=metadata.filename, len=size)
        return
    slashless = str.maketrans("/", "\0")
    for path in sorted(metadata.subfiles, key=lambda path: path.translate(slashless)):
        yield path, metadata.subfiles[path]


def _objection(path: str, sub: Subfile, size: int) -> str | None:
    """Return why a file cannot be shown, by its own path and extent."""
    if sub.offset + sub.len > size:
        return "it reaches beyond the content"
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return "the path is not valid UTF-8"
    if len(raw) > PATH_LIMIT:
        return f"the path is longer than {PATH_LIMIT} bytes"
    if b"\0" in raw:
        return "the path has a NUL in it"
    for element in raw.split(b"/"):
        if element in (b"", b".", b".."):
            return "the path has an empty, '.' or '..' element"
        if len(element) > NAME_LIMIT:
            return f"a name in it is longer than {NAME_LIMIT} bytes"
    return None


def _add(nodes: list[Node], path: bytes, sub: Subfile) -> bytes | None:
    """Add a file and its directories; return the path of a file that lost its name by it.

    That is the file itself, or one added earlier: a directory wins over a file.
    """
    *parents, name = path.split(b"/")
    loser: bytes | None = None
    index = 0
    for depth, element in enumerate(parents, 1):
        children = _children(nodes, index)
        child = children.get(element)
        if child is not None and isinstance(nodes[child], File):
            loser, child = b"/".join(parents[:depth]), None
        if child is None:
            child = len(nodes)
            nodes.append(Directory(index))
            children[element] = child
        index = child
    children = _children(nodes, index)
    if name in children:
        return path
    children[name] = len(nodes)
    mode = stat.S_IFREG | (sub.mode & 0o777 & ~0o222 or _READ_BITS)
    nodes.append(File(index, sub.offset, sub.len, mode, sub.contenttype))
    return loser


def _children(nodes: list[Node], index: int) -> dict[bytes, int]:
    directory = nodes[index]
    assert isinstance(directory, Directory)
    return directory.children

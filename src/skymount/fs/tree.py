"""Owns the directory tree inside one skyfile: which of its names can exist in a POSIX file system,
and what they are. Pure; no inode numbers, no IO.

What cannot be shown is listed with the reason, never dropped in silence, never altered.
"""

import re
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

NODES_LIMIT = 3 << 19
"""Files and directories of one tree; what is over it is listed as not shown. A node takes up to 400
bytes of memory, and a few bytes of metadata can ask for two thousand directories.
"""

_READ_BITS = 0o444
_BAD_ELEMENT = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)")
_LOST = "there is a directory of the same name"


class File:
    """A file: an extent of the payload, in bytes, and its ``st_mode``."""

    __slots__ = ("content_type", "mode", "name", "offset", "parent", "size")

    def __init__(
        self, parent: int, name: bytes, offset: int, size: int, mode: int, content_type: str
    ) -> None:
        self.parent = parent
        self.name = name
        self.offset = offset
        self.size = size
        self.mode = mode
        self.content_type = content_type


class Directory:
    """A directory: its children's indexes by name, in the order of their names."""

    __slots__ = ("children", "name", "parent")

    mode = stat.S_IFDIR | 0o555

    def __init__(self, parent: int, name: bytes) -> None:
        self.parent = parent
        """Index of the directory above; the root is its own."""
        self.name = name
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
    nodes: list[Node] = [Directory(0, b"")]
    hidden = list(skyfile.metadata.rejected)
    last_parent, last_index = b"", 0  # neighbours mostly share their directory
    for path, sub in _files(skyfile.metadata, skyfile.size):
        reason = _objection(path, sub, skyfile.size)
        if reason is None and len(nodes) >= NODES_LIMIT:
            reason = f"the tree has more than {NODES_LIMIT} files and directories"
        if reason is not None:
            hidden.append((path, reason))
            continue
        parent, _, name = path.encode().rpartition(b"/")
        if parent != last_parent:
            last_parent, last_index = parent, _directory(nodes, parent, hidden)
        siblings = _children(nodes, last_index)
        if name in siblings:
            hidden.append((path, _LOST))
            continue
        siblings[name] = len(nodes)
        mode = stat.S_IFREG | (sub.mode & 0o777 & ~0o222 or _READ_BITS)
        nodes.append(File(last_index, name, sub.offset, sub.len, mode, sub.contenttype))
    return Tree(skyfile, nodes, tuple(hidden))


def _files(metadata: Metadata, size: int) -> Iterator[tuple[str, Subfile]]:
    """Yield each file by its path, those that share a directory one after another.

    Sorted by element: the order of a directory's listing, whatever the order in the JSON.
    """
    if not metadata.subfiles:
        if metadata.rejected:  # there were some, so this is not a single file
            return
        yield metadata.filename, Subfile(mode=metadata.mode, filename=metadata.filename, len=size)
        return
    for path in sorted(metadata.subfiles, key=lambda path: path.replace("/", "\0")):
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
    if len(raw) > NAME_LIMIT and max(map(len, raw.split(b"/"))) > NAME_LIMIT:
        return f"a name in it is longer than {NAME_LIMIT} bytes"
    if b"\0" in raw:
        return "the path has a NUL in it"
    if _BAD_ELEMENT.search(raw):
        return "the path has an empty, '.' or '..' element"
    return None


def _directory(nodes: list[Node], path: bytes, hidden: list[tuple[str, str]]) -> int:
    """Return the index of a directory, made with those above it; a file in its place is hidden."""
    index = 0
    elements = path.split(b"/") if path else []
    for depth, element in enumerate(elements, 1):
        children = _children(nodes, index)
        child = children.get(element)
        if child is not None and isinstance(nodes[child], File):
            hidden.append((b"/".join(elements[:depth]).decode(), _LOST))
            child = None
        if child is None:
            child = children[element] = len(nodes)
            nodes.append(Directory(index, element))
        index = child
    return index


def _children(nodes: list[Node], index: int) -> dict[bytes, int]:
    directory = nodes[index]
    assert isinstance(directory, Directory)
    return directory.children

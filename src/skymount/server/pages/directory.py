"""What is directly in a directory of a skyfile, for listings. No IO.

A directory may have a million files: rows are made only of those that are shown.
"""

import heapq
import html
import posixpath
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar
from urllib.parse import quote

from skymount.server.download.content import stored_or_guessed
from skymount.wire.metadata import Metadata, Subfile
from skymount.wording import visible

ROWS_LIMIT = 500
"""Rows of one page."""

BYTES_LIMIT = 1 << 20
"""Bytes of the paths of one page, each of which is in a link; one row is shown in any case."""

PARENTS_LIMIT = 30
"""Directories above a file or directory that are shown with it."""


_LINKS = 512  # that are sent at once
_RUN = 2048  # rows that are sorted at once, which takes the interpreter a millisecond or two


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Row:
    """A file or directory, as it is shown."""

    name: str
    size: int
    is_directory: bool
    content_type: str = ""
    files: int = 0  # below a directory


_Item = Row | tuple[str, Subfile]  # rows of files are made only when they are shown


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory: its files and directories, unsorted."""

    path: str
    files: tuple[tuple[str, Subfile], ...]
    directories: tuple[Row, ...]

    @property
    def size(self) -> int:
        """Bytes of all files, also those further below."""
        return sum(sub.len for _, sub in self.files) + sum(row.size for row in self.directories)

    @property
    def count(self) -> int:
        """Number of all files, also those further below."""
        return len(self.files) + sum(row.files for row in self.directories)

    def neighbours(self, name: str) -> tuple[str, str]:
        """Return the names of the files before and after one; empty where there is none."""
        names = [name for name, _ in self.files]
        before = max((each for each in names if each < name), default="")
        return before, min((each for each in names if each > name), default="")


@dataclass(frozen=True, slots=True)
class DirectoryPage:
    """Some of the rows of a directory."""

    rows: tuple[Row, ...]
    number: int  # from 1
    pages: int
    matches: int
    files: int  # all of the directory, and so the size
    size: int


def find_directory(metadata: Metadata, path: str) -> Directory | None:
    """Return the directory of a path without slashes at its ends; None if there is none."""
    prefix = f"{path}/" if path else ""
    start = len(prefix)
    below = [
        (full[start:], sub) for full, sub in metadata.subfiles.items() if full.startswith(prefix)
    ]
    if not below:
        return None
    sizes: dict[str, list[int]] = {}
    for name, sub in below:
        if "/" in name:
            found = sizes.setdefault(name[: name.index("/")], [0, 0])
            found[0] += sub.len
            found[1] += 1
    directories = (
        Row(name, size, is_directory=True, files=files) for name, (size, files) in sizes.items()
    )
    files = tuple(item for item in below if "/" not in item[0])
    return Directory(path, files, tuple(directories))


def page_of(directory: Directory, search: str, sort: str, number: int) -> DirectoryPage:
    """Return a page of rows. `sort` is one of `SORTS`, with ``-`` before it for the reverse."""
    files: Sequence[_Item] = directory.files
    directories: Sequence[_Item] = directory.directories
    if search:
        folded = search.casefold()
        files = [item for item in files if folded in _name(item).casefold()]
        directories = [item for item in directories if folded in _name(item).casefold()]
    key, is_reversed = _KEYS[sort.removeprefix("-")], sort.startswith("-")
    matches = len(files) + len(directories)
    ordered = chain(
        _in_order(directories, key, is_reversed=is_reversed),
        _in_order(files, key, is_reversed=is_reversed),
    )
    path_size = _size(directory.path)
    longest = max((len(_name(item)) for item in chain(files, directories)), default=0)
    if (path_size + 4 * longest) * ROWS_LIMIT <= BYTES_LIMIT:
        pages = max(1, -(-matches // ROWS_LIMIT))
        number = min(max(number, 1), pages)
        shown = list(islice(ordered, (number - 1) * ROWS_LIMIT, number * ROWS_LIMIT))
    else:
        rows = list(ordered)
        starts = _page_starts(path_size + _size(_name(item)) for item in rows)
        pages = len(starts)
        number = min(max(number, 1), pages)
        shown = rows[starts[number - 1] : starts[number] if number < pages else None]
    return DirectoryPage(
        rows=tuple(map(_row, shown)),
        number=number,
        pages=pages,
        matches=matches,
        files=directory.count,
        size=directory.size,
    )


def index_pieces(directory: Directory) -> Generator[bytes, int | None]:
    """Yield a page of links to all that is in a directory, by name; relative, with a slash behind
    those of directories.
    """
    title = html.escape(visible(f"Index of /{directory.path}"))
    head = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f"{head}<title>{title}</title></head>\n<body><h1>{title}</h1>\n<pre>\n".encode(
        errors="replace"
    )
    names = heapq.merge(
        _in_order([(row.name + "/", row) for row in directory.directories], itemgetter(0)),
        _in_order(directory.files, itemgetter(0)),
        key=itemgetter(0),
    )
    if directory.path:
        yield b'<a href="../">../</a>\n'
    while run := list(islice(names, _LINKS)):
        yield "".join(
            f'<a href="{_relative(name)}">{html.escape(visible(name))}</a>\n' for name, _ in run
        ).encode(errors="replace")
    yield b"</pre></body></html>\n"


def _relative(name: str) -> str:
    """Return the URL of what is in a directory, from there."""
    return ("./" if ":" in name else "") + quote(name, errors="replace")


def _in_order(
    items: Sequence[_T], key: Callable[[_T], Any], *, is_reversed: bool = False
) -> Iterator[_T]:
    """Sort while it is read. To sort a million at once would stop the event loop for a second, as
    no other thread runs meanwhile.
    """
    runs = [
        sorted(items[at : at + _RUN], key=key, reverse=is_reversed)
        for at in range(0, len(items), _RUN)
    ]
    return heapq.merge(*runs, key=key, reverse=is_reversed)


def _page_starts(sizes: Iterable[int]) -> list[int]:
    """Return the index of the first row of each page, given the bytes of each row."""
    starts, total = [0], 0
    for at, size in enumerate(sizes):
        total += size
        if at > starts[-1] and (total > BYTES_LIMIT or at - starts[-1] == ROWS_LIMIT):
            starts.append(at)
            total = size
    return starts


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _name(item: _Item) -> str:
    return item.name if isinstance(item, Row) else item[0]


def _row(item: _Item) -> Row:
    if isinstance(item, Row):
        return item
    name, sub = item
    return Row(name, sub.len, is_directory=False, content_type=sub.contenttype)


def readable_type(row: Row) -> str:
    """Return the type of a row for people."""
    if row.is_directory:
        return "Folder"
    found = stored_or_guessed(row.content_type, row.name)
    if found:
        return found.partition(";")[0].strip()
    return posixpath.splitext(row.name)[1].removeprefix(".").upper() or "File"


_KEYS: dict[str, Callable[[_Item], Any]] = {
    "name": _name,
    "size": lambda item: (item.size if isinstance(item, Row) else item[1].len, _name(item)),
    "type": lambda item: (readable_type(_row(item)), _name(item)),
}
SORTS = tuple(_KEYS)


def parents_of(path: str) -> list[tuple[str, str]]:
    """Return (name, path) of the directories on the way to a path, and of itself.

    Of many only the first and the last, with ``("…", "")`` between them.
    """
    names = path.split("/") if path else []
    shown = list(range(len(names)))
    if len(names) > PARENTS_LIMIT:
        half = PARENTS_LIMIT // 2
        shown = [*shown[:half], *shown[-half:]]
    found = [(names[at], "/".join(names[: at + 1])) for at in shown]
    if len(found) < len(names):
        found.insert(PARENTS_LIMIT // 2, ("…", ""))
    return found

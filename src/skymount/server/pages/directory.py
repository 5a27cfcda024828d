"""What is directly in a directory of a skyfile, for listings. No IO.

A directory may have a million files: rows are made only of those that are shown.
"""

import posixpath
from dataclasses import dataclass

from skymount.server.download import media_type
from skymount.wire.metadata import Metadata, Subfile

ROWS_LIMIT = 500
"""Rows of one page."""

PARENTS_LIMIT = 30
"""Directories above a file or directory that are shown with it."""

SORTS = ("name", "size", "type")


@dataclass(frozen=True, slots=True)
class Row:
    """A file or directory, as it is shown."""

    name: str
    size: int
    is_directory: bool
    content_type: str = ""
    files: int = 0  # below a directory


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory: its files and directories, unsorted."""

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
    return Directory(tuple(item for item in below if "/" not in item[0]), tuple(directories))


def page_of(directory: Directory, search: str, sort: str, number: int) -> DirectoryPage:
    """Return a page of rows. `sort` is one of `SORTS`, with ``-`` before it for the reverse."""
    files, directories = list(directory.files), list(directory.directories)
    if search:
        folded = search.casefold()
        files = [item for item in files if folded in item[0].casefold()]
        directories = [row for row in directories if folded in row.name.casefold()]
    files.sort(key=lambda item: item[0])
    directories.sort(key=lambda row: row.name)
    key = sort.removeprefix("-")
    if key == "size":
        files.sort(key=lambda item: item[1].len)
        directories.sort(key=lambda row: row.size)
    elif key == "type":
        files.sort(key=lambda item: readable_type(_row(item)))
    if sort.startswith("-"):
        files.reverse()
        directories.reverse()
    matches = len(files) + len(directories)
    pages = max(1, -(-matches // ROWS_LIMIT))
    number = min(max(number, 1), pages)
    first, last = (number - 1) * ROWS_LIMIT, number * ROWS_LIMIT
    shown = directories[first:last]
    before = len(directories)
    shown += map(_row, files[max(first - before, 0) : max(last - before, 0)])
    return DirectoryPage(
        rows=tuple(shown),
        number=number,
        pages=pages,
        matches=matches,
        files=directory.count,
        size=directory.size,
    )


def _row(item: tuple[str, Subfile]) -> Row:
    name, sub = item
    return Row(name, sub.len, is_directory=False, content_type=sub.contenttype)


def readable_type(row: Row) -> str:
    """Return the type of a row for people."""
    if row.is_directory:
        return "Folder"
    found = media_type.stored_or_guessed(row.content_type, row.name)
    if found:
        return found.partition(";")[0].strip()
    return posixpath.splitext(row.name)[1].removeprefix(".").upper() or "File"


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

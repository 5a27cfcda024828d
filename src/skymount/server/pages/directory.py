"""What is directly in a directory of a skyfile, for listings. No IO."""

import posixpath
from dataclasses import dataclass

from skymount.server.download import media_type
from skymount.wire.metadata import Metadata

ROWS_LIMIT = 500
"""Rows of one page."""

SORTS = ("name", "size", "type")


@dataclass(slots=True)
class Row:
    """A file or directory. Made in large numbers, and not changed once the list is made."""

    name: str
    size: int
    is_directory: bool
    content_type: str = ""
    files: int = 0  # below a directory


@dataclass(frozen=True, slots=True)
class DirectoryPage:
    """Some of the rows of a directory."""

    rows: tuple[Row, ...]
    number: int  # from 1
    pages: int
    matches: int
    directories: int  # all of the directory, and so the next two
    files: int
    size: int


def list_directory(metadata: Metadata, path: str) -> list[Row]:
    """Return the rows of a directory, unsorted; none if there is no such directory."""
    prefix = f"{path}/" if path else ""
    start = len(prefix)
    directories: dict[str, Row] = {}
    rows: list[Row] = []
    for full, sub in metadata.subfiles.items():
        if not full.startswith(prefix):
            continue
        name, slash, _ = full[start:].partition("/")
        if not slash:
            rows.append(Row(name, sub.len, is_directory=False, content_type=sub.contenttype))
            continue
        found = directories.get(name)
        if found is None:
            found = directories[name] = Row(name, 0, is_directory=True)
            rows.append(found)
        found.size += sub.len
        found.files += 1
    return rows


def page_of(rows: list[Row], search: str, sort: str, number: int) -> DirectoryPage:
    """Return a page of rows. `sort` is one of `SORTS`, with ``-`` before it for the reverse."""
    shown = rows
    if search:
        folded = search.casefold()
        shown = [row for row in rows if folded in row.name.casefold()]
    key = sort.removeprefix("-")
    if key == "size":
        shown = sorted(shown, key=lambda row: (row.size, row.name))
    elif key == "type":
        shown = sorted(shown, key=lambda row: (readable_type(row), row.name))
    else:
        shown = sorted(shown, key=lambda row: row.name)
    if sort.startswith("-"):
        shown.reverse()
    shown.sort(key=lambda row: not row.is_directory)
    pages = max(1, -(-len(shown) // ROWS_LIMIT))
    number = min(max(number, 1), pages)
    directories = sum(row.is_directory for row in rows)
    return DirectoryPage(
        rows=tuple(shown[(number - 1) * ROWS_LIMIT : number * ROWS_LIMIT]),
        number=number,
        pages=pages,
        matches=len(shown),
        directories=directories,
        files=sum(row.files if row.is_directory else 1 for row in rows),
        size=sum(row.size for row in rows),
    )


def neighbours(rows: list[Row], name: str) -> tuple[str, str]:
    """Return the names of the files before and after one; empty where there is none."""
    before = max((r.name for r in rows if not r.is_directory and r.name < name), default="")
    after = min((r.name for r in rows if not r.is_directory and r.name > name), default="")
    return before, after


def readable_type(row: Row) -> str:
    """Return the type of a row for people."""
    if row.is_directory:
        return "Folder"
    found = media_type.stored_or_guessed(row.content_type, row.name)
    if found:
        return found.partition(";")[0].strip()
    return posixpath.splitext(row.name)[1].removeprefix(".").upper() or "File"


def parents_of(path: str) -> list[tuple[str, str]]:
    """Return (name, path) of the directories on the way to a path, and of itself."""
    names = path.split("/") if path else []
    return [(name, "/".join(names[: at + 1])) for at, name in enumerate(names)]

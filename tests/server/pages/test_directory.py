"""What is directly in a directory."""

from skymount.server.pages.directory import (
    Row,
    list_directory,
    neighbours,
    page_of,
    parents_of,
    readable_type,
)
from skymount.wire.metadata import Metadata, Subfile

_METADATA = Metadata(
    subfiles={
        "b": Subfile(len=1),
        "a/x": Subfile(len=2),
        "a/y/z": Subfile(len=4),
        "a": Subfile(len=8, contenttype="text/plain; a=b"),
        "ab": Subfile(len=16),
    }
)


def names(rows: tuple[Row, ...] | list[Row]) -> list[str]:
    return [row.name + "/" * row.is_directory for row in rows]


def test_files_and_directories() -> None:
    """B4: a name may be both; a directory has the size and the number of all below it."""
    page = page_of(list_directory(_METADATA, ""), "", "name", 1)
    assert names(page.rows) == ["a/", "a", "ab", "b"]
    assert (page.rows[0].size, page.rows[0].files) == (6, 2)
    assert (page.files, page.size, page.directories) == (5, 31, 1)
    assert names(list_directory(_METADATA, "a")) == ["x", "y/"]
    assert list_directory(_METADATA, "nothing") == []


def test_order() -> None:
    """B4: directories come first in each."""
    rows = list_directory(_METADATA, "")
    assert names(page_of(rows, "", "-name", 1).rows) == ["a/", "b", "ab", "a"]
    assert names(page_of(rows, "", "size", 1).rows) == ["a/", "b", "a", "ab"]
    assert names(page_of(rows, "A", "-type", 1).rows) == ["a/", "a", "ab"]
    assert page_of(rows, "no such", "name", 9).rows == ()


def test_neighbours_are_files() -> None:
    """B4: the one before and the one after, by name."""
    rows = list_directory(_METADATA, "")
    assert neighbours(rows, "ab") == ("a", "b")
    assert neighbours(rows, "a") == ("", "ab")


def test_types_for_people() -> None:
    assert readable_type(Row("a", 0, is_directory=True)) == "Folder"
    assert readable_type(Row("a.png", 0, is_directory=False)) == "image/png"
    assert readable_type(Row("a.png", 0, False, "text/x; charset=y")) == "text/x"
    assert readable_type(Row("a.odd", 0, is_directory=False)) == "ODD"
    assert readable_type(Row("a", 0, is_directory=False)) == "File"


def test_parents() -> None:
    assert parents_of("a/b") == [("a", "a"), ("b", "a/b")]
    assert parents_of("") == []

"""What is directly in a directory."""

from skymount.server.pages.directory import (
    BYTES_LIMIT,
    PARENTS_LIMIT,
    ROWS_LIMIT,
    SORTS,
    Directory,
    DirectoryPage,
    Row,
    find_directory,
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


def found(path: str) -> Directory:
    directory = find_directory(_METADATA, path)
    assert directory is not None
    return directory


def names(directory: Directory, search: str = "", sort: str = "name") -> list[str]:
    rows = page_of(directory, search, sort, 1).rows
    return [row.name + "/" * row.is_directory for row in rows]


def test_files_and_directories() -> None:
    """B4: a name may be both; a directory has the size and the number of all below it."""
    assert names(found("")) == ["a/", "a", "ab", "b"]
    page = page_of(found(""), "", "name", 1)
    assert (page.rows[0].size, page.rows[0].files) == (6, 2)
    assert (page.files, page.size, page.matches) == (5, 31, 4)
    assert names(found("a")) == ["x", "y/"][::-1]
    assert find_directory(_METADATA, "nothing") is None


def test_order() -> None:
    """B4: directories come first in each."""
    assert names(found(""), sort="-name") == ["a/", "b", "ab", "a"]
    assert names(found(""), sort="size") == ["a/", "b", "a", "ab"]
    assert names(found(""), search="A", sort="-type") == ["a/", "a", "ab"]
    assert page_of(found(""), "no such", "name", 9).rows == ()


def test_pages_go_from_directories_to_files() -> None:
    """B4: each row is on one page."""
    files = {f"d{n:03}/x": Subfile() for n in range(ROWS_LIMIT - 2)}
    files |= {f"f{n:03}": Subfile() for n in range(ROWS_LIMIT)}
    directory = find_directory(Metadata(subfiles=files), "")
    assert directory is not None
    pages = [page_of(directory, "", "name", number) for number in (1, 2)]
    assert [page.pages for page in pages] == [2, 2]
    rows = [row.name for page in pages for row in page.rows]
    assert rows == sorted({name.partition("/")[0] for name in files})


def all_pages(directory: Directory, sort: str = "name") -> list[DirectoryPage]:
    count = page_of(directory, "", sort, 1).pages
    return [page_of(directory, "", sort, number) for number in range(1, count + 1)]


def test_pages_are_bounded_in_bytes() -> None:
    """B4: however long names and the path are; each row is on one page."""
    names = [f"{number:02}" + "é" * 30_000 for number in range(40)]
    subfiles = {f"{'p' * 20_000}/{name}": Subfile() for name in names}
    subfiles |= {f"{'p' * 20_000}/d{name}/x": Subfile() for name in names}
    directory = find_directory(Metadata(subfiles=subfiles), "p" * 20_000)
    assert directory is not None
    pages = all_pages(directory)
    assert [row.name for page in pages for row in page.rows] == [f"d{n}" for n in names] + names
    for page in pages:
        assert 0 < sum(20_000 + len(row.name.encode()) for row in page.rows) <= BYTES_LIMIT
    assert page_of(directory, "", "name", 99).number == len(pages)


def test_one_row_is_shown_however_long_it_is() -> None:
    """B4: the others, which are short, are on pages of 500."""
    subfiles = {f"b{number:04}": Subfile() for number in range(ROWS_LIMIT + 1)}
    subfiles["a" * 2 * BYTES_LIMIT] = Subfile()
    directory = find_directory(Metadata(subfiles=subfiles), "")
    assert directory is not None
    assert [len(page.rows) for page in all_pages(directory)] == [1, ROWS_LIMIT, 1]


def test_thousands_of_rows_are_in_order() -> None:
    """B4: whatever their order in the metadata, and in each of the orders of pages."""
    ends = ("txt", "png", "odd")
    files = {
        f"{number * 7919 % 5003:04}.{ends[number % 3]}": Subfile(len=number % 100)
        for number in range(5003)
    }
    directory = find_directory(Metadata(subfiles=files), "")
    assert directory is not None
    keys = {
        "name": lambda row: row.name,
        "size": lambda row: (row.size, row.name),
        "type": lambda row: (readable_type(row), row.name),
    }
    for sort in SORTS:
        rows = [row for page in all_pages(directory, sort) for row in page.rows]
        assert sorted(rows, key=keys[sort]) == rows
        assert len(rows) == len(files)
        back = [row for page in all_pages(directory, f"-{sort}") for row in page.rows]
        assert back == rows[::-1]


def test_neighbours_are_files() -> None:
    """B4: the one before and the one after, by name."""
    assert found("").neighbours("ab") == ("a", "b")
    assert found("").neighbours("a") == ("", "ab")


def test_types_for_people() -> None:
    assert readable_type(Row("a", 0, is_directory=True)) == "Folder"
    assert readable_type(Row("a.png", 0, is_directory=False)) == "image/png"
    assert readable_type(Row("a.png", 0, False, "text/x; charset=y")) == "text/x"
    assert readable_type(Row("a.odd", 0, is_directory=False)) == "ODD"
    assert readable_type(Row("a", 0, is_directory=False)) == "File"


def test_parents() -> None:
    assert parents_of("a/b") == [("a", "a"), ("b", "a/b")]
    assert parents_of("") == []


def test_of_many_parents_the_first_and_the_last_are_shown() -> None:
    """B4: no path is made for the others, as together they would take gigabytes."""
    path = "/".join(map(str, range(30_000)))
    found = parents_of(path)
    assert len(found) == PARENTS_LIMIT + 1
    assert found[:2] == [("0", "0"), ("1", "0/1")]
    assert [parent for parent in found if not parent[1]] == [("…", "")]
    assert found[-2:] == [("29998", path.rpartition("/")[0]), ("29999", path)]
    for limit in (PARENTS_LIMIT, PARENTS_LIMIT + 1):
        path = "/".join(["a"] * limit)
        assert [full for _, full in parents_of(path) if full][-1] == path

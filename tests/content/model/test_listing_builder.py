"""The listing of metadata: every name that can exist, no other, in a stable order."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content.model.listing import DIRECTORY, Listing, unpack
from skymount.content.model.listing_builder import NAME_LIMIT, PATH_LIMIT, ROWS_LIMIT, tabulate
from skymount.errors import MalformedError
from skymount.wire.metadata import INTEGER_LIMIT, Metadata, Subfile, encode_metadata
from tests.fakes.skyfiles import listing_of


def listing_with(*paths: str, size: int = 1000) -> Listing:
    """Return the listing of files of one byte each."""
    subfiles = {
        path: Subfile(filename=path, offset=n % size, len=1) for n, path in enumerate(paths)
    }
    return listing_of(Metadata("d", size, subfiles=subfiles), size)


def paths_of(found: Listing) -> list[str]:
    """Return the paths in the order of the rows; those of directories end in a slash."""
    return [
        found.path(row).decode() + ("/" if found.modes[row] == DIRECTORY else "")
        for row in range(1, len(found))
    ]


def test_files_and_directories():
    """Paths make directories; rows are sorted by name, whatever the order in the metadata."""
    paths = ["b", "a/z", "a.txt", "a/b/c", "a/b c", "é"]
    expected = ["a/", "a/b/", "a/b/c", "a/b c", "a/z", "a.txt", "b", "é"]
    assert paths_of(listing_with(*paths)) == expected
    assert paths_of(listing_with(*reversed(paths))) == expected


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "empty"),
        (".", "'.'"),
        ("..", "'..'"),
        ("/", "empty"),
        ("//", "empty"),
        ("/etc/passwd", "empty"),
        ("../../etc/passwd", "'..'"),
        ("a//b", "empty"),
        ("a/", "empty"),
        ("a/.", "'.'"),
        ("a/..", "'..'"),
        ("a/../b", "'..'"),
        ("./a", "'.'"),
        ("a\0b", "NUL"),
        ("\0", "NUL"),
        ("x" * 256, "longer than 255"),
        ("é" * 128, "longer than 255"),
        ("d/" + "x" * 300 + "/f", "longer than 255"),
        ("d/" * 2048 + "f", "longer than 4095"),
        ("a/" * 10_000 + "f", "longer than 4095"),
        ("x" * 1_000_000, "longer than 4095"),
        ("\ud800", "UTF-8"),
        ("ok/\udcff", "UTF-8"),
    ],
)
def test_names_that_cannot_be(path: str, reason: str):
    """N1: A path is not shown if one of its elements is empty, `.` or `..`.

    Such a path is listed as hidden with the reason, as it is, and leaves nothing in the listing.
    """
    found = listing_with(path, "good")
    assert paths_of(found) == ["good"]
    [(hidden, why)] = found.hidden
    assert hidden == path
    assert reason in why


@pytest.mark.parametrize(
    "path",
    [
        "...",
        "..a",
        "a..",
        ".a",
        "~",
        "-rf",
        "a b",
        " ",
        "a\nb",
        "\n",
        "..\n",
        ".\n",
        "tail\n",
        "a\\b",
        "%2F",
        "\x01",
        "x" * 255,
        "é" * 127,
        "/".join(["x" * 255] * 15),
        "d/" * 2047 + "f",
        "C:",
        "con",
        "a\u202eb",
    ],
)
def test_odd_names_that_can_be(path: str):
    """Any other path is shown exactly as it is."""
    found = listing_with(path)
    assert list(found.hidden) == []
    assert paths_of(found)[-1] == path
    assert found.path(len(found) - 1).decode() == path


def test_ten_thousand_deep():
    """A path of the greatest depth is a chain of directories, and walking it is no recursion."""
    found = listing_with("d/" * 2047 + "f", "a/" * 10_000 + "f")
    assert len(found) == 2049
    assert found.path(2048) == b"d/" * 2047 + b"f"
    assert len(found.hidden) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_file_that_is_also_a_directory(order: int):
    """N2: the directory is shown and the file is not.

    The directory wins in either order, and the file is listed as hidden, once.
    """
    paths = ["a", "a/b", "a/c/d", "a/c", "x/y", "x", "a.b", "a-b/c"][::order]
    found = listing_with(*paths)
    assert paths_of(found) == ["a/", "a/b", "a/c/", "a/c/d", "a-b/", "a-b/c", "a.b", "x/", "x/y"]
    assert sorted(path for path, _ in found.hidden) == ["a", "a/c", "x"]


@pytest.mark.parametrize(
    ("offset", "length", "shown"),
    [
        (0, 0, True),
        (0, 10, True),
        (9, 1, True),
        (10, 0, True),
        (11, 0, False),
        (0, 11, False),
        (5, 6, False),
        ((1 << 62), (1 << 62) - 1, False),
    ],
)
def test_extents(offset: int, length: int, shown: bool):
    """N3: or reaches beyond the content is not shown.

    A file is shown if its extent lies in the content.
    """
    metadata = Metadata("d", 10, subfiles={"f": Subfile(offset=offset, len=length)})
    found = listing_of(metadata, 10)
    assert paths_of(found) == (["f"] if shown else [])
    assert len(found.hidden) == (not shown)


def test_records_that_were_rejected():
    """What the metadata's reader could not understand is hidden too; no file is invented for it."""
    raw = b'{"filename":"site","length":9,"subfiles":{"a":{"offset":-1},"b":5}}'
    found = listing_of(raw, 9)
    assert paths_of(found) == []
    assert sorted(path for path, _ in found.hidden) == ["a", "b"]


def test_indexes_depend_on_the_metadata_alone():
    """S5: the place of the file in the sorted list of paths.

    The same metadata gives the same indexes, so that inode numbers last.
    """
    luck = random.Random(4)
    paths = [f"{luck.randrange(50)}/{luck.randrange(50)}/{n}" for n in range(2000)]
    first = listing_with(*paths)
    luck.shuffle(paths)
    second = listing_with(*paths)
    assert paths_of(first) == paths_of(second)
    both = [[found.path(n) for n in range(len(found))] for found in (first, second)]
    assert both[0] == both[1]


def test_limit_of_nodes():
    """N4: At most 1,572,864 files and directories of one skylink are shown.

    Beyond the limit files are listed as hidden, not dropped.
    """
    assert ROWS_LIMIT < 1 << 24  # what an inode number has room for
    subfiles = ", ".join(f'"{n:03}": {{"len": 1}}' for n in range(30))
    found = unpack(tabulate(b'{"subfiles": {%s}}' % subfiles.encode(), 1000, rows_limit=10))
    assert len(found) == 10
    assert len(found.hidden) == 21


NAMES = ["a", "b", "..", ".", "", "c\0", "é", "x" * 256, "\ud800"]
PATHS = st.lists(
    st.lists(st.sampled_from(NAMES), max_size=4).map("/".join),
    min_size=1,
    max_size=12,
    unique=True,
)


@settings(derandomize=True, database=None, deadline=None)
@given(paths=PATHS)
def test_shown_or_hidden(paths: list[str]):
    """N5: What is not shown is never dropped in silence and never altered to fit.

    Every path is either in the rows or in the list of what is not, never both, never changed.
    """
    found = listing_with(*paths)
    shown = [path for path in paths_of(found) if not path.endswith("/")]
    hidden = [path for path, _ in found.hidden]
    assert sorted(shown + hidden) == sorted(paths)
    for path in paths_of(found):
        for name in path.rstrip("/").split("/"):
            assert name not in ("", ".", "..")
            assert "\0" not in name
            assert len(name.encode()) <= NAME_LIMIT
        assert len(path.encode()) <= PATH_LIMIT


def test_metadata_that_says_no_size():
    """The size is what is known, else what the metadata says, else what the answer says."""
    raw = encode_metadata(Metadata("f", 7))
    assert unpack(tabulate(raw, 5, 9)).size == 5
    assert unpack(tabulate(raw, None, 9)).size == 7
    old = json.dumps({"filename": "f"}).encode()
    assert unpack(tabulate(old, None, 9)).size == 9
    with pytest.raises(MalformedError):
        tabulate(old)


@pytest.mark.parametrize("known", [True, False], ids=["known", "answered"])
def test_size_that_no_file_can_have(known: bool):
    """A size that the kernel has no number for is malformed, whoever says it."""
    raw = json.dumps({"filename": "f"}).encode()
    most = INTEGER_LIMIT - 1
    assert unpack(tabulate(raw, *((most, None) if known else (None, most)))).size == most
    with pytest.raises(MalformedError, match="no file"):
        tabulate(raw, *((most + 1, None) if known else (None, most + 1)))

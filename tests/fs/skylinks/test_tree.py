"""The tree inside a skyfile: every name that can exist, no other, in a stable order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content.model.listing import unpack
from skymount.content.model.listing_builder import NAME_LIMIT, PATH_LIMIT, ROWS_LIMIT, tabulate
from skymount.content.model.skyfile import Skyfile, Verified
from skymount.fs.skylinks.tree import Tree, TreeFile
from skymount.wire.metadata import Metadata, Subfile
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import listing_of

LINK = Skylink.v1(bytes(32), 1)


def skyfile(metadata: Metadata | bytes, size: int = 1000) -> Skyfile:
    """Return a description with that metadata."""
    return Skyfile(LINK, listing_of(metadata, size), size, "http://portal.example", Verified.YES)


def tree_of(*paths: str, size: int = 1000) -> Tree:
    """Return the tree of files of one byte each."""
    subfiles = {
        path: Subfile(filename=path, offset=n % size, len=1) for n, path in enumerate(paths)
    }
    return Tree(skyfile(Metadata("d", size, subfiles=subfiles), size))


def paths_of(tree: Tree) -> list[str]:
    """Return the paths in the order of the listings; those of directories end in a slash."""
    found: list[str] = []
    ahead = [(0, "")]
    while ahead:
        index, path = ahead.pop()
        if not tree.is_directory(index):
            found.append(path)
            continue
        if index:
            path += "/"
            found.append(path)
        for child in reversed(list(tree.listing.children(index))):
            assert tree.listing.find(index, tree.listing.names[child]) == child
            assert tree.listing.path(child) == (path.encode() + tree.listing.names[child])
            ahead.append((child, path + tree.listing.names[child].decode()))
    return found


def test_files_and_directories():
    """Paths make directories; listings are sorted by name, whatever the order in the metadata."""
    paths = ["b", "a/z", "a.txt", "a/b/c", "a/b c", "é"]
    expected = ["a/", "a/b/", "a/b/c", "a/b c", "a/z", "a.txt", "b", "é"]
    assert paths_of(tree_of(*paths)) == expected
    assert paths_of(tree_of(*reversed(paths))) == expected


def test_single_file():
    """Content without subfiles is one file under its own name, as large as the content."""
    tree = Tree(skyfile(Metadata("page.html", 77, mode=0o600), 1000))
    assert paths_of(tree) == ["page.html"]
    file = tree.node(1)
    assert isinstance(file, TreeFile)
    assert (file.offset, file.size, file.mode) == (0, 1000, 0o100400)


def test_modes():
    """S6: Modes are those of the metadata less every write bit and every bit beyond `rwx`.

    Permissions are those of the metadata without any to write; none at all means readable.
    """
    modes = {0: 0o444, 0o644: 0o444, 0o777: 0o555, 0o222: 0o444, 0o4755: 0o555, 0o100: 0o100}
    subfiles = {f"{mode:o}": Subfile(mode=mode) for mode in modes}
    tree = Tree(skyfile(Metadata("d", 0, subfiles=subfiles)))
    assert tree.mode(0) == 0o040555
    for mode, expected in modes.items():
        index = tree.listing.find(0, f"{mode:o}".encode())
        assert index is not None
        assert tree.mode(index) == tree.node(index).mode == 0o100000 | expected


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

    Such a path is listed as hidden with the reason, as it is, and leaves nothing in the tree.
    """
    tree = tree_of(path, "good")
    assert paths_of(tree) == ["good"]
    [(hidden, why)] = tree.listing.hidden
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
    tree = tree_of(path)
    assert list(tree.listing.hidden) == []
    assert paths_of(tree)[-1] == path
    assert tree.listing.path(len(tree) - 1).decode() == path


def test_ten_thousand_deep():
    """A path of the greatest depth is a chain of directories, and walking it is no recursion."""
    tree = tree_of("d/" * 2047 + "f", "a/" * 10_000 + "f")
    assert len(tree) == 2049
    assert tree.listing.path(2048) == b"d/" * 2047 + b"f"
    assert len(tree.listing.hidden) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_file_that_is_also_a_directory(order: int):
    """N2: the directory is shown and the file is not.

    The directory wins in either order, and the file is listed as hidden, once.
    """
    paths = ["a", "a/b", "a/c/d", "a/c", "x/y", "x", "a.b", "a-b/c"][::order]
    tree = tree_of(*paths)
    assert paths_of(tree) == ["a/", "a/b", "a/c/", "a/c/d", "a-b/", "a-b/c", "a.b", "x/", "x/y"]
    assert sorted(path for path, _ in tree.listing.hidden) == ["a", "a/c", "x"]


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
    tree = Tree(skyfile(metadata, 10))
    assert paths_of(tree) == (["f"] if shown else [])
    assert len(tree.listing.hidden) == (not shown)


def test_overlapping_extents():
    """N3: Files may overlap.

    Extents may overlap: each file is what its own says.
    """
    subfiles = {"a": Subfile(offset=0, len=8), "b": Subfile(offset=4, len=6)}
    tree = Tree(skyfile(Metadata("d", 10, subfiles=subfiles), 10))
    files = [node for node in map(tree.node, range(len(tree))) if isinstance(node, TreeFile)]
    assert [(file.offset, file.size) for file in files] == [(0, 8), (4, 6)]


def test_records_that_were_rejected():
    """What the metadata's reader could not understand is hidden too; no file is invented for it."""
    raw = b'{"filename":"site","length":9,"subfiles":{"a":{"offset":-1},"b":5}}'
    tree = Tree(skyfile(raw, 9))
    assert paths_of(tree) == []
    assert sorted(path for path, _ in tree.listing.hidden) == ["a", "b"]


def test_indexes_depend_on_the_metadata_alone():
    """S5: the place of the file in the sorted list of paths.

    The same metadata gives the same indexes, so that inode numbers last.
    """
    luck = random.Random(4)
    paths = [f"{luck.randrange(50)}/{luck.randrange(50)}/{n}" for n in range(2000)]
    first = tree_of(*paths)
    luck.shuffle(paths)
    second = tree_of(*paths)
    assert paths_of(first) == paths_of(second)
    both = [[tree.listing.path(n) for n in range(len(tree))] for tree in (first, second)]
    assert both[0] == both[1]


def test_limit_of_nodes():
    """N4: At most 1,572,864 files and directories of one skylink are shown.

    Beyond the limit files are listed as hidden, not dropped.
    """
    assert ROWS_LIMIT < 1 << 24  # what an inode number has room for
    subfiles = ", ".join(f'"{n:03}": {{"len": 1}}' for n in range(30))
    listing = unpack(tabulate(b'{"subfiles": {%s}}' % subfiles.encode(), 1000, rows_limit=10))
    assert len(listing) == 10
    assert len(listing.hidden) == 21


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

    Every path is either in the tree or in the list of what is not, never both, never changed.
    """
    tree = tree_of(*paths)
    shown = [path for path in paths_of(tree) if not path.endswith("/")]
    hidden = [path for path, _ in tree.listing.hidden]
    assert sorted(shown + hidden) == sorted(paths)
    for path in paths_of(tree):
        for name in path.rstrip("/").split("/"):
            assert name not in ("", ".", "..")
            assert "\0" not in name
            assert len(name.encode()) <= NAME_LIMIT
        assert len(path.encode()) <= PATH_LIMIT

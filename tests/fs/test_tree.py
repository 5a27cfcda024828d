"""The tree inside a skyfile: every name that can exist, no other, in a stable order."""

import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content.skyfile import Skyfile, Verified
from skymount.fs.tree import (
    NAME_LIMIT,
    NODES_LIMIT,
    PATH_LIMIT,
    Directory,
    File,
    Tree,
    build_tree,
)
from skymount.fs.xattrs import path_of
from skymount.wire.metadata import Metadata, Subfile, parse_metadata
from skymount.wire.skylink import Skylink

LINK = Skylink.v1(bytes(32), 1)


def skyfile(metadata: Metadata, size: int = 1000) -> Skyfile:
    """Return a description with that metadata."""
    return Skyfile(LINK, metadata, size, "http://portal.example", Verified.YES)


def tree_of(*paths: str, size: int = 1000) -> Tree:
    """Return the tree of files of one byte each."""
    subfiles = {
        path: Subfile(filename=path, offset=n % size, len=1) for n, path in enumerate(paths)
    }
    return build_tree(skyfile(Metadata("d", size, subfiles=subfiles), size))


def paths_of(tree: Tree) -> list[str]:
    """Return the paths in the order of the listings; those of directories end in a slash."""
    found: list[str] = []
    ahead = [(0, "")]
    while ahead:
        index, path = ahead.pop()
        node = tree.nodes[index]
        if isinstance(node, File):
            found.append(path)
            continue
        if index:
            path += "/"
            found.append(path)
        for name, child in reversed(node.children.items()):
            assert tree.nodes[child].parent == index
            ahead.append((child, path + name.decode()))
    return found


def test_files_and_directories():
    """Paths make directories; listings are sorted by name, whatever the order in the metadata."""
    paths = ["b", "a/z", "a.txt", "a/b/c", "a/b c", "é"]
    expected = ["a/", "a/b/", "a/b/c", "a/b c", "a/z", "a.txt", "b", "é"]
    assert paths_of(tree_of(*paths)) == expected
    assert paths_of(tree_of(*reversed(paths))) == expected


def test_single_file():
    """Content without subfiles is one file under its own name, as large as the content."""
    tree = build_tree(skyfile(Metadata("page.html", 77, mode=0o600), 1000))
    assert paths_of(tree) == ["page.html"]
    file = tree.nodes[1]
    assert isinstance(file, File)
    assert (file.offset, file.size, file.mode) == (0, 1000, 0o100400)


def test_modes():
    """S6: Modes are those of the metadata less every write bit and every bit beyond `rwx`.

    Permissions are those of the metadata without any to write; none at all means readable.
    """
    modes = {0: 0o444, 0o644: 0o444, 0o777: 0o555, 0o222: 0o444, 0o4755: 0o555, 0o100: 0o100}
    subfiles = {f"{mode:o}": Subfile(mode=mode) for mode in modes}
    tree = build_tree(skyfile(Metadata("d", 0, subfiles=subfiles)))
    root = tree.nodes[0]
    assert isinstance(root, Directory)
    assert root.mode == 0o040555
    for mode, expected in modes.items():
        assert tree.nodes[root.children[f"{mode:o}".encode()]].mode == 0o100000 | expected


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
    [(hidden, why)] = tree.hidden
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
    assert tree.hidden == ()
    assert paths_of(tree)[-1] == path
    assert path_of(tree, len(tree.nodes) - 1) == path


def test_ten_thousand_deep():
    """A path of the greatest depth is a chain of directories, and walking it is no recursion."""
    tree = tree_of("d/" * 2047 + "f", "a/" * 10_000 + "f")
    assert len(tree.nodes) == 2049
    assert path_of(tree, 2048) == "d/" * 2047 + "f"
    assert len(tree.hidden) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_file_that_is_also_a_directory(order: int):
    """N2: the directory is shown and the file is not.

    The directory wins in either order, and the file is listed as hidden, once.
    """
    paths = ["a", "a/b", "a/c/d", "a/c", "x/y", "x", "a.b", "a-b/c"][::order]
    tree = tree_of(*paths)
    assert paths_of(tree) == ["a/", "a/b", "a/c/", "a/c/d", "a-b/", "a-b/c", "a.b", "x/", "x/y"]
    assert sorted(path for path, _ in tree.hidden) == ["a", "a/c", "x"]


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
    tree = build_tree(skyfile(metadata, 10))
    assert paths_of(tree) == (["f"] if shown else [])
    assert len(tree.hidden) == (not shown)


def test_overlapping_extents():
    """N3: Files may overlap.

    Extents may overlap: each file is what its own says.
    """
    subfiles = {"a": Subfile(offset=0, len=8), "b": Subfile(offset=4, len=6)}
    tree = build_tree(skyfile(Metadata("d", 10, subfiles=subfiles), 10))
    files = [node for node in tree.nodes if isinstance(node, File)]
    assert [(file.offset, file.size) for file in files] == [(0, 8), (4, 6)]


def test_records_that_were_rejected():
    """What the metadata's reader could not understand is hidden too; no file is invented for it."""
    raw = b'{"filename":"site","length":9,"subfiles":{"a":{"offset":-1},"b":5}}'
    tree = build_tree(skyfile(parse_metadata(raw), 9))
    assert paths_of(tree) == []
    assert sorted(path for path, _ in tree.hidden) == ["a", "b"]


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
    assert [type(node) for node in first.nodes] == [type(node) for node in second.nodes]


def test_limit_of_nodes(monkeypatch: pytest.MonkeyPatch):
    """N4: At most 1,572,864 files and directories of one skylink are shown.

    Beyond the limit files are listed as hidden, not dropped.
    """
    assert NODES_LIMIT < 1 << 24  # what an inode number has room for
    monkeypatch.setattr("skymount.fs.tree.NODES_LIMIT", 10)
    tree = tree_of(*(f"{n:03}" for n in range(30)))
    assert len(tree.nodes) == 10
    assert len(tree.hidden) == 21


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
    hidden = [path for path, _ in tree.hidden]
    assert sorted(shown + hidden) == sorted(paths)
    for path in paths_of(tree):
        for name in path.rstrip("/").split("/"):
            assert name not in ("", ".", "..")
            assert "\0" not in name
            assert len(name.encode()) <= NAME_LIMIT
        assert len(path.encode()) <= PATH_LIMIT


def of_many(count: int, path: str) -> Skyfile:
    """Return a description of so many files."""
    subfiles = {path.format(n=n, d=n // 100): Subfile(offset=n, len=1) for n in range(count)}
    return skyfile(Metadata("d", count, subfiles=subfiles), count)


MANY = pytest.mark.parametrize("path", ["{n:07}", "d{d}/f{n}"], ids=["flat", "in directories"])


@MANY
def test_memory_of_many_entries(path: str):
    """A file takes some hundred bytes."""
    described = of_many(50_000, path)
    tracemalloc.start()
    try:
        tree = build_tree(described)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 400 * len(tree.nodes)


@MANY
def test_time_of_many_entries(path: str):
    """Ten times as many files take ten times as long, or a little more."""
    times = []
    for count in (20_000, 200_000):
        described = of_many(count, path)
        begun = time.process_time()
        tree = build_tree(described)
        times.append(time.process_time() - begun)
        assert len(tree.nodes) > count
    assert times[1] < 30 * times[0] + 1

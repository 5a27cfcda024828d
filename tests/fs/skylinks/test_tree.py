"""The tree inside a skyfile as the kernel sees it: nodes, their modes and their sizes."""

from skymount.content.model.skyfile import Skyfile, Verified
from skymount.fs.skylinks.tree import Tree, TreeFile
from skymount.wire.metadata import Metadata, Subfile
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import listing_of

LINK = Skylink.v1(bytes(32), 1)


def skyfile(metadata: Metadata | bytes, size: int = 1000) -> Skyfile:
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


def test_overlapping_extents():
    """N3: Files may overlap.

    Extents may overlap: each file is what its own says.
    """
    subfiles = {"a": Subfile(offset=0, len=8), "b": Subfile(offset=4, len=6)}
    tree = Tree(skyfile(Metadata("d", 10, subfiles=subfiles), 10))
    files = [node for node in map(tree.node, range(len(tree))) if isinstance(node, TreeFile)]
    assert [(file.offset, file.size) for file in files] == [(0, 8), (4, 6)]

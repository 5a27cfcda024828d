"""Extended attributes: where a file came from, how far it can be trusted, what is not shown."""

import json

import pytest

from skymount.content.model.skyfile import Skyfile, Verified
from skymount.fs.skylinks.tree import Tree
from skymount.fs.skylinks.xattrs import attributes
from skymount.wire.metadata import Metadata, Subfile
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import listing_of

LINK = Skylink.v1(bytes(range(32)), 5000)


def tree_of(
    *paths: str, contenttype: str = "text/plain", verified: Verified = Verified.YES
) -> Tree:
    """Return a tree of empty files."""
    subfiles = {path: Subfile(filename=path, contenttype=contenttype) for path in paths}
    metadata = Metadata("d", 0, subfiles=subfiles)
    return Tree(Skyfile(LINK, listing_of(metadata), 0, "https://portal.example", verified))


def of(tree: Tree, index: int) -> dict[str, str]:
    """Return the attributes of a node."""
    found = attributes(tree, index)
    return {name.decode(): value.decode() for name, value in found.items()}


def test_file():
    """A1: On files also `user.skymount.content_type` and `user.mime_type`.

    A file has its skylink, type, origin, portal, and whether it was verified.
    """
    tree = tree_of("d/a b?.txt")
    assert of(tree, 2) == {
        "user.skymount.skylink": str(LINK),
        "user.skymount.merkle_root": bytes(range(32)).hex(),
        "user.skymount.portal": "https://portal.example",
        "user.skymount.verified": "yes",
        "user.skymount.content_type": "text/plain",
        "user.mime_type": "text/plain",
        "user.xdg.origin.url": f"https://portal.example/{LINK}/d/a%20b%3F.txt",
    }


def test_directories():
    """A1: On the skylink's directory also `user.skymount.hidden`.

    A directory has no type; the skylink's own says how much of it is not shown.
    """
    tree = tree_of("d/f", "../x", "/etc/passwd")
    assert "user.mime_type" not in of(tree, 1)
    assert "user.skymount.hidden" not in of(tree, 1)
    top = of(tree, 0)
    assert top["user.skymount.hidden"] == "2"
    assert top["user.xdg.origin.url"] == f"https://portal.example/{LINK}"
    lines = top["user.skymount.hidden_names"].splitlines()
    assert [line.partition(": ")[0] for line in lines] == ['"/etc/passwd"', '"../x"']


def test_nothing_hidden():
    """Where everything is shown, there are no names."""
    top = of(tree_of("f"), 0)
    assert top["user.skymount.hidden"] == "0"
    assert "user.skymount.hidden_names" not in top


@pytest.mark.parametrize("verified", Verified)
def test_trust(verified: Verified):
    """The level of trust is said in a word."""
    assert of(tree_of("f", verified=verified), 1)["user.skymount.verified"] == verified.value


@pytest.mark.parametrize("verified", Verified)
def test_trust_in_a_name_that_moves(verified: Verified):
    """H4: with `user.skymount.verified` = `no`.

    Content that is verified is not, where it is not verified that the name leads to it.
    """
    tree = tree_of("f", verified=verified)
    for known, word in ((True, verified.value), (False, "no")):
        found = attributes(tree, 1, verified=known)
        assert found[b"user.skymount.verified"] == word.encode()


def test_staleness():
    """H3: and `user.skymount.stale` says so. Of what cannot be stale nothing is said."""
    tree = tree_of("f")
    found = [
        attributes(tree, 1, stale=stale).get(b"user.skymount.stale")
        for stale in (None, False, True)
    ]
    assert found == [None, b"no", b"yes"]


def test_type_that_is_missing():
    """A file without a type has the one of bytes."""
    assert of(tree_of("f", contenttype=""), 1)["user.mime_type"] == "application/octet-stream"


@pytest.mark.parametrize("paths", [5000, 1], ids=["many", "long"])
def test_values_fit_the_kernel(paths: int):
    """N5: lists the paths with the reasons (up to 60 KiB of text).

    However much is hidden, however long its names, a value is below 64 KiB and ends cleanly.
    """
    names = [f"../{n:05}{'é' * (5 if paths > 1 else 100_000)}" for n in range(paths)]
    top = of(tree_of(*names), 0)
    assert top["user.skymount.hidden"] == str(paths)
    value = top["user.skymount.hidden_names"]
    assert len(value.encode()) < 64 << 10
    for line in value.splitlines():
        if line != "...":
            json.JSONDecoder().raw_decode(line)


def test_hostile_values():
    """Types and names with surrogates, control characters or without end are still values."""
    long = of(tree_of("f", contenttype="x" * 1_000_000), 1)
    assert len(long["user.mime_type"]) <= 1000
    odd = attributes(tree_of("f", contenttype="a\ud800\0"), 1)
    assert odd
    top = of(tree_of("\ud800\n", "a\0\nb"), 0)
    assert len(top["user.skymount.hidden_names"].splitlines()) == 2

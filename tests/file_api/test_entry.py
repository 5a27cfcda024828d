"""Files and directories of a tree."""

import pytest

from skymount.content.model.skyfile import Skyfile, Verified
from skymount.file_api.entry import Entry
from skymount.file_api.location import Location
from skymount.fs.skylinks.tree import Tree
from tests.fakes.skyfiles import listing_of, of_files
from tests.file_api.conftest import FILES


def entry(files: dict[str, bytes], *names: str) -> Entry:
    made = of_files(files)
    listing, size = listing_of(made.metadata, len(made.payload)), len(made.payload)
    found = Skyfile(made.skylink, listing, size, "http://portal.example", Verified.YES)
    return Entry.find(Location(made.skylink, names), Tree(found))


def test_descendants() -> None:
    """Parents come first; a depth counts from the directory that is asked."""
    names = [each.location.path.partition("/")[2] for each in entry(FILES).descendants()]
    assert names == [
        *("a.csv", "d", "d/b.txt", "d/e", "d/e/c[1].txt", "d/e/empty"),
        "space and %20.txt",
    ]
    below = entry(FILES, "d")
    assert [each.location.names[-1] for each in below.descendants(1)] == ["b.txt", "e"]
    assert list(entry(FILES, "a.csv").descendants()) == []


def test_what_cannot_be_shown_says_why() -> None:
    """P3: a name that no file system can show is not there, and the error has the reason."""
    files = {"ok": b"1", "../up": b"2"}
    with pytest.raises(FileNotFoundError, match="it cannot be shown"):
        entry(files, "..", "up")
    with pytest.raises(FileNotFoundError) as caught:
        entry(files, "up")
    assert "shown" not in str(caught.value)

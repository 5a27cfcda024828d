"""Uploads by the file systems of fsspec."""

import errno
import warnings
from collections.abc import Callable
from pathlib import Path

import fsspec
import httpx
import pytest
from fsspec.callbacks import Callback
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract.common import GLOB_EDGE_CASES_TESTS

from skymount.file_api.fsspec_filesystem import SkylinkFileSystem
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal
from tests.file_api.conftest import FILES


@pytest.fixture
def fs(fake: FakePortal) -> SkylinkFileSystem:
    return fsspec.filesystem("skylink", portals=fake.url)


@pytest.fixture
def real(portal: str) -> SkylinkFileSystem:
    return fsspec.filesystem("skylink", portals=portal)


def test_put(real: SkylinkFileSystem, tree: Callable[..., Path]) -> None:
    """P12: `put` returns the link of the new skylink."""
    told = Callback()
    link = real.put(tree(FILES), recursive=True, callback=told)
    assert link.startswith("skylink://")
    assert real.cat(link, recursive=True) == {
        f"{link.removeprefix('skylink://')}/{name}": data for name, data in FILES.items()
    }
    assert told.size == told.value > sum(map(len, FILES.values()))
    assert real.upload(tree(FILES), recursive=True) == link


def test_put_of_one_file(real: SkylinkFileSystem, tree: Callable[..., Path]) -> None:
    """P12: the link has the name of the file at its end, the skylink is the file alone."""
    for name in ("a.csv", "space and %20.txt", "d/e/c[1].txt"):
        link = real.put(tree(FILES) / name)
        skylink = real.info(link)["skylink"]
        assert link == f"skylink://{skylink}/{Path(name).name}"
        assert real.cat(link) == real.cat(skylink) == FILES[name]
        assert real.isfile(skylink)
        assert real.put(str(tree(FILES) / name), "", True) == link


@pytest.mark.parametrize(
    GLOB_EDGE_CASES_TESTS["argnames"],
    [case for case in GLOB_EDGE_CASES_TESTS["argvalues"] if case[3]],
)
def test_put_of_patterns(
    real: SkylinkFileSystem,
    tree: Callable[..., Path],
    path: str,
    recursive: bool,
    maxdepth: int | None,
    expected: list[str],
) -> None:
    """P12: fsspec's own cases of patterns; the content is a new directory."""
    below = ["subfile1", "subfile2", "nesteddir/nestedfile"]
    names = ["file1", "file2", *(f"subdir{n}/{name}" for n in range(2) for name in below)]
    source = tree({name: name.encode() for name in names}, "source")
    link = real.put(str(source / path), recursive=recursive, maxdepth=maxdepth)
    assert _content(real, link).keys() == set(expected)


def _content(fs: SkylinkFileSystem, link: str) -> dict[str, bytes]:
    root = link.removeprefix("skylink://")
    assert fs.isdir(root)
    return {name.removeprefix(f"{root}/"): fs.cat_file(name) for name in fs.find(root)}


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        "d",
        "d/",
        "*",
        "d/*",
        "d/**",
        "**/*.txt",
        "?/b.txt",
        "d/e/*.txt",
        "d*",
        ["a.csv"],
        ["a.csv", "d/b.txt"],
        ["*.csv", "d/*.txt"],
    ],
)
def test_put_as_other_file_systems(
    real: SkylinkFileSystem,
    tree: Callable[..., Path],
    given: str | list[str],
    recursive: bool,
    tmp_path: Path,
) -> None:
    """P12: what is copied where in a new directory is as by fsspec's local file system."""
    source = tree(FILES | {"d/e/c[1].txt": b"x", "d2/f": b"", "d.txt": b""}, "source")
    there = (
        f"{source}/{given}" if isinstance(given, str) else [f"{source}/{each}" for each in given]
    )
    target = tmp_path / "target"
    LocalFileSystem(auto_mkdir=True).put(
        there, f"{target}{'/' * isinstance(given, list)}", recursive
    )
    files = filter(Path.is_file, target.rglob("*"))
    expected = {str(path.relative_to(target)): path.read_bytes() for path in files}
    if not expected:
        with pytest.raises(IsADirectoryError, match="recursive=True"):
            real.put(there, recursive=recursive)
        return
    assert _content(real, real.put(there, recursive=recursive)) == expected


def test_put_of_lists_of_directories(real: SkylinkFileSystem, tree: Callable[..., Path]) -> None:
    """P12: each keeps its name, and what is below it; fsspec itself would flatten them."""
    source = tree(FILES)
    link = real.put([f"{source}/d", source / "a.csv", f"{source}/d/e/"], recursive=True)
    below = {name: data for name, data in FILES.items() if name.startswith("d/") or name == "a.csv"}
    assert _content(real, link) == below | {"c[1].txt": b"brackets", "empty": b""}
    link = real.put(source, recursive=True, maxdepth=2)
    assert _content(real, link).keys() == {"a.csv", "d/b.txt", "space and %20.txt"}
    (source / "link").symlink_to("d/e")
    assert _content(real, real.put([source / "link"], recursive=True)).keys() == {
        "link/c[1].txt",
        "link/empty",
    }
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        real.put([source / "d", source / "a.csv"])


def test_the_name_of_a_directory_that_was_put(
    real: SkylinkFileSystem, portal: str, tree: Callable[..., Path]
) -> None:
    """P12: as what is uploaded, or as what all of it is in."""
    source = tree(FILES)
    for given, name in ((source / "d", "d"), ([source / "d/e", source / "d/b.txt"], "d")):
        link = real.put(given, recursive=True).removeprefix("skylink://")
        assert httpx.get(f"{portal}/svc/metadata/{link}").json()["filename"] == name


def test_put_of_a_pattern_that_matches_directories(
    real: SkylinkFileSystem, tree: Callable[..., Path]
) -> None:
    """P12: without `recursive` they count for nothing, as for the names of what is taken."""
    source = tree({"a/x": b"1", "b/y/z": b"2"})
    assert _content(real, real.put(f"{source}/*/*")) == {"x": b"1"}
    assert _content(real, real.put(f"{source}/*/*", recursive=True)).keys() == {"a/x", "b/y/z"}


def test_put_of_two_files_with_one_name(real: SkylinkFileSystem, tree: Callable[..., Path]) -> None:
    """P12: two files never become one."""
    source = tree({"a/x": b"1", "b/x": b"2", "c/x/y": b"3"})
    two = [source / "a/x", source / "b/x"]
    with pytest.raises(ValueError, match=f"x: two files would be uploaded as that: {two[0]} and"):
        real.put(two)
    with pytest.raises(ValueError, match="two files"):
        real.put([f"{source}/*/x"])
    assert _content(real, real.put(f"{source}/*/x")) == {"a/x": b"1", "b/x": b"2"}
    real.put([two[0], two[0]])
    with pytest.raises(ValueError, match="x: a file and a directory would be"):
        real.put([source / "a/x", source / "c/x"], recursive=True)


def test_put_of_patterns_leaves_out_secrets(
    real: SkylinkFileSystem, tree: Callable[..., Path]
) -> None:
    """P12: what a pattern matches is as what a directory holds; what is listed is named itself."""
    source = tree({"a": b"1", ".env": b"S=1", "b~": b"", "d/.git/config": b"x", "d/x": b"2"})
    with pytest.warns(UserWarning, match=r"\.env: secrets") as told:
        link = real.put(f"{source}/*", recursive=True)
    assert "b~" in str(told[0].message)
    assert ".git" in str(told[0].message)
    assert _content(real, link).keys() == {"a", "d/x"}
    said = r"\.env: secrets, by its name; it is uploaded with take_all=True only"
    with pytest.raises(ValueError, match=said):
        real.put([source / "a", source / ".env"])
    with pytest.raises(ValueError, match="no file to upload but what is left out"):
        real.put(f"{source}/.e*")
    link = real.put([source / "a", source / ".env"], take_all=True)
    assert _content(real, link).keys() == {"a", ".env"}


def test_put_leaves_out_what_is_hardly_meant(
    real: SkylinkFileSystem, tree: Callable[..., Path]
) -> None:
    """P12: what `skymount upload` leaves out is left out with a warning."""
    secret = b"-----BEGIN OPENSSH PRIVATE KEY-----\n"
    files = {"a": b"1", ".env": b"S=1", ".ssh/config": b"x", "id_rsa": secret, "no.log": b"x"}
    directory = tree(files | {".skymountignore": b"*.log\n"})
    (directory / "empty").mkdir()
    with pytest.warns(UserWarning, match="left out|empty") as told:
        link = real.put(directory, recursive=True)
    assert real.ls(link, detail=False) == [f"{link.removeprefix('skylink://')}/a"]
    texts = [str(each.message) for each in told]
    reasons = {".env": "secrets, by its name", ".ssh": "secrets, by its name"}
    named = [f"{directory}/{name}: {reason}" for name, reason in reasons.items()]
    named.append(f"{directory}/id_rsa: a private key; take_all=True takes it along")
    assert texts[0] == f"left out: {'; '.join(named)}"
    assert "empty, and not part of the upload" in texts[1]
    assert {each.filename for each in told} == {__file__}
    (directory / "empty").rmdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        link = real.put(directory, recursive=True, take_all=True)
    assert len(real.find(link)) == 5


def test_put_and_links(real: SkylinkFileSystem, tree: Callable[..., Path]) -> None:
    """P12: what links lead to outside is left out, what cannot be uploaded is an error."""
    directory = tree({"a": b"1"})
    (directory.parent / "outside").write_bytes(b"2")
    (directory / "link").symlink_to("../outside")
    with pytest.warns(UserWarning, match=r"outside; follow_outside=True takes it along"):
        assert len(real.find(real.put(directory, recursive=True))) == 1
    (directory / "gone").symlink_to("absent")
    with pytest.raises(ValueError, match="gone: a link to nothing; skip_special=True"):
        real.put(directory, recursive=True, follow_outside=True)
    with pytest.warns(UserWarning, match="gone: a link to nothing"):
        link = real.put(directory, recursive=True, follow_outside=True, skip_special=True)
    assert len(real.find(link)) == 2


def test_what_cannot_be_put(
    real: SkylinkFileSystem, fs: SkylinkFileSystem, fake: FakePortal, tree: Callable[..., Path]
) -> None:
    directory = tree({"a": b"1"})
    with pytest.raises(FileNotFoundError, match="nothing"):
        real.put(directory / "nothing")
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        real.put(directory)
    with pytest.raises(FileNotFoundError, match=r"\*\.none"):
        real.put(f"{directory}/*.none")
    with pytest.raises(ValueError, match="lpath is empty"):
        real.put([])
    with pytest.raises(ValueError, match="lpath is empty"):
        real.put("", recursive=True)
    with pytest.raises(TypeError):
        real.put(None)
    with pytest.raises(ValueError, match="maxdepth"):
        real.put(directory, recursive=True, maxdepth=0)
    with pytest.raises(TypeError):
        real.put(directory, recursive=True, takeall=True)  # type: ignore[call-arg]
    with pytest.raises(OSError, match="never changes") as caught:
        real.put(directory, "skylink://somewhere", recursive=True)
    assert caught.value.errno == errno.EROFS
    with pytest.raises(OSError, match="never changes"):
        real.put([directory / "a"], ["skylink://somewhere/a"])
    fake.fault(faults.status(507, "full"))
    with pytest.raises(OSError, match="full"):
        fs.put(directory, recursive=True)

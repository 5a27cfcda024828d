"""`skymount.open`, `skymount.listdir` and `skymount.Path`, as a program uses them."""

import errno
import io
import os
import pickle
import stat
import subprocess
import sys
from pathlib import PurePosixPath

import pytest

import skymount
from skymount.errors import PortalError
from skymount.file_api.sessions import SESSIONS
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import (
    FakeSkyfile,
    describe,
    noise,
    of_files,
    of_metadata,
    plain,
    resolver,
)
from tests.file_api.conftest import FILES


def test_files_are_those_of_the_skylink(site: FakeSkyfile) -> None:
    """P1: the files and directories at a link, and their bytes."""
    assert skymount.listdir(site.name) == ["a.csv", "d", "space and %20.txt"]
    for name, data in FILES.items():
        with skymount.open(f"skylink://{site.name}/{name}") as file:
            assert isinstance(file, io.BufferedReader)
            assert file.name == f"skylink://{site.name}/{name}"
            assert file.read() == data
    with skymount.open(f"svc://{site.name}/space%20and%20%2520.txt") as file:
        assert file.read() == b"as it stands"


def test_the_disk_cache_is_that_of_mounts(site: FakeSkyfile, fake: FakePortal) -> None:
    """P1: kept in the same cache on disk, so that it is read again without a portal."""
    path = skymount.Path(site.name)
    assert (path / "a.csv").read_bytes() == FILES["a.csv"]
    SESSIONS.close()  # writes what is queued
    fake.fault(faults.status(503, "out of order"))
    assert (path / "a.csv").read_bytes() == FILES["a.csv"]
    SESSIONS.close()
    with pytest.raises(OSError, match="out of order"):
        skymount.open(f"{site.name}/a.csv", disk_cache=False)


def test_a_skylink_of_one_file_is_that_file(fake: FakePortal) -> None:
    """P1: a skylink of a single file is that file."""
    single = of_files({"site": b"only\n"})  # its name is that of the upload
    fake.add(single)
    path = skymount.Path(single.name)
    assert path.is_file()
    assert path.read_text() == "only\n"
    assert (path / "site").read_text() == "only\n"
    with pytest.raises(NotADirectoryError):
        path.iterdir()


def test_the_name_of_a_single_file(fake: FakePortal) -> None:
    """P1: a link without a path has the name of its file."""
    name = "tides 1.csv.gz"
    single = of_metadata(describe({name: b"only"}, name), b"only")
    fake.add(single)
    for path in (skymount.Path(single.name), skymount.Path(single.name) / name):
        assert (path.name, path.stem) == (name, "tides 1.csv")
        assert (path.suffix, path.suffixes) == (".gz", [".csv", ".gz"])
    assert not fake.asked(of_files({"other": b""}).name)
    absent = skymount.Path(of_files({"other": b""}).name)
    with pytest.raises(FileNotFoundError):
        _ = absent.name
    assert (absent / "x.csv").suffix == ".csv"  # nothing is asked for where the path says it
    several = of_files(FILES)
    fake.add(several)
    assert (skymount.Path(several.name).name, skymount.Path(several.name).suffixes) == ("", [])


def test_modes_and_arguments_are_those_of_open(site: FakeSkyfile) -> None:
    link = f"{site.name}/d/b.txt"
    for mode in ("r", "rt", "tr", "rb", "br"):
        with skymount.open(link, mode) as file, open(os.devnull, mode) as other:
            assert file.mode == other.mode
    with skymount.open(link, "r", encoding="utf-8") as file:
        assert file.readlines() == ["one\n", "two\n", "three"]
    with skymount.open(link, "rt", newline="\n", buffering=1) as file:
        assert list(file) == ["one\n", "two\n", "three"]
    with skymount.open(link, buffering=0) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.read(4) == b"one\n"
        assert (file.seek(-3, 2), file.tell(), file.read()) == (10, 10, b"ree")
        assert file.seek(100) == 100
        assert file.read() == b""
        with pytest.raises(ValueError, match="negative seek"):
            file.seek(-1)
    for mode in ("q", "", "rr", "rw", "rbt", "b"):
        with pytest.raises(ValueError, match="mode"):
            skymount.open(link, mode)
    with pytest.raises(ValueError, match="binary mode doesn't take an encoding"):
        skymount.open(link, "rb", encoding="utf-8")
    with pytest.raises(ValueError, match="unbuffered text"):
        skymount.open(link, "r", buffering=0)
    with pytest.raises(TypeError):
        skymount.open(link, 7)  # type: ignore[arg-type]


def test_failures_are_those_of_open(site: FakeSkyfile, fake: FakePortal) -> None:
    """P3: the kind of error, its errno, and the link in its message."""
    absent = of_files({"no": b"x"}).name
    for link, kind in (
        (f"{site.name}/nothing", FileNotFoundError),
        (f"{site.name}/a.csv/below", NotADirectoryError),
        (f"{site.name}/d", IsADirectoryError),
        (absent, FileNotFoundError),
    ):
        with pytest.raises(kind) as caught:
            skymount.open(link)
        shown = link if "://" in link else f"skylink://{link}"
        assert caught.value.filename == shown
        assert shown in str(caught.value)
        assert caught.value.errno
    for mode in ("w", "ab", "x", "r+"):
        with pytest.raises(OSError, match="never changes") as caught:
            skymount.open(f"{site.name}/a.csv", mode)
        assert caught.value.errno == errno.EROFS
    with skymount.open(f"{site.name}/a.csv") as file:
        pass
    with pytest.raises(ValueError, match="closed file"):
        file.read()
    with pytest.raises(ValueError, match="not a skylink"):
        skymount.listdir("nonsense")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, PermissionError), (403, PermissionError), (404, FileNotFoundError), (500, OSError)],
)
def test_what_a_portal_refuses(fake: FakePortal, status: int, kind: type[OSError]) -> None:
    """P3: a wrong password, blocked content, a broken portal; the portal's error is the cause."""
    fake.fault(faults.status(status, "go away"))
    with pytest.raises(kind) as caught:
        skymount.open(of_files({"f": b"x"}).name, api_key="hunter2")
    assert isinstance(caught.value.__cause__, PortalError)
    assert "hunter2" not in str(caught.value)


def test_a_portal_that_says_nothing(
    fake: FakePortal, site: FakeSkyfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: TimeoutError, after the configured time."""
    monkeypatch.setenv("SKYMOUNT_TIMEOUT", "0.3")
    fake.fault(faults.stalls_after(-1))
    with pytest.raises(TimeoutError) as caught:
        skymount.open(f"{site.name}/a.csv")
    assert caught.value.errno == errno.ETIMEDOUT
    assert site.name in str(caught.value)


def test_another_portal_for_the_same_path(fake: FakePortal, site: FakeSkyfile) -> None:
    """P3: what is named for a path of a path counts; without it that of the first does."""
    path = skymount.Path(f"{site.name}/a.csv")
    with in_thread(FakePortal()) as other:
        elsewhere = skymount.Path(path, portals=other.url)
        for one in (elsewhere, skymount.Path(elsewhere)):
            with pytest.raises(FileNotFoundError):
                one.read_bytes()
    assert skymount.Path(path).read_bytes() == FILES["a.csv"]


def test_a_portal_that_lies(fake: FakePortal) -> None:
    """P4: the error says so, and nothing that was sent is returned or cached."""
    honest = of_files({"f": noise(5 << 20)}, fan_out=True)
    fake.add(honest)
    link = f"{honest.name}/f"
    fake.fault(faults.flips(7), f"GET /{honest.name}")
    with skymount.open(link) as file, pytest.raises(OSError, match="what a portal sent") as caught:
        file.read(100)
    assert caught.value.errno == errno.EIO
    assert link in str(caught.value)
    SESSIONS.close()
    fake.heal()
    fake.fault(faults.status(503, "out of order"), f"GET /{honest.name}")
    with skymount.open(link) as file, pytest.raises(OSError, match="out of order"):
        file.read(100)  # the lie was not kept
    SESSIONS.close()
    fake.heal()
    assert skymount.Path(link).read_bytes() == noise(5 << 20)


def test_lies_about_the_skylink_itself(fake: FakePortal, site: FakeSkyfile) -> None:
    """P4: also where the description is the lie: verification is required here."""
    fake.fault(faults.flips(200), "basesector")
    fake.fault(faults.flips(3), f"GET /{site.name}")
    with pytest.raises(OSError, match="what a portal sent"):
        skymount.listdir(site.name, verify="require")


def test_what_cannot_be_verified_is_refused_where_that_is_required(fake: FakePortal) -> None:
    doubtful = plain(100)
    fake.add(doubtful)
    assert skymount.Path(doubtful.name, verify="available").verified == "no"
    with pytest.raises(OSError, match="what a portal sent"):
        skymount.open(f"{doubtful.name}/f", verify="require")
    with pytest.raises(OSError, match="not verified"):
        skymount.open("skyhns://example/f", verify="require")


def test_content_behind_a_name_that_is_not_proved(fake: FakePortal) -> None:
    """P1: it is the same content, kept in the same cache; only the name is not verified."""
    site, link = of_files({"f": noise(5 << 20)}, fan_out=True), resolver()
    fake.resolve(link, site)
    moving = skymount.Path(f"skylink://{link}")
    assert (moving / "f").read_bytes() == site.payload
    for path in (moving, moving / "f", *moving.iterdir()):
        assert path.verified == "no"
    fixed = skymount.Path(site.name)
    assert fixed.verified == "yes"
    fake.requests.clear()
    assert (fixed / "f").read_bytes() == site.payload
    assert fake.requests == []
    SESSIONS.close()  # writes what is queued
    fake.fault(faults.status(503, "out of order"))
    assert (fixed / "f").read_bytes() == site.payload


def test_a_name_that_moves(fake: FakePortal, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: an open file keeps to its version; what is opened later is the new one."""
    monkeypatch.setenv("SKYMOUNT_HNS_TTL", "0.001")
    old, new = (of_files({"f": noise(3 << 20, seed)}) for seed in (1, 2))
    link = resolver()
    fake.resolve(link, old)
    with skymount.open(f"skylink://{link}/f") as file:
        assert file.read(10) == old.payload[:10]
        fake.resolve(link, new)
        assert skymount.Path(f"skylink://{link}/f").read_bytes() == new.payload
        SESSIONS.close()
        assert file.read() == old.payload[10:]


def test_names_of_a_path(site: FakeSkyfile) -> None:
    """Names work as those of pathlib."""
    root = skymount.Path(f"skylink://{site.name}")
    path = root / "d" / "e" / "c[1].txt"
    assert str(path) == f"skylink://{site.name}/d/e/c[1].txt"
    assert repr(path) == f"Path('{path}')"
    assert (path.name, path.stem, path.suffix, path.suffixes) == (
        *("c[1].txt", "c[1]", ".txt"),
        [".txt"],
    )
    assert path.parts == (f"skylink://{site.name}", "d", "e", "c[1].txt")
    assert path.anchor == str(root)
    assert path.parent == root.joinpath("d/e")
    assert path.parents == (root / "d/e", root / "d", root)
    assert root.parent == root
    assert path.with_name("x") == root / "d/e/x"
    assert path.with_suffix(".md").name == "c[1].md"
    assert path.relative_to(root / "d") == PurePosixPath("e/c[1].txt")
    assert path.is_relative_to(root)
    assert not root.is_relative_to(path)
    assert path.match("*.txt")
    assert sorted([path, root]) == [root, path]
    assert {root: 1}[skymount.Path(root)] == 1
    assert root != str(root)
    with pytest.raises(ValueError, match="subpath"):
        root.relative_to(path)
    again = pickle.loads(pickle.dumps(path))
    assert (again, again.read_text()) == (path, "brackets")


def test_what_a_path_finds(site: FakeSkyfile) -> None:
    root = skymount.Path(site.name)
    assert [path.name for path in root.iterdir()] == ["a.csv", "d", "space and %20.txt"]
    assert root.is_dir()
    assert not root.is_file()
    assert (root / "d/b.txt").is_file()
    assert not (root / "nothing").exists()
    assert not (root / "a.csv/below").exists()
    status = (root / "a.csv").stat()
    assert (status.st_size, stat.filemode(status.st_mode)) == (12, "-r--r--r--")
    assert stat.S_ISDIR(root.stat().st_mode)
    assert root.verified == "yes"
    assert [(str(path)[-1], *names) for path, *names in root.walk()] == [
        (site.name[-1], ["d"], ["a.csv", "space and %20.txt"]),
        ("d", ["e"], ["b.txt"]),
        ("e", [], ["c[1].txt", "empty"]),
    ]
    with (root / "d/b.txt").open() as file:
        assert file.readline() == "one\n"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.csv", ["a.csv"]),
        ("d/*.txt", ["b.txt"]),
        ("**/*.txt", ["space and %20.txt", "b.txt", "c[1].txt"]),
        ("d/**", ["d", "b.txt", "e", "c[1].txt", "empty"]),
        ("**/e/**/c?1].txt", ["c[1].txt"]),
        ("nothing/*", []),
    ],
)
def test_glob(site: FakeSkyfile, pattern: str, names: list[str]) -> None:
    found = [path.name for path in skymount.Path(site.name).glob(pattern)]
    assert sorted(found) == sorted(names)
    assert len(found) == len(set(found))


def test_a_deep_tree(fake: FakePortal) -> None:
    """P1: as deep as it is, also deeper than Python calls functions."""
    deep = of_files({"d/" * 1200 + "x": b"1", "y": b"2"})
    fake.add(deep)
    root = skymount.Path(deep.name)
    (found,) = root.glob("**/x")
    assert len(found.parts) == 1202
    assert len(list(root.walk())) == 1201


def test_patterns_that_are_none(site: FakeSkyfile) -> None:
    root = skymount.Path(site.name)
    assert [path.name for path in root.rglob("b.txt")] == ["b.txt"]
    with pytest.raises(ValueError, match="unacceptable pattern"):
        list(root.glob(""))
    with pytest.raises(NotImplementedError):
        list(root.glob("/x"))


def test_what_is_imported(fake: FakePortal) -> None:
    """P14: `import skymount` loads nothing but itself, and `skymount.open` no fsspec."""
    code = """
import sys, skymount
assert not [name for name in sys.modules if name.startswith("skymount.")], sys.modules
assert {"open", "listdir", "Path"} <= set(dir(skymount))
skymount.open
assert "skymount.file_api.path" in sys.modules
assert not {"fsspec", "asyncio", "pyfuse3", "click", "rich"} & set(sys.modules)
try:
    skymount.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("module 'skymount' has no attribute 'nothing'\n", "")

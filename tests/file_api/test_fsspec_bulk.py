"""Reads and copies of many files, and uploads."""

import io
import os
import stat
import threading
from pathlib import Path

import fsspec
import pytest
from fsspec.callbacks import Callback

from skymount.file_api.fsspec_filesystem import SkylinkFileSystem
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal
from tests.fakes.skyfiles import FakeSkyfile, describe, noise, of_files, of_metadata, plain
from tests.file_api.conftest import FILES


@pytest.fixture
def fs(fake: FakePortal) -> SkylinkFileSystem:
    return fsspec.filesystem("skylink", portals=fake.url)


def test_cat(fs: SkylinkFileSystem, site: FakeSkyfile) -> None:
    root = site.name
    assert fs.cat(f"skylink://{root}/a.csv") == FILES["a.csv"]
    everything = {f"{root}/{name}": data for name, data in FILES.items()}
    assert fs.cat(root, recursive=True) == everything
    assert fs.cat([f"{root}/a.csv"]) == {f"{root}/a.csv": FILES["a.csv"]}
    assert fs.cat(f"{root}/*.csv") == {f"{root}/a.csv": FILES["a.csv"]}
    for start, end in ((2, 5), (None, -3), (-4, None), (5, 2), (100, 200), (0, 0)):
        assert fs.cat_file(f"{root}/a.csv", start, end) == FILES["a.csv"][start:end]
    missing = [f"{root}/a.csv", f"{root}/nothing"]
    assert fs.cat(missing, on_error="omit") == {missing[0]: FILES["a.csv"]}
    found = fs.cat(missing, on_error="return")
    assert isinstance(found[missing[1]], FileNotFoundError)
    with pytest.raises(FileNotFoundError, match="nothing"):
        fs.cat(missing)
    with pytest.raises(IsADirectoryError):
        fs.cat(f"{root}/d")
    with pytest.raises(FileNotFoundError):
        fs.cat(f"{root}/*.none")


def test_a_name_that_exists_is_no_pattern(
    fs: SkylinkFileSystem, site: FakeSkyfile, tmp_path: Path
) -> None:
    """P10: a path that exists is never a pattern."""
    path = f"{site.name}/d/e/c[1].txt"
    assert fs.cat(path) == b"brackets"
    assert fs.expand_path(path) == [path]
    fs.get(path, str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"brackets"
    (tmp_path / "into").mkdir()
    fs.get(f"skylink://{path}", tmp_path / "into")
    fs.get(path, f"{tmp_path}/new/")
    fs.get([path], str(tmp_path / "listed"))
    for directory in ("into", "new", "listed"):
        assert (tmp_path / directory / "c[1].txt").read_bytes() == b"brackets"


def test_ranges(fs: SkylinkFileSystem, fake: FakePortal) -> None:
    """P13: `cat_ranges` reads everything at once."""
    large, doubtful = of_files({"f": noise(9 << 20), "g": b"short"}), plain(2 << 20)
    fake.add(large, doubtful)
    paths = [f"{large.name}/f"] * 3 + [f"{large.name}/g", f"{doubtful.name}/f", f"{large.name}/h"]
    starts = [0, 5 << 20, -10, 1, 1 << 20, 0]
    ends = [9 << 20, (5 << 20) + 7, None, 3, (1 << 20) + 9, 1]
    *found, missing = fs.cat_ranges(paths, starts, ends)
    whole = [noise(9 << 20)] * 3 + [b"short", doubtful.payload]
    assert found == [data[a:b] for data, a, b in zip(whole, starts, ends, strict=False)]
    assert isinstance(missing, FileNotFoundError)
    assert fs.cat_ranges(paths[:2], 1, 4, max_gap=10) == [noise(9 << 20)[1:4]] * 2
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, starts, ends, on_error="raise")
    with pytest.raises(ValueError, match="as many"):
        fs.cat_ranges(paths, [1], ends)
    with pytest.raises(TypeError):
        fs.cat_ranges(paths[0], 0, 1)  # type: ignore[arg-type]


def test_many_small_files_take_few_requests(fs: SkylinkFileSystem, fake: FakePortal) -> None:
    """P13: what lies close together in a skylink is one request."""
    files = {f"{n // 100}/{n:04}": noise(4096, n) for n in range(1100)}
    many = of_files(files)
    fake.add(many)
    found = fs.cat(many.name, recursive=True)
    assert found == {f"{many.name}/{name}": data for name, data in files.items()}
    assert len(fake.requests) <= 6


def test_a_part_that_cannot_be_read(fs: SkylinkFileSystem, fake: FakePortal) -> None:
    """Other files of the same read are not lost with it; the error names the file."""
    files = {name: noise(4 << 20, n) for n, name in enumerate("abc")}
    several = of_files(files, fan_out=True)
    fake.add(several)
    fake.fault(
        lambda request, reply: (
            faults.flips(9)(request, reply)
            if "bytes=4194304" in request.headers.get("range", "")
            else reply
        ),
        several.name,
    )
    paths = [f"{several.name}/{name}" for name in files]
    found = fs.cat(paths, on_error="return")
    assert found[paths[0]] == files["a"]
    assert found[paths[2]] == files["c"]
    with pytest.raises(OSError, match="what a portal sent") as caught:
        raise found[paths[1]]  # type: ignore[misc]
    assert f"skylink://{paths[1]}" in str(caught.value)


def test_a_portal_that_fails_is_not_asked_for_the_rest(
    fs: SkylinkFileSystem, fake: FakePortal
) -> None:
    """P13: it fails for one file as for all; nothing waits for each of them in turn."""
    many = [plain(1000, seed) for seed in range(30)]
    fake.add(*many)
    paths = [f"{each.name}/f" for each in many]
    assert fs.cat_ranges(paths[:1], 0, 10) == [many[0].payload[:10]]
    for path in paths:
        fs.info(path)
    fake.requests.clear()
    fake.fault(faults.status(503, "out of order"))
    found = fs.cat_ranges(paths[1:], 0, 10)
    for path, each in zip(paths[1:], found, strict=True):
        assert isinstance(each, OSError)
        assert path in str(each)
    assert len({request.path for request in fake.requests}) <= 9


def test_what_one_file_is_refused_with_is_not_that_of_others(
    fs: SkylinkFileSystem, fake: FakePortal
) -> None:
    """P13: blocked content, content that is gone."""
    blocked, gone, good = (plain(1000, seed) for seed in (1, 2, 3))
    fake.add(blocked, gone, good)
    paths = [f"{each.name}/f" for each in (blocked, gone, good)]
    for path in paths:
        fs.info(path)
    fake.fault(faults.status(451, "blocked"), blocked.name)
    fake.fault(faults.status(404, "gone"), gone.name)
    *refused, found = fs.cat_ranges(paths, 0, 10)
    assert [type(each) for each in refused] == [PermissionError, FileNotFoundError]
    assert found == good.payload[:10]


def test_skylinks_of_a_silent_portal(
    fs: SkylinkFileSystem, fake: FakePortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P13: one is waited for, not each; the error names the file."""
    monkeypatch.setenv("SKYMOUNT_TIMEOUT", "0.3")
    fake.fault(faults.stalls_after(-1))
    many = [of_files({"f": b"%d" % n}) for n in range(30)]
    paths = [f"{each.name}/f" for each in many]
    found = fs.cat(paths, on_error="return")
    for path in paths:
        assert isinstance(found[path], TimeoutError)  # type: ignore[index]
        assert path in str(found[path])  # type: ignore[index]
    assert len([each for each in many if fake.asked(each.name)]) <= 16  # those at once


def test_other_spellings_of_a_root(
    fs: SkylinkFileSystem, site: FakeSkyfile, tmp_path: Path
) -> None:
    """P9: paths that are found are written in one way, whatever the given one looks like."""
    root, given = site.name, f"skylink://{site.skylink.base32.upper()}/"
    assert fs.glob(f"{given}/*.csv") == [f"{root}/a.csv"]
    assert fs.glob(f"{given}d//*.txt") == [f"{root}/d/b.txt"]
    assert fs.cat(f"{given}*.csv") == {f"{root}/a.csv": FILES["a.csv"]}
    assert fs.cat(f"{given}/a.csv") == FILES["a.csv"]
    fs.get(f"{given}/d", str(tmp_path / "copy"), recursive=True)
    assert (tmp_path / "copy/e/c[1].txt").read_bytes() == b"brackets"
    assert fs.expand_path(f"{given}d//", recursive=True) == fs.expand_path(f"{root}/d", True)
    assert fs.get_mapper(given)["d/b.txt"] == FILES["d/b.txt"]
    assert fs._strip_protocol("skylink://nothing//of/*/that/") == "nothing//of/*/that"


def test_get(fs: SkylinkFileSystem, site: FakeSkyfile, tmp_path: Path) -> None:
    """P9: `get`, with the tree as it is, and of a skylink that is one file."""
    target = tmp_path / "copy"
    fs.get(site.name, str(target), recursive=True)
    found = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert found == FILES
    told = Callback()
    fs.get_file(f"{site.name}/a.csv", str(tmp_path / "new/dir/a.csv"), callback=told)
    assert (told.size, told.value) == (12, 12)
    into = io.BytesIO()
    fs.get_file(f"{site.name}/a.csv", into)
    assert into.getvalue() == FILES["a.csv"]
    with pytest.raises(FileNotFoundError):
        fs.get(f"{site.name}/nothing", str(tmp_path / "x"))


class _Meeting(Callback):  # type: ignore[misc] # fsspec has no types
    """Each copy waits until another one is under way."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)
        self.names: set[str] = set()

    def branched(self, path_1: str, path_2: str, **kwargs: object) -> Callback:
        self.names.add(path_2)
        self._both.wait(30)
        return Callback()


def test_get_copies_several_at_once(
    fs: SkylinkFileSystem, fake: FakePortal, tmp_path: Path
) -> None:
    """P13: of one skylink and of many; the first failure ends it."""
    many = [of_files({"f": noise(1000, seed)}) for seed in range(6)]
    fake.add(*many)
    paths, copies = [f"{each.name}/f" for each in many], [str(tmp_path / f"{n}") for n in range(6)]
    told = _Meeting()
    fs.get(paths, copies, callback=told)
    assert [Path(copy).read_bytes() for copy in copies] == [each.payload for each in many]
    assert (told.size, told.value, told.names) == (6, 6, set(copies))
    paths[3:] = [f"{many[3].name}/nothing"] * 3
    with pytest.raises(FileNotFoundError, match="nothing"):
        fs.get(paths, copies)
    many_missing = [f"{many[0].name}/{n}" for n in range(1000)]
    told = Callback()
    with pytest.raises(FileNotFoundError):
        fs.get(many_missing, [str(tmp_path / f"m{n}") for n in range(1000)], callback=told)
    assert told.value < 1000


def test_get_of_a_single_file(fs: SkylinkFileSystem, fake: FakePortal, tmp_path: Path) -> None:
    """P1, P11: a skylink of a single file is that file, with its name."""
    single = of_files({"site": b"only"})
    fake.add(single)
    fs.get(single.name, str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"only"
    assert fs.ls(single.name) == [fs.info(single.name)]
    assert fs.find(f"skylink://{single.name}") == [single.name]
    assert fs.info(single.name)["filename"] == "site"
    assert fs.info(single.name)["name"] == single.name
    (tmp_path / "into").mkdir()
    for number, (source, target, options) in enumerate(
        [
            (single.name, "into", {}),
            (f"skylink://{single.name}/", "into", {}),
            (single.name, "into", {"recursive": True}),
            (f"{single.name}/site", "into/", {}),
            (single.name, f"new{os.sep}", {}),
            ([single.name], "into", {}),
            ([single.name], "listed", {}),
        ]
    ):
        fs.get(source, f"{tmp_path}/{target}", **options)
        found = tmp_path / target / "site"
        assert found.read_bytes() == b"only", number
        found.unlink()
    with pytest.raises(IsADirectoryError):
        fs.get_file(single.name, str(tmp_path / "into"))


@pytest.mark.parametrize("name", [".profile", "../up", "a/b"])
def test_get_of_a_single_file_whose_name_is_not_used(
    fs: SkylinkFileSystem, fake: FakePortal, tmp_path: Path, name: str
) -> None:
    """P11: the skylink stands for a name that begins with a dot, or that a mount cannot show."""
    single = of_metadata(describe({name: b"only"}, name), b"only")
    fake.add(single)
    assert fs.isfile(single.name)
    fs.get(single.name, f"{tmp_path}/new/")
    assert os.listdir(tmp_path / "new") == [single.name]


def test_get_of_whole_skylinks(
    fs: SkylinkFileSystem, site: FakeSkyfile, fake: FakePortal, tmp_path: Path
) -> None:
    """P11: the copy rules hold for a whole skylink as for a directory in it."""
    (tmp_path / "into").mkdir()
    for source, target, where in (
        (site.name, "into", f"into/{site.name}"),
        (f"{site.name}/", "into", "into"),
        (site.name, "new", "new"),
        (f"skylink://{site.name}", "created/", f"created/{site.name}"),
        ([site.name], "listed", f"listed/{site.name}"),
        ([f"{site.name}/d"], "listed", "listed/d"),
        ([f"{site.name}/"], "slash", "slash"),
    ):
        fs.get(source, f"{tmp_path}/{target}", recursive=True)
        assert (tmp_path / where).is_dir()
    assert _files(tmp_path / "into" / site.name) == _files(tmp_path / "new") == FILES
    assert _files(tmp_path / "slash") == FILES
    assert (tmp_path / "listed/d/e/c[1].txt").read_bytes() == b"brackets"
    fs.get(site.name, f"{tmp_path}/nothing")  # without `recursive` directories are left out
    assert not (tmp_path / "nothing").exists()
    fs.get([f"{site.name}/d", f"{site.name}/a.csv"], f"{tmp_path}/files")
    assert _files(tmp_path / "files") == {"a.csv": FILES["a.csv"]}
    fs.get([f"{site.name}/*.csv", f"{site.name}/d/*.txt"], f"{tmp_path}/matched")
    assert sorted(_files(tmp_path / "matched")) == ["a.csv", "b.txt"]
    fs.get(site.name, f"{tmp_path}/flat", recursive=True, maxdepth=1)
    assert sorted(_files(tmp_path / "flat")) == ["a.csv", "space and %20.txt"]


def test_get_never_leaves_its_directory(
    fs: SkylinkFileSystem, fake: FakePortal, tmp_path: Path
) -> None:
    """P11: names that a mount cannot show are not there."""
    files = {"../up": b"1", "d/../../up": b"2", "/up": b"3", "ok": b"4", "d/./up": b"5"}
    hostile = of_files(files)
    fake.add(hostile)
    for source in (hostile.name, f"{hostile.name}/**", f"{hostile.name}/*"):
        fs.get(source, f"{tmp_path}/in/copy", recursive=True)
        assert _files(tmp_path / "in") == {"copy/ok": b"4"}


def test_get_of_lists_finds_many_at_once(
    fs: SkylinkFileSystem, fake: FakePortal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P13: also whole skylinks; a silent portal is waited for once."""
    many = [of_files({f"{n}/f": b""}) for n in range(30)]
    monkeypatch.setenv("SKYMOUNT_TIMEOUT", "0.3")
    fake.fault(faults.stalls_after(-1))
    with pytest.raises(TimeoutError):
        fs.get([each.name for each in many], f"{tmp_path}/copy", recursive=True)
    assert len([each for each in many if fake.asked(each.name)]) <= 16  # those at once


def test_get_to_places_that_are_listed(
    fs: SkylinkFileSystem, site: FakeSkyfile, tmp_path: Path
) -> None:
    copies = [tmp_path / "1", tmp_path / "2"]
    fs.get([f"{site.name}/a.csv", f"skylink://{site.name}//d/b.txt"], copies)
    assert [copy.read_bytes() for copy in copies] == [FILES["a.csv"], FILES["d/b.txt"]]
    with pytest.raises(ValueError, match="1 files cannot be copied to 2 places"):
        fs.get([f"{site.name}/a.csv"], copies)
    with pytest.raises(ValueError, match="2 files cannot be copied to 1 places"):
        fs.get(f"{site.name}/*.*", copies[:1])


def test_get_of_two_files_with_one_name(
    fs: SkylinkFileSystem, fake: FakePortal, tmp_path: Path
) -> None:
    """P11: two files never become one."""
    two = [of_files({"x": b"%d" % number, "y": b""}) for number in range(2)]
    fake.add(*two)
    paths = [f"{each.name}/x" for each in two]
    with pytest.raises(ValueError, match=f"x: two files would be copied there: {paths[0]} and"):
        fs.get(paths, f"{tmp_path}/copies/")
    assert not (tmp_path / "copies").exists()
    fs.get([paths[0], paths[0]], f"{tmp_path}/copies/")


def _files(directory: Path) -> dict[str, bytes]:
    found = filter(Path.is_file, directory.rglob("*"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_get_over_a_file(fs: SkylinkFileSystem, fake: FakePortal, tmp_path: Path) -> None:
    """P11: the old file stays until the copy is complete, and if it fails."""
    large = of_files({"f": noise(9 << 20)}, fan_out=True)
    fake.add(large)
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    fake.fault(faults.status(503, "out of order"), f"GET /{large.name}")
    with pytest.raises(OSError, match="out of order"):
        fs.get(f"{large.name}/f", str(link))
    assert file.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["file", "home", "link"]
    fake.heal()
    fs.get(f"{large.name}/f", str(link))
    assert link.is_symlink()
    assert file.read_bytes() == large.payload
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    fs.get_file(f"{large.name}/f", os.devnull)  # written to as it is
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_get_to_a_pipe(fs: SkylinkFileSystem, site: FakeSkyfile, tmp_path: Path) -> None:
    """What is no regular file is written to as it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    fs.get(f"{site.name}/a.csv", str(pipe))
    reader.join(30)
    assert got == [FILES["a.csv"]]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_errors_of_get_name_the_local_file(
    fs: SkylinkFileSystem, site: FakeSkyfile, tmp_path: Path
) -> None:
    """P11: they name the file that was asked for, and not one beside it."""
    for wrong in ("/proc/nothing", f"{tmp_path}/{'x' * 300}"):
        with pytest.raises(OSError, match=r"No such file|too long") as caught:
            fs.get(f"{site.name}/a.csv", wrong)
        assert caught.value.filename == wrong

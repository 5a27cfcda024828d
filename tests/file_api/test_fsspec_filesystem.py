"""The file systems of fsspec: what is there, and files of them."""

import errno
import gc
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

from skymount.file_api.fsspec_filesystem import SkyhnsFileSystem, SkylinkFileSystem
from tests.fakes import portal as faults
from tests.fakes.portal import FakePortal
from tests.fakes.skyfiles import FakeSkyfile, noise, of_files, resolver
from tests.file_api.conftest import FILES
from tests.portal_process import portal_process
from tests.skymount_process import SKYMOUNT, output

UNCLOSED = "ignore:unclosed file:ResourceWarning"  # by the cache "mmap" of fsspec


@pytest.fixture
def fs(fake: FakePortal) -> SkylinkFileSystem:
    found = fsspec.filesystem("skylink", portals=fake.url)
    assert type(found) is SkylinkFileSystem
    return found


def test_what_is_there(fs: SkylinkFileSystem, site: FakeSkyfile) -> None:
    """P9: `ls`, `info`, `find`, `walk`, `glob` and `du`."""
    root = site.name
    names = [f"{root}/{name}" for name in sorted(FILES)]
    assert fs.ls(root, detail=False) == [f"{root}/a.csv", f"{root}/d", f"{root}/space and %20.txt"]
    assert fs.ls(f"skylink://{root}/d/")[0] == {
        "name": f"{root}/d/b.txt",
        "size": 13,
        "type": "file",
        "filename": "b.txt",
        "mode": 0o100444,
        "content_type": "text/plain",
        "skylink": root,
        "verified": "yes",
    }
    assert fs.ls(f"{root}/a.csv") == [fs.info(f"{root}/a.csv")]
    assert fs.info(f"{root}/d")["type"] == "directory"
    assert fs.find(root) == names
    assert fs.find(root, maxdepth=1) == [names[0], names[-1]]
    assert set(fs.find(root, withdirs=True)) == {*names, root, f"{root}/d", f"{root}/d/e"}
    assert fs.find(f"{root}/a.csv") == names[:1]
    assert fs.find(f"{root}/nothing") == []
    assert fs.find(root, detail=True)[names[1]]["size"] == 13
    assert [len(files) for _, _, files in fs.walk(root)] == [2, 1, 2]
    assert fs.glob(f"{root}/**/*.txt") == [names[1], names[2], names[4]]
    assert fs.du(root) == sum(map(len, FILES.values()))
    assert fs.du(root, total=False)[names[0]] == 12
    assert fs.size(names[0]) == 12
    assert fs.ls("") == fs.glob("*") == fs.find("skylink://") == []
    assert fs.isdir("skylink://")
    with pytest.raises(ValueError, match="maxdepth"):
        fs.find(root, maxdepth=0)


def test_what_is_not_there(fs: SkylinkFileSystem, site: FakeSkyfile, fake: FakePortal) -> None:
    """P9: `exists` is false only where nothing is; when no portal answers, it raises."""
    root = site.name
    for path in ("nonsense", f"{root}/nothing", f"{root}/a.csv/x", of_files({"no": b""}).name):
        assert not fs.exists(path)
        assert not fs.isdir(path)
        assert not fs.isfile(path)
    assert fs.isfile(f"{root}/a.csv")
    assert fs.isdir(f"{root}/d")
    with pytest.raises(FileNotFoundError, match="nothing"):
        fs.info(f"{root}/nothing")
    with pytest.raises(ValueError, match="not a skylink"):
        fs.info("nonsense")
    fake.fault(faults.status(503, "out of order"))
    with pytest.raises(OSError, match="out of order"):
        fs.exists(of_files({"other": b""}).name)


def test_walk(fs: SkylinkFileSystem, site: FakeSkyfile) -> None:
    """P9: as `os.walk`: from the top or the bottom, and not into what is taken out."""
    root = site.name
    top = (root, ["d"], ["a.csv", "space and %20.txt"])
    below = [(f"{root}/d", ["e"], ["b.txt"]), (f"{root}/d/e", [], ["c[1].txt", "empty"])]
    assert list(fs.walk(f"skylink://{root}/")) == [top, *below]
    assert list(fs.walk(root, topdown=False)) == [*reversed(below), top]
    assert list(fs.walk(root, maxdepth=2)) == [top, below[0]]
    assert list(fs.walk(root, maxdepth=3)) == [top, *below]
    assert list(fs.walk(f"{root}/d/b.txt")) == [(f"{root}/d/b.txt", [], [""])]
    assert list(fs.walk("")) == [("", [], [])]
    for path, directories, files in fs.walk(root, detail=True):
        assert path == root
        assert directories.pop("d") == fs.info(f"{root}/d")
        assert files["a.csv"] == fs.info(f"{root}/a.csv")
    with pytest.raises(ValueError, match="maxdepth"):
        list(fs.walk(root, maxdepth=0))


def test_walk_where_nothing_is(
    fs: SkylinkFileSystem, site: FakeSkyfile, fake: FakePortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: a missing path follows `on_error`, an outage raises whatever it says."""
    for missing in (f"{site.name}/nothing", f"{site.name}/a.csv/x", of_files({"no": b""}).name):
        told: list[OSError] = []
        assert list(fs.walk(missing)) == list(fs.walk(missing, on_error=told.append)) == []
        assert missing in str(told[0])
        with pytest.raises(OSError, match=missing):
            list(fs.walk(missing, on_error="raise"))
    other = of_files({"other": b""})
    fake.add(other)
    for fault in (faults.status(503), faults.status(401), faults.stalls_after(-1)):
        monkeypatch.setenv("SKYMOUNT_TIMEOUT", "0.3")
        fake.heal()
        fake.fault(fault)
        for on_error in ("omit", "raise", told.append):
            with pytest.raises(OSError, match=other.name):
                list(fs.walk(other.name, on_error=on_error))
    assert len(told) == 1


@pytest.mark.parametrize("kind", ["blockcache", "filecache", "simplecache", "dir"])
def test_file_systems_over_it_walk_as_it_does(
    fs: SkylinkFileSystem, site: FakeSkyfile, fake: FakePortal, tmp_path: Path, kind: str
) -> None:
    """P9: an outage raises there, too."""
    other = of_files({"other": b""})
    fake.add(other)

    def walked(root: str) -> list[tuple[list[str], list[str]]]:
        if kind == "dir":
            above, path = fsspec.filesystem("dir", path=root, fs=fs), ""
        else:
            above, path = fsspec.filesystem(kind, fs=fs, cache_storage=str(tmp_path / "c")), root
        return [(directories, files) for _, directories, files in above.walk(path)]

    assert walked(site.name) == [
        (directories, files) for _, directories, files in fs.walk(site.name)
    ]
    fake.fault(faults.status(503, "out of order"))
    with pytest.raises(OSError, match="out of order"):
        walked(other.name)


def test_walk_asks_for_a_name_once(fs: SkylinkFileSystem, fake: FakePortal) -> None:
    """P9: what it yields is of one version, also when the portal fails or the name moves."""
    deep = of_files({"/".join("d" * 500): b""})
    link = resolver()
    fake.add(deep)
    fake.resolve(link, deep)
    walk = fs.walk(str(link))
    assert next(walk) == (str(link), ["d"], [])
    fake.resolve(link, of_files({"other": b""}))
    fs.invalidate_cache()
    fake.fault(faults.status(503))
    assert len(list(walk)) == 499


def test_checksum(fs: SkylinkFileSystem, site: FakeSkyfile) -> None:
    """P9: `checksum` is the Merkle root of the skyfile, as hex digits."""
    assert fs.checksum(f"{site.name}/d/b.txt") == site.skylink.root.hex()
    assert fs.ukey(site.name) != fs.ukey(f"{site.name}/d")
    assert fs.ukey(f"skylink://{site.name}/d") == fs.ukey(f"{site.name}/d")


def test_times(fs: SkylinkFileSystem, fake: FakePortal, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: `modified` is the beginning of 1970, and changes when a name moves."""
    monkeypatch.setenv("SKYMOUNT_HNS_TTL", "0.001")
    old, new, link = of_files({"f": b"1"}), of_files({"f": b"2"}), resolver()
    fake.resolve(link, old)
    assert fs.modified(f"{old.name}/f") == datetime(1970, 1, 1, tzinfo=UTC)
    before = fs.modified(f"{link}/f")
    fake.resolve(link, new)
    assert fs.modified(f"{link}/f") != before > datetime(1970, 1, 1, tzinfo=UTC)


def test_a_large_directory(fs: SkylinkFileSystem, fake: FakePortal) -> None:
    """P9: 5,000 files of one skylink are found in one go; the metadata is asked for once."""
    many = of_files({f"d{n % 20:02}/f{n:05}": b"" for n in range(5_000)})
    fake.add(many)
    assert len(fs.find(many.name)) == 5_000
    assert len(fs.ls(f"{many.name}/d07")) == 250
    assert fs.du(many.name) == 0
    assert len(fake.asked("basesector")) == 1


@pytest.mark.filterwarnings(UNCLOSED)
def test_open_files(fs: SkylinkFileSystem, fake: FakePortal) -> None:
    data = noise(3 << 20) + b"\nlast line\n"
    large = of_files({"f": data, "t": b"one\ntwo\n"})
    fake.add(large)
    path = f"{large.name}/f"
    with fs.open(path) as file:
        assert (file.size, file.info()) == (len(data), fs.info(path))
        assert file.seek(-11, 2) == len(data) - 11
        assert file.readline() == b"\n"
        assert file.readline(4) == b"last"
        assert list(file) == [b" line\n"]
        file.seek(1 << 20)
        into = bytearray(5000)
        assert file.readinto(into) == 5000
        assert into == data[1 << 20 : (1 << 20) + 5000]
        again = pickle.loads(pickle.dumps(file))
        assert again.read(10) == file.read(10) == data[(1 << 20) + 5000 :][:10]
        again.close()
        file.seek(0)
        assert file.read() == data
        assert file.read(1) == b""
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with fs.open(f"{large.name}/t", "r") as text:
        assert text.readlines() == ["one\n", "two\n"]
    for cache in ("readahead", "bytes", "mmap", "all"):
        with fs.open(path, block_size=1 << 16, cache_type=cache) as file:
            file.seek(777)
            assert file.read(100_000) == data[777:100_777]
    for missing, kind in (("x", FileNotFoundError), ("", IsADirectoryError)):
        with pytest.raises(kind):
            fs.open(f"{large.name}/{missing}")


@pytest.mark.filterwarnings(UNCLOSED)
@pytest.mark.parametrize("kind", ["blockcache", "filecache", "simplecache"])
def test_caching_file_systems(fake: FakePortal, tmp_path: Path, kind: str) -> None:
    """P9: caching file systems such as `blockcache::` over them."""
    large = of_files({"f": noise(9 << 20)})
    fake.add(large)
    link = f"{kind}::skylink://{large.name}/f"
    options = {"skylink": {"portals": fake.url}, kind: {"cache_storage": str(tmp_path / "cache")}}
    for _ in range(2):
        with fsspec.open(link, **options) as file:
            file.seek(6 << 20)
            assert file.read(1000) == large.payload[6 << 20 :][:1000]
            file.seek(0)
            assert file.read() == large.payload
        fake.fault(faults.status(503))
    gc.collect()


def test_nothing_can_be_changed(fs: SkylinkFileSystem, site: FakeSkyfile, tmp_path: Path) -> None:
    """P3: that raises `OSError` with `EROFS`."""
    path = f"{site.name}/a.csv"
    (tmp_path / "local").write_text("x")
    for change in (
        lambda: fs.rm(path),
        lambda: fs.rm([path]),
        lambda: fs.rm_file(path),
        lambda: fs.mkdir(path),
        lambda: fs.makedirs(f"skylink://{path}", exist_ok=True),
        lambda: fs.rmdir(path),
        lambda: fs.touch(path),
        lambda: fs.pipe({path: b"x"}),
        lambda: fs.pipe_file(path, b"x"),
        lambda: fs.cp_file(path, f"{path}2"),
        lambda: fs.copy(path, f"{path}2"),
        lambda: fs.mv(path, f"{path}2"),
        lambda: fs.put_file(str(tmp_path / "local"), path),
        lambda: fs.put(str(tmp_path / "local"), path),
        lambda: fs.open(path, "wb"),
        lambda: fs.open(path, "a"),
    ):
        with pytest.raises(OSError, match="never changes") as caught:
            change()
        assert caught.value.errno == errno.EROFS
        assert str(caught.value.filename).startswith(f"skylink://{path}")
    with pytest.raises(ValueError, match="invalid mode"):
        fs.open(path, "q")


def test_file_systems_can_be_sent_to_other_processes(
    fs: SkylinkFileSystem, site: FakeSkyfile
) -> None:
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat(f"{site.name}/a.csv") == FILES["a.csv"]
    assert fsspec.AbstractFileSystem.from_json(fs.to_json()) == fs


def test_domains(
    tmp_path: Path, tree: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: `skyhns` shows what a domain leads to, which is never verified."""
    with portal_process(tmp_path / "names") as portal:
        monkeypatch.setenv("SKYMOUNT_PORTALS", portal.url)
        skylinks = fsspec.filesystem("skylink")
        link = skylinks.put(tree(FILES), recursive=True)
        target = link.removeprefix("skylink://")
        output([*SKYMOUNT, "portal", "hns", "set", "example", target, "--data", portal.data])
        fs = fsspec.filesystem("skyhns")
        assert type(fs) is SkyhnsFileSystem
        assert fs.cat("skyhns://Example/a.csv") == FILES["a.csv"]
        assert fs.glob("skyhns://Example//a.*") == ["example/a.csv"]
        assert fs.info("example/a.csv")["name"] == "example/a.csv"
        assert fs.info("example/a.csv")["verified"] == "no"
        assert fs.checksum("example") == skylinks.checksum(link)
        monkeypatch.setenv("SKYMOUNT_HNS_TTL", "0.001")
        with fs.open("skyhns://example/a.csv") as opened:  # P5: it keeps to its version
            assert opened.read(1) == FILES["a.csv"][:1]
            new = skylinks.put(tree({"a.csv": b"moved"}, "new"), recursive=True)[
                len("skylink://") :
            ]
            output([*SKYMOUNT, "portal", "hns", "set", "example", new, "--data", portal.data])
            assert fs.cat("skyhns://example/a.csv") == b"moved"
            assert opened.read() == FILES["a.csv"][1:]
        with pytest.raises(FileNotFoundError, match="skyhns://nobody"):
            fs.ls("nobody")
        with pytest.raises(OSError, match="never changes"):
            fs.put(tree(FILES), recursive=True)
        with pytest.raises(OSError, match="not verified"):
            fsspec.filesystem("skyhns", verify="require").ls("example")


@pytest.mark.parametrize("protocol", ["skylink", "skyhns"])
@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("portal", "; did you mean portals?"),
        ("verfy", "; did you mean verify?"),
        ("api_keys", "; did you mean api_key?"),
        ("timeout", "; there are portals, verify, disk_cache, api_key"),
        ("headers", "; there are portals, verify, disk_cache, api_key"),
        ("token", "; there are portals, verify, disk_cache, api_key"),
    ],
)
def test_unknown_options(protocol: str, option: str, advice: str) -> None:
    """P9: they are refused, or content would go to a portal that was not meant."""
    with pytest.raises(TypeError) as caught:
        fsspec.filesystem(protocol, **{option: "x"})
    assert str(caught.value) == f"unknown option {option!r}{advice}"
    for link in (f"{protocol}://a/b", f"simplecache::{protocol}://a/b"):
        with pytest.raises(TypeError, match="unknown option"):
            fsspec.open(link, **{protocol: {option: "x"}})


def test_options_of_the_base_class(fake: FakePortal) -> None:
    fsspec.filesystem(
        "skylink",
        portals=fake.url,
        asynchronous=False,
        loop=None,
        use_listings_cache=False,
        listings_expiry_time=5,
        max_paths=3,
        skip_instance_cache=True,
    )


def test_a_pickled_file_of_a_name_that_moves(fs: SkylinkFileSystem, fake: FakePortal) -> None:
    """P5: it travels as what was opened."""
    old, new, link = of_files({"f": b"old content"}), of_files({"f": b"new content"}), resolver()
    fake.add(old, new)
    fake.resolve(link, old)
    with fs.open(f"{link}/f") as file:
        assert file.read(4) == b"old "
        pickled = pickle.dumps(file)
    fake.resolve(link, new)
    fs.invalidate_cache()
    assert fs.cat(f"{link}/f") == b"new content"
    with pickle.loads(pickled) as again:
        assert again.path == f"{old.name}/f"
        assert again.read() == b"content"


def test_names_are_asked_for_again(fs: SkylinkFileSystem, fake: FakePortal) -> None:
    """P5: after `invalidate_cache`, `ls` with `refresh`, and by a new file system."""
    contents = [of_files({"f": b"%d" % number}) for number in range(4)]
    link = resolver()
    fake.add(*contents)

    def moved_to(number: int) -> None:
        fake.resolve(link, contents[number])

    moved_to(0)
    assert fs.cat(f"{link}/f") == b"0"
    moved_to(1)
    assert fs.cat(f"{link}/f") == b"0"
    fs.invalidate_cache()
    assert fs.cat(f"{link}/f") == b"1"
    moved_to(2)
    assert fs.ls(str(link))[0]["skylink"] == contents[1].name
    assert fs.ls(str(link), refresh=True)[0]["skylink"] == contents[2].name
    moved_to(3)
    again = fsspec.filesystem("skylink", portals=fake.url, skip_instance_cache=True)
    assert again.cat(f"{link}/f") == b"3"

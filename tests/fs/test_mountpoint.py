"""The mount point as a place: the kernel's table, paths, staleness. No mount is made here."""

import os
from pathlib import Path

import pytest

from skymount.errors import MountError
from skymount.fs import mountpoint
from skymount.fs.mountpoint import (
    MountInfo,
    daemons_of,
    is_served_by,
    is_stopped,
    mounted_at,
    mounts_of,
    resolve,
)


class Table:
    """A table of mounts."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.path = str(path)

    def add(self, *lines: bytes) -> None:
        with open(self.path, "ab") as file:
            file.writelines(line + b"\n" for line in lines)

    def mounted_at(self, path: str) -> MountInfo | None:
        return mounted_at(path, self.path)


@pytest.fixture
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return Table(tmp_path_factory.mktemp("proc") / "mountinfo")


def line(place: bytes, kind: bytes = b"fuse.skymount", source: bytes = b"skymount") -> bytes:
    return (
        b"36 35 98:0 / "
        + place
        + b" rw,nosuid shared:1 master:2 - "
        + kind
        + b" "
        + source
        + b" rw"
    )


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (b"/mnt/sky", "/mnt/sky"),
        (rb"/mnt/a\040b", "/mnt/a b"),
        (rb"/mnt/tab\011x", "/mnt/tab\tx"),
        (rb"/mnt/new\012line", "/mnt/new\nline"),
        (rb"/mnt/back\134slash", "/mnt/back\\slash"),
        (rb"/mnt/\134040", "/mnt/\\040"),
        (rb"/mnt/hash\043", "/mnt/hash#"),
        ("/mnt/é".encode(), "/mnt/é"),
        (b"/mnt/\xff", os.fsdecode(b"/mnt/\xff")),
        (b"/mnt/cr\rlf", "/mnt/cr\rlf"),
        (b"/mnt/\x85\xe2\x80\xa8", os.fsdecode(b"/mnt/\x85\xe2\x80\xa8")),
    ],
)
def test_paths_in_the_table(table: Table, written: bytes, path: str):
    """A path is found however the kernel had to write it."""
    table.add(line(b"/", b"ext4", b"/dev/sda"), line(written), line(b"/mnt/other", b"tmpfs"))
    assert table.mounted_at(path) == MountInfo("fuse.skymount", "skymount")
    assert table.mounted_at(path + "x") is None


def test_owner(table: Table, monkeypatch: pytest.MonkeyPatch):
    """Who mounted is read from the options of the file system, wherever else it may be written."""
    place = "/mnt/user_id=5"
    table.add(line(place.encode()) + b",user_id=1000,group_id=1000,default_permissions,allow_other")
    found = table.mounted_at(place)
    assert found is not None
    assert found.user_id == 1000
    for user, may in ((0, True), (1000, True), (5, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        if may:
            found.check_owner(place)
        else:
            with pytest.raises(MountError, match="1000"):
                found.check_owner(place)


def test_connection(table: Table):
    """The number of a mount's FUSE connection is that of its device."""
    table.add(b"45 27 0:39 / /mnt rw - fuse.skymount skymount rw,user_id=0")
    found = table.mounted_at("/mnt")
    assert found is not None
    assert found.connection == "39"


def test_who_serves_a_mount():
    """M6: a process serves none unless its owner is the mount's and it holds the connection."""
    for user in (os.getuid(), os.getuid() + 1, None):
        assert not is_served_by(MountInfo("fuse.skymount", "skymount", user, "1"), os.getpid())
    assert not is_served_by(MountInfo("fuse.skymount", "skymount", 0, "1"), 1 << 30)
    with open("/dev/null", "rb"):
        assert not is_served_by(
            MountInfo("fuse.skymount", "skymount", os.getuid(), "0"), os.getpid()
        )


def test_topmost_mount(table: Table):
    """Of several mounts at one place the last one counts."""
    table.add(line(b"/mnt"), line(b"/mnt", b"fuse.other", b"x"))
    found = table.mounted_at("/mnt")
    assert found == MountInfo("fuse.other", "x")
    assert not found.is_ours


def test_lines_without_optional_fields(table: Table):
    """A line may have no optional fields, or many."""
    table.add(
        b"1 1 0:1 / /a rw - fuse.skymount skymount rw",
        b"1 1 0:1 / /b rw a:1 b:2 c - fuse.skymount skymount rw",
    )
    for place in ("/a", "/b"):
        assert table.mounted_at(place) == MountInfo("fuse.skymount", "skymount")


def test_real_table():
    """The table of this very system can be read."""
    assert mounted_at("/proc") is not None  # it is where the table is; in a chroot / may be none
    assert mounted_at("/no such place") is None


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A mount point's path is absolute, without links or dots."""
    (tmp_path / "real/mnt").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = str(tmp_path / "real/mnt")
    for text in ("real/mnt", "./real/mnt/", "link/mnt", "~/link/mnt", "real/../link/mnt", expected):
        assert resolve(text) == expected
    assert resolve("real/mnt/..") == str(tmp_path / "real")
    assert resolve(".") == str(tmp_path)
    assert resolve("/") == "/"
    assert resolve("none/at/all") == str(tmp_path / "none/at/all")
    assert resolve("loop")


def test_directory_that_is_fine(tmp_path: Path, table: Table):
    """An empty directory of one's own can be mounted on."""
    assert mountpoint.check(str(tmp_path), table=table.path) is False


class TestCheck:
    """What is wrong with a place, each with what to do about it."""

    def test_missing(self, tmp_path: Path, table: Table):
        """A directory that is not there."""
        with pytest.raises(MountError, match="no such directory; make it with `mkdir -p"):
            mountpoint.check(str(tmp_path / "none"), table=table.path)

    def test_file(self, tmp_path: Path, table: Table):
        """A file."""
        (tmp_path / "f").touch()
        with pytest.raises(MountError, match="not a directory"):
            mountpoint.check(str(tmp_path / "f"), table=table.path)

    def test_occupied(self, tmp_path: Path, table: Table):
        """A directory with something in it."""
        (tmp_path / "f").touch()
        with pytest.raises(MountError, match="not empty"):
            mountpoint.check(str(tmp_path), table=table.path)

    def test_other_mount(self, tmp_path: Path, table: Table):
        """Somebody else's mount is never touched."""
        table.add(line(str(tmp_path).encode(), b"ext4", b"/dev/sdb"))
        with pytest.raises(MountError, match=r"ext4 \(/dev/sdb\) is mounted there"):
            mountpoint.check(str(tmp_path), table=table.path)

    def test_own_mount_that_lives(self, tmp_path: Path, table: Table):
        """A mount of ours that answers is left alone."""
        table.add(line(str(tmp_path).encode()))
        with pytest.raises(MountError, match="mounted there already"):
            mountpoint.check(str(tmp_path), table=table.path)


def test_mounts_of_a_user(table: Table) -> None:
    """Ours alone, the topmost at each place."""
    table.add(
        line(b"/a") + b",user_id=7",
        line(b"/b") + b",user_id=8",
        line(rb"/c\040d") + b",user_id=7",
        line(b"/e", kind=b"fuse.other") + b",user_id=7",
        line(b"/f") + b",user_id=7",
        line(b"/f", kind=b"tmpfs"),
    )
    assert list(mounts_of(7, table.path)) == ["/a", "/c d"]


def test_no_process_serves_what_is_not_there() -> None:
    assert daemons_of(MountInfo("fuse.skymount", "skymount", os.getuid(), "999999999")) == []
    assert not is_stopped(os.getpid())
    assert not is_stopped(1 << 30)

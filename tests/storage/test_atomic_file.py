"""Files that are written whole or not at all."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from skymount.storage import atomic_file
from skymount.storage.atomic_file import Replacement


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_file_is_replaced_whatever_is_left_of_a_killed_writer(tmp_path: Path) -> None:
    """Its mode is the one asked for, whatever the umask, and no other file stays."""
    path = tmp_path / "file"
    (tmp_path / "file.new").write_bytes(b"half")
    before = os.umask(0o777)
    try:
        atomic_file.replace(path, b"first")
        assert (path.read_bytes(), _mode(path)) == (b"first", 0o600)
        atomic_file.replace(path, b"second", mode=0o640)
    finally:
        os.umask(before)
    assert (path.read_bytes(), _mode(path)) == (b"second", 0o640)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_relative_path_lies_in_the_directory_given(tmp_path: Path) -> None:
    """Also when that directory was renamed meanwhile."""
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        atomic_file.replace("name", b"content", temporary=".new", within=directory)
    finally:
        os.close(directory)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"name": b"content"}


def test_what_cannot_be_replaced_stays(tmp_path: Path) -> None:
    """The new file is removed."""
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        atomic_file.replace(tmp_path / "taken", b"content")
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("links", [True, False], ids=["with hard links", "without"])
def test_a_name_that_is_taken_is_left_alone_without_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "file"
    atomic_file.replace(path, b"first", force=False)
    with pytest.raises(FileExistsError) as caught:
        atomic_file.replace(path, b"second", force=False)
    assert caught.value.filename == str(path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"first"}


def test_a_file_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it."""

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        atomic_file.create(tmp_path / "file", b"content")
    assert caught.value.filename == str(tmp_path / "file")
    assert [*tmp_path.iterdir()] == []


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    """Whoever wants that uses `replace`."""
    atomic_file.create(tmp_path / "file", b"content")
    with pytest.raises(FileExistsError) as caught:
        atomic_file.create(tmp_path / "file", b"other")
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "file").read_bytes() == b"content"


def test_all_is_written_to_a_pipe_that_does_not_block() -> None:
    """Writing waits for the reader."""
    source, target = os.pipe()
    os.set_blocking(target, False)
    data, found = os.urandom(1 << 20), bytearray()

    def read() -> None:
        while piece := os.read(source, 1 << 16):
            found.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        atomic_file.write_all(target, data)
    finally:
        os.close(target)
        reader.join()
        os.close(source)
    assert found == data


def test_bytes_are_written_at_an_offset(tmp_path: Path) -> None:
    """What is around them stays."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file = os.open(path, os.O_WRONLY)
    try:
        atomic_file.write_all_at(file, memoryview(b"abc"), 4)
    finally:
        os.close(file)
    assert path.read_bytes() == b"0123abc789"


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    path = tmp_path / "new"
    before = os.umask(0o027)
    try:
        with Replacement(path) as file:
            file.write(b"x")
            assert not path.exists()
    finally:
        os.umask(before)
    assert path.read_bytes() == b"x"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_replacement_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """P11: if it fails, the old one stays."""
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with Replacement(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["n" * 255, "名" * 84])
def test_a_replacement_with_a_long_name(tmp_path: Path, name: str) -> None:
    with Replacement(tmp_path / name) as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == [name]


def test_errors_of_a_replacement_name_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not name the file beside it."""
    for wrong, kind in (
        (tmp_path / "no/file", FileNotFoundError),
        (tmp_path, IsADirectoryError),
        (Path("/proc/skymount"), FileNotFoundError),
        (Path(os.devnull), FileExistsError),
    ):
        with pytest.raises(kind) as caught:
            Replacement(wrong)
        assert caught.value.filename == str(wrong)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")

    def is_directory_at_the_end() -> None:
        with Replacement(link):
            (tmp_path / "file").mkdir()

    with pytest.raises(IsADirectoryError) as caught:
        is_directory_at_the_end()
    assert (caught.value.filename, caught.value.filename2) == (str(link), None)
    (tmp_path / "file").rmdir()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_file, "write_all", full)
    with pytest.raises(OSError, match="No space") as full_disk, Replacement(link) as file:
        file.write(b"x")
    assert full_disk.value.filename == str(link)
    assert os.listdir(tmp_path) == ["link"]

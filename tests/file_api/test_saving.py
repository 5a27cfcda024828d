"""Local files that are replaced by copies."""

import os
import stat
import threading
from pathlib import Path

import pytest

from skymount.file_api.saving import replacing


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    path = tmp_path / "new"
    before = os.umask(0o027)
    try:
        with replacing(str(path)) as file:
            file.write(b"x")
            assert not path.exists()
    finally:
        os.umask(before)
    assert path.read_bytes() == b"x"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """P11: if it fails, the old one stays."""
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(str(path)) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["n" * 255, "名" * 84])
def test_a_long_name(tmp_path: Path, name: str) -> None:
    with replacing(str(tmp_path / name)) as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == [name]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    with replacing(str(pipe)) as file:
        file.write(b"through")
    reader.join(30)
    assert got == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), replacing(str(tmp_path)):
        pass

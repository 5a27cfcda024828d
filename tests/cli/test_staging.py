"""How staged files get to their destination."""

import errno
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skymount.cli.staging import DestinationError, StagedFile, StagingDirectory, pieces

PAYLOAD = b"onetwo"
FILES = [StagedFile(b"d/one", 0, 3, 0o640), StagedFile(b"two", 3, 3)]
SKYFILE: Any = SimpleNamespace(unit=4)


class _Reader:
    async def read(self, skyfile: object, offset: int, length: int) -> memoryview:
        return memoryview(PAYLOAD)[offset : offset + length]


READER: Any = _Reader()


@pytest.fixture(params=["links", "no links"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Path:
    """A directory on a file system with or without hard links."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if request.param == "no links":
        monkeypatch.setattr(os, "link", refuse)
    return tmp_path


async def filled(staging: StagingDirectory) -> None:
    staging.make_directories([b"d"])
    await staging.fill(READER, SKYFILE, FILES, None)


async def test_files_appear_when_they_are_merged(target: Path) -> None:
    with StagingDirectory(str(target)) as staging:
        await filled(staging)
        assert len(os.listdir(target)) == 1
        staging.merge(FILES, force=False)
    assert sorted(os.listdir(target)) == ["d", "two"]
    assert (target / "d/one").read_bytes() + (target / "two").read_bytes() == PAYLOAD


async def test_a_file_that_exists_is_replaced_only_by_force(target: Path) -> None:
    (target / "two").write_text("mine")
    with StagingDirectory(str(target)) as staging:
        await filled(staging)
        with pytest.raises(DestinationError, match="it exists already; use --force"):
            staging.merge(FILES, force=False)
        assert (target / "two").read_text() == "mine"
        staging.merge(FILES[1:], force=True)
    assert (target / "two").read_bytes() == b"two"


async def test_a_directory_gets_its_name_at_once(target: Path) -> None:
    with StagingDirectory(str(target)) as staging:
        await filled(staging)
        staging.place_directory("site")
    assert os.listdir(target) == ["site"]
    assert (target / "site/d/one").read_bytes() == b"one"


async def test_nothing_is_left_of_what_is_not_placed(target: Path) -> None:
    with StagingDirectory(str(target)) as staging:
        await filled(staging)
    assert os.listdir(target) == []


def test_nothing_is_left_of_what_cannot_be_made(tmp_path: Path) -> None:
    """However far it came: here each descriptor in turn is one too many."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    failures: list[int | None] = []
    for room in range(1024):
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, limits[1]))
        try:
            with StagingDirectory(str(tmp_path)):
                break
        except OSError as error:
            failures.append(error.errno)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert os.listdir(tmp_path) == []
    assert len(failures) >= 3
    assert set(failures) == {errno.EMFILE}


def test_pieces_end_where_units_do() -> None:
    assert list(pieces(SKYFILE, 3, 6)) == [(3, 1), (4, 4), (8, 1)]
    assert list(pieces(SKYFILE, 3, 0)) == []


def test_an_error_names_the_place_that_was_asked_for(tmp_path: Path) -> None:
    """Not the path in the staging directory: that one was never given."""
    copy = str(tmp_path / "copy")
    with StagingDirectory(str(tmp_path), copy) as staging:
        staging.make_directories([b"data"])
        with pytest.raises(FileExistsError) as caught:
            staging.make_directories([b"data"])
        assert caught.value.filename == f"{copy}/data"

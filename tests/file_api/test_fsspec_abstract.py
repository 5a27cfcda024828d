"""fsspec's own tests of file systems, as far as a file system has them that never changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract
from fsspec.tests.abstract import AbstractFixtures, AbstractGetTests

from skymount.file_api.fsspec_filesystem import SkylinkFileSystem

NOT_APPLICABLE = {
    "AbstractCopyTests": "they copy within a file system, into directories that they make",
    "AbstractOpenTests": "it creates a file, and then not another one in its place",
    "AbstractPipeTests": "it writes into a file twice",
    "AbstractPutTests": "they write into one target again and again, and remove what they wrote; "
    "test_fsspec_put.py compares what is copied where with fsspec's local file system, and with "
    "the table of patterns of these tests",
}


def test_no_test_of_fsspec_is_forgotten() -> None:
    """A new release of fsspec may have more of them."""
    found = {name for name in vars(abstract) if name.endswith("Tests")}
    assert found == {"AbstractGetTests", *NOT_APPLICABLE}


class UploadedFileSystem(SkylinkFileSystem):
    """A file system in which what a test makes is there already."""

    def mkdir(self, path: str, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        assert self.isdir(path)

    def touch(self, path: str, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        assert self.isfile(path)


class SkylinkFixtures(AbstractFixtures):
    """What those tests find, uploaded once it is made locally."""

    @pytest.fixture
    def fs(self, portal: str) -> SkylinkFileSystem:
        return UploadedFileSystem(portals=portal)

    @pytest.fixture
    def fs_path(self, fs: SkylinkFileSystem, tmp_path: Path) -> str:
        """Where `test_get_directory_recursive` makes its file."""
        made = tmp_path / "made/src/file"
        made.parent.mkdir(parents=True)
        made.touch()
        return fs.put(str(tmp_path / "made"), recursive=True)

    @pytest.fixture
    def upload(self, fs: SkylinkFileSystem, tmp_path: Path) -> Callable[[Any], str]:
        def made(make: Callable[[LocalFileSystem, Callable[..., str], str], str]) -> str:
            local = LocalFileSystem(auto_mkdir=True)
            source = make(local, lambda *parts: "/".join(parts), str(tmp_path / "remote"))
            link = fs.put(str(Path(source).parent), recursive=True)
            return f"{link}/source"

        return made

    @pytest.fixture
    def fs_bulk_operations_scenario_0(self, upload: Callable[[Any], str]) -> str:
        return upload(self._bulk_operations_scenario_0)

    @pytest.fixture
    def fs_glob_edge_cases_files(self, upload: Callable[[Any], str]) -> str:
        return upload(self._glob_edge_cases_files)

    @pytest.fixture
    def fs_dir_and_file_with_same_name_prefix(self, upload: Callable[[Any], str]) -> str:
        return upload(self._dir_and_file_with_same_name_prefix)

    @pytest.fixture
    def fs_10_files_with_hashed_names(self, upload: Callable[[Any], str]) -> str:
        return upload(self._10_files_with_hashed_names)


class TestGet(SkylinkFixtures, AbstractGetTests):
    """P9: `get`, as fsspec tests it."""

"""Portals to read from, and a home of its own for each test."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skymount.file_api.sessions import SESSIONS
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import FakeSkyfile, of_files

FILES = {
    "a.csv": b"x,y\n1,2\n3,4\n",
    "d/b.txt": b"one\ntwo\nthree",
    "d/e/c[1].txt": b"brackets",
    "d/e/empty": b"",
    "space and %20.txt": b"as it stands",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Caches and configuration of this test alone; no session outlives it."""
    for name in [name for name in os.environ if name.startswith("SKYMOUNT_")]:
        monkeypatch.delenv(name)
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))
    yield tmp_path / "home"
    SESSIONS.close()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePortal]:
    with in_thread(FakePortal()) as portal:
        monkeypatch.setenv("SKYMOUNT_PORTALS", portal.url)
        yield portal


@pytest.fixture
def site(fake: FakePortal) -> FakeSkyfile:
    found = of_files(FILES)
    fake.add(found)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """Make a local directory of files."""

    def make(files: dict[str, bytes], name: str = "tree") -> Path:
        for path, content in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return tmp_path / name

    return make

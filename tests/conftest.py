"""Fixtures for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.skymount_process import Sandbox, clear_mounts


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A home directory for the commands of one test; nothing stays mounted in it."""
    made = Sandbox.make(tmp_path / "sandbox")
    yield made
    clear_mounts(made.root)

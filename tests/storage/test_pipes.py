"""Pipes that nobody writes to, or that stay open, are not waited for without end."""

import os
import threading
from io import FileIO
from pathlib import Path

import pytest

from skymount.storage.pipes import open_at_once, read_within


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def read(path: Path, limit: int = 100, patience: float = 30.0) -> bytes:
    with FileIO(path, opener=open_at_once) as file:
        return read_within(file, limit, patience)


def test_nobody_writes(pipe: Path) -> None:
    with pytest.raises(TimeoutError):
        read(pipe, patience=0.1)


def test_who_writes_does_not_close_it(pipe: Path) -> None:
    with FileIO(pipe, opener=open_at_once) as file, pipe.open("wb", buffering=0) as end:
        end.write(b"so far")
        with pytest.raises(TimeoutError):
            read_within(file, 100, 0.1)


@pytest.mark.parametrize(("limit", "found"), [(100, b"all of it"), (3, b"all")])
def test_what_is_written_later(pipe: Path, limit: int, found: bytes) -> None:
    writer = threading.Thread(target=pipe.write_bytes, args=(b"all of it",))
    writer.start()
    with FileIO(pipe, opener=open_at_once) as file:
        writer.join()
        assert read_within(file, limit, 30.0) == found

"""Memory files: content, mappings, and long texts."""

import mmap
import os
from pathlib import Path

import pytest

from skymount.concurrency import in_thread
from skymount.content.worker.shared_memory import (
    FileReceiver,
    MemoryFile,
    joined,
    open_memory_file,
    release_mappings,
)
from skymount.errors import UnavailableError
from tests.fakes.skyfiles import noise

MUCH = noise(3_000_000)


async def test_file():
    """Parts are put anywhere, and all of it comes out; it is closed at the end."""
    descriptors = len(os.listdir("/proc/self/fd"))
    async with open_memory_file() as file:
        assert bytes(file.content()) == b""
        file.put(MUCH[1_000_000:], 1_000_000)
        file.put(memoryview(MUCH)[:1_000_000])
        assert len(file) == len(MUCH)
        assert await in_thread(file.content) == MUCH
        assert file.get(999_999, 2) == MUCH[999_999:1_000_001]
        assert file.content().readonly
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_file_receiver():
    """S11: What comes goes into the file, wherever a piece of it ends; it may begin anew."""
    file = MemoryFile()
    receiver = FileReceiver(file)
    for content in (MUCH[::-1], MUCH):
        receiver.clear()
        at = 0
        while at < len(content):
            room = receiver.room()[:700_001]
            size = min(len(room), len(content) - at)
            room[:size] = content[at : at + size]
            receiver.filled(size)
            at += size
        receiver.finish()
        assert (receiver.size, len(file)) == (len(content), len(content))
        assert file.content() == content
    file.close()


def test_file_receiver_without_memory(monkeypatch: pytest.MonkeyPatch):
    """Without memory there is an error that says so."""
    file = MemoryFile()
    monkeypatch.setattr(os, "ftruncate", _full)
    with pytest.raises(UnavailableError, match="cannot allocate memory"):
        FileReceiver(file).room()
    file.close()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_let_go():
    """S10: What was looked at of a file does not stay with the mount, and is still there."""
    file = MemoryFile()
    file.put(MUCH * 50)
    before = _resident()
    content = file.content()
    file.close()
    assert content == MUCH * 50
    assert _resident() - before > 100_000_000
    assert release_mappings()
    assert _resident() - before < 50_000_000
    assert content[140_000_000:] == (MUCH * 50)[140_000_000:]


@pytest.mark.parametrize("parts", [[], [b""], [b"a", b"", b"bc"], [MUCH, b"", memoryview(MUCH)]])
def test_joined(parts: list[bytes | memoryview], monkeypatch: pytest.MonkeyPatch):
    """Parts in one piece, also where no file can be had."""
    whole = b"".join(parts)
    assert joined(parts) == whole
    monkeypatch.setattr(os, "pwrite", _full)
    assert joined(parts) == whole


def _full(*_: object) -> None:
    raise OSError("full")


async def test_no_file(monkeypatch: pytest.MonkeyPatch):
    """Without a file there is an error that says so."""
    monkeypatch.setattr(os, "memfd_create", _full)
    with pytest.raises(UnavailableError):
        async with open_memory_file():
            pass

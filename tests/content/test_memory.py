"""Memory by the megabyte: what goes in comes out."""

import os

import pytest

from skymount.content.memory import MemoryFile, in_thread, joined, open_memory_file
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


@pytest.mark.parametrize("parts", [[], [b""], [b"a", b"", b"bc"], [MUCH, b"", memoryview(MUCH)]])
def test_joined(parts: list[bytes | memoryview], monkeypatch: pytest.MonkeyPatch):
    """Parts in one piece, also where no file can be had."""
    whole = b"".join(parts)
    assert joined(parts) == whole
    monkeypatch.setattr(MemoryFile, "put", _full)
    assert joined(parts) == whole


def _full(*_: object) -> None:
    raise OSError("full")


async def test_no_file(monkeypatch: pytest.MonkeyPatch):
    """Without a file there is an error that says so."""
    monkeypatch.setattr(os, "memfd_create", _full)
    with pytest.raises(UnavailableError):
        async with open_memory_file():
            pass

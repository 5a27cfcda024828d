"""Bytes of stored files: all of a range, parts of it, and what happens when they are not there."""

from pathlib import Path

import pytest

from skymount.errors import StorageError
from skymount.server.storage.stored_range import (
    STREAM_CHUNK_SIZE,
    StoredFile,
    StoredRange,
    read_chunks,
    read_range,
)

CONTENT = bytes(range(256)) * (3 * STREAM_CHUNK_SIZE // 256)


@pytest.fixture
def file(tmp_path: Path) -> StoredFile:
    path = tmp_path / "stored"
    path.write_bytes(CONTENT)
    return StoredFile(path)


def test_range(file: StoredFile) -> None:
    """It is read whole, or in chunks that are neither large nor empty."""
    stored = StoredRange(file, 1000, 2 * STREAM_CHUNK_SIZE + 5)
    expected = CONTENT[1000:][: stored.length]
    assert read_range(stored) == expected
    chunks = list(read_chunks(stored))
    assert b"".join(chunks) == expected
    assert [len(chunk) for chunk in chunks] == [STREAM_CHUNK_SIZE, STREAM_CHUNK_SIZE, 5]
    assert read_range(StoredRange(file, 7, 0)) == b""


def test_parts(file: StoredFile) -> None:
    """They come in the order in which they are asked for, by their places in the range."""
    stored = StoredRange(file, 100, 1000)
    parts = [(500, 3), (0, 2), (7, 0), (999, 1)]
    assert b"".join(read_chunks(stored, parts)) == b"".join(
        CONTENT[100 + start :][:length] for start, length in parts
    )


def test_decryption_knows_where_the_bytes_lie(file: StoredFile) -> None:
    """Each chunk is decrypted by itself, by its place in the file."""
    places: list[int] = []

    def decrypt(data: bytes, offset: int) -> bytes:
        places.append(offset)
        return data.swapcase()

    stored = StoredRange(file, 65, STREAM_CHUNK_SIZE + 3, decrypt)
    assert read_range(stored) == CONTENT[65:][: stored.length].swapcase()
    assert places == [65, 65 + STREAM_CHUNK_SIZE]


def test_file_that_is_too_short(file: StoredFile) -> None:
    """It is damaged: what there is of it is not taken for the whole."""
    with pytest.raises(StorageError, match="stored is damaged: shorter than recorded"):
        read_range(StoredRange(file, len(CONTENT) - 5, 6))


def test_places_beyond_those_of_files(file: StoredFile) -> None:
    """Numbers that the system does not take are damage too."""
    for stored in (StoredRange(file, 1 << 63, 1), StoredRange(file, (1 << 63) - 1, 1)):
        with pytest.raises(StorageError, match="is damaged"):
            read_range(stored)
        with pytest.raises(StorageError, match="is damaged"):
            list(read_chunks(StoredRange(file, 99, 1), [((1 << 63) - 99, 1)]))


def test_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read stored content: No such file"):
        read_range(StoredRange(StoredFile(tmp_path / "gone"), 0, 1))

"""The names of blocks on disk, and the seals behind their content."""

from dataclasses import replace

import pytest

from skymount.content.cache.block_format import (
    SEAL,
    BlockKey,
    claim,
    file_name,
    identity_of,
    seal,
)

KEY = BlockKey("AAB", unit=100, size=250, index=1)


@pytest.mark.parametrize(("index", "length"), [(0, 100), (1, 100), (2, 50)])
def test_length_of_a_unit(index: int, length: int):
    """The last one may have less."""
    assert replace(KEY, index=index).length == length


@pytest.mark.parametrize(
    "change",
    [str.upper, lambda name: name[:-1], lambda name: name + "0", lambda name: name[:-1] + "g",
     lambda name: name[:-2] + " 0", lambda name: name[:-1] + "٣"],
    ids=["upper case", "too short", "too long", "no digit", "a blank", "another digit"],
)  # fmt: skip
def test_names_of_other_files(change):
    """A file with another name is no block, nor one in another directory."""
    directory, name = file_name(bytes(range(160, 192)))
    assert identity_of(directory, name) == bytes(range(160, 192))
    assert identity_of(directory, change(name)) is None
    assert identity_of("00", name) is None


def test_seal():
    """K2: it tells what the block is, how long it is, and whether a byte of it changed."""
    made = seal(KEY.identity, b"content")
    assert len(made) == SEAL
    assert made.startswith(claim(KEY.identity, 7))
    assert seal(KEY.identity, memoryview(b"content")) == made
    assert seal(KEY.identity, b"contenu")[-16:] != made[-16:]
    assert seal(replace(KEY, index=0).identity, b"content")[-16:] != made[-16:]
    assert claim(KEY.identity, 8) != claim(KEY.identity, 7)

"""The Merkle root of a sector, held against a tree that is hashed in full."""

import json
from hashlib import blake2b
from pathlib import Path

import pytest

from skymount.wire.merkle import piece_root, sector_root
from skymount.wire.skylink import SECTOR_SIZE

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())
ROOTS = {case["data"]: case["root"] for case in VECTORS["merkle_root"]}

SEGMENT = 64
PATTERN = b"".join(blake2b(at.to_bytes(4, "big")).digest() for at in range(SECTOR_SIZE // SEGMENT))


def naive_root(sector: bytes) -> bytes:
    """Hash the whole tree from the top down, as the definition reads (wire notes 2.4)."""
    known: dict[bytes, bytes] = {}

    def root(data: bytes) -> bytes:
        if data not in known:
            half = len(data) // 2
            content = (
                b"\0" + data
                if len(data) == SEGMENT
                else b"\1" + root(data[:half]) + root(data[half:])
            )
            known[data] = blake2b(content, digest_size=32).digest()
        return known[data]

    assert len(sector) == SECTOR_SIZE
    return root(sector)


def naive_piece(chunk: bytes, piece: int, pieces: int) -> bytes:
    """Deal a chunk's 64-byte segments out like cards; return one hand as a sector (notes 2.3)."""
    hand = bytearray()
    for number in range(0, len(chunk), SEGMENT):
        if number // SEGMENT % pieces == piece:
            hand += chunk[number : number + SEGMENT].ljust(SEGMENT, b"\0")
    return bytes(hand).ljust(SECTOR_SIZE, b"\0")


@pytest.mark.parametrize("data", [b"", bytes(1), bytes(SECTOR_SIZE)], ids=len)
def test_known_root_of_zeros(data):
    """A sector of zeros has the known root, however many of them are given (own computation)."""
    assert sector_root(data).hex() == ROOTS["sector of 4 MiB zero bytes"]


@pytest.mark.parametrize("data", [b"a", b"a".ljust(SECTOR_SIZE, b"\0")], ids=len)
def test_known_root_of_one_byte(data):
    """One byte has the known root, with and without its padding (own computation)."""
    assert sector_root(data).hex() == ROOTS["one byte 0x61 then zeros to 4 MiB"]


@pytest.mark.parametrize(
    "size",
    [1, 63, 64, 65, 127, 128, 129, 192, 4096, 4097, 99_999, SECTOR_SIZE // 2, SECTOR_SIZE // 2 + 1],
)
def test_root_of_short_data(size):
    """Data of any length has the root of its zero-padded sector."""
    data = PATTERN[:size]
    assert sector_root(data) == naive_root(data.ljust(SECTOR_SIZE, b"\0"))


@pytest.mark.parametrize("size", [SECTOR_SIZE - 1, SECTOR_SIZE])
def test_root_of_a_full_sector(size):
    """A sector without padding to speak of has the root of the whole tree."""
    data = PATTERN[:size]
    assert sector_root(data) == naive_root(data.ljust(SECTOR_SIZE, b"\0"))


@pytest.mark.parametrize("gap", [1, 64, 8192, SECTOR_SIZE - 2])
def test_zeros_inside_the_data_count(gap):
    """Zeros between other bytes are content: only those at the end are padding."""
    data = b"x" + bytes(gap) + b"y"
    assert sector_root(data) == naive_root(data.ljust(SECTOR_SIZE, b"\0"))
    assert sector_root(data) != sector_root(b"x")


def test_more_than_a_sector_has_no_root():
    """A caller's mistake is not hashed."""
    with pytest.raises(ValueError, match="do not fit a sector"):
        sector_root(bytes(SECTOR_SIZE + 1))


@pytest.mark.parametrize("size", [0, 1, 577, 640, 641, 100_000])
@pytest.mark.parametrize("pieces", [1, 2, 10])
def test_piece_roots_of_a_short_chunk(pieces, size):
    """Each data piece has the root of the segments that are dealt to it."""
    chunk = PATTERN[:size]
    assert [piece_root(chunk, piece, pieces) for piece in range(pieces)] == [
        naive_root(naive_piece(chunk, piece, pieces)) for piece in range(pieces)
    ]


def test_piece_root_of_a_full_chunk():
    """The last piece of a full chunk of ten sectors is interleaved over all of it."""
    chunk = b"".join(bytes([number]) + PATTERN[1:] for number in range(10))
    assert piece_root(chunk, 9, 10) == naive_root(naive_piece(chunk, 9, 10))

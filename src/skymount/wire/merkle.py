"""Owns the Merkle root of a sector: blake2b-256 over a perfect tree of 65,536 leaves of 64 bytes.

Rule: wire notes 2.4. The compiled form (_merkle.c) is used where it could be built; it is some ten
times faster and lets other threads run. The plain form here gives the same answers. Both keep the
roots of all-zero subtrees, so short data costs only the leaves that it fills.
"""

from collections.abc import Callable
from hashlib import blake2b

from skymount.wire.skylink import SECTOR_SIZE

LEAF_SIZE = 64
DEPTH = (SECTOR_SIZE // LEAF_SIZE).bit_length() - 1

Data = bytes | bytearray | memoryview

_LEAF, _NODE = b"\x00", b"\x01"


def _hash_blocks(prefix: bytes, data: bytes, start: int = 0, stride: int = LEAF_SIZE) -> bytes:
    """Return the joined hashes of the 64-byte blocks at start, start + stride, ..."""
    return b"".join(
        [
            blake2b(prefix + data[at : at + LEAF_SIZE], digest_size=32).digest()
            for at in range(start, len(data), stride)
        ]
    )


def _zero_roots() -> tuple[bytes, ...]:
    """Return the root of an all-zero subtree for each height, leaves first."""
    roots = [_hash_blocks(_LEAF, bytes(LEAF_SIZE))]
    for _ in range(DEPTH):
        roots.append(_hash_blocks(_NODE, roots[-1] * 2))
    return tuple(roots)


_ZERO = _zero_roots()


def plain_root(data: Data, start: int, stride: int) -> bytes:
    """Return the root of the blocks of `data` at start, start + stride, ..., then zeros."""
    used = bytes(data).rstrip(b"\0")
    used += bytes(-len(used) % LEAF_SIZE)
    level = _hash_blocks(_LEAF, used, start, stride)
    for height in range(DEPTH):
        if len(level) % (2 * len(_ZERO[0])):
            level += _ZERO[height]
        level = _hash_blocks(_NODE, level)
    return level or _ZERO[DEPTH]


def _fastest_root() -> Callable[[Data, int, int], bytes]:
    try:
        from skymount.wire._merkle import root
    except ImportError:  # installed without a C compiler
        return plain_root
    return root


_root = _fastest_root()

COMPILED = _root is not plain_root
"""Whether the compiled form is in use."""


def sector_root(data: Data) -> bytes:
    """Return the 32-byte Merkle root of `data` padded with zeros to a full sector.

    ValueError when the data is larger than a sector.
    """
    return piece_root(data, 0, 1)


def piece_root(chunk: Data, piece: int, pieces: int) -> bytes:
    """Return the root of data piece `piece` of a chunk spread over `pieces` sectors.

    A chunk is a run of groups of `pieces` 64-byte segments, segment i going to piece i (wire
    notes 2.3); with one piece the chunk is the sector. The chunk may be short: zeros follow.
    ValueError when it is larger than its sectors, or there is no such piece.
    """
    if not 0 <= piece < pieces:
        raise ValueError(f"no piece {piece} of {pieces}")
    size = memoryview(chunk).nbytes
    if size > pieces * SECTOR_SIZE:
        raise ValueError(f"{size} bytes do not fit {pieces} * {SECTOR_SIZE}")
    return _root(chunk, piece * LEAF_SIZE, pieces * LEAF_SIZE)

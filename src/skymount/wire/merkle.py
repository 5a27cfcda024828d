"""Owns the Merkle root of a sector: blake2b-256 over a perfect tree of 65,536 leaves of 64 bytes.

Rule: wire notes 2.4. Roots of all-zero subtrees are kept, so a short piece of data costs only
the leaves that it fills.
"""

from hashlib import blake2b

from skymount.wire.skylink import SECTOR_SIZE

LEAF_SIZE = 64
DEPTH = (SECTOR_SIZE // LEAF_SIZE).bit_length() - 1

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


def _root_of_leaves(level: bytes) -> bytes:
    """Climb from the joined leaf hashes to the root, with zero subtrees to the right."""
    for height in range(DEPTH):
        if len(level) % (2 * len(_ZERO[0])):
            level += _ZERO[height]
        level = _hash_blocks(_NODE, level)
    return level or _ZERO[DEPTH]


def sector_root(data: bytes) -> bytes:
    """Return the 32-byte Merkle root of `data` padded with zeros to a full sector.

    ValueError when the data is larger than a sector.
    """
    if len(data) > SECTOR_SIZE:
        raise ValueError(f"{len(data)} bytes do not fit a sector of {SECTOR_SIZE}")
    used = data.rstrip(b"\0")
    used += bytes(-len(used) % LEAF_SIZE)
    return _root_of_leaves(_hash_blocks(_LEAF, used))


def piece_root(chunk: bytes, piece: int, pieces: int) -> bytes:
    """Return the root of data piece `piece` of a chunk spread over `pieces` sectors.

    A chunk is a run of groups of `pieces` 64-byte segments, segment i going to piece i (wire
    notes 2.3); with one piece the chunk is the sector. The chunk may be short: zeros follow.
    """
    if pieces == 1:
        return sector_root(chunk)
    used = chunk.rstrip(b"\0")
    used += bytes(-len(used) % LEAF_SIZE)
    return _root_of_leaves(
        _hash_blocks(_LEAF, used, start=piece * LEAF_SIZE, stride=pieces * LEAF_SIZE)
    )

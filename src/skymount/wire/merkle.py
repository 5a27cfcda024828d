"""The Merkle root of a sector: blake2b-256 over 65,536 leaves of 64 bytes (docs/wire.md 2.4).

The compiled form (_merkle.c) is ten to thirty times faster and releases the interpreter lock.
Both know the roots of all-zero subtrees, so short data is cheap.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple

from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE

LEAF_SIZE = 64
DEPTH = (SECTOR_SIZE // LEAF_SIZE).bit_length() - 1

_STEP = 8
GROUP = 1 << _STEP  # leaves that are hashed together

Data = bytes | bytearray | memoryview

_LEAF, _NODE = b"\x00", b"\x01"


def _hash_blocks(prefix: bytes, data: bytes, start: int = 0, stride: int = LEAF_SIZE) -> bytes:
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


def _hash_up(level: bytes, height: int, top: int) -> bytes:
    """Return the hashes at height `top` above those at `height`; zeros follow both."""
    for at in range(height, top):
        if len(level) % (2 * ROOT_SIZE):
            level += _ZERO[at]
        level = _hash_blocks(_NODE, level)
    return level


def plain_groups(data: Data, start: int, stride: int) -> bytes:
    """Return the joined roots of each `GROUP` of the blocks of `data` at start, start + stride, ...

    Zeros complete the last group.
    """
    data = bytes(data)
    used = data.rstrip(b"\0")
    used += bytes(-len(used) % LEAF_SIZE)
    found = _hash_up(_hash_blocks(_LEAF, used, start, stride), 0, _STEP)
    size = -(-len(range(start, len(data), stride)) // GROUP) * ROOT_SIZE
    return found + _ZERO[_STEP] * ((size - len(found)) // ROOT_SIZE)


def plain_join(roots: Data) -> bytes:
    """Return the root of a sector that begins with these groups; zeros follow."""
    return _hash_up(bytes(roots), _STEP, DEPTH) or _ZERO[DEPTH]


class MerkleForm(NamedTuple):
    """A way to compute roots: as `plain_groups` and `plain_join`."""

    groups: Callable[[Data, int, int], bytes]
    join: Callable[[Data], bytes]


PLAIN = MerkleForm(plain_groups, plain_join)


def _fastest() -> MerkleForm:
    try:
        from skymount.wire import _merkle
    except ImportError:  # installed without a C compiler
        return PLAIN
    return MerkleForm(_merkle.groups, _merkle.join)


FASTEST = _fastest()

COMPILED = FASTEST is not PLAIN  # whether the compiled form is in use


def sector_root(data: Data, form: MerkleForm = FASTEST) -> bytes:
    """Return the Merkle root of `data` padded with zeros; ValueError when larger than a sector."""
    return joined_root([piece_groups(data, 0, 1, form)], form)


def piece_groups(part: Data, piece: int, pieces: int, form: MerkleForm = FASTEST) -> bytes:
    """Return the group roots of one data piece in a part of a chunk, for `joined_root`.

    A chunk is spread over `pieces` sectors by segments of 64 bytes, segment i going to piece
    i % pieces (docs/wire.md 2.3). Each part but the last has a multiple of `GROUP` leaves of each
    piece. ValueError when it is larger than its sectors, or there is no such piece.
    """
    if not 0 <= piece < pieces:
        raise ValueError(f"no piece {piece} of {pieces}")
    size = memoryview(part).nbytes
    if size > pieces * SECTOR_SIZE:
        raise ValueError(f"{size} bytes do not fit {pieces} * {SECTOR_SIZE}")
    return form.groups(part, piece * LEAF_SIZE, pieces * LEAF_SIZE)


def joined_root(parts: Iterable[bytes], form: MerkleForm = FASTEST) -> bytes:
    """Return the root of a data piece from the `piece_groups` of its parts; zeros follow."""
    roots = b"".join(parts)
    if len(roots) > SECTOR_SIZE // LEAF_SIZE // GROUP * ROOT_SIZE:
        raise ValueError("more groups than a sector has")
    return form.join(roots)

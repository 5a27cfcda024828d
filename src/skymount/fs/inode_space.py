"""The inode layout: which numbers belong to which subtree, how one is made, and how it is read.

     52 51 50                        21 20               0
    +-----+----------------------------+------------------+
    | 0   | 0                          | below 2**21      |  static tree
    +-----+----------------------------+------------------+
    |space| hash of name (and target)  | index of a node  |  skylinks (0) and hns (1)
    +-----+----------------------------+------------------+
    |space| hash of public key and file name              |  registry (2) and skydb (3)
    +-----+-----------------------------------------------+

In `skylinks` and `hns`, bits 21 to 50 are the *tree number* of one version of a name's tree. Hashes
are the same after a remount. A number that is taken is counted up. Programs that keep numbers as
JavaScript does have 53 bits for them.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from hashlib import blake2b

# Inode numbers of the static tree.
ROOT = 1
SKYLINKS = 2
CONTROL = 3
HELP = 4
STATUS = 5
HNS = 6
REGISTRY = 7
SKYDB = 8
METRICS = 9

_SPACE_SHIFT = 51
_INDEX_BITS = 21  # the limit of nodes in a tree is below 2**21
_STATIC_LIMIT = 1 << _INDEX_BITS
_TREE_BITS = _SPACE_SHIFT - _INDEX_BITS  # of a tree number, without the space
_ENTRY_BITS = 50  # one less than there are, so that one can be counted up
_HASH_BITS = 64


class InodeSpace(IntEnum):
    """A subtree, by bits 51 and 52 of its inode numbers."""

    SKYLINKS = 0
    HNS = 1
    REGISTRY = 2
    SKYDB = 3


# The directory in the root of each subtree, whose number is one of the static tree's.
DIRECTORY_INODES: Mapping[InodeSpace, int] = {
    InodeSpace.SKYLINKS: SKYLINKS,
    InodeSpace.HNS: HNS,
    InodeSpace.REGISTRY: REGISTRY,
    InodeSpace.SKYDB: SKYDB,
}

PATHS: Mapping[InodeSpace, bytes] = {space: space.name.lower().encode() for space in InodeSpace}

_SPACES = tuple(InodeSpace)
_SPACE_OF_DIRECTORY = {inode: space for space, inode in DIRECTORY_INODES.items()}


def space_of(inode: int) -> InodeSpace | None:
    """Return the subtree of an inode number; None for the static tree."""
    if inode < _STATIC_LIMIT:
        return _SPACE_OF_DIRECTORY.get(inode)
    return _SPACES[inode >> _SPACE_SHIFT & len(_SPACES) - 1]


def first_tree_number(space: InodeSpace, text: str) -> int:
    """Hash what identifies a version of a tree; 0 is no tree number."""
    return space << _TREE_BITS | _hashed(text.encode(), _TREE_BITS) or 1


def next_tree_number(number: int) -> int:
    """Return the number to try after one that is taken."""
    space = number >> _TREE_BITS << _TREE_BITS
    return space | (number + 1) & (1 << _TREE_BITS) - 1 or 1


def node_inode(tree_number: int, index: int) -> int:
    """Return the inode number of a node in a tree; the tree's root has index 0."""
    return tree_number << _INDEX_BITS | index


def split_node_inode(inode: int) -> tuple[int, int]:
    """Return (tree number, index) of a node's inode number."""
    return inode >> _INDEX_BITS, inode & (1 << _INDEX_BITS) - 1


def merge_forgets(inodes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Add up the (inode, count) of each tree's nodes, under the number of its root.

    The kernel forgets thousands of inodes at a time, and only trees are counted, not their nodes.
    """
    found: list[tuple[int, int]] = []
    counts: dict[int, int] = {}
    for inode, count in inodes:
        if inode >> _SPACE_SHIFT <= InodeSpace.HNS:
            tree_number = inode >> _INDEX_BITS
            counts[tree_number] = counts.get(tree_number, 0) + count
        else:
            found.append((inode, count))
    found.extend((number << _INDEX_BITS, count) for number, count in counts.items())
    return found


def entry_inode(space: InodeSpace, *parts: bytes) -> int:
    """Return the inode number of what these parts identify."""
    return space << _SPACE_SHIFT | _hashed(b"\0".join(parts), _ENTRY_BITS)


def _hashed(data: bytes, bits: int) -> int:
    digest = blake2b(data, digest_size=_HASH_BITS // 8).digest()
    return int.from_bytes(digest, "big") >> (_HASH_BITS - bits)

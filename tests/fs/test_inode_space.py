"""The inode layout: numbers of different subtrees never meet, and each one is read back."""

import pytest

from skymount.content.model.listing_builder import ROWS_LIMIT
from skymount.fs import inode_space
from skymount.fs.inode_space import (
    DIRECTORY_INODES,
    ROOT,
    InodeSpace,
    entry_inode,
    first_tree_number,
    merge_forgets,
    next_tree_number,
    node_inode,
    space_of,
    split_node_inode,
)


@pytest.mark.parametrize("space", [InodeSpace.SKYLINKS, InodeSpace.HNS])
def test_node_inode_and_back(space: InodeSpace):
    """An inode number gives back the subtree, the tree number and the index."""
    number = first_tree_number(space, "a name")
    for each in (number, next_tree_number(number)):
        for index in (0, 1, (1 << 21) - 1):
            inode = node_inode(each, index)
            assert space_of(inode) is space
            assert split_node_inode(inode) == (each, index)


@pytest.mark.parametrize("space", [InodeSpace.REGISTRY, InodeSpace.SKYDB])
def test_entry_inode(space: InodeSpace):
    """An entry's number depends on all of its parts, and is of its subtree."""
    found = {entry_inode(space, *parts) for parts in ([b"a", b"b"], [b"a", b"c"], [b"ab"])}
    assert len(found) == 3
    assert {space_of(inode) for inode in found} == {space}


def test_numbers_have_53_bits_and_are_the_same_in_every_process():
    """S5: Inode numbers are below 2^53, and the same after a remount."""
    assert node_inode(first_tree_number(InodeSpace.SKYLINKS, "x"), 0) == 0x256FA1B200000
    assert entry_inode(InodeSpace.SKYDB, b"x") < 1 << 53
    last = first_tree_number(InodeSpace.HNS, "x") | (1 << 30) - 1
    assert node_inode(last, (1 << 21) - 1) < 1 << 53
    assert ROWS_LIMIT < 1 << 21


@pytest.mark.parametrize("space", [InodeSpace.SKYLINKS, InodeSpace.HNS])
def test_tree_numbers_wrap_around(space: InodeSpace):
    """After the last number of a space comes its first, and never 0, which is the static tree."""
    last = (space + 1 << 30) - 1
    assert space_of(node_inode(next_tree_number(last), 0)) is space
    assert next_tree_number(last) in (space << 30, 1)
    assert next_tree_number(last) != 0


def test_static_numbers():
    """The directory of a subtree belongs to it, any other small number to the static tree."""
    assert {space_of(inode) for inode in DIRECTORY_INODES.values()} == set(InodeSpace)
    assert [space_of(inode) for inode in (ROOT, inode_space.STATUS, 99, (1 << 21) - 1)] == [
        None
    ] * 4


def test_forgets_of_one_tree_become_one():
    """Those of a version's files become one; those of the other subtrees stay as they are."""
    tree, other = node_inode(5, 0), node_inode((1 << 30) + 5, 0)
    key = entry_inode(InodeSpace.REGISTRY, b"x")
    found = merge_forgets(
        [(tree | 1, 2), (key, 1), (tree, 1), (other | 9, 4), (tree | 2, 1), (key, 3)]
    )
    assert sorted(found) == [(tree, 4), (other, 4), (key, 1), (key, 3)]
    assert merge_forgets([]) == []

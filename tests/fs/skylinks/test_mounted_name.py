"""What a version of a tree shows, and which states it goes through."""

import math

import pytest
import trio
from trio.testing import MockClock

from skymount.content.model.skyfile import Skyfile, Verified
from skymount.fs.inode_space import split_node_inode
from skymount.fs.skylinks.mounted_name import (
    PROVISIONAL_TIMEOUT,
    MountedName,
    TreeState,
    TreeVersion,
)
from skymount.fs.skylinks.tree import Tree
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import describe, listing_of, resolver

LINK = Skylink.v1(bytes(32), 1)


def tree(provisional: int = 0) -> Tree:
    verified = Verified.NO if provisional else Verified.YES
    listing = listing_of(describe({"f": b"x"}))
    return Tree(Skyfile(LINK, listing, 1, "http://p", verified, provisional=provisional))


def empty_version(goal: ResolvableName = LINK) -> TreeVersion:
    return TreeVersion(MountedName(str(goal), goal), 5, LINK)


async def test_final_tree():
    """It is shown for ever, and the kernel may keep its pages."""
    version = empty_version()
    assert (version.shown, version.state) == (None, TreeState.EMPTY)
    version.set_tree(final := tree())
    assert version.shown is final
    assert (version.state, version.expires) == (TreeState.FINAL, math.inf)
    assert not version.was_provisional


async def test_provisional_tree(mock_clock: MockClock):
    """T6: it is shown for 30 s unless it is loaded again; then for as long as that holds."""
    version = empty_version()
    version.set_tree(first := tree(1))
    assert version.is_provisional
    assert version.was_provisional
    mock_clock.jump(PROVISIONAL_TIMEOUT - 1)
    assert version.shown is first
    version.set_tree(second := tree(2))
    mock_clock.jump(PROVISIONAL_TIMEOUT - 1)
    assert version.shown is second
    mock_clock.jump(1)
    assert version.shown is None
    version.set_tree(proved := tree())
    assert version.shown is proved
    assert version.state is TreeState.PROVED
    assert not version.is_provisional
    assert version.was_provisional  # the kernel may have pages of what was shown before


async def test_shown_as_another_version(mock_clock: MockClock):
    """A name that was resolved after it was handed out shows all that the other version does."""
    early, late = empty_version(resolver()), empty_version()
    early.target, late.verified = None, False
    late.set_tree(tree(1))
    early.show_as(late)
    assert early.shown is late.shown
    assert (early.target, early.verified, early.state) == (LINK, False, TreeState.PROVISIONAL)
    assert early.expires == late.expires == trio.current_time() + PROVISIONAL_TIMEOUT


def test_inode_numbers():
    """They have the number of the tree, and the index of the node in it."""
    assert split_node_inode(empty_version().inode()) == (5, 0)
    assert split_node_inode(empty_version().inode(3)) == (5, 3)


@pytest.mark.parametrize(
    ("goal", "moves"), [(LINK, False), (resolver(), True), ("example", True)], ids=str
)
def test_what_moves(goal: ResolvableName, moves: bool):
    """S8, H1: a domain and a v2 skylink may lead elsewhere some day; a v1 skylink never does."""
    assert MountedName("name", goal).moves is moves

"""The root of the mount, and what in it is the same in every mount."""

import errno
import json
import os

import pytest

from skymount.fs.inode_space import CONTROL, HELP, HNS, REGISTRY, ROOT, SKYDB, SKYLINKS, STATUS
from skymount.fs.static_tree import StaticTree
from skymount.fs.subtree import InodeAttributes
from tests.fakes.in_memory_mount import listing, lookup, open_in_memory_mount
from tests.fakes.refusal import refused


async def test_fixed_nodes(autojump_clock: object):
    """The root and its fixed parts answer by themselves."""
    async with open_in_memory_mount() as mount:
        assert [child.name for child in await listing(mount, ROOT)] == [
            b".skymount",
            b"skylinks",
            b"hns",
            b"registry",
            b"skydb",
        ]
        assert [child.name for child in await listing(mount, CONTROL)] == [
            b"help.txt",
            b"status.json",
            b"metrics",
        ]
        help_file = await lookup(mount, ".skymount", "help.txt")
        handle, keep, _ = await mount.operations.open(help_file.inode, os.O_RDONLY)
        assert keep
        text = await mount.operations.read(handle, 0, 1 << 20)
        assert text is not None
        assert len(text) == help_file.size
        status = await lookup(mount, ".skymount", "status.json")
        assert status.attr_timeout == 0
        handle, keep, _ = await mount.operations.open(status.inode, os.O_RDONLY)
        assert not keep
        found = await mount.operations.read(handle, 0, 1 << 20)
        assert found is not None
        assert json.loads(bytes(found)) == {"pid": 1}
        assert await mount.operations.read(handle, 1 << 20, 5) == b""
        assert await mount.operations.lookup(ROOT, b"nothing") == InodeAttributes(0)
        await refused(errno.ENOTDIR, mount.operations.lookup(status.inode, b"x"))


async def test_status_is_made_at_each_open():
    """Who has it open reads on in what was made then."""
    made = iter(range(10))
    tree = StaticTree(lambda: b"%d" % next(made), bytes)
    first, second = await tree.open(STATUS, os.O_RDONLY), await tree.open(STATUS, os.O_RDONLY)
    assert [await each.read(0, 10) for each in (second, first, second)] == [b"1", b"0", b"1"]


async def test_directories_of_other_subtrees_are_empty():
    """Where a subtree is missing its directory is there all the same, with nothing in it."""
    tree = StaticTree(lambda: b"", bytes)
    for inode in (SKYLINKS, HNS, REGISTRY, SKYDB):
        assert list((await tree.opendir(inode)).readdir(0)) == []
        assert await tree.lookup(inode, b"x") == InodeAttributes(0)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
@pytest.mark.parametrize("inode", [ROOT, CONTROL, HELP, STATUS])
async def test_opening_to_write(inode: int, flags: int):
    """Nothing can be opened to be changed."""
    await refused(errno.EROFS, StaticTree(lambda: b"", bytes).open(inode, flags))


async def test_xattrs():
    """The root says who the daemon is."""
    tree = StaticTree(lambda: b"", bytes)
    assert await tree.xattrs(ROOT) == {b"user.skymount.pid": str(os.getpid()).encode()}
    for inode in (CONTROL, HELP, STATUS, SKYLINKS):
        assert await tree.xattrs(inode) == {}
    await refused(errno.ESTALE, tree.xattrs(77))

"""Which subtree a request goes to, and what is open by handle."""

import errno
import os

import pytest

from skymount.fs.dispatcher import FileSystem
from skymount.fs.inode_space import (
    CONTROL,
    HNS,
    REGISTRY,
    ROOT,
    SKYLINKS,
    InodeSpace,
    entry_inode,
    first_tree_number,
    node_inode,
)
from skymount.fs.subtree import Subtree
from tests.fakes.in_memory_mount import FILES, lookup, open_in_memory_mount
from tests.fakes.refusal import refused
from tests.fakes.skyfiles import resolver


def test_subtree_of_an_inode_number():
    """The number tells which subtree answers; the static one does where there is no other."""
    static, skylinks, registry = Subtree(), Subtree(), Subtree()
    files = FileSystem(static, {InodeSpace.SKYLINKS: skylinks, InodeSpace.REGISTRY: registry})
    entry = entry_inode(InodeSpace.REGISTRY, b"entry", b"x")
    node = node_inode(first_tree_number(InodeSpace.SKYLINKS, "x"), 3)
    expected = {
        ROOT: static,
        CONTROL: static,
        SKYLINKS: skylinks,
        node: skylinks,
        REGISTRY: registry,
        entry: registry,
        HNS: static,
        entry_inode(InodeSpace.SKYDB, b"entry", b"x"): static,
    }
    assert {inode: files.subtree(inode) for inode in expected} == expected


async def test_stale_inode(autojump_clock: object):
    """An inode number of nobody is stale, whatever is asked of it."""
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        entry = await lookup(mount, "skylinks", str(link))
        for inode in (99 << 24, entry.inode + 1000, 77):
            await refused(errno.ESTALE, mount.operations.getattr(inode))
            await refused(errno.ESTALE, mount.operations.opendir(inode))
            await refused(errno.ESTALE, mount.operations.open(inode, os.O_RDONLY))
            await refused(errno.ESTALE, mount.operations.lookup(inode, b"x"))
            await refused(errno.ESTALE, mount.operations.xattrs(inode))


async def test_nothing_is_left_of_what_was_released(autojump_clock: object):
    """A handle ends with its release, and so does what it holds: an open file of the reader, and,
    once the name leads elsewhere, the tree.
    """
    async with open_in_memory_mount() as mount:
        link, other = mount.reader.add(FILES), mount.reader.add({"other": b"x"})
        name = resolver()
        mount.names.leads[name] = link
        top = await lookup(mount, "skylinks", str(name))
        file = await lookup(mount, "skylinks", str(name), "a.txt")
        help_file = await lookup(mount, ".skymount", "help.txt")
        directories = [ROOT, CONTROL, SKYLINKS, top.inode]
        opened = [await mount.operations.opendir(inode) for inode in directories]
        files = [file.inode, file.inode, help_file.inode]
        opened += [(await mount.operations.open(inode, os.O_RDONLY)).handle for inode in files]
        assert len(set(opened)) == len(opened)
        mount.names.move(name, other)
        assert (await lookup(mount, "skylinks", str(name))).inode != top.inode
        mount.operations.forget(top.inode, 3)
        assert (await mount.operations.getattr(file.inode)).size == 5  # it is held by its handles
        for number, handle in enumerate(opened):
            if number < len(directories):
                mount.operations.releasedir(handle)
            else:
                await mount.operations.release(handle)
            with pytest.raises(KeyError):
                await mount.operations.flush(handle)
            with pytest.raises(KeyError):
                next(mount.operations.readdir(handle, 0))
        assert mount.reader.open_files == 0
        await refused(errno.ESTALE, mount.operations.getattr(file.inode))
        again = await mount.operations.open(help_file.inode, os.O_RDONLY)
        assert again.handle not in opened


async def test_usage(autojump_clock: object):
    """Bytes and files of what is known are counted."""
    async with open_in_memory_mount() as mount:
        assert mount.operations.usage() == (0, 0)
        await lookup(mount, "skylinks", str(mount.reader.add(FILES)))
        assert mount.operations.usage() == (2053, 5)

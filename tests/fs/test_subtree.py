"""What a subtree refuses unless it can do it, and the values in which it answers."""

import errno
import os
import stat
from collections.abc import Awaitable, Callable

import pytest

from skymount.fs.subtree import (
    IMMUTABLE,
    InodeAttributes,
    OpenFile,
    RefusalError,
    Subtree,
    directory_entry,
    refuse,
)
from tests.fakes.refusal import refusal, refused


class ReadOnly(Subtree):
    """A subtree of one file that can be executed, and of other nodes that cannot."""

    async def getattr(self, inode: int) -> InodeAttributes:
        return InodeAttributes(inode, stat.S_IFREG | (0o555 if inode == 1 else 0o444))


class Growing(ReadOnly):
    """A subtree in which files can be made, but nothing else."""

    refusal = errno.EPERM


CHANGES: list[Callable[[Subtree], Awaitable[object]]] = [
    lambda tree: tree.setattr(1, 0, None),
    lambda tree: tree.setattr(1, None, None),
    lambda tree: tree.create(1, b"x", os.O_WRONLY),
    lambda tree: tree.unlink(1, b"x"),
    lambda tree: tree.rename(1, b"x", 1, b"y", 0),
]


@pytest.mark.parametrize("change", CHANGES)
async def test_changes(change: Callable[[Subtree], Awaitable[object]]):
    """What a subtree does not implement is refused, with the errno that it names."""
    await refused(errno.EROFS, change(ReadOnly()))
    await refused(errno.EPERM, change(Growing()))


async def test_what_a_plain_file_is_not():
    """It is no symbolic link, has no extended attributes, and cannot be written to."""
    assert await ReadOnly().xattrs(1) == {}
    await refused(errno.EINVAL, ReadOnly().readlink(1))
    with refusal(errno.EBADF):
        OpenFile().write(0, b"x")


async def test_access():
    """Everybody may read; writing is refused; executing is as the mode says."""
    for inode in (1, 2):
        assert await ReadOnly().access(inode, os.R_OK)
        await refused(errno.EROFS, ReadOnly().access(inode, os.W_OK))
        await refused(errno.EROFS, ReadOnly().access(inode, os.R_OK | os.W_OK))
    assert await ReadOnly().access(1, os.R_OK | os.X_OK)
    assert not await ReadOnly().access(2, os.X_OK)


def test_errno_has_its_words():
    """A refusal can be told from what a disk reports."""
    with pytest.raises(RefusalError, match="No such file or directory") as caught:
        refuse(errno.ENOENT)
    assert caught.value.errno == errno.ENOENT


def test_name_in_a_listing():
    """It has inode, mode and size of its node, its position, and how long all that is valid."""
    node = InodeAttributes(7, 0o100444, 12)
    assert directory_entry(b"x", node, 3) == (b"x", 7, 0o100444, 12, 3, IMMUTABLE)
    short = InodeAttributes(7, entry_timeout=1.0, attr_timeout=2.0, mtime_ns=5)
    assert directory_entry(b"x", short, 1)[-1] == (1.0, 2.0, 5)

"""Open files of `/registry`: what is read, and what is written."""

import errno
import os

import pytest

from skymount.fs.subtree import RefusalError
from tests.fakes.refusal import refused
from tests.fakes.registry_mount import (
    REWRITE,
    RegistryMount,
    ref,
)


async def test_close_to_open(autojump_clock: object, mount: RegistryMount):
    """G5: An open sees what the portal has at that time; what is open is not changed by that."""
    mount.store.put(ref("x"), b"one")
    first = await mount.open("x")
    assert await first.read(0, 100) == b"one"
    mount.store.put(ref("x"), b"two and more")
    assert await first.read(0, 100) == b"one"
    assert await mount.read("x") == b"two and more"
    assert await first.read(1, 100) == b"ne"


async def test_reading_on(autojump_clock: object, mount: RegistryMount):
    """Who reads on behind the end sees what was appended; who begins again sees the new content.

    Nobody gets a part of one content and a part of another.
    """
    mount.store.put(ref("x"), b"one")
    opened = await mount.open("x")
    assert await opened.read(0, 2) == b"on"
    mount.store.put(ref("x"), b"one two")
    await mount.read("x")
    assert await opened.read(2, 100) == b"e"
    assert await opened.read(3, 100) == b" two"
    mount.store.put(ref("x"), b"something else")
    await mount.read("x")
    assert await opened.read(7, 100) == b""
    assert await opened.read(0, 100) == b"something else"
    mount.store.put(ref("x"), None)
    with pytest.raises(RefusalError):
        await mount.read("x")
    assert await opened.read(0, 100) == b"something else"


async def test_append(autojump_clock: object, mount: RegistryMount):
    """Appending goes to the end, wherever the kernel believes that to be."""
    mount.store.put(ref("x"), b"old")
    opened = await mount.open("x", os.O_WRONLY | os.O_APPEND)
    opened.write(0, b"+new")
    assert await opened.read(0, 100) == b"old+new"
    await mount.close(opened)
    assert mount.posted == [b"old+new"]


async def test_handles_share_their_content(autojump_clock: object, mount: RegistryMount):
    """Several writers of one file edit the same bytes, and readers in this mount see them."""
    mount.store.put(ref("x"), b"0123")
    one, two = [await mount.open("x", os.O_RDWR) for _ in range(2)]
    one.write(0, b"a")
    two.write(3, b"b")
    assert await one.read(0, 100) == await two.read(0, 100) == await mount.read("x") == b"a12b"
    assert (await mount.find("x")).size == 4
    await mount.close(one)
    await mount.close(two)
    assert mount.posted == [b"a12b"]


async def test_too_much(autojump_clock: object, mount: RegistryMount):
    """G9: More than 113 bytes are EFBIG at write, and the entry stays as it is."""
    await mount.write("x", b"x" * 113)
    for flags in (REWRITE, os.O_RDWR):
        opened = await mount.open("x", flags)
        opened.write(0, b"y")
        with pytest.raises(OSError, match="File too large"):
            opened.write(1, b"y" * 113)
        await opened.fsync()
        await mount.close(opened)
    entry = await mount.find("x")
    await refused(errno.EFBIG, mount.tree.setattr(entry.inode, 114, None))
    assert await mount.read("x") == b"x" * 113
    assert len(mount.posted) == 1


async def test_modification_time_while_open(autojump_clock: object, mount: RegistryMount):
    """It is that of the last write, then that of the entry: editors look for it to stay."""
    mount.store.put(ref("x"), b"old")
    opened = await mount.open("x", os.O_RDWR)
    entry = await mount.find("x")
    assert entry.mtime_ns == 1000 * 10**9
    opened.write(0, b"new")
    entry = await mount.tree.getattr(entry.inode)
    assert entry.mtime_ns == (await mount.tree.getattr(entry.inode)).mtime_ns > 10**18
    await opened.flush()
    assert (await mount.tree.getattr(entry.inode)).mtime_ns == 1001 * 10**9
    await mount.close(opened)
    assert (await mount.tree.getattr(entry.inode)).mtime_ns == 1001 * 10**9


async def test_close_of_what_was_removed(autojump_clock: object, mount: RegistryMount):
    """The last close of a file that was removed does not part those who write to a new one."""
    await mount.write("x", b"data")
    removed = await mount.open("x", os.O_RDWR)
    await mount.unlink("x")
    one = await mount.open("x", os.O_RDWR | os.O_CREAT)
    one.write(0, b"0123")
    await mount.release(removed)
    two = await mount.open("x", os.O_RDWR)
    two.write(3, b"b")
    assert await one.read(0, 100) == await two.read(0, 100) == b"012b"
    await mount.close(one)
    await mount.close(two)
    assert mount.posted == [b"data", None, b"012b"]

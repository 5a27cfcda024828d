"""Files of `/registry` that are made, truncated and removed, and scratch files."""

import errno
import os
import stat

import pytest
import trio

from skymount.errors import FrozenEntryError, UnavailableError
from skymount.fs.inode_space import REGISTRY
from skymount.fs.registry.nodes import SCRATCH_LIMIT
from skymount.wire.registry_entry import MAX_REVISION
from tests.fakes.refusal import refused
from tests.fakes.registry_mount import (
    CREATE,
    HOME,
    OTHERS,
    REWRITE,
    TTL,
    Held,
    RegistryMount,
    ref,
)


@pytest.mark.parametrize("how", ["unlink", "rename"])
async def test_local_file_that_is_pending_does_not_come_back(
    autojump_clock: object, mount: RegistryMount, how: str
):
    """G12: a deletion is posted even if the entry is absent, while its creation is pending."""
    opened = await mount.open("x", CREATE)
    opened.write(0, b"new")
    mount.store.error = UnavailableError("down")
    with pytest.raises(UnavailableError):
        await opened.fsync()
    mount.store.error = None
    mount.store.pending.add(ref("x"))
    await (mount.unlink("x") if how == "unlink" else mount.rename("x", "y"))
    assert mount.store.posts[-1] == (ref("x"), None)
    await mount.release(opened)


async def test_new_file_is_local(autojump_clock: object, mount: RegistryMount):
    """G15: A new file is local and empty until it has content; if it never gets any, nothing is
    posted.
    """
    await mount.write("x", b"", CREATE)
    await mount.write("x", b"")
    assert (await mount.find("x")).size == 0
    assert await mount.read("x") == b""
    assert "x" in await mount.names()
    assert await mount.tree.xattrs((await mount.find("x")).inode) == {}
    await mount.rename("x", "y")
    assert await mount.names() == ["y"]
    await mount.write("y", b"data", os.O_WRONLY)
    assert mount.posted == [b"data"]
    await mount.write("z", b"", CREATE)
    await mount.unlink("z")
    await refused(errno.ENOENT, mount.find("z"))
    assert mount.posted == [b"data"]


async def test_new_file_of_too_much_leaves_nothing(autojump_clock: object, mount: RegistryMount):
    """G15: A new file whose content was too long disappears; one that there was stays."""
    mount.store.put(ref("old"), b"there")
    for name in ("big", "old"):
        with pytest.raises(OSError, match="File too large"):
            await mount.write(name, bytes(200), CREATE)
    await refused(errno.ENOENT, mount.find("big"))
    assert "big" not in await mount.names()
    assert mount.posted == []
    assert await mount.read("old") == b"there"


async def test_new_file_that_somebody_else_makes_too(autojump_clock: object, mount: RegistryMount):
    """G5: An open sees what the portal has at that time, also of a file that is empty here."""
    await mount.write("x", b"", CREATE)
    mount.store.put(ref("x"), b"theirs")
    await trio.sleep(TTL + 1)
    assert (await mount.tree.getattr((await mount.find("x")).inode)).size == 6
    await mount.write("y", b"", CREATE)
    mount.store.put(ref("y"), b"theirs")
    assert await mount.read("y") == b"theirs"


async def test_new_file_while_the_portal_is_down(autojump_clock: object, mount: RegistryMount):
    """G15: A new file is local: it needs no portal."""
    await mount.write("x", b"", CREATE)
    mount.store.error = UnavailableError("down")
    await trio.sleep(TTL + 1)
    assert await mount.read("x") == b""
    await mount.unlink("x")


async def test_truncate(autojump_clock: object, mount: RegistryMount):
    """truncate(2) posts before it returns, ftruncate(2) leaves it to the close."""
    mount.store.put(ref("x"), b"0123456789")
    entry = await mount.find("x")
    assert (await mount.tree.setattr(entry.inode, 5, None)).size == 5
    assert mount.posted == [b"01234"]
    await mount.tree.setattr(entry.inode, 5, None)
    opened = await mount.open("x", os.O_RDWR)
    assert (await mount.tree.setattr(entry.inode, 2, opened)).size == 2
    assert mount.posted == [b"01234"]
    await mount.close(opened)
    await mount.tree.setattr(entry.inode, 0, None)
    assert mount.posted == [b"01234", b"01", b""]


async def test_change_of_mode_owner_and_times(autojump_clock: object, mount: RegistryMount):
    """G16: chmod, chown and times are accepted and mean nothing."""
    mount.store.put(ref("x"), b"old")
    entry = await mount.find("x")
    assert await mount.tree.setattr(entry.inode, None, None) == entry
    assert mount.posted == []


async def test_key_that_is_not_ours(autojump_clock: object, mount: RegistryMount):
    """G7: A file can be written if the keyring holds the private key; else its mode is 0444 and an
    open for writing is EACCES.
    """
    mount.store.put(ref("x"), b"mine")
    mount.store.put(ref("x", OTHERS), b"theirs")
    assert (await mount.find("x")).mode == stat.S_IFREG | 0o644
    entry = await mount.find("x", OTHERS)
    assert entry.mode == stat.S_IFREG | 0o444
    assert await mount.read("x", OTHERS) == b"theirs"
    directory = await mount.directory(OTHERS)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC):
        await refused(errno.EACCES, mount.tree.open(entry.inode, flags))
    for work in (
        mount.tree.create(directory, b"new", CREATE),
        mount.tree.unlink(directory, b"x"),
        mount.tree.rename(directory, b"x", directory, b"y", 0),
        mount.tree.setattr(entry.inode, None, None),
        mount.tree.setattr(entry.inode, 0, None),
        mount.tree.access(entry.inode, os.W_OK),
        mount.tree.access(directory, os.W_OK),
        mount.tree.access(REGISTRY, os.W_OK),
    ):
        await refused(errno.EACCES, work)
    assert await mount.tree.access(entry.inode, os.R_OK)
    assert await mount.tree.access((await mount.find("x")).inode, os.W_OK)
    assert not await mount.tree.access(entry.inode, os.X_OK)
    assert mount.posted == []


async def test_last_revision(autojump_clock: object, mount: RegistryMount):
    """G11: An entry of the last revision is frozen: EPERM."""
    mount.store.held[ref("x")] = Held(b"old", MAX_REVISION)
    await mount.read("x")
    for flags in (REWRITE, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(FrozenEntryError):
            await mount.open("x", flags)
    assert await mount.read("x") == b"old"


async def test_unlink(autojump_clock: object, mount: RegistryMount):
    """G13: rm posts the deletion of the entry."""
    await mount.write("x", b"data")
    await mount.unlink("x")
    assert mount.posted == [b"data", None]
    await refused(errno.ENOENT, mount.find("x"))
    await refused(errno.ENOENT, mount.tree.unlink(await mount.directory(), b"x"))
    assert await mount.names() == []
    await mount.write("x", b"again")
    assert await mount.read("x") == b"again"


async def test_unlink_while_open(autojump_clock: object, mount: RegistryMount):
    """An entry that was removed does not come back by what is written to it later."""
    await mount.write("x", b"data")
    opened = await mount.open("x", os.O_RDWR)
    opened.write(0, b"late")
    await mount.unlink("x")
    with pytest.raises(OSError, match="Stale"):
        opened.write(0, b"later")
    await mount.write("x", b"another")
    await mount.close(opened)
    assert mount.posted == [b"data", None, b"another"]


async def test_what_cannot_be_made(autojump_clock: object, mount: RegistryMount):
    """G13: Directories, links and devices cannot be made: EPERM."""
    own = await mount.directory()
    for work in (
        mount.tree.create(REGISTRY, b"x", CREATE),
        mount.tree.unlink(REGISTRY, HOME),
        mount.tree.rename(REGISTRY, HOME, REGISTRY, b"x", 0),
        mount.tree.rename(own, b"x", REGISTRY, b"x", 0),
        mount.tree.setattr(REGISTRY, None, None),
    ):
        await refused(errno.EPERM, work)
    assert mount.tree.refusal == errno.EPERM


async def test_scratch_file(autojump_clock: object, mount: RegistryMount):
    """G14: Scratch files of editors live in memory, never posted."""
    await mount.write(".x.swp", b"swap", CREATE)
    await mount.write(".x.swp", b"S", os.O_RDWR)
    assert await mount.read(".x.swp") == b"Swap"
    assert (await mount.find(".x.swp")).mode == stat.S_IFREG | 0o600
    await mount.write(".x.swp", b"")
    assert await mount.read(".x.swp") == b""
    entry = await mount.find(".x.swp")
    assert (await mount.tree.setattr(entry.inode, 5, None)).size == 5
    assert await mount.names() == [".x.swp"]
    await mount.rename(".x.swp", "x~")
    assert await mount.names() == ["x~"]
    await mount.unlink("x~")
    await refused(errno.ENOENT, mount.find("x~"))
    await refused(errno.ENOENT, mount.tree.unlink(await mount.directory(), b"x~"))
    assert (mount.posted, mount.store.asked) == ([], [])


async def test_limits_of_scratch_files(autojump_clock: object, mount: RegistryMount):
    """G14: at most 256 for a key, of 1 MiB each and 4 MiB together."""
    for number in range(4):
        opened = await mount.open(f"{number}~", CREATE)
        opened.write(0, bytes(1 << 20))
        with pytest.raises(OSError, match="File too large"):
            opened.write(1 << 20, b"x")
    opened = await mount.open("4~", CREATE)
    with pytest.raises(OSError, match="No space left"):
        opened.write(0, b"x")
    await mount.unlink("0~")
    opened.write(0, b"x")
    for number in range(5, SCRATCH_LIMIT + 1):
        await mount.open(f"{number}~", CREATE)
    await refused(errno.ENOSPC, mount.open("one more~", CREATE))
    assert await mount.forget_everything() > 0


async def test_probe_of_vim(autojump_clock: object, mount: RegistryMount):
    """G14: `4913` cannot be created."""
    await refused(errno.ENOENT, mount.find("4913"))
    await refused(errno.EPERM, mount.open("4913", CREATE))
    await mount.write("x~", b"data", CREATE)
    await refused(errno.EPERM, mount.rename("x~", "4913"))
    mount.store.put(ref("4913"), b"there")
    assert await mount.read("%34913") == b"there"

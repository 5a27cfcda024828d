"""Renames in `/registry`, between entries and scratch files."""

import errno
import os

import pytest
import trio

from skymount.errors import BadContentError, UnavailableError
from skymount.wire.registry_entry import hash_data_key
from tests.fakes.refusal import refused
from tests.fakes.registry_mount import (
    CREATE,
    OTHERS,
    RegistryMount,
    ref,
)


async def test_scratch_file_of_the_same_content_supersedes_what_is_pending(
    autojump_clock: object, mount: RegistryMount
):
    """G12: also what is renamed onto an entry."""
    mount.store.put(ref("x"), b"old")
    await mount.read("x")
    await mount.write("new.tmp", b"old", CREATE)
    mount.store.pending.add(ref("x"))
    await mount.rename("new.tmp", "x")
    assert mount.posted == [b"old"]


async def test_rename(autojump_clock: object, mount: RegistryMount):
    """G13: A rename within one key's directory posts the new entry, then deletes the old one."""
    await mount.write("x", b"data")
    await mount.rename("x", "y")
    assert mount.store.posts[1:] == [(ref("y"), b"data"), (ref("x"), None)]
    await mount.write("z", b"other")
    await refused(errno.EEXIST, mount.rename("y", "z", 1))
    await refused(errno.EINVAL, mount.rename("y", "z", 2))
    await mount.rename("y", "z")
    assert await mount.read("z") == b"data"
    await mount.rename("z", "free", 1)
    await refused(errno.ENOENT, mount.rename("none", "z"))
    await refused(errno.EINVAL, mount.rename("free", "%FF"))


async def test_rename_of_what_is_not_verified(autojump_clock: object, mount: RegistryMount):
    """D2: a text that was not checked against its skylink cannot be renamed, also while it is
    being edited: the owner's key would sign what a portal made up.
    """
    mount.store.put(ref("one"), mount.store.doubtful)
    with pytest.raises(BadContentError):
        await mount.rename("one", "two")
    opened = await mount.open("one", os.O_RDWR)
    opened.write(0, b"n")
    with pytest.raises(BadContentError):
        await mount.rename("one", "two")
    assert mount.posted == []
    opened.resize(0)
    await mount.close(opened)
    mount.store.posts.clear()
    await mount.write("one", b"known")
    await mount.rename("one", "two")
    assert mount.posted == [b"known", b"known", None]


async def test_rename_of_an_empty_entry(autojump_clock: object, mount: RegistryMount):
    """G13: What was posted is posted under its new name, though it is empty."""
    mount.store.put(ref("x"), b"")
    await mount.rename("x", "y")
    assert mount.store.posts == [(ref("y"), b""), (ref("x"), None)]


@pytest.mark.parametrize("spelling", ["%78", hash_data_key("x").hex()])
async def test_rename_to_another_spelling(
    autojump_clock: object, mount: RegistryMount, spelling: str
):
    """G13: Two names of one entry are as two links to one file: nothing is deleted."""
    await mount.write("x", b"data")
    await mount.rename("x", spelling)
    assert mount.posted == [b"data"]
    assert await mount.read("x") == await mount.read(spelling) == b"data"


async def test_rename_to_another_key(autojump_clock: object, mount: RegistryMount):
    """G13: across keys it is EXDEV."""
    await mount.write("x", b"data")
    own, other = await mount.directory(), await mount.directory(OTHERS)
    await refused(errno.EXDEV, mount.tree.rename(own, b"x", other, b"x", 0))


async def test_rename_of_what_is_open(autojump_clock: object, mount: RegistryMount):
    """What was written goes along; what is written later has no name any more."""
    opened = await mount.open("x.new", CREATE)
    opened.write(0, b"data")
    await mount.rename("x.new", "x")
    assert await mount.read("x") == b"data"
    with pytest.raises(OSError, match="Stale"):
        opened.write(4, b"more")
    await mount.close(opened)
    assert mount.posted == [b"data"]
    await refused(errno.ENOENT, mount.find("x.new"))


async def test_scratch_file_becomes_an_entry(autojump_clock: object, mount: RegistryMount):
    """G14: Renaming one onto an entry posts its content."""
    await mount.write("x", b"old")
    opened = await mount.open("sedabcdef", CREATE)
    opened.write(0, b"new")
    await mount.rename("sedabcdef", "x")
    assert await mount.read("x") == b"new"
    with pytest.raises(OSError, match="Stale"):
        opened.write(0, b"late")
    await mount.close(opened)
    await mount.write("x~", b"new", CREATE)
    await mount.rename("x~", "x")
    assert mount.posted == [b"old", b"new"]
    await mount.write("x~", b"x" * 114, CREATE)
    await refused(errno.EFBIG, mount.rename("x~", "x"))
    await refused(errno.ENOENT, mount.rename("y~", "x"))
    assert await mount.read("x") == b"new"


async def test_empty_scratch_file_becomes_an_entry(autojump_clock: object, mount: RegistryMount):
    """G15: A new file is local and empty, also if it was a scratch file; an old one is emptied."""
    await mount.write("x", b"old")
    for name in ("x", "y"):
        await mount.write("sedabcdef", b"", CREATE)
        await mount.rename("sedabcdef", name)
        assert await mount.read(name) == b""
    assert mount.store.posts == [(ref("x"), b"old"), (ref("x"), b"")]


async def test_entry_becomes_a_scratch_file(autojump_clock: object, mount: RegistryMount):
    """G14: renaming an entry onto one keeps a copy and posts nothing.

    So an editor's way of saving: move away, make anew.
    """
    await mount.write("x", b"old")
    await mount.rename("x", "x~")
    assert await mount.names() == ["x~"]
    assert await mount.read("x~") == b"old"
    await refused(errno.ENOENT, mount.find("x"))
    await mount.write("x", b"new")
    await mount.unlink("x~")
    assert await mount.read("x") == b"new"
    assert mount.posted == [b"old", b"new"]


async def test_copy_that_is_all_that_is_left(autojump_clock: object, mount: RegistryMount):
    """G14: posts nothing: the entry is seen again when the copy is removed, or moved back."""
    await mount.write("x", b"old")
    await mount.rename("x", "x~")
    await mount.unlink("x~")
    assert await mount.read("x") == b"old"
    await mount.rename("x", "x~")
    await mount.rename("x~", "x")
    assert await mount.read("x") == b"old"
    await mount.rename("x", "x~")
    await mount.write("x", b"old")
    assert mount.posted == [b"old"]
    await mount.write("x", b"")
    assert mount.posted == [b"old", b""]


@pytest.mark.parametrize("name", ["x.tmp", "x"])
async def test_write_during_a_rename(autojump_clock: object, mount: RegistryMount, name: str):
    """G13: ESTALE for a write while the content is being posted: it would be lost."""
    await mount.write(name, b"data")
    opened = await mount.open(name, os.O_WRONLY)
    mount.store.delay = 1.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mount.rename, name, "y")
        await trio.sleep(0.5)
        with pytest.raises(OSError, match="Stale"):
            opened.write(4, b" more")
    await mount.close(opened)
    assert await mount.read("y") == b"data"


@pytest.mark.parametrize("name", ["x.tmp", "x"])
async def test_write_after_a_rename_that_failed(
    autojump_clock: object, mount: RegistryMount, name: str
):
    """A file that kept its name can be written again."""
    await mount.write(name, b"data")
    opened = await mount.open(name, os.O_WRONLY)
    mount.store.error = UnavailableError("down")
    with pytest.raises(UnavailableError):
        await mount.rename(name, "y")
    mount.store.error = None
    opened.write(4, b" more")
    await mount.close(opened)
    assert await mount.read(name) == b"data more"

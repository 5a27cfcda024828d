"""Listings of `/registry`, what is kept of it, and its end."""

import errno
import math
import os
import stat
from dataclasses import replace

import pytest
import trio

from skymount.errors import UnavailableError
from skymount.fs.inode_space import REGISTRY
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import hash_data_key
from tests.fakes.refusal import refused
from tests.fakes.registry_mount import (
    CREATE,
    HOME,
    OTHERS,
    OWN,
    RegistryMount,
    ref,
)


async def test_listing_of_keys(autojump_clock: object, mount: RegistryMount):
    """G6: A listing of `registry` shows the keyring and the public keys used here."""
    mount.store.known = [ref("x", OTHERS)]
    assert await mount.listing(REGISTRY) == {
        "home": stat.S_IFLNK | 0o777,
        OWN.public_hex: stat.S_IFDIR | 0o755,
        OTHERS.public_hex: stat.S_IFDIR | 0o555,
    }
    third = SigningKeyPair.from_seed("third")
    await mount.directory(third)
    assert third.public_hex in await mount.listing(REGISTRY)


async def test_end_of_the_mount(autojump_clock: object, mount: RegistryMount):
    """What is still open is posted when the mount ends."""
    opened = await mount.open("x", CREATE)
    opened.write(0, b"new")
    await mount.tree.close()
    assert mount.posted == [b"new"]


async def test_end_of_the_mount_while_the_portal_is_silent(
    autojump_clock: object, mount: RegistryMount
):
    """G12: Whatever is still open reaches the store, which keeps what it could not post."""
    for name in ("x", "y", "z"):
        (await mount.open(name, CREATE)).write(0, b"new")
    mount.store.delay = math.inf
    with trio.move_on_after(1):
        await mount.tree.close()
    assert set(mount.store.begun) == {ref("x"), ref("y"), ref("z")}


async def test_listing_of_data_keys(autojump_clock: object, mount: RegistryMount):
    """G6: one of a key's directory the data keys known on this machine."""
    mount.store.known = [ref("x"), ref("a/b"), replace(ref("hashed"), data_key=None), ref("gone")]
    mount.store.put(ref("gone"), None)
    await refused(errno.ENOENT, mount.find("gone"))
    await mount.write("new", b"", CREATE)
    expected = {"x", "a%2Fb", hash_data_key("hashed").hex(), "new"}
    assert set(await mount.names()) == expected
    assert set((await mount.listing(await mount.directory())).values()) == {stat.S_IFREG | 0o644}


async def test_nothing_is_left_behind(autojump_clock: object, mount: RegistryMount):
    """When the kernel has forgotten all, no node is kept, whatever was done."""
    mount.store.known = [ref("x"), ref("gone")]
    mount.store.put(ref("gone"), None)
    await mount.lookup(REGISTRY, HOME)
    for name in ("gone", "none"):
        await refused(errno.ENOENT, mount.read(name))
    await mount.write("x", b"data")
    await mount.rename("x", "y")
    await mount.write("x~", b"scratch", CREATE)
    await mount.rename("x~", "z")
    await mount.rename("z", "z~")
    await mount.write("z", b"more")
    await mount.unlink("z~")
    await mount.listing(REGISTRY)
    await mount.names()
    await refused(errno.EEXIST, mount.rename("y", "z", 1))
    mount.store.error = UnavailableError("down")
    with pytest.raises(UnavailableError):
        await mount.rename("y", "w")
    opened = await mount.tree.opendir(REGISTRY)
    opened.referred(0, 1, 1)
    children = list(opened.readdir(0))
    opened.release()
    assert len(list(mount.tree.nodes)) > 0
    mount.tree.forget(children[0][1], 1)
    assert await mount.forget_everything() == 0


async def test_listing_of_many_entries(mount: RegistryMount):
    """Names are listed a part at a time, and what nobody refers to is not kept."""
    names = [f"key {n:04}" for n in range(1000)]
    mount.store.known = [ref(name) for name in reversed(names)]
    opened = await mount.tree.opendir(await mount.directory())
    found, position = [], 0
    while children := list(opened.readdir(position)):
        assert len(children) < 200
        assert len(list(mount.tree.nodes)) < 200
        found += [name.decode() for name, *_ in children]
        position = children[-1][4]
    assert found == names
    first = next(iter(opened.readdir(0)))
    opened.referred(0, first[4], 1)
    opened.release()
    mount.tree.forget(first[1], 1)
    assert await mount.forget_everything() == 0


async def test_scratch_file_that_is_gone_while_listed(mount: RegistryMount):
    """What was removed since the directory was opened is not listed any more."""
    mount.store.known = [ref("x")]
    parent = await mount.directory()
    entry, handle = await mount.tree.create(parent, b".x.swp", os.O_RDWR)
    mount.references[entry.inode] = 1
    opened = await mount.tree.opendir(parent)
    await handle.release()
    await mount.tree.unlink(parent, b".x.swp")
    assert [name for name, *_ in opened.readdir(0)] == [b"x"]
    opened.release()

"""The names that the mount knows: numbers, references, what is kept and what is dropped."""

import errno

import pytest
import trio

from skymount.errors import MalformedError, NotFoundError
from skymount.fs.inode_space import InodeSpace, node_inode, space_of
from skymount.fs.skylinks.mounted_name import TreeVersion
from skymount.wire.skylink import Skylink
from tests.fakes.in_memory_mount import (
    FILES,
    InMemoryMount,
    at,
    kept,
    links,
    open_in_memory_mount,
)
from tests.fakes.refusal import refused

# --- names and numbers


async def test_names(autojump_clock: object):
    """S2: Each spelling is a directory of its own, with inode numbers of its own.

    Each form of a skylink is a version of its own; what is no skylink is malformed.
    """
    async with open_in_memory_mount() as mount:
        link = mount.reader.add(FILES)
        forms = [str(link), link.base32, link.base32.upper(), f"svc:{link}", f"sia:{link}"]
        versions = {at(mount, form).version for form in forms}
        assert len(versions) == len(forms)
        assert {version.target for version in versions} == {link}
        for name in ("", "x", str(link)[1:], "w" * 55):
            with pytest.raises(MalformedError):
                at(mount, name)
        assert len(mount.table) == len(forms)


async def test_numbers_are_stable():
    """S5: Inode numbers are the same after a remount.

    A name's inode numbers are the same in another daemon, and none of the fixed ones.
    """
    numbers = []
    for _ in range(2):
        async with open_in_memory_mount() as mount:
            numbers.append([at(mount, link).version.inode(5) for link in links(mount, 50)])
    assert numbers[0] == numbers[1]
    assert len(set(numbers[0])) == 50
    assert {space_of(number) for number in numbers[0]} == {InodeSpace.SKYLINKS}


async def test_inode_and_back(autojump_clock: object):
    """An inode number leads back to version, tree and node; a number of nobody is ESTALE."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        tree = await mount.loader.load_tree(version)
        for index in range(len(tree)):
            assert mount.table.node_of(version.inode(index)) == (version, index)
        for inode in (0, 7):
            with pytest.raises(OSError, match="Stale"):
                mount.table.node_of(inode)
        for index in (len(tree), (1 << 24) - 1):
            await refused(errno.ESTALE, mount.operations.getattr(version.inode(index)))


async def test_colliding_numbers(autojump_clock: object):
    """Names whose hashes collide get numbers of their own."""
    async with open_in_memory_mount(tree_number=lambda _space, _text: 5) as mount:
        versions = [at(mount, link).version for link in links(mount, 15)]
        assert {version.number for version in versions} == set(range(5, 20))
        for version in versions:
            assert mount.table.node_of(version.inode()) == (version, 0)


# --- keeping and dropping


async def load(mount: InMemoryMount, link: Skylink) -> TreeVersion:
    """Load a skylink as a look at it would."""
    version = at(mount, link).version
    await mount.loader.load_tree(version)
    return version


async def test_idle_slots_are_pruned(autojump_clock: object):
    """Looking at very many skylinks keeps a bounded number; the latest are among them."""
    async with open_in_memory_mount() as mount:
        for link in links(mount, 1000):
            version = await load(mount, link)
            assert len(mount.table) <= 200
        assert mount.table.node_of(version.inode()) == (version, 0)


async def test_slots_in_use_are_not_pruned(autojump_clock: object):
    """What the kernel refers to, and what is loading, stays however much else is looked at."""
    async with open_in_memory_mount() as mount:
        used, loading, *others = links(mount, 600)
        version = await load(mount, used)
        mount.table.add_references(version)
        busy = at(mount, loading).version
        mount.reader.delays[loading] = 1e6
        mount.loader.start_load(busy.mounted)
        for link in others:
            await load(mount, link)
        assert mount.table.node_of(version.inode(1))[0].target == version.target
        assert mount.table.node_of(busy.inode()) == (busy, 0)
        mount.table.forget(version.inode(), 1)
        for link in links(mount, 600)[2:]:
            await load(mount, link)
        with pytest.raises(OSError, match="Stale"):
            mount.table.node_of(version.inode())


async def test_slot_that_somebody_waits_for_is_not_pruned(autojump_clock: object):
    """A tree that just arrived is there for the task that waited for it, even if very many others
    are looked at in the same moment.
    """
    async with open_in_memory_mount() as mount:
        link, *others = links(mount, 500)
        mount.reader.delays[link] = 3
        for other in others[:200]:
            await load(mount, other)
        version = at(mount, link).version
        found: list[TreeVersion] = []

        async def wait() -> None:
            await mount.loader.load_tree(version)
            found.append(mount.table.node_of(version.inode())[0])

        async def crowd() -> None:
            await mount.loader.start_load(version.mounted).wait()
            for other in others:
                at(mount, other)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(crowd)
                nursery.start_soon(wait)
        assert found == [version] * 10


async def test_failed_slot_without_references_is_dropped(autojump_clock: object):
    """A name that does not exist leaves nothing behind."""
    async with open_in_memory_mount() as mount:
        for n in range(300):
            version = at(mount, Skylink.v1(n.to_bytes(32, "big"), 1)).version
            with pytest.raises(NotFoundError):
                await mount.loader.load_tree(version)
            assert kept(mount.table, version) == []
        assert len(mount.table) == 0


async def test_forget_what_is_not_there():
    """Forgetting an inode of nobody, or more often than it was counted, is harmless."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.table.forget(1, 1)
        mount.table.forget(node_inode(999, 0), 1)
        mount.table.add_references(version)
        mount.table.forget(version.inode(), 5)
        assert version.references == 0

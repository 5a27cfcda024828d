"""Which trees stay in memory, and how those that were evicted come back."""

import errno
import os

from skymount.fs.inode_space import SKYLINKS
from skymount.fs.skylinks.mounted_name import TreeState
from skymount.fs.skylinks.tree_cache import TreeCacheConfig
from skymount.wire.skylink import Skylink
from tests.fakes.in_memory_mount import (
    FILES,
    TREES,
    InMemoryMount,
    crowd_out,
    listing,
    lookup,
    open_in_memory_mount,
)
from tests.fakes.refusal import refused
from tests.fakes.skyfiles import resolver


def publish(mount: InMemoryMount, count: int) -> list[Skylink]:
    return [mount.reader.add({"f": b"%d" % n, "d/g": b"g"}) for n in range(count)]


async def test_few_trees_in_memory(autojump_clock: object):
    """S12: Of many skylinks few trees are in memory; all are listed, under the same numbers."""
    async with open_in_memory_mount(trees=TREES) as mount:
        links = publish(mount, 100)
        found = [await lookup(mount, "skylinks", str(link), "d", "g") for link in links]
        assert len(mount.trees) <= 6
        assert mount.trees.used <= TREES.size
        assert len(mount.table) == 100
        assert mount.operations.usage() == (sum(len(b"%d" % n) + 1 for n in range(100)), 400)
        listed = {each.name.decode(): each.inode for each in await listing(mount, SKYLINKS)}
        assert listed.keys() == set(map(str, links))
        loads = len(mount.reader.loads)
        for link in links:
            assert (await lookup(mount, "skylinks", str(link))).inode == listed[str(link)]
        assert len(mount.reader.loads) == loads  # a name alone needs no tree
        again = [await lookup(mount, "skylinks", str(link), "d", "g") for link in links]
        assert again == found
        assert len(mount.trees) <= 6


async def test_bound_in_bytes(autojump_clock: object):
    """S12: The bytes of all trees are bounded, and a single larger one is kept while it is used."""
    async with open_in_memory_mount(trees=TreeCacheConfig(size=30_000, count=100)) as mount:
        for link in publish(mount, 50):
            await lookup(mount, "skylinks", str(link))
            assert mount.trees.used <= 30_000
        large = mount.reader.add({f"{n}": b"" for n in range(2000)})
        first = await lookup(mount, "skylinks", str(large), "7")
        assert len(mount.trees) == 1
        loads = len(mount.reader.loads)
        assert await lookup(mount, "skylinks", str(large), "7") == first
        assert len(mount.reader.loads) == loads


async def test_evicted_least_recently_used_first(autojump_clock: object):
    """S12: The trees that were used last are kept."""
    async with open_in_memory_mount(trees=TREES) as mount:
        first, second, *others = publish(mount, 7)
        for link in (first, second, *others):
            await lookup(mount, "skylinks", str(link), "f")
            await lookup(mount, "skylinks", str(first), "f")
        assert mount.reader.loads.count(first) == 1
        await lookup(mount, "skylinks", str(second), "f")
        assert mount.reader.loads.count(second) == 2
        assert mount.reader.forgotten[0] == second


async def test_open_trees_stay(autojump_clock: object):
    """S12: A tree in which a file or directory is open is not dropped."""
    async with open_in_memory_mount(trees=TREES) as mount:
        with_file, with_directory = publish(mount, 2)
        file = await lookup(mount, "skylinks", str(with_file), "f")
        directory = await lookup(mount, "skylinks", str(with_directory), "d")
        opened = await mount.operations.open(file.inode, os.O_RDONLY)
        listed = await mount.operations.opendir(directory.inode)
        await crowd_out(mount)
        assert await mount.operations.read(opened.handle, 0, 10) == b"0"
        assert [name for name, *_ in mount.operations.readdir(listed, 0)] == [b"g"]
        loads = len(mount.reader.loads)
        await mount.operations.getattr(file.inode)
        await mount.operations.getattr(directory.inode)
        assert len(mount.reader.loads) == loads
        await mount.operations.release(opened.handle)
        mount.operations.releasedir(listed)
        await crowd_out(mount)
        assert {with_file, with_directory} <= set(mount.reader.forgotten)


async def test_forgotten_names_go(autojump_clock: object):
    """S12: A name that the kernel has forgotten is dropped with its tree, parked or not."""
    async with open_in_memory_mount(trees=TREES) as mount:
        links = publish(mount, 20)
        found = [await lookup(mount, "skylinks", str(link)) for link in links]
        for entry in found[:10]:
            mount.operations.forget(entry.inode, 1)
        assert len(mount.table) == 10
        for entry in found[:10]:
            await refused(errno.ESTALE, mount.operations.getattr(entry.inode))
        for entry in found[10:]:
            mount.operations.forget(entry.inode, 1)
        await crowd_out(mount)
        assert not set(map(str, links)) & {
            each.name.decode() for each in await listing(mount, SKYLINKS)
        }
        again = [await lookup(mount, "skylinks", str(link)) for link in links]
        assert [each.inode for each in again] == [each.inode for each in found]


async def test_references_of_parked_names(autojump_clock: object):
    """S12: What is inside a dropped tree is found by its number, until all of it is forgotten."""
    async with open_in_memory_mount(trees=TREES) as mount:
        link = mount.reader.add(FILES)
        top = await lookup(mount, "skylinks", str(link))
        file = await lookup(mount, "skylinks", str(link), "d", "b.bin")
        await crowd_out(mount)
        mount.operations.forget(top.inode, 2)
        handle = await mount.operations.opendir(SKYLINKS)
        names = list(mount.operations.readdir(handle, 0))
        mount.operations.referred(handle, 0, len(names), len(names))
        mount.operations.releasedir(handle)
        mount.operations.forget(top.inode, 1)
        assert (await mount.operations.getattr(file.inode)).size == 2048
        await crowd_out(mount)
        mount.operations.forget(file.inode, 1)  # the directory d is left
        assert (await mount.operations.getattr(file.inode)).size == 2048
        mount.operations.forget(file.inode, 1)
        await crowd_out(mount)
        await refused(errno.ESTALE, mount.operations.getattr(file.inode))


async def test_provisional_trees_stay(autojump_clock: object):
    """S12: A provisional tree that is in use is not dropped: nobody could prove it the same."""
    async with open_in_memory_mount(trees=TREES) as mount:
        link = mount.reader.add(FILES)
        mount.reader.provisional[link] = FILES
        entry = await lookup(mount, "skylinks", str(link), "a.txt")
        await crowd_out(mount)
        assert mount.reader.loads.count(link) == 1
        assert (await mount.operations.getattr(entry.inode)).size == 5
        assert mount.reader.loads.count(link) == 1
        mount.operations.forget(entry.inode, 2)
        await crowd_out(mount)
        await refused(errno.ESTALE, mount.operations.getattr(entry.inode))


async def test_names_that_move(autojump_clock: object):
    """S12, H2: Old and new versions of a name that moves come back as what they were."""
    async with open_in_memory_mount(trees=TREES) as mount:
        name, old, new = resolver(), mount.reader.add(FILES), mount.reader.add({"a.txt": b"new"})
        mount.names.leads[name] = old
        before = await lookup(mount, "skylinks", str(name), "a.txt")
        mount.names.move(name, new)
        after = await lookup(mount, "skylinks", str(name), "a.txt")
        await crowd_out(mount)
        assert {old, new} <= set(mount.reader.forgotten)
        for entry, size in ((before, 5), (after, 3)):
            assert (await mount.operations.getattr(entry.inode)).size == size
        await crowd_out(mount)
        assert await lookup(mount, "skylinks", str(name), "a.txt") == after
        mount.names.move(name, old)
        await crowd_out(mount)
        again = await lookup(mount, "skylinks", str(name), "a.txt")
        assert (again.size, again.mtime_ns) == (5, after.mtime_ns + 10**9)
        assert (await mount.operations.getattr(before.inode)).mtime_ns == before.mtime_ns
        version, _ = mount.table.node_of(before.inode)
        assert version.state is TreeState.FINAL


async def test_colliding_numbers(autojump_clock: object):
    """S12: Names whose hashes collide keep their numbers when their trees are dropped."""
    async with open_in_memory_mount(trees=TREES, tree_number=lambda _space, _text: 5) as mount:
        links = publish(mount, 15)
        found = [await lookup(mount, "skylinks", str(link), "f") for link in links]
        assert len({each.inode for each in found}) == 15
        assert [await lookup(mount, "skylinks", str(link), "f") for link in links] == found
        for entry in found:
            assert (await mount.operations.getattr(entry.inode)).inode == entry.inode

"""Trees that come back after they were dropped."""

import errno

import pytest
import trio
import trio.testing

from skymount.errors import NotFoundError, UnavailableError
from tests.fakes.in_memory_mount import FILES, TREES, crowd_out, lookup, open_in_memory_mount
from tests.fakes.refusal import refused


async def test_one_load_for_many(autojump_clock: object):
    """S12: However many want a dropped tree, it is loaded once; one that gives up ends nothing."""
    async with open_in_memory_mount(trees=TREES) as mount:
        link = mount.reader.add(FILES)
        entry = await lookup(mount, "skylinks", str(link), "d", "b.bin")
        await crowd_out(mount)
        mount.reader.delays[link] = 3
        with trio.move_on_after(1):
            await mount.operations.getattr(entry.inode)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(mount.operations.getattr, entry.inode)
            await trio.sleep(1)
            await crowd_out(mount)
        assert mount.reader.loads.count(link) == 2


async def test_shutdown_ends_waiting(autojump_clock: object):
    """Who waits for a dropped tree when the daemon's nursery is cancelled gets an error."""
    async with (
        trio.open_nursery() as nursery,
        open_in_memory_mount(trees=TREES) as mount,
    ):
        link = mount.reader.add(FILES)
        entry = await lookup(mount, "skylinks", str(link), "a.txt")
        await crowd_out(mount)
        mount.reader.delays[link] = 1000
        errors: list[Exception] = []

        async def want() -> None:
            try:
                await mount.operations.getattr(entry.inode)
            except UnavailableError as error:
                errors.append(error)

        nursery.start_soon(want)
        await trio.testing.wait_all_tasks_blocked()
    assert len(errors) == 1


@pytest.mark.parametrize("error", [UnavailableError("down"), NotFoundError("no"), KeyError("bug")])
async def test_tree_that_cannot_come_back(error: Exception, autojump_clock: object):
    """S12, L4: A tree that cannot be loaded again is a failure, never ENOENT, and tried again."""
    async with open_in_memory_mount(trees=TREES) as mount:
        link = mount.reader.add(FILES)
        entry = await lookup(mount, "skylinks", str(link), "a.txt")
        await crowd_out(mount)
        mount.reader.errors[link] = error
        for _ in range(2):
            with pytest.raises(Exception, match=r"down|no|log") as caught:
                await mount.operations.getattr(entry.inode)
            assert not isinstance(caught.value, NotFoundError)
        mount.reader.errors.clear()
        assert (await mount.operations.getattr(entry.inode)).size == 5


async def test_described_differently(autojump_clock: object):
    """S12: If an unverified tree comes back as another one, the old numbers are ESTALE."""
    async with open_in_memory_mount(trees=TREES) as mount:
        link = mount.reader.add(FILES)
        mount.reader.unverified.add(link)
        entry = await lookup(mount, "skylinks", str(link), "a.txt")
        await crowd_out(mount)
        assert (await mount.operations.getattr(entry.inode)).size == 5
        await crowd_out(mount)
        mount.reader.content[link] = {"a.txt": b"another"}
        await refused(errno.ESTALE, mount.operations.getattr(entry.inode))
        again = await lookup(mount, "skylinks", str(link), "a.txt")
        assert again.size == 7
        assert again.inode != entry.inode

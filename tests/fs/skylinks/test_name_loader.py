"""Loads of trees: once for all who wait, again after failures, and until they are proved."""

import errno
import math

import pytest
import trio

from skymount.errors import BadContentError, UnavailableError
from skymount.fs.skylinks.mounted_name import MountedName, TreeState, TreeVersion
from skymount.fs.subtree import IMMUTABLE_TIMEOUT
from skymount.wire.skylink import Skylink
from tests.fakes.in_memory_mount import (
    FILES,
    InMemoryMount,
    at,
    links,
    open_in_memory_mount,
)


async def test_loaded_once(autojump_clock: object):
    """However many tasks want a tree, it is loaded once; later ones get it without a wait."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.reader.delays[version.target] = 5
        trees = []

        async def want() -> None:
            trees.append(await mount.loader.load_tree(version))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(want)
        assert len(set(map(id, trees))) == 1
        assert len(mount.reader.loads) == 1
        assert await mount.loader.load_tree(version) is trees[0]
        assert trio.current_time() == 5


async def test_load_again_after_an_error(autojump_clock: object):
    """A load that failed is an error for all who waited; who asks later starts another."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.table.add_references(version)
        mount.reader.errors[version.target] = UnavailableError("down")
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await mount.loader.load_tree(version)
        mount.reader.errors.clear()
        await mount.loader.load_tree(version)
        assert len(mount.reader.loads) == 3
        assert version.mounted.error is None


async def test_failure_is_never_taken_for_absence(autojump_clock: object):
    """L4: A portal that fails, times out or refuses is never reported as ENOENT.

    Tasks that wait for a load that fails, while others begin the next one at once, get the error or
    the tree: never «not found».
    """
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.table.add_references(version)
        mount.reader.errors[version.target] = UnavailableError("down")
        outcomes: list[object] = []

        async def want() -> None:
            try:
                outcomes.append(await mount.loader.load_tree(version))
            except UnavailableError as error:
                outcomes.append(error)

        async def restart() -> None:
            await mount.loader.start_load(version.mounted).wait()
            mount.reader.errors.clear()
            mount.loader.start_load(version.mounted)

        async with trio.open_nursery() as nursery:
            for n in range(30):
                nursery.start_soon(restart if n % 3 == 0 else want)
        assert len(outcomes) == 20


async def test_unforeseen_error(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """A bug in a load is the error of that skylink; the nursery lives on."""
    async with open_in_memory_mount() as mount:
        good, bad = links(mount, 2)
        mount.reader.errors[bad] = ZeroDivisionError()
        with pytest.raises(BadContentError):
            await mount.loader.load_tree(at(mount, bad).version)
        assert "ZeroDivisionError" in caplog.text
        await mount.loader.load_tree(at(mount, good).version)


async def test_waiting_has_a_limit(autojump_clock: object):
    """A wait can be bounded; the load goes on."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.reader.delays[version.target] = 10
        await mount.freshness.revalidate(version.mounted, 2)
        assert trio.current_time() == 2
        assert version.tree is None
        await mount.loader.load_tree(version)
        assert trio.current_time() == 10
        assert len(mount.reader.loads) == 1


async def test_cancelled_waiter_leaves_the_load(autojump_clock: object):
    """A task that gives up does not end the load that others wait for."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.reader.delays[version.target] = 10
        with trio.move_on_after(1):
            await mount.loader.load_tree(version)
        assert version.mounted.waiting == 0
        await mount.loader.load_tree(version)
        assert len(mount.reader.loads) == 1


async def test_shutdown_ends_waiting():
    """When the daemon's nursery is cancelled in the middle of a load, its event is set."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.reader.delays[version.target] = 1000
        done = mount.loader.start_load(version.mounted)
        await trio.testing.wait_all_tasks_blocked()
    assert done.is_set()
    assert version.mounted.error is not None


async def test_hidden_files_are_logged(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """N5: and the log has a line.

    A tree that does not show everything says so in the log, in one line of bounded length.
    """
    async with open_in_memory_mount() as mount:
        files = {"good": b"1", "../" + "x\n" * 5000: b"2", "../b": b"3"}
        await mount.loader.load_tree(at(mount, mount.reader.add(files)).version)
        [record] = caplog.records
        text = record.getMessage()
        assert "2 of its files cannot be shown" in text
        assert "\n" not in text
        assert len(text) < 1000


# --- what is provisional

LIE = {"a.txt": b"HELLO", "d/b.bin": bytes(2048), "d/empty": b""}
"""The names and sizes of FILES."""


def lied_about(mount: InMemoryMount, lie: dict[str, bytes] = LIE) -> tuple[Skylink, MountedName]:
    """Publish files of which a portal says something else, without a proof; return their name."""
    link = mount.reader.add(FILES)
    mount.reader.provisional[link] = lie
    return link, at(mount, link)


async def looked_up(mount: InMemoryMount, mounted: MountedName) -> TreeVersion:
    """Look a name up; return the version that it shows."""
    await mount.freshness.revalidate(mounted, math.inf)
    return mounted.version


async def test_provisional_tree_is_loaded_again(autojump_clock: object):
    """T6: It is asked for again after 1, 2, 4, 8 and 15 s, and then every 15 s while it is used."""
    async with open_in_memory_mount() as mount:
        _, mounted = lied_about(mount)
        version = await looked_up(mount, mounted)
        for loads, now in enumerate((1, 3, 7, 15, 30), start=1):
            await trio.sleep_until(now - 0.1)
            assert len(mount.reader.loads) == loads
        await trio.sleep_until(44)
        assert mount.table.node_of(version.inode())[0] is version  # which is a use
        await trio.sleep_until(50)
        assert len(mount.reader.loads) == 7
        assert await looked_up(mount, mounted) is version  # the tree in it is another
        await trio.sleep_until(61)
        assert len(mount.reader.loads) == 8
        await trio.sleep_until(1000)
        assert len(mount.reader.loads) == 8  # nobody used it


@pytest.mark.parametrize("lie", [LIE, {"other": b"x"}, FILES], ids=["bytes", "names", "honest"])
async def test_proof_takes_the_place(lie: dict[str, bytes], autojump_clock: object):
    """T6: As soon as a portal proves the content, its name shows the proven content.

    Under other inode numbers: the kernel may have pages of the old ones.
    """
    async with open_in_memory_mount() as mount:
        link, mounted = lied_about(mount, lie)
        before = await looked_up(mount, mounted)
        mount.table.add_references(before)
        del mount.reader.provisional[link]
        await trio.sleep(1.1)
        after = await looked_up(mount, mounted)
        assert after is not before
        assert after.inode() != before.inode()
        assert not after.is_provisional
        assert mount.freshness.ttl(mounted) == IMMUTABLE_TIMEOUT
        assert [after.was_provisional, before.was_provisional] == [False, True]
        if lie == {"other": b"x"}:
            with pytest.raises(OSError, match="Stale"):
                mount.table.node_of(before.inode())
        else:
            assert mount.table.node_of(before.inode())[0].tree is after.tree
        mount.table.add_references(before, -1)
        with pytest.raises(OSError, match="Stale"):
            mount.table.node_of(before.inode())
        assert mount.table.node_of(after.inode())[0] is after
        await trio.sleep(100)
        assert len(mount.reader.loads) == 2


async def test_other_provisional_names(autojump_clock: object):
    """T6: any other use of a tree that turned out to be another is ESTALE."""
    async with open_in_memory_mount() as mount:
        link, mounted = lied_about(mount)
        before = await looked_up(mount, mounted)
        mount.table.add_references(before)
        mount.reader.provisional[link] = {"other": b"x"}
        await trio.sleep(1.1)
        after = await looked_up(mount, mounted)
        assert after.is_provisional
        assert [before.state, after.state] == [TreeState.DISPROVED, TreeState.PROVISIONAL]


async def test_provisional_tree_expires(autojump_clock: object):
    """T6: what was not asked for again within 30 s is no longer shown, by whatever way."""
    async with open_in_memory_mount() as mount:
        link, mounted = lied_about(mount)
        version = await looked_up(mount, mounted)
        mount.table.add_references(version)
        mount.reader.errors[link] = UnavailableError("down")
        await trio.sleep(29.5)
        assert await looked_up(mount, mounted) is version
        assert 0 < mount.freshness.ttl(mounted) <= 0.5
        assert version.shown is version.tree
        await trio.sleep(1)
        assert version.shown is None
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await mount.loader.load_tree(version)
        assert await looked_up(mount, mounted) is version  # a directory in which everything waits
        assert mount.freshness.ttl(mounted) == 0
        del mount.reader.errors[link]
        assert await mount.loader.load_tree(version) is version.tree
        assert mounted.version is version


async def test_expiry_during_a_load(autojump_clock: object):
    """T6: a load that takes long does not prolong what it is to replace, nor lose the name."""
    async with open_in_memory_mount() as mount:
        link, mounted = lied_about(mount)
        version = await looked_up(mount, mounted)
        mount.table.add_references(version)
        mount.reader.delays[link] = 60
        await trio.sleep(31)
        await mount.freshness.revalidate(mounted, 0.5)
        assert mounted.version.shown is None
        mount.table.forget(version.inode(), 1)
        await trio.sleep(45)
        assert mounted.version.shown is not None
        assert mount.table.node_of(mounted.version.inode())[0] is mounted.version
        mount.reader.delays.clear()
        mount.reader.provisional[link] = {"other": b"x"}
        await trio.sleep(80)  # a load was under way
        assert version.state is TreeState.DISPROVED


@pytest.mark.parametrize("proves", [True, False], ids=["proven", "other names"])
async def test_used_by_a_handle_alone(proves: bool, autojump_clock: object):
    """T6: what was idle is asked for again when it is used, also by who does not use the name."""
    async with open_in_memory_mount() as mount:
        link, mounted = lied_about(mount)
        version = await looked_up(mount, mounted)
        mount.table.add_references(version)
        await trio.sleep(100)  # nobody uses it: it is not asked for any more
        loads = len(mount.reader.loads)
        mount.reader.provisional[link] = {"other": b"x"}
        if proves:
            del mount.reader.provisional[link]
            tree = await mount.loader.load_tree(version)
            assert not tree.skyfile.is_provisional
        else:
            with pytest.raises(OSError) as caught:
                await mount.loader.load_tree(version)
            assert caught.value.errno == errno.ESTALE
        assert len(mount.reader.loads) == loads + 1


async def test_names_that_move_and_are_provisional(autojump_clock: object):
    """T6: a tree that a name leads to is as provisional as one by its skylink."""
    async with open_in_memory_mount() as mount:
        first, second = links(mount, 2)
        mount.reader.provisional[first] = {"f": b"!"}
        mount.names.leads["example"] = first
        mounted = mount.domains.get_or_add("example")
        await mount.domain_freshness.revalidate(mounted, math.inf)
        before = mounted.version
        mount.domains.add_references(before)
        assert before.is_provisional
        mount.names.move("example", second)
        await trio.sleep(1.1)
        assert mounted.version.target == second
        assert not mounted.version.is_provisional
        mount.names.move("example", first)
        del mount.reader.provisional[first]
        await mount.domain_freshness.revalidate(mounted, math.inf)
        assert mounted.version.target == first
        assert not mounted.version.is_provisional
        assert mounted.version is not before


async def test_provisional_trees_leak_nothing(autojump_clock: object):
    """However often a tree is replaced, versions that nobody refers to are dropped."""
    async with open_in_memory_mount() as mount:
        link, mounted = lied_about(mount)
        numbers = set()
        for n in range(50):
            mount.reader.provisional[link] = {f"f{n}": b"x"}
            version = await looked_up(mount, mounted)
            numbers.add(version.number)
            mount.table.add_references(version)
            await trio.sleep(15.1)
            mount.table.forget(version.inode(), 1)
        assert len(numbers) == 2  # those of dropped versions are used again
        assert len(mounted.provisional) == 1

"""Names in use are resolved again before their time is over."""

import pytest
import trio

from skymount.errors import UnavailableError
from skymount.fs.static_tree import HNS
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.skylink import Skylink
from tests.fakes.in_memory_mount import FILES, InMemoryMount, lookup, open_in_memory_mount
from tests.fakes.skyfiles import resolver

GOALS: list[ResolvableName] = ["example", resolver()]


def publish(mount: InMemoryMount, content: bytes, goal: ResolvableName = "example") -> None:
    """Let a name lead to a file of that content."""
    mount.names.leads[goal] = mount.reader.add({"f": content})


async def size(mount: InMemoryMount, goal: ResolvableName = "example") -> int:
    """Look a name up without waiting; return the size of the file in it."""
    begun = trio.current_time()
    where = "skylinks" if isinstance(goal, Skylink) else "hns"
    found = (await lookup(mount, where, str(goal), "f")).size
    assert trio.current_time() == begun
    return found


@pytest.mark.parametrize("goal", GOALS)
async def test_nobody_waits(goal: ResolvableName, autojump_clock: object):
    """H2: resolved again in the background, so that no lookup waits for it."""
    async with open_in_memory_mount() as mount:
        publish(mount, b"x", goal)
        await size(mount, goal)
        mount.names.delays[goal] = 0.4
        for _ in range(200):
            assert await size(mount, goal) == 1
            await trio.sleep(1)
        assert len(mount.names.asked) == 4
        assert len(mount.reader.loads) == 1


@pytest.mark.parametrize("goal", GOALS)
async def test_new_tree(goal: ResolvableName, autojump_clock: object):
    """H2: the name switches to the new tree at once and as a whole, once that is loaded."""
    async with open_in_memory_mount() as mount:
        publish(mount, b"old", goal)
        await size(mount, goal)
        publish(mount, b"newer", goal)
        mount.reader.delays = dict.fromkeys(mount.reader.content, 2)
        sizes = []
        for _ in range(600):
            sizes.append(await size(mount, goal))
            await trio.sleep(0.1)
        assert sizes == [3] * sizes.count(3) + [5] * sizes.count(5)
        assert 570 <= sizes.count(3) <= 572
        assert len(mount.names.asked) == 2


async def test_name_that_is_not_used(autojump_clock: object):
    """H2: A name that nobody looks up is not asked for again."""
    async with open_in_memory_mount() as mount:
        for goal in ("once", "twice"):
            publish(mount, b"x", goal)
            await size(mount, goal)
        await trio.sleep(10)
        await size(mount, "twice")
        await trio.sleep(1000)
        assert mount.names.asked == ["once", "twice", "twice"]


async def test_late_use(autojump_clock: object):
    """H2: A name that was looked up while it held is resolved again, however late that was."""
    async with open_in_memory_mount() as mount:
        publish(mount, b"x")
        await size(mount)
        await trio.sleep(58)
        mount.names.delays["example"] = 1
        await size(mount)
        await trio.sleep(3)
        await size(mount)
        assert len(mount.names.asked) == 2


async def test_failure(autojump_clock: object):
    """H2: if that fails, nothing changes before the end."""
    async with open_in_memory_mount() as mount:
        publish(mount, b"x")
        await size(mount)
        file = await lookup(mount, "hns", "example", "f")
        mount.names.leads["example"] = UnavailableError("down")
        stale = b"user.skymount.stale"
        await trio.sleep(59.5)
        assert mount.names.asked == ["example"] * 2
        assert (await mount.operations.xattrs(file.inode))[stale] == b"no"
        assert (await lookup(mount, "hns", "example")).entry_timeout == 0.5
        await trio.sleep(1)
        assert await size(mount) == 1
        assert (await mount.operations.xattrs(file.inode))[stale] == b"yes"


async def test_name_that_is_gone(autojump_clock: object):
    """H1: Unknown domains are ENOENT, also when that is found out in the background."""
    async with open_in_memory_mount() as mount:
        publish(mount, b"x")
        await size(mount)
        await size(mount)
        del mount.names.leads["example"]
        await trio.sleep(55.1)
        assert (await mount.operations.lookup(HNS, b"example")).inode == 0
        assert len(mount.domains) == 0
        assert mount.names.asked == ["example"] * 2


async def test_answer_that_comes_after_the_end(autojump_clock: object):
    """H2: A resolution holds for `hns_ttl` (60 s), also while it is asked for again."""
    async with open_in_memory_mount(lookup_grace=20) as mount:
        publish(mount, b"old")
        await size(mount)
        await size(mount)
        publish(mount, b"newer")
        mount.names.delays["example"] = 10
        await trio.sleep(59.9)
        assert await size(mount) == 3
        await trio.sleep(0.2)
        assert (await lookup(mount, "hns", "example", "f")).size == 5
        assert trio.current_time() == pytest.approx(65)
        assert mount.names.asked == ["example"] * 2


async def test_change_that_is_learnt_meanwhile(autojump_clock: object):
    """H5: What this mount learns earlier takes effect within a second."""
    async with open_in_memory_mount(lookup_grace=20) as mount:
        publish(mount, b"old")
        await size(mount)
        await size(mount)
        mount.names.delays["example"] = 2
        await trio.sleep(56)
        mount.names.move("example", mount.reader.add(FILES | {"f": b"moved"}))
        assert (await lookup(mount, "hns", "example", "f")).size == 5


async def test_pruned_name(autojump_clock: object):
    """A name that was dropped meanwhile is not asked for."""
    async with open_in_memory_mount() as mount:
        for number in range(200):
            publish(mount, b"x", f"n{number}")
            mounted = mount.domains.get_or_add(f"n{number}")
            for _ in range(2):
                await mount.domain_freshness.revalidate(mounted, 1)
        await trio.sleep(56)
        assert len(mount.names.asked) - 200 == len(mount.domains) < 200

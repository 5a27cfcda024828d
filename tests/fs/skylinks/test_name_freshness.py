"""What names that move show, and for how long."""

import pytest
import trio

from skymount.errors import MalformedError, NotFoundError, UnavailableError
from skymount.fs.inode_space import InodeSpace, space_of
from skymount.fs.skylinks.mounted_name import TreeVersion
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.skylink import Skylink
from tests.fakes.in_memory_mount import (
    FIRST_SEEN,
    InMemoryMount,
    at,
    kept,
    open_in_memory_mount,
    push_out,
)
from tests.fakes.skyfiles import resolver

V2 = resolver()


async def shown(mount: InMemoryMount, goal: ResolvableName = V2) -> TreeVersion:
    """Return what a name shows, as a lookup with much patience would find it."""
    is_domain = not isinstance(goal, Skylink)
    mounted = (mount.domains if is_domain else mount.table).get_or_add(str(goal))
    freshness = mount.domain_freshness if is_domain else mount.freshness
    await freshness.revalidate(mounted, 1e6)
    return mounted.version


def publish(mount: InMemoryMount, content: bytes, goal: ResolvableName = V2) -> Skylink:
    """Let a name lead to a file of that content."""
    mount.names.leads[goal] = link = mount.reader.add({"f": content})
    return link


@pytest.mark.parametrize("goal", [V2, "example"])
async def test_answer_that_is_the_same(goal: ResolvableName, autojump_clock: object):
    """H2: A resolution holds for `hns_ttl` (60 s).

    Asked again after that, a name that leads where it did keeps its version and inode numbers, and
    its tree is not loaded again.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"x", goal)
        first = await shown(mount, goal)
        mount.table.add_references(first)
        await trio.sleep(59)
        assert await shown(mount, goal) is first
        assert len(mount.names.asked) == 1
        await trio.sleep(1)
        assert await shown(mount, goal) is first
        assert len(mount.names.asked) == 2
        assert len(mount.reader.loads) == 1


async def test_answer_that_changed(autojump_clock: object):
    """H2: the name switches to the new tree at once and as a whole.

    What refers to the old tree keeps it, until the last reference is gone; the new one has other
    inode numbers.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"old")
        old = await shown(mount)
        mount.table.add_references(old, 2)
        await trio.sleep(60)
        target = publish(mount, b"new")
        new = await shown(mount)
        assert new.target == target
        assert new.inode() != old.inode()
        assert mount.table.node_of(old.inode(1)) == (old, 1)
        assert (mount.freshness.is_stale(old), mount.freshness.is_stale(new)) == (True, False)
        mount.table.forget(old.inode(), 1)
        mount.table.add_references(old, -1)
        with pytest.raises(OSError, match="Stale"):
            mount.table.node_of(old.inode())
        assert mount.table.node_of(new.inode()) == (new, 0)


async def test_old_tree_is_shown_until_the_new_one_is_there(autojump_clock: object):
    """H2: at once and as a whole.

    While the new tree is loading the old one is shown, to be asked for again at any time.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"old")
        old = await shown(mount)
        await trio.sleep(60)
        mount.reader.delays[publish(mount, b"new")] = 10
        for waited in (0.5, 0.5, 0.5):
            await mount.freshness.revalidate(old.mounted, 0.5)
            assert trio.current_time() == 60 + waited
            assert old.mounted.version is old
            assert mount.freshness.ttl(old.mounted) == 0
        await trio.sleep(10)
        assert (await shown(mount)).tree is not old.tree
        assert mount.freshness.ttl(old.mounted) == 49.5


async def test_back_and_forth(autojump_clock: object):
    """S7: A name that leads again where it did shows it with another time, and so under other inode
    numbers if the version from before is in use: the kernel keeps the times of those.
    """
    async with open_in_memory_mount() as mount:
        one, two = mount.reader.add({"f": b"1"}), mount.reader.add({"f": b"2"})
        versions = []
        for n in range(20):
            mount.names.leads[V2] = (one, two)[n % 2]
            versions.append(await shown(mount))
            if 2 <= n < 4:
                mount.table.add_references(versions[-1])
            await trio.sleep(60)
        times = [version.mtime_ns // 10**9 - FIRST_SEEN for version in versions]
        assert times == list(range(20))
        inodes = [version.inode() for version in versions]
        assert inodes[:2] == inodes[2:4]
        assert inodes[4:] == [*inodes[4:6] * 8]
        assert len(set(inodes)) == 4


async def test_numbers_of_names_that_move_are_stable(autojump_clock: object):
    """S5: Inode numbers are the same after a remount.

    So they are where a name was shown before it was known where it leads, and those of domains and
    of skylinks are never the same.
    """
    numbers = []
    for delay in (0, 10):
        async with open_in_memory_mount() as mount:
            for goal in (V2, "example"):
                publish(mount, b"x", goal)
                mount.names.delays[goal] = delay
                numbers.append((await shown(mount, goal)).inode(1))
    assert numbers[:2] == numbers[2:]
    assert [space_of(number) for number in numbers] == [InodeSpace.SKYLINKS, InodeSpace.HNS] * 2


async def test_slow_name(autojump_clock: object):
    """L2: Whatever is done inside waits for the answer.

    What was reported before the answer was there shows the tree as well when it is, as long as it
    is in use.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"x")
        mount.names.delays[V2] = 10
        mounted = at(mount, V2)
        await mount.freshness.revalidate(mounted, 0.5)
        early = mounted.version
        mount.table.add_references(early)
        tree = await mount.loader.load_tree(early)
        late = await shown(mount)
        assert late is not early
        assert late.tree is early.tree is tree
        assert not mount.freshness.is_stale(early)
        assert mount.table.node_of(early.inode(1)) == (early, 1)
        mount.table.forget(early.inode(), 1)
        assert kept(mount.table, early, late) == [late]


async def test_resolver_that_fails(autojump_clock: object):
    """H3: While the resolver fails, the last good tree is served.

    It is asked again after a while, which grows up to the time for which an answer holds.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"x")
        version = await shown(mount)
        good = mount.names.leads[V2]
        mount.names.leads[V2] = UnavailableError("down")
        for pause in (60, 2, 4, 8, 16, 32, 60, 60):
            assert mount.freshness.ttl(version.mounted) == pause
            asked = len(mount.names.asked)
            await trio.sleep(pause - 0.5)
            assert await shown(mount) is version
            assert len(mount.names.asked) == asked
            await trio.sleep(0.5)
            assert await shown(mount) is version
            in_background = pause == 60 and asked == 1  # only a good answer is asked for early
            assert len(mount.names.asked) == asked + 1 + in_background
            assert mount.freshness.is_stale(version)
        mount.names.leads[V2] = good
        await trio.sleep(60)
        assert await shown(mount) is version
        assert not mount.freshness.is_stale(version)
        assert mount.freshness.ttl(version.mounted) == 60


async def test_last_answer_is_good_for_a_tree_that_was_dropped(autojump_clock: object):
    """H3: While the resolver fails, the last good tree is served.

    Also when it has to be loaded again.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"x")
        version = await shown(mount)
        push_out(mount.table)
        mount.names.leads[V2] = UnavailableError("down")
        await trio.sleep(60)
        again = await shown(mount)
        assert again is not version
        assert again.inode() == version.inode()
        assert mount.freshness.is_stale(again)


@pytest.mark.parametrize("error", [UnavailableError("down"), NotFoundError("no"), KeyError("bug")])
async def test_new_content_that_cannot_be_had(error: Exception, autojump_clock: object):
    """What a name leads to now cannot be loaded: the old tree stays, and the next try is later."""
    async with open_in_memory_mount() as mount:
        publish(mount, b"old")
        old = await shown(mount)
        await trio.sleep(60)
        link = publish(mount, b"new")
        mount.reader.errors[link] = error
        assert await shown(mount) is old
        assert mount.freshness.is_stale(old)
        assert mount.freshness.ttl(old.mounted) == 2
        assert await shown(mount) is old
        assert len(mount.reader.loads) == 2
        mount.reader.errors.clear()
        await trio.sleep(2)
        new = await shown(mount)
        assert new.target == link
        assert not mount.freshness.is_stale(new)
        assert kept(mount.table, old, new) == [new]


async def test_name_that_goes_away(autojump_clock: object):
    """H1: Unknown domains are ENOENT.

    A name that every portal says is gone is gone, and what is open stays.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"x")
        version = await shown(mount)
        mount.table.add_references(version)
        del mount.names.leads[V2]
        await trio.sleep(60)
        with pytest.raises(NotFoundError):
            await shown(mount)
        assert len(mount.table) == 0
        assert mount.table.node_of(version.inode()) == (version, 0)
        assert mount.freshness.is_stale(version)
        publish(mount, b"x")
        with pytest.raises(NotFoundError):
            await shown(mount)
        await trio.sleep(5)
        assert await shown(mount) is version
        assert not mount.freshness.is_stale(version)


async def test_spellings_of_a_domain(autojump_clock: object):
    """H1: Case, a trailing dot and the Unicode form do not matter."""
    async with open_in_memory_mount() as mount:
        publish(mount, b"x", "xn--bcher-kva.example")
        names = [
            "bücher.example",
            "BÜCHER.Example.",
            "xn--bcher-kva.example",
            "XN--BCHER-KVA.EXAMPLE",
        ]
        versions = set()
        for name in names:
            mounted = mount.domains.get_or_add(name)
            await mount.domain_freshness.revalidate(mounted, 1)
            versions.add(mounted.version)
        assert len(versions) == 1
        assert [mounted.name for mounted in mount.domains] == ["xn--bcher-kva.example"]
        for name in ("", ".", "a..b", " a", "a ", "a b", "-a", "a" * 64, "xn--", "a\0"):
            with pytest.raises(MalformedError):
                mount.domains.get_or_add(name)


async def test_two_spellings_of_a_v2_skylink(autojump_clock: object):
    """S2: Each spelling is a directory of its own.

    Where it leads is asked once for all of them, and each takes note of a change.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"old")
        points = [at(mount, name) for name in (V2, V2.base32)]
        for mounted in points:
            await mount.freshness.revalidate(mounted, 1)
        assert mount.names.asked == [V2]
        await trio.sleep(60)
        target = publish(mount, b"new")
        for mounted in points:
            await mount.freshness.revalidate(mounted, 1)
            assert mounted.version.target == target
        assert mount.names.asked == [V2, V2]


async def test_unproven_name(autojump_clock: object):
    """H4: with `user.skymount.verified` = `no`.

    Whether it is proven where a name leads is known of each answer.
    """
    async with open_in_memory_mount() as mount:
        publish(mount, b"x")
        mount.names.unproven.add(V2)
        version = await shown(mount)
        assert not version.verified
        mount.names.unproven.clear()
        await trio.sleep(60)
        assert await shown(mount) is version
        assert version.verified


async def test_changing_again_and_again_leaks_nothing(autojump_clock: object):
    """A name that leads elsewhere a thousand times leaves one version, and forgets the others."""
    async with open_in_memory_mount() as mount:
        versions = []
        for n in range(1000):
            publish(mount, str(n).encode())
            version = await shown(mount)
            versions.append(version)
            mount.table.add_references(version)
            await trio.sleep(60)
            publish(mount, str(n + 1).encode())
            await shown(mount)
            if n % 2:
                mount.table.forget(version.inode(), 1)
            else:
                mount.table.add_references(version, -1)
        assert kept(mount.table, *versions) == []


async def test_very_many_unknown_domains(autojump_clock: object):
    """Names that do not exist leave nothing behind, and are asked for once in 5 s."""
    async with open_in_memory_mount() as mount:
        for n in range(300):
            version = mount.domains.get_or_add(f"d{n}").version
            for _ in range(2):
                with pytest.raises(NotFoundError):
                    await shown(mount, f"d{n}")
            assert kept(mount.domains, version) == []
        assert len(mount.domains) == 0
        assert len(mount.names.asked) == 300


async def test_one_request_for_many(autojump_clock: object):
    """However many look at a name, it is asked for once."""
    async with open_in_memory_mount() as mount:
        publish(mount, b"x", "example")
        mount.names.delays["example"] = 5
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(shown, mount, "example")
        assert mount.names.asked == ["example"]

"""The skylinks that the mount knows: loads, references, what is kept and what is dropped."""

import errno
import math
from contextlib import suppress

import pytest
import trio

from skymount.errors import BadContentError, MalformedError, NotFoundError, UnavailableError
from skymount.fs.inode_space import InodeSpace, node_inode, space_of
from skymount.fs.skylinks.mounted_name import MountedName, TreeState, TreeVersion
from skymount.fs.skylinks.name_table import NameTable
from skymount.fs.subtree import IMMUTABLE_TIMEOUT
from skymount.portal.registry.name_resolver import ResolvableName
from skymount.wire.skylink import Skylink
from tests.fakes.in_memory_mount import FILES, InMemoryMount, open_in_memory_mount, push_out
from tests.fakes.refusal import refused
from tests.fakes.skyfiles import resolver


def links(mount: InMemoryMount, count: int) -> list[Skylink]:
    """Publish so many skylinks."""
    return [mount.reader.add({"f": str(n).encode()}) for n in range(count)]


def kept(table: NameTable, *versions: TreeVersion) -> list[TreeVersion]:
    """Return the versions that the table still knows."""
    found = []
    for version in versions:
        with suppress(OSError):
            found.append(table.node_of(version.inode())[0])
    return found


def at(mount: InMemoryMount, name: object) -> MountedName:
    """Return the mounted of a name in ``skylinks``."""
    return mount.table.get_or_add(str(name))


# --- loading


async def test_loaded_once(autojump_clock: object):
    """However many tasks want a tree, it is loaded once; later ones get it without a wait."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.reader.delays[version.target] = 5
        trees = []

        async def want() -> None:
            trees.append(await mount.table.load_tree(version))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(want)
        assert len(set(map(id, trees))) == 1
        assert len(mount.reader.loads) == 1
        assert await mount.table.load_tree(version) is trees[0]
        assert trio.current_time() == 5


async def test_load_again_after_an_error(autojump_clock: object):
    """A load that failed is an error for all who waited; who asks later starts another."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.table.add_references(version)
        mount.reader.errors[version.target] = UnavailableError("down")
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await mount.table.load_tree(version)
        mount.reader.errors.clear()
        await mount.table.load_tree(version)
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
                outcomes.append(await mount.table.load_tree(version))
            except UnavailableError as error:
                outcomes.append(error)

        async def restart() -> None:
            await mount.table.start_load(version.mounted).wait()
            mount.reader.errors.clear()
            mount.table.start_load(version.mounted)

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
            await mount.table.load_tree(at(mount, bad).version)
        assert "ZeroDivisionError" in caplog.text
        await mount.table.load_tree(at(mount, good).version)


async def test_waiting_has_a_limit(autojump_clock: object):
    """A wait can be bounded; the load goes on."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.reader.delays[version.target] = 10
        await mount.table.revalidate(version.mounted, 2)
        assert trio.current_time() == 2
        assert version.tree is None
        await mount.table.load_tree(version)
        assert trio.current_time() == 10
        assert len(mount.reader.loads) == 1


async def test_cancelled_waiter_leaves_the_load(autojump_clock: object):
    """A task that gives up does not end the load that others wait for."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.reader.delays[version.target] = 10
        with trio.move_on_after(1):
            await mount.table.load_tree(version)
        assert version.mounted.waiting == 0
        await mount.table.load_tree(version)
        assert len(mount.reader.loads) == 1


async def test_shutdown_ends_waiting():
    """When the daemon's nursery is cancelled in the middle of a load, its event is set."""
    async with open_in_memory_mount() as mount:
        version = at(mount, mount.reader.add(FILES)).version
        mount.reader.delays[version.target] = 1000
        done = mount.table.start_load(version.mounted)
        await trio.testing.wait_all_tasks_blocked()
    assert done.is_set()
    assert version.mounted.error is not None


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
        tree = await mount.table.load_tree(version)
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
    await mount.table.load_tree(version)
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
        mount.table.start_load(busy.mounted)
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
            await mount.table.load_tree(version)
            found.append(mount.table.node_of(version.inode())[0])

        async def crowd() -> None:
            await mount.table.start_load(version.mounted).wait()
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
                await mount.table.load_tree(version)
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


async def test_hidden_files_are_logged(autojump_clock: object, caplog: pytest.LogCaptureFixture):
    """N5: and the log has a line.

    A tree that does not show everything says so in the log, in one line of bounded length.
    """
    async with open_in_memory_mount() as mount:
        files = {"good": b"1", "../" + "x\n" * 5000: b"2", "../b": b"3"}
        await load(mount, mount.reader.add(files))
        [record] = caplog.records
        text = record.getMessage()
        assert "2 of its files cannot be shown" in text
        assert "\n" not in text
        assert len(text) < 1000


# --- names that move


V2 = resolver()


async def shown(mount: InMemoryMount, goal: ResolvableName = V2) -> TreeVersion:
    """Return what a name shows, as a lookup with much patience would find it."""
    table = mount.domains if isinstance(goal, str) else mount.table
    mounted = table.get_or_add(str(goal))
    await table.revalidate(mounted, 1e6)
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
        assert (mount.table.is_stale(old), mount.table.is_stale(new)) == (True, False)
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
            await mount.table.revalidate(old.mounted, 0.5)
            assert trio.current_time() == 60 + waited
            assert old.mounted.version is old
            assert mount.table.ttl(old.mounted) == 0
        await trio.sleep(10)
        assert (await shown(mount)).tree is not old.tree
        assert mount.table.ttl(old.mounted) == 49.5


async def test_back_and_forth(autojump_clock: object):
    """A name that leads again where it did shows the version from before if that is in use, and one
    with the same inode numbers if it is not.
    """
    async with open_in_memory_mount() as mount:
        one, two = mount.reader.add({"f": b"1"}), mount.reader.add({"f": b"2"})
        versions = []
        for n in range(20):
            mount.names.leads[V2] = (one, two)[n % 2]
            versions.append(await shown(mount))
            if n < 10:
                mount.table.add_references(versions[-1])
            await trio.sleep(60)
        assert len(set(versions[:10])) == 2
        assert {version.inode() for version in versions} == {
            versions[0].inode(),
            versions[1].inode(),
        }


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
        await mount.table.revalidate(mounted, 0.5)
        early = mounted.version
        mount.table.add_references(early)
        tree = await mount.table.load_tree(early)
        late = await shown(mount)
        assert late is not early
        assert late.tree is early.tree is tree
        assert not mount.table.is_stale(early)
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
            assert mount.table.ttl(version.mounted) == pause
            asked = len(mount.names.asked)
            await trio.sleep(pause - 0.5)
            assert await shown(mount) is version
            assert len(mount.names.asked) == asked
            await trio.sleep(0.5)
            assert await shown(mount) is version
            in_background = pause == 60 and asked == 1  # only a good answer is asked for early
            assert len(mount.names.asked) == asked + 1 + in_background
            assert mount.table.is_stale(version)
        mount.names.leads[V2] = good
        await trio.sleep(60)
        assert await shown(mount) is version
        assert not mount.table.is_stale(version)
        assert mount.table.ttl(version.mounted) == 60


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
        assert mount.table.is_stale(again)


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
        assert mount.table.is_stale(old)
        assert mount.table.ttl(old.mounted) == 2
        assert await shown(mount) is old
        assert len(mount.reader.loads) == 2
        mount.reader.errors.clear()
        await trio.sleep(2)
        new = await shown(mount)
        assert new.target == link
        assert not mount.table.is_stale(new)
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
        assert mount.table.is_stale(version)
        publish(mount, b"x")
        with pytest.raises(NotFoundError):
            await shown(mount)
        await trio.sleep(5)
        assert await shown(mount) is version
        assert not mount.table.is_stale(version)


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
            await mount.domains.revalidate(mounted, 1)
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
            await mount.table.revalidate(mounted, 1)
        assert mount.names.asked == [V2]
        await trio.sleep(60)
        target = publish(mount, b"new")
        for mounted in points:
            await mount.table.revalidate(mounted, 1)
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
    await mount.table.revalidate(mounted, math.inf)
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
        assert mount.table.ttl(mounted) == IMMUTABLE_TIMEOUT
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
        assert 0 < mount.table.ttl(mounted) <= 0.5
        assert version.shown is version.tree
        await trio.sleep(1)
        assert version.shown is None
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await mount.table.load_tree(version)
        assert await looked_up(mount, mounted) is version  # a directory in which everything waits
        assert mount.table.ttl(mounted) == 0
        del mount.reader.errors[link]
        assert await mount.table.load_tree(version) is version.tree
        assert mounted.version is version


async def test_expiry_during_a_load(autojump_clock: object):
    """T6: a load that takes long does not prolong what it is to replace, nor lose the name."""
    async with open_in_memory_mount() as mount:
        link, mounted = lied_about(mount)
        version = await looked_up(mount, mounted)
        mount.table.add_references(version)
        mount.reader.delays[link] = 60
        await trio.sleep(31)
        await mount.table.revalidate(mounted, 0.5)
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
            tree = await mount.table.load_tree(version)
            assert not tree.skyfile.is_provisional
        else:
            with pytest.raises(OSError) as caught:
                await mount.table.load_tree(version)
            assert caught.value.errno == errno.ESTALE
        assert len(mount.reader.loads) == loads + 1


async def test_names_that_move_and_are_provisional(autojump_clock: object):
    """T6: a tree that a name leads to is as provisional as one by its skylink."""
    async with open_in_memory_mount() as mount:
        first, second = links(mount, 2)
        mount.reader.provisional[first] = {"f": b"!"}
        mount.names.leads["example"] = first
        mounted = mount.domains.get_or_add("example")
        await mount.domains.revalidate(mounted, math.inf)
        before = mounted.version
        mount.domains.add_references(before)
        assert before.is_provisional
        mount.names.move("example", second)
        await trio.sleep(1.1)
        assert mounted.version.target == second
        assert not mounted.version.is_provisional
        mount.names.move("example", first)
        del mount.reader.provisional[first]
        await mount.domains.revalidate(mounted, math.inf)
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

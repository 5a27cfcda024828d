"""What is fetched for a program that goes through a listing."""

import weakref
from collections.abc import Iterator, Sequence

import pytest
import trio

from skymount.errors import UnavailableError
from skymount.fs.registry.listing_readahead import AHEAD, ListingReadahead, Walk
from tests.fakes.registry_mount import TTL, RegistryMount, ref

NAMES = [b"%03d" % number for number in range(100)]
DELAY = 0.25  # seconds of a request


def lookups() -> Walk:
    return ListingReadahead(NAMES, 0.0, TTL).lookups


def opens() -> Walk:
    return ListingReadahead(NAMES, 0.0, TTL).opens


# --- which names


def test_one_after_the_other():
    """G6: 32 ahead of the program, each once."""
    walk, fetched = lookups(), []
    for at, name in enumerate(NAMES):
        fetched += walk.passed(name, 0.0)
        assert fetched == NAMES[: at + AHEAD]
        assert walk.passed(name, 0.0) == []


@pytest.mark.parametrize("order", [NAMES[::-1], NAMES[1::2], [b"none", b"x" * 80], [NAMES[50]] * 3])
def test_any_other_order(order: Sequence[bytes]):
    """G6: one after the other."""
    for walk in (lookups(), opens()):
        for name in order:
            assert not walk.passed(name, 0.0)


def test_from_the_middle():
    """G6: A program that leaves some names out is one as well."""
    walk = lookups()
    assert not walk.passed(NAMES[10], 0.0)
    assert walk.passed(NAMES[11], 0.0) == NAMES[11 : 11 + AHEAD]
    assert walk.passed(NAMES[12], 0.0) == [NAMES[11 + AHEAD]]
    assert walk.passed(NAMES[20], 0.0) == NAMES[12 + AHEAD : 20 + AHEAD]


def pass_all(walk: Walk, pause: float, answer: float) -> list[int]:
    """Pass all names with a pause after each; return how many were fetched at each."""
    now, fetched = 0.0, []
    came: dict[bytes, float] = {}
    for name in NAMES:
        now = max(now, came.get(name, 0.0))
        for each in [each for each in came if came[each] <= now]:
            walk.arrived(each, came.pop(each))
        wanted = walk.passed(name, now)
        came.update(dict.fromkeys(wanted, now + answer))
        fetched.append(len(wanted))
        now += pause
    return fetched


def test_slow_program():
    """G6: less and less for a program that is too late for it."""
    fetched = pass_all(lookups(), TTL + 2 * DELAY, DELAY)
    assert [number for number in fetched if number] == [32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize("answer", [TTL, 2 * TTL, 30.0])
def test_slow_portal(answer: float):
    """G6: A program is late only if it comes long after the answer."""
    assert sum(pass_all(lookups(), 0.0, answer)) == len(NAMES)
    assert sum(pass_all(opens(), TTL / 100, answer)) == len(NAMES) - 2


def test_program_that_pauses():
    """G6: as much as before for a program that was too late once."""
    walk = lookups()
    for name in walk.passed(NAMES[0], 0.0):
        walk.arrived(name, 0.0)
    late = TTL + 0.1
    assert walk.passed(NAMES[1], late) == NAMES[1 : 1 + AHEAD // 2]
    for name in NAMES[2:40]:
        for each in walk.passed(name, late):
            walk.arrived(each, late)
    assert walk.passed(NAMES[40], late) == [NAMES[40 + AHEAD - 1]]


# --- what is asked for


@pytest.fixture
def mount(nursery: trio.Nursery) -> Iterator[RegistryMount]:
    """A tree of a hundred entries at a portal some way off."""
    mount = RegistryMount(nursery=nursery)
    for name in NAMES:
        mount.store.put(ref(name.decode()), b"old")
        mount.store.known.append(ref(name.decode()))
    mount.store.delay = DELAY
    return mount


async def look_at_all(mount: RegistryMount) -> None:
    """Do what `ls -l` does."""
    directory = await mount.directory()
    for name in await mount.listing(directory):
        found = await mount.lookup(directory, name.encode())
        if not found.attr_timeout:
            await mount.tree.getattr(found.inode)


async def test_list_of_files(autojump_clock: object, mount: RegistryMount):
    """G6: the next 32 are fetched in the background, so a list of 100 takes four round trips."""
    await look_at_all(mount)
    assert trio.current_time() == pytest.approx(4 * DELAY)
    assert len(mount.store.asked) == 100
    await look_at_all(mount)
    assert len(mount.store.asked) == 100
    await trio.sleep(TTL)
    begun = trio.current_time()
    await look_at_all(mount)
    assert trio.current_time() - begun == pytest.approx(4 * DELAY)
    assert len(mount.store.asked) == 200


async def test_all_files_are_read(autojump_clock: object, mount: RegistryMount):
    """G5: from the third file in a row on, at most `registry_ttl` old, and since the listing."""
    await look_at_all(mount)
    for name in NAMES:
        mount.store.put(ref(name.decode()), b"new")
    begun = trio.current_time()
    for name in await mount.names():
        assert await mount.read(name) == b"new"
    assert trio.current_time() - begun <= 7 * DELAY
    assert len(mount.store.asked) == 200


@pytest.mark.parametrize("delay", [0.75 * TTL, 1.5 * TTL])
async def test_portal_far_away(autojump_clock: object, mount: RegistryMount, delay: float):
    """G6: each entry is asked for once, however long an answer takes."""
    mount.store.delay, mount.store.connections = delay, 24
    await look_at_all(mount)
    assert trio.current_time() <= 6 * delay
    assert len(mount.store.asked) == 100
    await trio.sleep(TTL)
    begun = trio.current_time()
    for name in await mount.names():
        assert await mount.read(name) == b"old"
    assert trio.current_time() - begun <= 10 * delay
    assert len(mount.store.asked) <= 240


async def test_asked_for_before_the_listing(autojump_clock: object, mount: RegistryMount):
    """G5: An open does not see the answer to a request from before the directory was opened."""
    mount.store.delay = 1.0
    names = [name.decode() for name in NAMES]
    directory = await mount.directory()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mount.tree.lookup, directory, names[2].encode())
        await trio.sleep(0.5)
        await mount.names()
        assert mount.store.asked == [ref(names[2])]
        for name in names[:2]:
            await mount.read(name)
    await mount.read(names[2])
    assert mount.store.asked.count(ref(names[2])) == 2


async def test_lookup_that_does_not_wait(autojump_clock: object, mount: RegistryMount):
    """G3: The next operation on the file waits for the same answer."""
    mount.store.delay = 1.0
    begun = trio.current_time()
    found = await mount.find("050")
    assert trio.current_time() - begun == 0.5
    await mount.tree.getattr(found.inode)
    assert trio.current_time() - begun == 1.0
    assert mount.store.asked == [ref("050")]


async def test_listing_alone_asks_for_nothing(autojump_clock: object, mount: RegistryMount):
    """G6: only when its names are looked up."""
    await mount.names()
    assert mount.store.asked == []


async def test_single_file_after_a_listing(autojump_clock: object, mount: RegistryMount):
    """G5: An open sees what the portal has at that time."""
    await look_at_all(mount)
    await mount.names()
    mount.store.put(ref("050"), b"new")
    assert await mount.read("050") == b"new"


async def test_listing_is_forgotten(autojump_clock: object, mount: RegistryMount):
    """G6: 30 s after it was listed, or after something was fetched; this takes no memory then."""
    directory = await mount.directory()
    node = mount.tree.nodes.directory(directory)
    for _ in range(3):
        names = await mount.names()
        await trio.sleep(20)
    assert node.readahead is not None
    kept = weakref.ref(node.readahead)
    await mount.lookup(directory, names[0].encode())
    assert len(mount.store.asked) == AHEAD
    await trio.sleep(29)
    assert kept() is not None
    await mount.lookup(directory, names[0].encode())
    await trio.sleep(1)
    assert len(mount.store.asked) == AHEAD + AHEAD // 2, "it came late"
    await trio.sleep(31)
    assert node.readahead is None
    assert kept() is None
    begun = trio.current_time()
    await look_at_all(mount)
    assert trio.current_time() - begun == pytest.approx(4 * DELAY), "the next one is as fast"


async def test_failure_is_told_by_who_uses_the_file(autojump_clock: object, mount: RegistryMount):
    """What cannot be fetched ahead is asked for again by whoever uses it."""
    mount.store.error = UnavailableError("down")
    directory = await mount.directory()
    for name in (await mount.names())[:3]:
        found = await mount.lookup(directory, name.encode())
        with pytest.raises(UnavailableError):
            await mount.tree.getattr(found.inode)
    mount.store.error = None
    assert await mount.read("002") == b"old"


async def test_bug_in_one_entry(
    autojump_clock: object, mount: RegistryMount, caplog: pytest.LogCaptureFixture
):
    """A bug that one entry brings out does not end the mount."""
    mount.store.error = ZeroDivisionError()
    directory = await mount.directory()
    name = (await mount.names())[0]
    with pytest.raises(ZeroDivisionError):
        await mount.lookup(directory, name.encode())
    await trio.sleep(1)
    assert "fetching ahead failed" in caplog.text

"""What is fetched for a program that goes through a listing."""

import weakref
from collections.abc import Iterator, Sequence

import pytest
import trio

from skymount.errors import UnavailableError
from skymount.fs.registry.listing_readahead import AHEAD, ListingReadahead
from tests.fakes.registry_mount import TTL, RegistryMount, ref

NAMES = [b"%03d" % number for number in range(100)]
DELAY = 0.25  # seconds of a request


def ahead() -> ListingReadahead:
    return ListingReadahead(NAMES, 0.0, TTL)


# --- which names


def test_one_after_the_other():
    """G6: 32 ahead of the program, each once."""
    listing, fetched = ahead(), []
    for at, name in enumerate(NAMES):
        fetched += listing.looked_up(name, 0.0)
        assert fetched == NAMES[: at + AHEAD]
        assert listing.looked_up(name, 0.0) == []


@pytest.mark.parametrize("order", [NAMES[::-1], NAMES[1::2], [b"none", b"x" * 80], [NAMES[50]] * 3])
def test_any_other_order(order: Sequence[bytes]):
    """G6: one after the other."""
    listing = ahead()
    for name in order:
        assert not listing.looked_up(name, 0.0)
        assert not listing.opened(name, 0.0)


def test_from_the_middle():
    """G6: A program that leaves some names out is one as well."""
    listing = ahead()
    assert not listing.looked_up(NAMES[10], 0.0)
    assert listing.looked_up(NAMES[11], 0.0) == NAMES[11 : 11 + AHEAD]
    assert listing.looked_up(NAMES[12], 0.0) == [NAMES[11 + AHEAD]]
    assert listing.looked_up(NAMES[20], 0.0) == NAMES[12 + AHEAD : 20 + AHEAD]


def test_slow_program():
    """G6: in time for what was fetched."""
    listing = ahead()
    assert listing.looked_up(NAMES[0], 0.0)
    assert not listing.looked_up(NAMES[1], TTL + 0.1)
    assert not listing.looked_up(NAMES[2], TTL + 0.1)


def test_age_of_what_an_open_sees():
    """G5: from the third file in a row on, of the time since the listing was opened."""
    listing = ListingReadahead(NAMES, 1.0, TTL)
    ages = []
    for name in NAMES[:4]:
        ages.append(listing.max_age(name, 2.0))
        listing.opened(name, 2.0)
    assert ages == [0, 0, 1, 1]
    assert listing.max_age(NAMES[5], 3.5) == TTL
    assert listing.max_age(NAMES[5], 2.0 + TTL + 0.1) == 0
    assert listing.max_age(NAMES[99], 2.0) == 0


def test_last_use():
    """G6: 30 s after something was fetched, however long the listing is."""
    listing = ahead()
    listing.looked_up(NAMES[50], 1.0)
    listing.opened(NAMES[0], 2.0)
    assert listing.used_at == 0.0
    listing.looked_up(NAMES[51], 3.0)
    assert listing.used_at == 3.0
    listing.opened(NAMES[1], 4.0)
    assert listing.used_at == 4.0


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
    assert len(mount.store.asked) == AHEAD, "too late"
    await trio.sleep(2)
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

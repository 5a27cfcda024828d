"""Memory for content: the last used stays, the bound holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content.cache.memory_cache import MemoryCache
from skymount.content.model.skyfile import Skyfile, UnitKey, Verified
from skymount.wire.skylink import Skylink
from tests.fakes.skyfiles import listing_of

LISTING = listing_of(b"{}")


def key(index: int, root: bytes = bytes(32)) -> UnitKey:
    skyfile = Skyfile(Skylink.v1(root, 1), LISTING, 1 << 40, "", Verified.NO)
    return (skyfile.identity, skyfile.unit, index)


def test_number_of_units():
    """R4: However small the units are, there is a limit to their number."""
    cache = MemoryCache(1 << 20, max_units=3)
    for n in range(3):
        cache.put(key(n), b"x")
    cache.get(key(0))
    cache.put(key(3), b"x")
    assert [n for n in range(4) if key(n) in cache] == [0, 2, 3]
    cache.mark_consumed(key(3))
    cache.put(key(4), b"x")
    assert [n for n in range(5) if key(n) in cache] == [0, 2, 4]
    cache.put(key(4), b"again")
    assert [n for n in range(5) if key(n) in cache] == [0, 2, 4]


def test_what_was_left_goes_first():
    """R4: Where room is needed, what was read in order goes first, as the kernel has it."""
    cache = MemoryCache(40)
    for n in range(4):
        cache.put(key(n), bytes(10))
    cache.mark_consumed(key(2))
    cache.mark_consumed(key(1))
    cache.mark_consumed(key(9))
    assert cache.used == 40
    cache.put(key(4), bytes(10))
    cache.put(key(5), bytes(10))
    assert [n for n in range(6) if key(n) in cache] == [0, 3, 4, 5]
    cache.put(key(6), bytes(10))
    assert key(0) not in cache


def test_what_was_left_and_is_used_again():
    """R4: What is read again stays."""
    cache = MemoryCache(30)
    for n in range(3):
        cache.put(key(n), bytes([n] * 10))
        cache.mark_consumed(key(n))
    assert cache.get(key(0)) == bytes(10)
    cache.put(key(3), bytes(10))
    cache.put(key(4), bytes(10))
    assert [n for n in range(5) if key(n) in cache] == [0, 3, 4]


def test_one_that_is_too_large():
    """R4: A single unit that is larger than the whole cache is held alone."""
    cache = MemoryCache(30)
    cache.put(key(0), bytes(10))
    cache.put(key(1), bytes(31))
    assert key(0) not in cache
    assert key(1) in cache
    assert cache.get(key(1)) == bytes(31)
    assert cache.used == 31
    cache.put(key(2), bytes(99))
    assert key(1) not in cache
    assert cache.get(key(1)) is None
    assert cache.get(key(2)) == bytes(99)
    assert cache.used == 99
    cache.put(key(0), bytes(10))
    assert key(2) not in cache
    assert cache.used == 10


def test_one_that_is_too_large_makes_room():
    """R4: What is on its way counts, so what is held alone goes for it, and does not come then."""
    cache = MemoryCache(30)
    cache.put(key(1), bytes(31))
    assert cache.try_reserve(10, 30)
    assert cache.used == 0
    cache.put(key(1), bytes(31))
    assert cache.used == 0


async def test_room_for_what_is_on_its_way():
    """R4: What is reserved counts, and what is cached makes room for it."""
    cache = MemoryCache(30)
    cache.put(key(0), bytes(20))
    assert cache.try_reserve(10, 30)
    assert key(0) in cache
    await cache.reserve(10)
    assert key(0) not in cache
    assert not cache.try_reserve(11, 30)
    cache.put(key(0), bytes(10))
    assert cache.try_reserve(5, 30)
    assert key(0) not in cache
    assert cache.reserved == 25
    cache.release(25)
    assert cache.reserved == 0


def test_no_memory_at_all():
    """A cache of no bytes keeps nothing."""
    cache = MemoryCache(0)
    cache.put(key(0), b"x")
    assert cache.get(key(0)) is None
    assert cache.used == 0


@settings(derandomize=True, database=None, deadline=None)
@given(puts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.booleans()), max_size=60))
def test_bound(puts: list[tuple[int, int, bool]]):
    """R4: `memory_cache` (128 MiB) bounds the content held in memory.

    Whatever is put, the bound holds and what is found is what was put last.
    """
    cache = MemoryCache(100)
    last: dict[int, bytes] = {}
    for index, size, is_left in puts:
        data = bytes([index]) * size
        cache.put(key(index), data)
        last[index] = data
        if is_left:
            cache.mark_consumed(key(index))
        assert cache.used <= 100
        found = cache.get(key(index))
        assert found == data
    assert all(cache.get(key(n)) in (None, data) for n, data in last.items())

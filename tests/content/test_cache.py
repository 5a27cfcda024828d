"""Memory for content: the last used stays, the bound holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content.cache import MemoryCache
from skymount.content.skyfile import Skyfile, UnitKey, Verified
from skymount.wire.metadata import Metadata
from skymount.wire.skylink import Skylink


def key(index: int, root: bytes = bytes(32)) -> UnitKey:
    """Return the key of a unit."""
    return Skyfile(Skylink.v1(root, 1), Metadata(), 1 << 40, "", Verified.NO).key(index)


def test_keeps_and_returns():
    """What was put is returned, by its key only."""
    cache = MemoryCache(100)
    cache.put(key(1), b"one")
    assert cache.get(key(1)) == b"one"
    assert cache.get(key(2)) is None
    assert cache.get(key(1, b"x" * 32)) is None
    assert key(1) in cache
    assert cache.used == 3


def test_oldest_goes_first():
    """What was used longest ago makes room."""
    cache = MemoryCache(30)
    for n in range(3):
        cache.put(key(n), bytes(10))
    cache.get(key(0))
    cache.put(key(3), bytes(10))
    assert [n for n in range(4) if key(n) in cache] == [0, 2, 3]


def test_one_that_is_too_large():
    """Of what is larger than the whole cache one is kept, and pushes nothing else out."""
    cache = MemoryCache(30)
    cache.put(key(0), bytes(10))
    cache.put(key(1), bytes(31))
    assert key(1) in cache
    assert cache.get(key(1)) == bytes(31)
    cache.put(key(2), bytes(99))
    assert key(1) not in cache
    assert cache.get(key(1)) is None
    assert cache.get(key(2)) == bytes(99)
    assert cache.get(key(0)) == bytes(10)


def test_no_memory_at_all():
    """A cache of no bytes keeps nothing."""
    cache = MemoryCache(0)
    cache.put(key(0), b"x")
    assert cache.get(key(0)) is None
    assert cache.used == 0


@settings(derandomize=True, database=None, deadline=None)
@given(puts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=60))
def test_bound(puts: list[tuple[int, int]]):
    """R4: `memory_cache` (128 MiB) bounds the content held in memory.

    Whatever is put, the bound holds and what is found is what was put last.
    """
    cache = MemoryCache(100)
    last: dict[int, bytes] = {}
    for index, size in puts:
        data = bytes([index]) * size
        cache.put(key(index), data)
        last[index] = data
        assert cache.used <= 100
        found = cache.get(key(index))
        assert found == data
    assert all(cache.get(key(n)) in (None, data) for n, data in last.items())

"""The guess at what is read next. Pure: reads in, ranges to fetch out."""

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content.prefetch import MAX_WINDOW, Readers

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
READ = 128 * KIB


def test_first_read_fetches_nothing():
    """A single read says nothing about the next."""
    assert Readers().note(0, READ, MAX_WINDOW) is None
    assert Readers().note(5 * MIB, 5 * MIB + READ, MAX_WINDOW) is None


def test_second_read_opens_a_window():
    """A read that follows another opens a window that begins where the reads end."""
    readers = Readers()
    readers.note(0, READ, MAX_WINDOW)
    begin, end = readers.note(READ, 2 * READ, MAX_WINDOW) or (0, 0)
    assert begin == 2 * READ
    assert end - begin == 2 * MIB


def test_window_grows_to_its_limit():
    """Each refill doubles the window, up to the limit; nothing is asked for twice."""
    readers = Readers()
    ahead: list[tuple[int, int]] = []
    for start in range(0, GIB // 4, READ):
        found = readers.note(start, start + READ, MAX_WINDOW)
        if found is not None:
            ahead.append(found)
    assert all(before[1] == after[0] for before, after in pairwise(ahead))
    sizes = [end - begin for begin, end in ahead]
    assert max(sizes) <= MAX_WINDOW
    assert max(end for _, end in ahead) >= GIB // 4
    assert len(ahead) < 30


def test_never_far_ahead_of_the_reader():
    """However long the reader goes on, no more than the limit is ahead of it."""
    readers = Readers()
    for start in range(0, 200 * MIB, READ):
        found = readers.note(start, start + READ, 8 * MIB)
        if found is not None:
            assert found[1] <= start + READ + 8 * MIB


def test_random_reads_fetch_nothing():
    """Reads far apart never open a window."""
    readers = Readers()
    luck = random.Random(3)
    places = luck.sample(range(1000), 200)
    assert all(readers.note(n * 16 * MIB, n * 16 * MIB + READ, MAX_WINDOW) is None for n in places)


def test_backward_reads_fetch_nothing():
    """Reading from the end to the start in large steps is not sequential."""
    readers = Readers()
    for n in range(50, 0, -1):
        assert readers.note(n * 8 * MIB, n * 8 * MIB + READ, MAX_WINDOW) is None


def test_out_of_order_reads_are_one_reader():
    """Reads that the kernel sends in another order fetch each byte once all the same."""
    readers = Readers()
    luck = random.Random(5)
    asked: list[tuple[int, int]] = []
    for group in range(0, 64 * MIB, 8 * READ):
        starts = [group + n * READ for n in range(8)]
        luck.shuffle(starts)
        for start in starts:
            found = readers.note(start, start + READ, MAX_WINDOW)
            if found is not None:
                asked.append(found)
    assert len(readers._readers) == 1
    assert all(before[1] <= after[0] for before, after in pairwise(asked))


def test_several_readers_side_by_side():
    """Readers at different places each have a window of their own."""
    readers = Readers()
    bases = [0, GIB, 2 * GIB, 3 * GIB]
    ends = dict.fromkeys(bases, 0)
    for step in range(0, 16 * MIB, READ):
        for base in bases:
            found = readers.note(base + step, base + step + READ, MAX_WINDOW)
            if found is not None:
                assert base <= found[0] < found[1] <= base + step + READ + MAX_WINDOW
                ends[base] = found[1] - base
    assert min(ends.values()) >= 16 * MIB


def test_readers_are_forgotten():
    """Only the last few positions are kept, so a scan over many places does not pile up."""
    readers = Readers()
    for n in range(1000):
        readers.note(n * 100 * MIB, n * 100 * MIB + READ, MAX_WINDOW)
    assert len(readers._readers) <= 8


def test_skip_ahead_of_the_window():
    """A skip beyond what was fetched goes on from there, not from the old window."""
    readers = Readers()
    readers.note(0, READ, MAX_WINDOW)
    readers.note(READ, 2 * READ, MAX_WINDOW)
    found = readers.note(4 * MIB, 4 * MIB + READ, MAX_WINDOW)
    assert found is not None
    assert found[0] >= 4 * MIB + READ


def test_no_window_without_memory():
    """Where there is no room, nothing is fetched ahead."""
    readers = Readers()
    assert all(readers.note(n * READ, (n + 1) * READ, 0) is None for n in range(100))


@settings(derandomize=True, database=None, deadline=None)
@given(
    reads=st.lists(
        st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 20), st.integers(0, MAX_WINDOW)),
        max_size=60,
    )
)
def test_any_reads(reads: list[tuple[int, int, int]]):
    """Whatever is read: a window is never empty, never behind the read, never beyond the limit."""
    readers = Readers()
    for start, length, limit in reads:
        found = readers.note(start, start + length, limit)
        if found is not None:
            assert found[0] < found[1]
            assert found[1] - found[0] <= MAX_WINDOW + (2 << 20) + length
        assert len(readers._readers) <= 8

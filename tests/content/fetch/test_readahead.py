"""Read-ahead: sequential readers are recognised; for all others nothing is fetched ahead."""

import itertools
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from skymount.content.fetch.readahead import (
    MemoryShares,
    ReadaheadConfig,
    SmallFileGroups,
    Stream,
    Streams,
)

KIB, MIB = 1 << 10, 1 << 20
READ = 128 * KIB
SHARE = 64 * MIB
CONFIG = ReadaheadConfig()
QUICK, SLOW = 0.001, 0.1
"""Seconds of a round trip."""


def reader(mark: int = 0) -> Stream:
    """Return a reader that has read up to a place."""
    return Stream(CONFIG, 0, mark, 0.0)


def ahead(stream: Stream, trip: float = QUICK, share: int = SHARE) -> list[tuple[int, int]]:
    """Return what is to be fetched ahead of a reader."""
    return list(stream.requests(MIB, share, trip))


def read_on(
    rate: float, trip: float, *, seconds: float = 3.0, share: int = SHARE, waits: bool = True
):
    """Read sequentially at `rate` bytes a second; return the requests, and how far ahead they are.

    `waits`: the reader has to wait for each read; else for the first one only.
    """
    streams, asked, leads = Streams(CONFIG), [], []
    for n in range(int(rate * seconds) // READ):
        now = n * READ / rate
        stream = streams.note(n * READ, (n + 1) * READ, now, waits=waits or not n)
        asked += ahead(stream, trip, share)
        leads.append(stream.ahead - stream.mark)
    return asked, leads


def test_large_first_read_at_the_start():
    """R5: A first read of 128 KiB or more at the beginning of a file of 8 MiB or more counts as
    sequential too; it is fetched ahead by at most eight times its size.
    """
    for size, trip in itertools.product((128 * KIB, 256 * KIB, MIB), (QUICK, SLOW)):
        stream = Streams(CONFIG).note(0, size, 0.0, waits=True, at_start=True)
        asked = ahead(stream, trip)
        assert asked[0][0] == MIB
        assert asked[-1][1] - MIB <= max(8 * size, 3 * MIB)
        assert not stream.sequential
    assert ahead(Streams(CONFIG).note(0, 64 * KIB, 0.0, waits=True, at_start=True), SLOW) == []


@given(rate=st.sampled_from([1e6, 1e7, 1e8, 1e9]), trip=st.sampled_from([QUICK, SLOW]))
def test_each_byte_is_asked_for_once(rate: float, trip: float):
    """The requests of one reader join without gap or overlap."""
    asked, _ = read_on(rate, trip, seconds=min(3.0, 3e8 / rate))
    assert all(one[1] == two[0] for one, two in itertools.pairwise(asked))
    assert all(start % MIB == stop % MIB == 0 for start, stop in asked)


def test_window_grows_while_the_reader_waits():
    """R5: The window grows while the reader has to wait, and no further."""
    _, leads = read_on(1e6, QUICK, seconds=60, waits=False)
    assert max(leads) <= 6 * MIB
    _, leads = read_on(1e6, SLOW, seconds=60, waits=False)
    assert max(leads) <= 12 * MIB
    _, leads = read_on(1e6, SLOW, seconds=60)
    assert max(leads) > 30 * MIB


def test_window_grows_with_what_was_read():
    """What is fetched in vain for one that stops is bounded by what it has used."""
    for trip, first in ((QUICK, 2 * MIB), (SLOW, 9 * MIB)):
        _, leads = read_on(1e9, trip, seconds=0.2)
        for n, lead in enumerate(leads):
            assert lead <= first + CONFIG.growth * (n + 1) * READ + MIB


def test_two_requests_are_enough_on_a_short_way():
    """R5: Over a short distance no more is fetched ahead than two requests bring, also for a reader
    that waits: the memory is for others.
    """
    for rate, waits in itertools.product((5000 * READ, 10_000 * READ), (False, True)):
        _, leads = read_on(rate, QUICK, seconds=0.2, waits=waits)
        assert max(leads) <= 16 * MIB


@given(share=st.integers(0, 80 * MIB), rate=st.sampled_from([1e7, 1e9]))
def test_never_beyond_its_share(share: int, rate: float):
    """R4: Never more is asked for ahead than the memory that a reader may fill."""
    asked, leads = read_on(rate, SLOW, seconds=1e8 / rate, share=share)
    assert max(leads) <= min(share, CONFIG.max_window) + MIB
    if share < MIB:
        assert asked == []


def test_several_requests_on_a_long_way_few_on_a_short_one():
    """R5: On a long way several requests are under way at once; on a short one they are large."""
    asked, _ = read_on(1e8, SLOW)
    assert 2 * MIB <= asked[-1][1] - asked[-1][0] <= 8 * MIB
    asked, _ = read_on(1e9, QUICK, seconds=0.6)
    assert asked[-1][1] - asked[-1][0] == 8 * MIB


def passed(streams: Streams, reads: Iterable[int], unit: int = MIB) -> list[int]:
    """Return the units that are left behind by reads of so many places, each of 128 KiB."""
    return [
        index
        for n in reads
        for index in streams.note(n * READ, (n + 1) * READ, 0.0).passed_units(unit)
    ]


def test_what_was_read_is_passed():
    """R4: What is read in order without a gap is left behind unit by unit, each once, but not so
    soon that the kernel's own reordering comes back to it.
    """
    assert passed(Streams(CONFIG), range(80)) == list(range(8))
    assert passed(Streams(CONFIG), range(4, 80)) == list(range(1, 8))
    pairs = [0, 1, *(n ^ 1 for n in range(2, 80))]
    assert passed(Streams(CONFIG), pairs) == list(range(8))
    assert passed(Streams(CONFIG), range(80), 4 * MIB) == [0, 1]
    assert passed(Streams(CONFIG), range(16)) == []


def test_who_skips_leaves_nothing_behind():
    """R4: Who passed something by may come back for it."""
    assert passed(Streams(CONFIG), range(0, 80, 2)) == []
    streams = Streams(CONFIG)
    passed(streams, range(40))
    assert passed(streams, range(41, 80)) == []


def test_each_connection_has_enough_to_do_on_a_long_way():
    """R5: Over several connections: once there is enough for all of them, none gets so little that
    it would be done before the next request can reach the portal.
    """
    streams = Streams(CONFIG)
    streams.note(0, 2 * MIB, 0.0, waits=True, at_start=True)
    asked = ahead(streams.note(2 * MIB, 4 * MIB, 0.0), SLOW)
    assert {stop - start for start, stop in asked} == {2 * MIB}
    assert len(asked) >= 10


def test_several_readers_side_by_side():
    """Readers at different places of one skyfile do not disturb each other."""
    streams = Streams(CONFIG)
    places = [n * 100 * MIB for n in range(8)]
    for step in range(20):
        for place in places:
            start = place + step * READ
            stream = streams.note(start, start + READ, 0.0)
            assert stream.begun == place
            assert stream.sequential == (step > 0)


def test_readers_are_forgotten():
    """Of the places of one skyfile the last eight are known."""
    streams = Streams(CONFIG)
    for n in range(100):
        streams.note(n * 100 * MIB, n * 100 * MIB + READ, 0.0)
    assert len(list(streams)) == 8


def test_seek_begins_anew():
    """R5: After a seek the window is small again."""
    streams = Streams(CONFIG)
    for n in range(1000):
        stream = streams.note(n * READ, (n + 1) * READ, n / 1000, waits=True)
        ahead(stream, SLOW)
    assert stream.ahead - stream.mark > 30 * MIB
    far = 900 * MIB
    streams.note(far, far + READ, 1.0, waits=True)
    asked = ahead(streams.note(far + READ, far + 2 * READ, 1.0, waits=True), SLOW)
    assert asked[-1][1] - far <= 12 * MIB


def test_skip_beyond_the_window():
    """A reader that skips a little goes on behind the skip; what it skipped is not asked for."""
    streams = Streams(CONFIG)
    streams.note(0, READ, 0.0)
    streams.note(READ, 2 * READ, 0.0)
    start = 4 * MIB
    asked = ahead(streams.note(start, start + READ, 0.0))
    assert asked[0][0] == 5 * MIB


def fill(shares: MemoryShares, stream: Stream, now: float, most: int = 1 << 40) -> int:
    """Have a reader ask for as much ahead as it may; return how much that is."""
    share = min(shares.take(stream, now), most)
    stream.ahead = max(stream.ahead, stream.mark + share)
    shares.put_back(stream, 1, now)
    return stream.ahead - stream.mark


def test_one_reader_may_fill_nearly_all():
    """R5: As far as the memory allows: one reader alone gets all but a part for who begins."""
    shares, one, two = MemoryShares(90 * MIB, CONFIG.idle), reader(), reader()
    assert fill(shares, one, 0.0) == 80 * MIB
    assert 0 < fill(shares, two, 0.0) < 10 * MIB


def test_many_readers_share_the_memory():
    """R5: Readers share it: who reads on asks for less until all have about the same, and together
    they never ask for more than there is.
    """
    shares, readers = MemoryShares(90 * MIB, CONFIG.idle), [reader() for _ in range(10)]
    for step in range(200):
        for each in readers:
            each.mark = min(each.mark + MIB, each.ahead)
            fill(shares, each, step / 100)
            assert sum(one.ahead - one.mark for one in readers) <= 90 * MIB
    leads = [each.ahead - each.mark for each in readers]
    assert min(leads) > 7 * MIB
    assert max(leads) < 11 * MIB


def test_who_reads_little_leaves_its_share_to_others():
    """R5: A reader that needs only a little does not cost the others more than that."""
    shares, one = MemoryShares(90 * MIB, CONFIG.idle), reader()
    for _ in range(10):
        fill(shares, reader(), 0.0, most=MIB)
    assert fill(shares, one, 0.0) > 70 * MIB


def test_readers_that_are_gone_fill_nothing():
    """R5: Who closed its file, or has not read for two seconds, counts no more."""
    shares, streams, one = MemoryShares(90 * MIB, CONFIG.idle), Streams(CONFIG), reader()
    fill(shares, streams.note(0, MIB, 0.0), 0.0)
    shares.forget(streams)
    assert fill(shares, one, 0.0) == 80 * MIB
    assert fill(shares, reader(), 2.0) < 10 * MIB
    assert fill(shares, reader(), 4.5) == 80 * MIB


def test_unit_that_is_read_counts():
    """R5: A reader holds all of the unit that it reads, whatever of it is read."""
    shares, one = MemoryShares(90 * MIB, CONFIG.idle), reader(41 * MIB)
    shares.take(one, 0.0)
    shares.put_back(one, 40 * MIB, 0.0)
    assert shares.take(reader(), 0.0) == 50 * MIB * 8 // 9


def test_what_is_ahead_of_a_reader():
    """R4: what is fetched ahead stays, for as long as somebody is likely to come for it."""
    streams = Streams(CONFIG)
    streams.note(0, READ, 0.0)
    stream = streams.note(READ, 2 * READ, 0.0)
    ahead(stream, SLOW)
    assert streams.is_ahead(2 * MIB, 1.0)
    assert not streams.is_ahead(0, 1.0)
    assert not streams.is_ahead(stream.ahead, 1.0)
    assert not streams.is_ahead(2 * MIB, 2.5)


def test_small_files_in_any_order():
    """R6: Where several small files of a stretch are read, all of it is fetched; the stretches grow
    as long as that goes on.
    """
    groups = SmallFileGroups(CONFIG.max_group)
    assert groups.missed(5) is None
    assert groups.missed(5) == (5, 6)
    assert [groups.missed(7) for _ in range(3)] == [None, None, (6, 8)]
    assert groups.group == 4


def test_small_files_far_apart():
    """R5: Small files here and there are fetched for themselves."""
    groups = SmallFileGroups(CONFIG.max_group)
    assert [groups.missed(n * 50) for n in range(100)] == [None] * 100


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 30), st.integers(1, 1 << 20), st.floats(0, 0.5)), max_size=60
    )
)
def test_any_reads(reads: list[tuple[int, int, float]]):
    """Whatever is read, what is fetched ahead is ahead, whole units, and bounded."""
    streams, now = Streams(CONFIG), 0.0
    for start, length, pause in reads:
        now += pause
        stream = streams.note(start, start + length, now)
        for low, high in ahead(stream):
            assert low % MIB == high % MIB == 0
            assert stream.mark <= low < high <= stream.mark + CONFIG.max_window + 2 * MIB

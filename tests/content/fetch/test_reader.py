"""Reading by offset: each byte is the right one, or there is an error; nothing is fetched twice."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skymount.content.fetch.readahead import ReadaheadConfig
from skymount.content.model.skyfile import Verified
from skymount.errors import BadContentError, PortalError
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.content_stack import ContentStack, OpenContentStack
from tests.fakes.skyfiles import FakeSkyfile, describe, noise, plain, unverifiable

MIB = 1 << 20
PIECE = 32 << 10
SMALL_UNIT = 4096


def small(**changes: Any) -> dict[str, Any]:
    """Return options of a stack whose blocks have 4 KiB, and whose read-ahead is in proportion."""
    config = ReadaheadConfig(
        max_gap=SMALL_UNIT // 4,
        max_reorder=2 * SMALL_UNIT,
        max_skip=4 * SMALL_UNIT,
        first_request=SMALL_UNIT,
        full_request=SMALL_UNIT,
        max_window=32 * SMALL_UNIT,
        small_file=2 * SMALL_UNIT,
    )
    return {"block_size": SMALL_UNIT, "readahead": replace(config, **changes)}


async def read_all(
    stack: ContentStack, skyfile: FakeSkyfile, step: int = 128 << 10, *, slowly: bool = False
) -> bytes:
    """Read a skyfile's whole payload in order; slowly: all that is fetched ahead is there first."""
    found = await stack.reader.load(skyfile.skylink)
    parts = []
    for offset in range(0, found.size, step):
        data = await stack.reader.read(found, offset, min(step, found.size - offset))
        parts.append(bytes(data))
        while slowly and stack.reader.fetcher.pending:
            await trio.sleep(0.0005)
    return b"".join(parts)


def fetched(stack: ContentStack) -> list[tuple[int, int]]:
    """Return the ranges that were asked for, each from its first to behind its last byte."""
    texts = [request.headers["range"] for request in stack.portal.asked("GET.*concat")]
    spans = [text.removeprefix("bytes=").split("-") for text in texts]
    return [(int(start), int(last) + 1) for start, last in spans]


# --- the right bytes


def every_shape() -> list[tuple[str, FakeSkyfile]]:
    """Return content of each shape, small enough for a test."""
    files = {"a.txt": noise(70_000, 2), "d/empty": b"", "d/b.txt": noise(30_001, 3)}
    sparse = noise(3_000_000, 4) + bytes((40 << 20) - 3_000_000) + noise(70_000, 5)
    return [
        ("inline", skyfiles.of_files(files)),
        ("legacy cipher", skyfiles.of_files(files, cipher=bytes(8))),
        ("1 of n", skyfiles.of_files({"big": noise(9 * MIB + 17, 6)})),
        ("1 of n, several files", skyfiles.of_files({"x": noise(5 * MIB, 7), "y": noise(100, 8)})),
        ("10 of 30", skyfiles.of_metadata(describe({"s": sparse}), sparse, pieces=10)),
        ("packed", skyfiles.packed(files)),
        ("not verifiable", plain(3 * MIB + 5)),
    ]


@pytest.mark.parametrize(("shape", "skyfile"), every_shape())
async def test_whole_content(stack: OpenContentStack, shape: str, skyfile: FakeSkyfile):
    """Content of every shape, read from its first to its last byte, is the content."""
    async with stack() as made:
        made.portal.add(skyfile)
        assert await read_all(made, skyfile) == skyfile.payload


HARMLESS = [
    fake.short(1),
    fake.short(1000),
    fake.excess(b"!"),
    fake.closes_after(0),
    fake.closes_after(5000),
    fake.closes_after(-1),
    fake.resets_after(0),
    fake.resets_after(9000),
    fake.resets_after(-1),
    fake.ignores_range,
    fake.header(b"Content-Range", b"bytes 1-2/3"),
    fake.header(b"Content-Range", b"nonsense"),
    fake.without_header(b"Content-Range"),
    fake.header(b"Content-Encoding", b"gzip"),
    fake.html,
    fake.endless_body,
    fake.status(500),
    fake.status(503),
    fake.status(429),
    fake.redirects("ftp://elsewhere/"),
]


@pytest.mark.parametrize("cache", [0, SMALL_UNIT, 5 * SMALL_UNIT, 4 * MIB])
@pytest.mark.parametrize("seed", range(4))
async def test_never_a_wrong_byte(stack: OpenContentStack, cache: int, seed: int):
    """R1: A read returns exactly the bytes of the content or fails.

    Random reads by several tasks of several files, with faults, cancellation and any size of cache:
    what is returned is the content, in full; what fails is a PortalError.
    """
    luck = random.Random(f"{cache} {seed}")
    contents = [plain(luck.randrange(1, 40 * SMALL_UNIT), 10 * seed + n) for n in range(3)]
    contents.append(skyfiles.of_files({"a": noise(9000, seed), "b": noise(5000, seed + 50)}))
    good = bad = 0

    def misbehave(request: fake.Request, reply: fake.Reply) -> fake.Reply:
        return luck.choice(HARMLESS)(request, reply) if luck.random() < 0.4 else reply

    async with stack(**small(), cache=cache, portals=2) as made:
        for portal in made.portals:
            portal.add(*contents)
        opened = [(content, await made.reader.load(content.skylink)) for content in contents]
        for portal in made.portals:
            portal.fault(misbehave)

        async def reads() -> None:
            nonlocal good, bad
            position = 0
            for _ in range(25):
                content, skyfile = luck.choice(opened)
                size = len(content.payload)
                position = luck.choice([position, luck.randrange(size)]) % size
                length = min(size - position, luck.choice([1, 100, 4096, 5000, 30_000]))
                with trio.move_on_after(luck.choice([0.001, 30, 30, 30])):
                    try:
                        found = await made.reader.read(skyfile, position, length)
                    except PortalError:
                        bad += 1
                    else:
                        assert bytes(found) == content.payload[position : position + length]
                        good += 1
                position += length

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(reads)
        assert made.cache.used <= max(cache, len(contents[-1].payload))  # which is one unit
        for portal in made.portals:
            portal.heal()
        for content, skyfile in opened:  # and nothing of it is left behind
            whole = await made.reader.read(skyfile, 0, len(content.payload))
            assert bytes(whole) == content.payload
    assert good > bad


LIES = [fake.flips(7), fake.flips(-1), fake.swaps(noise(5 * MIB, 99)), fake.swaps(b"")]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("shape", ["inline", "1 of n"])
async def test_lying_portal_alone(stack: OpenContentStack, lie: fake.Fault, shape: str):
    """T2: the content chunk by chunk.

    Wrong bytes of the right length never get through: the read fails, and so does the next.
    """
    size = 50_000 if shape == "inline" else 5 * MIB
    skyfile = skyfiles.of_files({"f": noise(size)})
    async with stack() as made:
        made.portal.add(skyfile)
        if shape == "inline":
            made.portal.fault(lie)
            with pytest.raises(BadContentError):
                await made.reader.load(skyfile.skylink)
        else:
            found = await made.reader.load(skyfile.skylink)
            made.portal.fault(lie)
            for _ in range(2):
                with pytest.raises(BadContentError):
                    await made.reader.read(found, 4 * MIB + 5, 1000)
        made.portal.heal()
        assert await read_all(made, skyfile) == skyfile.payload


async def test_lie_in_any_of_ten_pieces(stack: OpenContentStack):
    """T2: the content chunk by chunk, also where the portal spreads it over ten sectors: a wrong
    byte is found whichever of them it lies in.
    """
    payload = noise(5 * MIB, 12)
    skyfile = skyfiles.of_metadata(describe({"f": payload}), payload, pieces=10)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        assert found.verified is Verified.YES
        for piece in range(10):
            made.portal.fault(fake.flips(MIB // 640 * 640 + 64 * piece))
            with pytest.raises(BadContentError):
                await made.reader.read(found, 0, 1000)
            made.portal.heal()
        assert bytes(await made.reader.read(found, 0, found.size)) == payload


@pytest.mark.parametrize("lie", LIES)
async def test_lying_portal_first(stack: OpenContentStack, lie: fake.Fault):
    """With an honest portal behind the lying one the bytes are right."""
    small, large = skyfiles.of_files({"f": noise(500)}), skyfiles.of_files({"f": noise(5 * MIB)})
    async with stack(portals=2) as made:
        for portal in made.portals:
            portal.add(small, large)
        made.portal.fault(lie)
        assert await read_all(made, small) == small.payload
        assert await read_all(made, large) == large.payload


# --- memory and looking ahead


async def test_read_from_memory_needs_no_request(stack: OpenContentStack):
    """What is in memory is returned at once, also by the synchronous way."""
    skyfile = plain(MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        await made.reader.read(found, 0, 10)
        while made.reader.fetcher.pending:
            await trio.sleep(0.001)
        made.portal.requests.clear()
        ready = made.reader.open(found, 0, MIB).ready(500_000, 1000)
        assert ready is not None
        assert bytes(ready) == skyfile.payload[500_000:501_000]
        assert made.portal.requests == []


async def test_first_read_fetches_no_more_than_it_must(stack: OpenContentStack):
    """R5: a read fetches what it asks for, in pieces of 32 KiB: single reads in the middle of a
    large file ask for their own pieces, nothing ahead.
    """
    skyfile = plain(9 * MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        for offset in (3 * MIB + 5000, 8 * MIB, 3 * MIB, 5 * MIB - 1):
            data = await made.reader.read(found, offset, 100)
            assert bytes(data) == skyfile.payload[offset : offset + 100]
        await wait_all_tasks_blocked()
        assert fetched(made) == [
            (3 * MIB, 3 * MIB + PIECE),
            (8 * MIB, 8 * MIB + PIECE),
            (5 * MIB - PIECE, 5 * MIB + PIECE),
        ]


@pytest.mark.parametrize("step", [-4096, -8192, -PIECE, 64 << 10, 100_000, MIB, 3 * MIB])
async def test_backward_and_strided_reads_fetch_what_they_ask_for(
    stack: OpenContentStack, step: int
):
    """R5: What is read at random, backward or in strides is not fetched ahead."""
    skyfile = plain(40 * MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        offset, pieces = 20 * MIB, set()
        for _ in range(6):
            await made.reader.read(found, offset, 4096)
            pieces |= {offset // PIECE, (offset + 4095) // PIECE}
            offset += step
        await wait_all_tasks_blocked()
        assert sum(stop - start for start, stop in fetched(made)) == len(pieces) * PIECE


async def test_sequential_reads_fetch_each_byte_once(stack: OpenContentStack):
    """A file read from start to end is fetched once, several units with a request."""
    skyfile = plain(100 * SMALL_UNIT)
    async with stack(**small()) as made:
        made.portal.add(skyfile)
        assert await read_all(made, skyfile, SMALL_UNIT) == skyfile.payload
        spans = fetched(made)
        assert sum(stop - start for start, stop in spans) == 100 * SMALL_UNIT
        assert len(spans) < 100


@pytest.mark.parametrize("units", [1, 2, 3])
async def test_looking_ahead_is_bounded_by_the_cache(stack: OpenContentStack, units: int):
    """With room for a few units only, a sequential reader is not robbed of what it reads: each
    unit is fetched about once.
    """
    skyfile = plain(30 * SMALL_UNIT)
    async with stack(**small(), cache=units * SMALL_UNIT) as made:
        made.portal.add(skyfile)
        assert await read_all(made, skyfile, SMALL_UNIT // 8, slowly=True) == skyfile.payload
        assert sum(stop - start for start, stop in fetched(made)) <= 35 * SMALL_UNIT


async def test_reading_in_order_pushes_nothing_out(stack: OpenContentStack):
    """R4: What else was read stays in memory while something far larger is read in order, of which
    little stays.
    """
    other, large = plain(MIB, 5), plain(40 * MIB, 6)
    async with stack(cache=24 * MIB) as made:
        made.portal.add(other, large)
        assert await read_all(made, other) == other.payload
        assert await read_all(made, large) == large.payload
        assert made.cache.used <= 5 * MIB
        count = len(made.portal.requests)
        found = await made.reader.load(other.skylink)
        assert await made.reader.read(found, 0, MIB) == other.payload
        assert not [request for request in made.portal.requests[count:] if request.method == "GET"]


async def test_what_is_fetched_ahead_stays(stack: OpenContentStack):
    """R5: nothing is fetched twice for want of memory: what was just read goes before what is
    fetched ahead, however long that has been here.
    """
    skyfile = plain(200 * SMALL_UNIT)
    async with stack(**small(), cache=40 * SMALL_UNIT) as made:
        made.portal.add(skyfile)
        assert await read_all(made, skyfile, SMALL_UNIT // 2, slowly=True) == skyfile.payload
        assert sum(stop - start for start, stop in fetched(made)) == 200 * SMALL_UNIT


async def test_what_is_read_at_random_stays(stack: OpenContentStack):
    """R4: what is read again or at random stays while another file is read through."""
    skyfile, other = plain(200 * SMALL_UNIT), plain(40 * SMALL_UNIT, 2)
    places = [n * SMALL_UNIT for n in (3, 30, 11, 22)]
    async with stack(**small(), cache=40 * SMALL_UNIT) as made:
        made.portal.add(skyfile, other)
        found = await made.reader.load(other.skylink)
        for place in places:
            await made.reader.read(found, place, 100)
        await read_all(made, skyfile, SMALL_UNIT // 2, slowly=True)
        made.portal.requests.clear()
        for place in places:
            data = await made.reader.read(found, place, 100)
            assert bytes(data) == other.payload[place : place + 100]
        assert fetched(made) == []


async def test_second_reader_finds_what_the_first_has_read(
    stack: OpenContentStack, mock_clock: MockClock
):
    """R4: One that reads the same file a little later in the same order finds what the first one
    has left, from when it began: only what was dropped before is fetched twice.

    The clock hardly moves: how slow this machine is does not count.
    """
    mock_clock.rate = 0.001
    skyfile = plain(200 * SMALL_UNIT)
    async with stack(**small(), cache=40 * SMALL_UNIT) as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        for unit in range(-8, 200):
            for place in (unit, unit + 8):
                if 0 <= place < 200:
                    start = place * SMALL_UNIT
                    data = await made.reader.read(found, start, SMALL_UNIT)
                    assert bytes(data) == skyfile.payload[start : start + SMALL_UNIT]
            while made.reader.fetcher.pending:
                await wait_all_tasks_blocked(0.0005)
        assert sum(stop - start for start, stop in fetched(made)) <= 208 * SMALL_UNIT


async def test_large_first_read_at_the_start_is_read_on(stack: OpenContentStack):
    """R5: a first read of 128 KiB or more at the beginning of a file of 8 MiB or more counts as
    well: what follows is fetched ahead.
    """
    skyfile = plain(9 * MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        await made.reader.read(found, 0, MIB)
        while made.reader.fetcher.pending:
            await trio.sleep(0.001)
        spans = sorted(fetched(made))
        assert all(one[1] == two[0] for one, two in itertools.pairwise(spans))
        assert spans[0] == (0, MIB)
        assert spans[-1][1] > MIB


async def test_looks_at_the_start_fetch_what_they_ask_for(stack: OpenContentStack):
    """R5: a read fetches what it asks for: a look at the start of a large file takes no more, and
    neither does a large read of a smaller one.
    """
    large, small = plain(9 * MIB), plain(7 * MIB, 2)
    async with stack() as made:
        made.portal.add(large, small)
        await made.reader.read(await made.reader.load(large.skylink), 0, 16 << 10)
        await made.reader.read(await made.reader.load(small.skylink), 0, 128 << 10)
        await wait_all_tasks_blocked()
        assert sorted(fetched(made)) == [(0, PIECE), (0, 4 * PIECE)]


async def test_same_link_described_twice(stack: OpenContentStack):
    """Two portals describe the same link that cannot be checked differently: what was kept of one
    is not handed out, cut to size, as the content of the other.
    """
    short, long = plain(1000), plain(5000)
    async with stack() as made:
        made.portal.add(short)
        first = await made.reader.load(short.skylink)
        await made.reader.read(first, 0, 1000)
        made.portal.add(long)
        second = await made.reader.load(long.skylink)
        assert second.verified is Verified.NO
        assert second.skylink == first.skylink
        assert bytes(await made.reader.read(second, 0, 5000)) == long.payload


async def test_first_read_takes_one_request(stack: OpenContentStack):
    """R7: The first read of a file costs one round trip beyond the description, which is asked for
    once.
    """
    skyfile = skyfiles.of_files({"f": noise(9 * MIB)})
    async with stack() as made:
        made.portal.base_sectors = False
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        asked = sorted(request.method for request in made.portal.requests)
        assert asked == ["GET", "HEAD"]  # base sector and headers, at once
        await made.reader.read(found, 0, 4096)
        assert len(made.portal.requests) == 3


async def test_fetches_ahead_end_after_the_last_close(stack: OpenContentStack):
    """R5: When the last of a skylink's files is closed, fetches that nobody waits for are given up;
    what they would have brought can be read all the same.
    """
    skyfile = plain(40 * MIB)
    async with stack(readahead=ReadaheadConfig(linger=0.01)) as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(fake.drips(4096, 0.05), "GET.*concat")
        files = [made.reader.open(found, 0, found.size) for _ in range(2)]
        await files[0].wait(0, 4096)
        await files[0].wait(4096, 4096)  # in order, so that more is on its way
        assert made.reader.fetcher.pending
        files[0].close()
        await trio.sleep(0.05)
        assert made.reader.fetcher.pending  # the other one is open
        files[1].close()
        with trio.fail_after(5):  # what is on its way would take 13 s
            while made.cache.reserved:
                await trio.sleep(0.001)
        assert not made.reader.fetcher.pending
        made.portal.heal()
        assert bytes(await made.reader.read(found, 3 * MIB, 10)) == skyfile.payload[3 * MIB :][:10]


async def test_reading_file_by_file_gives_nothing_up(stack: OpenContentStack):
    """R5: What is fetched ahead is not given up while files are opened now and again, at whatever
    moment none is open.
    """
    skyfile = plain(40 * MIB)
    async with stack(readahead=ReadaheadConfig(linger=0.2)) as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(fake.drips(4096, 0.05), "GET.*concat")
        file = made.reader.open(found, 0, found.size)
        await file.wait(0, 4096)
        await file.wait(4096, 4096)
        file.close()
        on_its_way = dict(made.reader.fetcher.pending)
        assert on_its_way
        for _ in range(12):
            made.reader.open(found, 0, 4096).close()
            await trio.sleep(0.05)
        assert made.reader.fetcher.pending == on_its_way


async def test_reopened_at_once_goes_on(stack: OpenContentStack):
    """R6: Files that are opened one after another share what is fetched ahead."""
    files = {f"{n:04}": noise(4096, n) for n in range(1500)}
    payload = b"".join(files.values())
    skyfile = unverifiable(describe(files), payload)
    async with stack(readahead=ReadaheadConfig(linger=0.05)) as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        for n in range(1500):
            file = made.reader.open(found, n * 4096, 4096)
            data = file.ready(0, 4096)
            if data is None:
                data = await file.wait(0, 4096)
            assert bytes(data) == payload[n * 4096 :][:4096]
            file.close()
        assert len(fetched(made)) < 20
        assert sum(stop - start for start, stop in fetched(made)) < 8 * MIB


async def test_small_files_in_any_order(stack: OpenContentStack):
    """R6: Small files that are read in another order than they lie in take few requests too."""
    files = {f"{n:04}": noise(4096, n) for n in range(2000)}
    payload = b"".join(files.values())
    skyfile = unverifiable(describe(files), payload)
    order = sorted(range(2000), key=lambda n: str(n)[::-1])
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        for n in order:
            file = made.reader.open(found, n * 4096, 4096)
            data = file.ready(0, 4096)
            assert bytes(data or await file.wait(0, 4096)) == payload[n * 4096 :][:4096]
            file.close()
        assert len(fetched(made)) < 40
        assert sum(stop - start for start, stop in fetched(made)) < 12 * MIB


@pytest.mark.parametrize("cache", range(4, 17))
@pytest.mark.parametrize("readers", [1, 2])
async def test_chunks_of_which_few_fit_are_fetched_once(
    stack: OpenContentStack, cache: int, readers: int
):
    """Neither what is read nor what was fetched ahead of it pushes out the other, but once when
    another reader begins.
    """
    skyfiles_ = [skyfiles.of_files({"big": noise(16 * MIB + 17, n)}) for n in range(readers)]
    step = 128 << 10
    async with stack(cache=max(cache, 4 * readers) * MIB) as made:
        files = []
        for skyfile in skyfiles_:
            made.portal.add(skyfile)
            files.append(await made.reader.load(skyfile.skylink))
        for offset in range(0, files[0].size, step):
            for found, skyfile in zip(files, skyfiles_, strict=True):
                size = min(step, found.size - offset)
                data = await made.reader.read(found, offset, size)
                assert data == skyfile.payload[offset : offset + size]
                while made.reader.fetcher.pending:
                    await trio.sleep(0.0005)
        spans = fetched(made)
    again = sum(stop - start for start, stop in spans) - sum(found.size for found in files)
    assert again <= 2 * 4 * MIB * (readers - 1)

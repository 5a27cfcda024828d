"""Fetching units: each once, whoever asks; what arrived stays, what fails is an error."""

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from skymount.content.fetch.readahead import ReadaheadConfig
from skymount.content.model.skyfile import Skyfile, VerifyPolicy
from skymount.errors import (
    BadContentError,
    NotFoundError,
    PortalError,
    UnavailableError,
)
from skymount.portal.http.client import HttpClient
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.content_stack import ContentStack, OpenContentStack
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import FakeSkyfile, noise, plain

MIB = 1 << 20


async def test_good_units_before_a_bad_one_are_kept(stack: OpenContentStack):
    """A lie in the second chunk does not spoil the first, which is not fetched again."""
    skyfile = skyfiles.of_files({"f": noise(9 * MIB)})
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(fake.flips(5 * MIB), "concat", times=1)
        whole = await made.reader.read(found, 0, found.size)
        assert bytes(whole) == skyfile.payload
        ranges = [request.headers["range"] for request in made.portal.asked("GET.*concat")]
        assert ranges == ["bytes=0-9437183", "bytes=4194304-9437183"]


async def test_broken_transfer_is_resumed(stack: OpenContentStack):
    """After a connection breaks, only what is missing is asked for again."""
    skyfile = plain(5 * MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(fake.resets_after(2 * MIB + 5), "GET.*concat", times=1)
        assert bytes(await made.reader.read(found, 0, found.size)) == skyfile.payload
        ranges = [request.headers["range"] for request in made.portal.asked("GET.*concat")]
        assert ranges[0] == "bytes=0-5242879"
        assert ranges[1:] in (["bytes=2097152-5242879"], ["bytes=1048576-5242879"])


# --- errors


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (fake.status(503), UnavailableError),
        (fake.short(1), BadContentError),
        (fake.excess(b"x"), BadContentError),
        (fake.ignores_range, BadContentError),
        (fake.html, BadContentError),
        (fake.closes_after(100), BadContentError),
        (fake.status(404), NotFoundError),
    ],
)
async def test_error_after_retries(
    stack: OpenContentStack, fault: fake.Fault, error: type[PortalError]
):
    """What goes on failing is an error after a bounded number of requests, and healed later."""
    skyfile = plain(3 * MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.requests.clear()
        made.portal.fault(fault)
        with pytest.raises(error):
            await made.reader.read(found, 10, 5)
        assert 1 <= len(made.portal.requests) <= 6
        made.portal.heal()
        assert bytes(await made.reader.read(found, 10, 5)) == skyfile.payload[10:15]


class FaultyHttpClient(HttpClient):
    """Has a bug."""

    def open(self, *_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError


async def test_unforeseen_error_stays_with_the_read(
    stack: OpenContentStack, caplog: pytest.LogCaptureFixture
):
    """A bug in the middle of a fetch is the error of that read; the daemon lives on."""
    skyfile = plain(2 * MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        [client] = made.clients
        working, client.http = client.http, FaultyHttpClient(client.url, client.options)
        with pytest.raises(PortalError):
            await made.reader.read(found, 0, 10)
        client.http = working
        assert "ZeroDivisionError" in caplog.text
        assert bytes(await made.reader.read(found, 0, 10)) == skyfile.payload[:10]


# --- one fetch, whoever asks


async def test_many_readers_one_request(stack: OpenContentStack):
    """R3: However many read the same bytes at once, they are fetched once.

    A hundred tasks that want the same unit cause one request.
    """
    skyfile = plain(MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)

        async def read(offset: int) -> None:
            data = await made.reader.read(found, offset, 100)
            assert bytes(data) == skyfile.payload[offset : offset + 100]

        async with trio.open_nursery() as nursery:
            for n in range(100):
                nursery.start_soon(read, n * 1000)
        assert len(made.portal.asked("GET.*concat")) == 1


async def test_cancelled_reader_leaves_the_fetch_to_others(stack: OpenContentStack):
    """R3: A reader that goes away does not end the fetch that others wait for.

    The one who caused a fetch gives up; the one who waits for the same unit gets it.
    """
    skyfile = plain(MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(fake.drips(10_000, 0.01), "GET.*concat")
        scope = trio.CancelScope()

        async def gives_up() -> None:
            with scope:
                await made.reader.read(found, 0, 100)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gives_up)
            await trio.sleep(0.01)
            scope.cancel()
            assert bytes(await made.reader.read(found, 5, 100)) == skyfile.payload[5:105]
        assert scope.cancelled_caught
        assert len(made.portal.asked("GET.*concat")) == 1


async def test_end_of_the_reader_ends_its_fetches(stack: OpenContentStack):
    """Leaving the reader cancels what is under way, whether somebody waits for it or not, and
    leaves no connection behind.
    """
    skyfile = plain(40 * MIB)
    stall = fake.stalls_after(10)

    def stalls_behind_the_start(request: fake.Request, reply: fake.Reply) -> fake.Reply:
        return reply if request.headers["range"].startswith("bytes=0-") else stall(request, reply)

    async def waits(made: ContentStack, found: Skyfile) -> None:
        with pytest.raises(PortalError):
            await made.reader.read(found, 30 * MIB, 10)

    with trio.fail_after(10):
        async with running(FakePortal()) as portal, trio.open_nursery() as nursery:
            portal.add(skyfile)
            portal.fault(stalls_behind_the_start, "GET.*concat")
            async with stack(urls=[portal.url], idle=100) as made:
                found = await made.reader.load(skyfile.skylink)
                await made.reader.read(found, 0, MIB)  # the next bytes are fetched ahead
                nursery.start_soon(waits, made, found)
                with trio.move_on_after(0.05):
                    await made.reader.read(found, 20 * MIB, 10)
                while len(portal.asked("GET.*concat")) < 4:
                    await trio.sleep(0.001)
            while portal.connections:
                await trio.sleep(0.001)


async def test_fetches_that_nobody_waits_for_make_way(stack: OpenContentStack):
    """R3: What readers that went away had asked for is given up before others have to wait."""
    slow, quick = plain(40 * MIB, 1), skyfiles.of_files({"f": noise(5 * MIB)})
    async with stack(readahead=ReadaheadConfig(patience=0, max_demanded=2), idle=100) as made:
        made.portal.add(slow, quick)
        found = await made.reader.load(slow.skylink)
        wanted = await made.reader.load(quick.skylink)
        made.portal.fault(fake.stalls_after(-1), slow.name)
        async with trio.open_nursery() as nursery:
            for n in range(6):
                nursery.start_soon(made.reader.read, found, n * 5 * MIB, 10)
            await two_requests(made.portal, slow)
            nursery.cancel_scope.cancel()
        with trio.fail_after(30):
            data = await made.reader.read(wanted, 0, 10)
        assert bytes(data) == quick.payload[:10]


@pytest.mark.parametrize("size", [5 * MIB, 5000], ids=["1 of n", "inline"])
async def test_what_is_on_disk_waits_for_no_portal(
    stack: OpenContentStack, tmp_path: Path, size: int
):
    """R13: However many fetches hang, what is on disk is read at once."""
    kept, hanging = skyfiles.of_files({"f": noise(size)}), plain(40 * MIB, 1)
    async with running(FakePortal()) as portal:
        portal.add(kept, hanging)
        async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
            skyfile = await made.reader.load(kept.skylink)
            await made.reader.read(skyfile, 0, size)
            await made.settled()
        config = ReadaheadConfig(max_demanded=2)
        opened = stack(disk=tmp_path / "c", urls=[portal.url], readahead=config, idle=100)
        async with opened as made:
            found = await made.reader.load(hanging.skylink)
            wanted = await made.reader.load(kept.skylink)
            portal.fault(fake.stalls_after(-1))
            made.cache.drop((wanted.identity, wanted.unit, 0))
            async with trio.open_nursery() as nursery:
                for n in range(6):
                    nursery.start_soon(made.reader.read, found, n * 5 * MIB, 10)
                await two_requests(portal, hanging)
                with trio.fail_after(10):
                    data = await made.reader.read(wanted, 0, size)
                nursery.cancel_scope.cancel()
            assert bytes(data) == kept.payload


async def test_what_is_on_disk_waits_for_no_room(stack: OpenContentStack, tmp_path: Path):
    """R4: What is on disk is read at once, though fetches that hang fill the memory cache."""
    kept, hanging = skyfiles.of_files({"f": noise(5 * MIB)}), plain(40 * MIB, 1)
    async with running(FakePortal()) as portal:
        portal.add(kept, hanging)
        async with stack(disk=tmp_path / "c", urls=[portal.url]) as made:
            skyfile = await made.reader.load(kept.skylink)
            await made.reader.read(skyfile, 0, skyfile.size)
            await made.settled()
        opened = stack(disk=tmp_path / "c", urls=[portal.url], cache=8 * MIB, idle=100)
        async with opened as made:
            found = await made.reader.load(hanging.skylink)
            wanted = await made.reader.load(kept.skylink)
            portal.fault(fake.stalls_after(-1))
            async with trio.open_nursery() as nursery:
                for n in (1, 2, 3):  # one more than there is room for
                    nursery.start_soon(made.reader.read, found, n * 12 * MIB, 4 * MIB)
                with trio.fail_after(10):
                    while made.cache.reserved < made.cache.size:
                        await trio.sleep(0.001)
                with trio.fail_after(10):
                    for offset in (4 * MIB, 0):
                        data = await made.reader.read(wanted, offset, MIB)
                        assert bytes(data) == kept.payload[offset : offset + MIB]
                assert made.cache.reserved == made.cache.size
                nursery.cancel_scope.cancel()


async def test_what_needs_a_portal(stack: OpenContentStack, tmp_path: Path):
    """R13: A read needs a portal once its bytes are known not to be on disk, until they come."""
    content = plain(5 * MIB, 1)
    async with stack(disk=tmp_path / "c") as made:
        made.portal.add(content)
        skyfile = await made.reader.load(content.skylink)
        file = made.reader.open(skyfile, MIB, 3 * MIB)
        made.portal.fault(fake.stalls_after(-1), content.name)
        async with trio.open_nursery() as nursery:
            assert not file.needs_portal(MIB, 10)
            nursery.start_soon(file.wait, MIB, 10)
            while not file.needs_portal(MIB, 10):
                await trio.sleep(0.01)
            assert not file.needs_portal(2 * MIB, 10)
            nursery.cancel_scope.cancel()
        made.portal.heal()
        await file.wait(2 * MIB, 10)
        assert not file.needs_portal(2 * MIB, 10)
        file.close()


async def test_what_is_there_or_under_way_is_not_started_again(stack: OpenContentStack):
    """R3: only what is missing is asked for, neighbours with one request."""
    skyfile = plain(6 * MIB)
    async with stack() as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        fetcher = made.reader.fetcher
        keys = [(found.identity, MIB, index) for index in range(6)]
        assert fetcher.start(found, keys[2:3], set())
        assert fetcher.start(found, keys, set())
        assert len(fetcher.jobs) == 3  # the one that was under way, and those beside it
        while fetcher.jobs:
            await trio.sleep(0.001)
        assert fetcher.start(found, keys, set())
        assert not fetcher.jobs
        assert all(fetcher.has(key) for key in keys)
        kept = [fetcher.cache.get(key) for key in keys]
        assert b"".join(bytes(data) for data in kept if data is not None) == skyfile.payload
        assert (fetcher.requests, fetcher.fetched) == (3, 6 * MIB)


async def test_fetches_ahead_are_bounded(stack: OpenContentStack):
    """R5: one that finds no room, or too many before it, is not started; a demanded one is."""
    skyfile = plain(40 * MIB)
    async with stack(cache=4 * MIB, readahead=ReadaheadConfig(max_speculative=2)) as made:
        made.portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(fake.stalls_after(10), "GET.*concat")
        fetcher, small = made.reader.fetcher, found.small_block_size
        keys = [(found.identity, small, 2 * index) for index in range(4)]
        many = [(found.identity, MIB, index) for index in range(20, 30)]
        assert not fetcher.start(found, many, set(), speculative=True)
        assert [fetcher.start(found, [key], set(), speculative=True) for key in keys[:3]] == [
            True,
            True,
            False,
        ]
        assert not fetcher.has(keys[2])
        assert fetcher.start(found, keys[3:], set())
        assert fetcher.has(keys[3])
        assert fetcher.has_speculative(found.identity)
        fetcher.cancel_unwanted(found.identity)
        assert [fetcher.has(key) for key in keys] == [False, False, False, True]


# --- several portals (R11)

SLOW_BODIES = {
    "silent": fake.stalls_after(-1),
    "drips": fake.drips(1000, 0.1),
    "stalls": fake.stalls_after(MIB + MIB // 2),
}


@pytest.mark.parametrize("shape", ["verified", "unverified"])
@pytest.mark.parametrize("name", SLOW_BODIES)
async def test_body_is_late(stack: OpenContentStack, name: str, shape: str):
    """R11: the second portal brings what the first one owes, from the first missing unit on."""
    skyfile = skyfiles.of_files({"f": noise(5 * MIB)}) if shape == "verified" else plain(5 * MIB)
    async with stack(portals=2, idle=100) as made:
        for portal in made.portals:
            portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(SLOW_BODIES[name], "GET.*concat")
        begun = trio.current_time()
        assert bytes(await made.reader.read(found, 0, found.size)) == skyfile.payload
        took = trio.current_time() - begun
        assert took < 10
        await idle(made)
        assert made.cache.reserved == 0
        first = made.portals[1].asked("GET.*concat")[0].headers["range"]
        is_resumed = (name, shape) == ("stalls", "unverified")
        if took < 2.5:  # else a busy machine may have held up the first unit for a second
            assert first.startswith("bytes=1048576-" if is_resumed else "bytes=0-")


async def test_full_memory_and_a_late_portal(stack: OpenContentStack):
    """R4, R11: the second portal is asked at once though the first one's fetches fill the memory,
    and there is a bound to that.
    """
    skyfile = plain(20 * MIB)
    async with stack(portals=2, cache=6 * MIB, idle=100) as made:
        for portal in made.portals:
            portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(fake.stalls_after(-1), "GET.*concat")

        async def read(offset: int) -> None:
            data = await made.reader.read(found, offset, 5 * MIB)
            assert bytes(data) == skyfile.payload[offset : offset + 5 * MIB]

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for n in range(4):
                    nursery.start_soon(read, n * 5 * MIB)
        await idle(made)
        assert made.cache.reserved == 0


async def test_no_room_to_ask_a_second_portal(stack: OpenContentStack):
    """R4, R11: what waits for two late portals takes no more room than its bound."""
    skyfile = plain(20 * MIB)
    config = ReadaheadConfig(hedge_room=MIB)
    async with stack(portals=2, cache=10 * MIB, idle=2.0, readahead=config) as made:
        for portal in made.portals:
            portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        for portal in made.portals:
            portal.fault(fake.stalls_after(-1), "GET.*concat", times=2)
        async with trio.open_nursery() as nursery:
            for n in range(2):
                nursery.start_soon(made.reader.read, found, n * 5 * MIB, 5 * MIB)
            with trio.fail_after(10):
                while not made.portals[1].asked("GET.*concat"):
                    await trio.sleep(0.01)
            await trio.sleep(0.5)
            assert len(made.portals[1].asked("GET.*concat")) == 1
            nursery.cancel_scope.cancel()


async def test_second_portal_lies(stack: OpenContentStack):
    """T2, R11: what a late portal and a liar send together is the content."""
    skyfile = skyfiles.of_files({"f": noise(9 * MIB)})
    async with stack(portals=2) as made:
        slow, liar = made.portals
        for portal in made.portals:
            portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        slow.fault(fake.waits(1.5), "GET.*concat")
        liar.fault(fake.flips(5 * MIB), "GET.*concat")
        assert bytes(await made.reader.read(found, 0, found.size)) == skyfile.payload
        await idle(made)
        assert made.cache.reserved == 0


async def test_nobody_waits(stack: OpenContentStack):
    """R11: what is only fetched ahead is not asked for twice while its portal works."""
    skyfile = plain(8 * MIB)
    async with stack(portals=2, idle=100) as made:
        for portal in made.portals:
            portal.add(skyfile)
        found = await made.reader.load(skyfile.skylink)
        made.portal.fault(fake.waits(2.0), "GET.*concat")  # late after 1 s
        keys = found_keys(made, found)
        assert made.reader.fetcher.start(found, keys, set(), speculative=True)
        while made.reader.fetcher.pending:
            await trio.sleep(0.01)
        assert not made.portals[1].asked("GET.*concat")


@pytest.mark.parametrize("streams", [True, False])
async def test_trial_is_small(stack: OpenContentStack, streams: bool):
    """R11: the beginning is enough to see that a portal works again."""
    before = plain(100)
    files = skyfiles.of_files({f"{number:03}": b"12345678" for number in range(200)})
    many = replace(files, base=None)
    async with stack(portals=2, policy=VerifyPolicy.OFF) as made:
        for portal in made.portals:
            portal.add(before, many)
        first = made.portal
        first.concat = streams
        found = [await made.reader.load(each.skylink) for each in (before, many)]
        first.fault(fake.status(503))
        await made.reader.read(found[0], 0, found[0].size)
        first.heal()
        await trio.sleep(1.1)
        first.requests.clear()
        assert bytes(await made.reader.read(found[1], 0, found[1].size)) == many.payload
        with trio.fail_after(10):
            while not first.requests:
                await trio.sleep(0.01)
        await trio.sleep(0.3)
        assert [request.headers["range"] for request in first.requests] == ["bytes=0-65535"]


async def two_requests(portal: FakePortal, content: FakeSkyfile) -> None:
    """Wait until a portal was asked for two parts of some content."""
    with trio.fail_after(30):
        while len(portal.asked(f"GET.*{content.name}.*concat")) < 2:
            await trio.sleep(0.001)


async def idle(made: ContentStack) -> None:
    """Wait until no fetch is under way."""
    while made.reader.fetcher.jobs:
        await trio.sleep(0.01)


def found_keys(made: ContentStack, skyfile: Skyfile) -> list[tuple[str, int, int]]:
    """Return the keys of the first two units."""
    return [(skyfile.identity, skyfile.block_size, number) for number in (0, 1)]

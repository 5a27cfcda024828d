"""How a range of a payload is asked for: as one stream, and file by file where it must be."""

from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from skymount.content.fetch import range_request
from skymount.content.model.listing import Listing
from skymount.content.model.skyfile import Skyfile, Verified
from skymount.errors import BadContentError, NotFoundError
from skymount.portal.client.base import PortalReader
from skymount.portal.client.client import PortalClient
from skymount.portal.http.connection_pool import ConnectionPool
from skymount.portal.http.http11 import HTTP11Connection
from skymount.wire.metadata import Metadata, Subfile
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import FakeSkyfile, noise

# --- file by file

FILES = {"a": noise(1000, 1), "empty": b"", "d/b c": noise(5000, 2), "é": noise(3, 3)}
CONTENT = skyfiles.of_files(FILES)


def skyfile_of(content: FakeSkyfile, metadata: Metadata | None = None) -> Skyfile:
    described = skyfiles.listing_of(metadata or content.metadata, len(content.payload))
    return Skyfile(content.skylink, described, len(content.payload), "", Verified.NO)


async def receive(
    client: PortalReader,
    skyfile: Skyfile,
    start: int,
    sizes: list[int],
    refused: set[PortalReader] | None = None,
) -> tuple[list[bytes], list[int]]:
    """Receive buffers of these sizes; return what they hold, and the numbers that were told."""
    views = [memoryview(bytearray(size)) for size in sizes]
    none = set() if refused is None else refused
    units = range_request.receive(client, skyfile, start, views, none)
    async with aclosing(units):
        numbers = [number async for number in units]
    return [bytes(view) for view in views], numbers


async def read(
    portal: FakePortal, start: int, stop: int, metadata: Metadata | None = None
) -> bytes:
    async with PortalClient(portal.url, retries=0) as client:
        skyfile = skyfile_of(CONTENT, metadata)
        return (await receive(client, skyfile, start, [stop - start]))[0][0]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 6003), (0, 1), (999, 1001), (1000, 6000), (500, 6003), (5999, 6003)]
)
@pytest.mark.parametrize("concat", [True, False])
async def test_any_range(start: int, stop: int, concat: bool):
    """A range over several files is the same, in one stream or file by file."""
    async with running(FakePortal(concat=concat)) as portal:
        portal.add(CONTENT)
        assert await read(portal, start, stop) == CONTENT.payload[start:stop]
        assert len(portal.asked("concat")) == 1
        assert portal.asked("empty") == []


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("sizes", [[1], [1000, 5003], [10, 20, 4000, 1, 1972], [1001] * 5])
async def test_buffers_are_filled_one_by_one(concat: bool, sizes: list[int]):
    """Each buffer is told of once it holds its part of the payload, in order."""
    async with running(FakePortal(concat=concat)) as portal, PortalClient(portal.url) as client:
        portal.add(CONTENT)
        found, numbers = await receive(client, skyfile_of(CONTENT), 0, sizes)
        assert b"".join(found) == CONTENT.payload[: sum(sizes)]
        assert numbers == list(range(len(sizes)))


async def test_last_buffer_waits_for_the_end():
    """R1: What comes after the last byte, too many of them, is known before the last is told of."""
    async with running(FakePortal()) as portal, PortalClient(portal.url, retries=0) as client:
        portal.add(CONTENT)
        portal.fault(fake.endless_body, "GET")
        views = [memoryview(bytearray(100)) for _ in range(2)]
        units = range_request.receive(client, skyfile_of(CONTENT), 0, views, set())
        async with aclosing(units):
            with pytest.raises(BadContentError):
                assert [number async for number in units] == [0]


async def test_answer_that_does_not_say_how_long_it_is():
    """R1: No buffer of it is told of before its end is known; each is received in its place."""
    async with running(FakePortal()) as portal, PortalClient(portal.url, retries=0) as client:
        portal.add(CONTENT)
        portal.fault(fake.without_length, "GET")
        sizes = [10, 20, 4000, 1, 1972]
        found, numbers = await receive(client, skyfile_of(CONTENT), 0, sizes)
        assert b"".join(found) == CONTENT.payload
        assert numbers == list(range(len(sizes)))
        portal.heal()
        longer = fake.excess(b"!")
        portal.fault(lambda asked, reply: fake.without_length(asked, longer(asked, reply)))
        views = [memoryview(bytearray(3000)), memoryview(bytearray(3003))]
        units = range_request.receive(client, skyfile_of(CONTENT), 0, views, set())
        async with aclosing(units):
            with pytest.raises(BadContentError, match="more bytes"):
                await anext(units)


MANY = skyfiles.of_files({f"d/{n:04}": noise(7, n) for n in range(2000)})


class CountedListing:
    """Counts the files that are looked up."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self.records = listing.records
        self.looked_up = 0

    def extents_from(self, position: int) -> Iterator[tuple[str, int, int]]:
        for extent in self._listing.extents_from(position):
            self.looked_up += 1
            yield extent


async def test_failing_file_ends_it_at_once():
    """Files are looked up when their turn comes; when one cannot be had, no other is."""
    skyfile = skyfile_of(MANY)
    listing = CountedListing(skyfile.listing)
    async with (
        running(FakePortal(concat=False)) as portal,
        PortalClient(portal.url, retries=0) as client,
    ):
        portal.add(MANY)
        portal.fault(fake.status(404), "/d/")
        with pytest.raises(NotFoundError):
            await receive(client, replace(skyfile, listing=listing), 0, [len(MANY.payload)])
    assert 0 < listing.looked_up <= 2 * 16


@pytest.mark.parametrize("concat", [True, False])
async def test_every_request_is_as_speculative_as_the_whole(
    concat: bool, monkeypatch: pytest.MonkeyPatch
):
    """R5: file by file as well, a range that is fetched ahead lets reads go first."""
    found: list[object] = []
    lend = ConnectionPool.lend

    async def recorded(
        pool: ConnectionPool, limit: float, *, speculative: Callable[[], bool] | None = None
    ) -> HTTP11Connection:
        found.append(speculative)
        return await lend(pool, limit, speculative=speculative)

    monkeypatch.setattr(ConnectionPool, "lend", recorded)

    def speculative() -> bool:
        return True

    async with (
        running(FakePortal(concat=concat)) as portal,
        PortalClient(portal.url, retries=0) as client,
    ):
        portal.add(CONTENT)
        view = memoryview(bytearray(len(CONTENT.payload)))
        units = range_request.receive(
            client, skyfile_of(CONTENT), 0, [view], set(), speculative=speculative
        )
        async with aclosing(units):
            assert [number async for number in units] == [0]
        assert view == CONTENT.payload
    assert found == [speculative] * (1 if concat else 4)


async def test_portal_without_the_format_is_known_as_one():
    """A portal that had to be asked by file is not asked for the stream again."""
    async with running(FakePortal(concat=False)) as portal, PortalClient(portal.url) as client:
        portal.add(CONTENT)
        refused: set[PortalReader] = set()
        for _ in range(3):
            await receive(client, skyfile_of(CONTENT), 0, [6003], refused)
        assert refused == {client}
        assert len(portal.asked("concat")) == 1


async def test_portal_that_serves_an_archive_instead():
    """A portal that does not know the format and answers with something else is asked by file."""
    async with running(FakePortal()) as portal:
        portal.add(CONTENT)
        portal.fault(lambda *_: fake.Reply(200, (), b"PK" + bytes(7000)), "concat")
        assert await read(portal, 10, 3000) == CONTENT.payload[10:3000]


async def test_one_file_is_not_asked_for_twice():
    """Content of a single file has no other way to be asked for."""
    single = skyfiles.of_files({"only": noise(1000)})
    async with running(FakePortal()) as portal:
        portal.add(single)
        portal.fault(fake.status(400))
        async with PortalClient(portal.url, retries=0) as client:
            with pytest.raises(Exception, match="no"):
                await receive(client, skyfile_of(single), 0, [5])
        assert len(portal.requests) == 1


def extents(*subfiles: tuple[str, int, int]) -> Metadata:
    found = {
        path: Subfile(filename=path, offset=offset, len=size) for path, offset, size in subfiles
    }
    return Metadata("d", len(CONTENT.payload), subfiles=found)


@pytest.mark.parametrize(
    "metadata",
    [
        extents(("a", 0, 900), ("d/b c", 1000, 5000)),
        extents(("a", 0, 1000), ("d/b c", 1000, 100)),
        extents(("a", 10, 1000), ("d/b c", 1010, 5000)),
        extents(("x", 0, 0), ("y", 0, 0)),
    ],
    ids=["gap", "too short", "late", "empty"],
)
async def test_extents_that_leave_something_out(metadata: Metadata):
    """Bytes that belong to no file cannot be had file by file: an error, never other bytes."""
    async with running(FakePortal(concat=False)) as portal:
        portal.add(CONTENT)
        with pytest.raises((BadContentError, NotFoundError)):
            await read(portal, 0, 6003, metadata)


@pytest.mark.parametrize("path", ["../x", "a/../../svc/skyfile", "", "/etc/passwd", "a//b", "."])
async def test_hostile_paths_are_not_asked_for(path: str):
    """A path that a portal would read as another one is not sent."""
    async with running(FakePortal(concat=False)) as portal:
        portal.add(CONTENT)
        with pytest.raises(BadContentError, match="no file can be asked for"):
            await read(portal, 0, 10, extents((path, 0, 6000), ("a", 6000, 3)))
        assert len(portal.requests) == 1


async def test_file_of_another_size():
    """A file that is not as long as the metadata says is bad content."""
    async with running(FakePortal(concat=False)) as portal:
        portal.add(CONTENT)
        with pytest.raises(BadContentError):
            await read(portal, 0, 700, extents(("a", 0, 700), ("d/b c", 700, 5303)))

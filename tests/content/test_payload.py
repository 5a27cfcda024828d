"""How a range of a payload is asked for: regrouping, and file by file where it must be."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skymount.content import payload
from skymount.content.skyfile import Skyfile, Verified
from skymount.errors import BadContentError, NotFoundError
from skymount.portal.client import PortalClient
from skymount.wire.metadata import Metadata, Subfile, parse_metadata
from skymount.wire.ranges import ByteRange
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import FakeSkyfile, noise


async def _of(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@settings(derandomize=True, database=None, deadline=None)
@given(pieces=st.lists(st.binary(max_size=40), max_size=20), size=st.integers(1, 50))
async def test_cut(pieces: list[bytes], size: int):
    """Whatever the pieces: blocks of exactly the size, the last one shorter, nothing lost."""
    blocks = [block async for block in payload.cut(_of(pieces), size)]
    assert b"".join(blocks) == b"".join(pieces)
    assert all(len(block) == size for block in blocks[:-1])
    assert all(0 < len(block) <= size for block in blocks)


async def test_cut_withholds_the_last_block():
    """A block is handed out when it is known that it was not followed by too much."""

    async def fails() -> AsyncIterator[bytes]:
        yield b"abcd"
        raise BadContentError("too much")

    with pytest.raises(BadContentError):
        await anext(payload.cut(fails(), 4))


# --- file by file

FILES = {"a": noise(1000, 1), "empty": b"", "d/b c": noise(5000, 2), "é": noise(3, 3)}
CONTENT = skyfiles.of_files(FILES)


def skyfile_of(content: FakeSkyfile, metadata: Metadata | None = None) -> Skyfile:
    """Return the description of content."""
    described = metadata or parse_metadata(content.metadata)
    return Skyfile(content.skylink, described, len(content.payload), "", Verified.NO)


async def read(
    portal: FakePortal, start: int, stop: int, metadata: Metadata | None = None
) -> bytes:
    """Read a range of the content."""
    async with PortalClient(portal.url, retries=0) as client:
        skyfile = skyfile_of(CONTENT, metadata)
        async with payload.stream(client, skyfile, ByteRange(start, stop)) as pieces:
            return b"".join([piece async for piece in pieces])


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
                async with payload.stream(client, skyfile_of(single), ByteRange(0, 5)):
                    pass
        assert len(portal.requests) == 1


def extents(*subfiles: tuple[str, int, int]) -> Metadata:
    """Return metadata of files with these extents."""
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

"""What a mount asks of a portal: headers, stored bytes, and ranges of content."""

import json
from dataclasses import replace

import pytest

from skymount.content.worker.shared_memory import FileReceiver, open_memory_file
from skymount.errors import BadContentError, PortalError, UnavailableError
from skymount.wire import merkle
from skymount.wire.dialect import SKYNET
from skymount.wire.http.byte_range import ByteRange
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.portal.client.one_portal import LARGE, SMALL, read, talking
from tests.portal.ranges import received


async def test_head():
    """A HEAD request tells skylink, stored metadata, size and type of the whole skylink."""
    async with talking() as (portal, client):
        head = await client.head(SMALL.skylink)
        assert head.skylink == SMALL.skylink
        assert head.metadata == SMALL.metadata
        assert head.size == len(SMALL.payload)
        assert [str(request) for request in portal.requests] == [
            f"HEAD /{SMALL.name}?format=concat"
        ]


async def test_head_of_a_portal_that_says_nothing():
    """Headers that are missing or senseless are None or empty, not errors."""
    async with talking() as (portal, client):
        portal.fault(lambda *_: fake.Reply(200, ((b"Content-Type", b""),), b""))
        head = await client.head(SMALL.skylink)
        assert (head.skylink, head.metadata, head.size) == (None, None, 0)


async def test_skylink_header_that_is_none():
    """A portal that names nonsense as the skylink is not believed anything."""
    async with talking() as (portal, client):
        portal.fault(fake.header(b"Svc-Skylink", b"nonsense"))
        with pytest.raises(BadContentError):
            await client.head(SMALL.skylink)


@pytest.mark.parametrize(
    "raw",
    ['{"filename":"é😀"}'.encode(), b'{"filename":"\xff\xfe"}', b"{}" + b" " * 200_000, b"x\ty"],
    ids=["utf-8", "not utf-8", "long", "tab"],
)
async def test_metadata_header_is_raw(raw: bytes):
    """The metadata header's bytes arrive as they were sent, in whatever encoding or length."""
    async with talking() as (portal, client):
        portal.fault(fake.header(b"svc-metadata", raw.strip()))
        head = await client.head(SMALL.skylink)
        assert head.metadata == raw.strip()


@pytest.mark.parametrize("status", [500, 502, 503, 599])
async def test_status_of_headers_that_cannot_be_sent(status: int):
    """T3: headers are not needed: that a portal fails to send them is told, not raised."""
    async with talking() as (portal, client):
        portal.fault(fake.status(status, "the reason"), "^HEAD")
        found = await client.head(LARGE.skylink)
        assert (found.metadata, found.size) == (None, None)
        assert isinstance(found.failure, UnavailableError)
        assert found.failure.status == status


async def test_other_dialect():
    """In another dialect other paths and headers are used."""
    async with talking(dialect=SKYNET) as (portal, client):
        portal.fault(fake.header(b"skynet-file-metadata", b"{}"), "HEAD")
        assert (await client.head(SMALL.skylink)).metadata == b"{}"
        with pytest.raises(PortalError):
            await client.raw_metadata(SMALL.skylink)
        assert portal.requests[-1].target == f"/skynet/metadata/{SMALL.name}"
        assert "Sia-Agent" in portal.requests[-1].headers["user-agent"]


async def test_metadata_and_base_sector():
    """Both endpoints give the stored bytes."""
    async with talking() as (_, client):
        assert await client.raw_metadata(SMALL.skylink) == SMALL.metadata
        assert await client.base_sector(SMALL.skylink) == SMALL.base


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (5, 1_000_000), (2_999_999, 3_000_000)])
async def test_range(start: int, stop: int):
    """A range is exactly what was asked for."""
    async with talking() as (portal, client):
        assert await read(client, start, stop) == LARGE.payload[start:stop]
        assert portal.requests[0].headers["range"] == f"bytes={start}-{stop - 1}"


async def test_whole_content_by_status_200():
    """A portal that ignores ranges is good enough for the whole."""
    async with talking() as (portal, client):
        portal.fault(fake.ignores_range)
        assert await read(client) == LARGE.payload


async def test_range_of_something_else():
    """A portal that does not know the format sends a range of the start page; all that tells is
    the size of it, which must be there. A file that is asked for by its name may lack it.
    """
    async with talking() as (portal, client):
        portal.fault(fake.header(b"Content-Range", b"bytes 5-9/*"))
        with pytest.raises(BadContentError, match="asked for"):
            await read(client, 5, 10)
        (path,) = LARGE.files
        size = len(LARGE.payload)
        found = await received(client, LARGE.skylink, path, ByteRange(5, 10), size)
        assert found == LARGE.payload[5:10]


async def test_path_is_encoded():
    """A path inside a skylink is percent-encoded, each element by itself."""
    path = "d?/#%41+ é\n\"'\\"
    content = skyfiles.of_files({path: b"odd", "x": b""})
    async with talking() as (portal, client):
        portal.add(content)
        assert await received(client, content.skylink, path, ByteRange(0, 3), 3) == b"odd"
        assert portal.requests[0].path == f"/{content.name}/{path}"
        assert set(portal.requests[0].query) <= {"no-response-metadata"}


async def test_sector():
    """The beginning of a sector is believed if the sector with it has the root that was asked for;
    the rest of it counts as zeros.
    """
    data = b"beginning of a sector"
    root = merkle.sector_root(data)
    async with talking() as (portal, client):
        portal.add(replace(SMALL, sectors={root: data}))
        assert await client.sector(root, len(data)) == data
        assert portal.requests[-1].query == {
            "root": root.hex(),
            "offset": "0",
            "length": str(len(data)),
        }
        with pytest.raises(BadContentError, match="is not the content"):
            await client.sector(root, len(data) - 1)
        portal.fault(fake.flips(3))
        with pytest.raises(BadContentError, match="is not the content"):
            await client.sector(root, len(data))


async def test_where_a_v2_skylink_leads_without_headers():
    """T3: the portal is asked by another endpoint, and its proof comes along."""
    link = skyfiles.resolver()
    answer = fake.Reply(200, ((b"svc-proof", b"[]"),), json.dumps({"skylink": SMALL.name}).encode())
    async with talking() as (portal, client):
        portal.resolve(link, SMALL)
        portal.fault(fake.status(502), "^HEAD")
        portal.fault(lambda *_: answer, "/svc/resolve/")
        found = await client.head(link)
        assert (found.skylink, found.metadata, found.proof) == (SMALL.skylink, None, b"[]")
        assert portal.requests[-1].target == f"/svc/resolve/{link}"


async def test_metadata_into_a_file():
    """It is what the endpoint sends, in memory that the caller gives."""
    async with talking() as (_, client), open_memory_file() as file:
        receiver = FileReceiver(file)
        await client.metadata_into(SMALL.skylink, receiver)
        receiver.finish()
        assert bytes(file.content()) == SMALL.metadata

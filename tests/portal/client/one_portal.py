"""A portal with a small and a large skyfile, and a client of it that repeats nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skymount.portal.client.client import PortalClient
from skymount.settings import PortalOptions
from skymount.wire.http.byte_range import ByteRange
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import noise
from tests.portal.ranges import received

SECRET = "pass word/of the operator"
SMALL = skyfiles.of_files({"a.txt": b"hello", "d/b": noise(3000)})
LARGE = skyfiles.of_files({"f": noise(3_000_000, 2)})


@asynccontextmanager
async def talking(**options: object) -> AsyncIterator[tuple[FakePortal, PortalClient]]:
    async with running(FakePortal()) as portal:
        portal.add(SMALL, LARGE)
        settings = {"idle_timeout": 5.0, "api_key": SECRET, "retries": 0, **options}
        client = PortalClient.of(PortalOptions(portal.url, **settings))  # type: ignore[arg-type]
        async with client:
            yield portal, client


async def read(client: PortalClient, start: int = 0, stop: int | None = None) -> bytes:
    """Read a range of the large file."""
    wanted = ByteRange(start, stop or len(LARGE.payload))
    return await received(client, LARGE.skylink, "", wanted, len(LARGE.payload))

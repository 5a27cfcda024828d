"""A client of the library, and a fake portal that it talks to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skymount.portal.client.client import PortalClient
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import FakeSkyfile


@asynccontextmanager
async def connected(
    portal: FakePortal, *content: FakeSkyfile, **options: object
) -> AsyncIterator[tuple[FakePortal, PortalClient]]:
    """Run a portal that has content; yields it and a client of it."""
    async with running(portal):
        portal.add(*content)
        async with PortalClient(portal.url, **options) as client:  # type: ignore[arg-type]
            yield portal, client

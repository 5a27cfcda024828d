"""Owns joining portals, clients and a reader as the daemon joins them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from skymount.content.cache import MemoryCache
from skymount.content.loader import Loader
from skymount.content.reader import ContentReader, open_reader
from skymount.content.skyfile import Policy
from skymount.portal.client import PortalClient
from skymount.portal.failover import Portals
from skymount.portal.options import PortalOptions
from tests.fakes.portal import FakePortal, running


@dataclass
class Rig:
    """Everything between a portal's socket and the file system."""

    reader: ContentReader
    loader: Loader
    cache: MemoryCache
    portals: list[FakePortal]

    @property
    def portal(self) -> FakePortal:
        """The first portal."""
        return self.portals[0]


OpenRig = Callable[..., AbstractAsyncContextManager[Rig]]


@asynccontextmanager
async def open_rig(
    *,
    portals: int = 1,
    cache: int = 64 << 20,
    policy: Policy = Policy.AVAILABLE,
    idle: float = 5.0,
    connections: int = 32,
) -> AsyncIterator[Rig]:
    """Make a rig with so many portals; `idle` is the time-out between two pieces, in seconds."""
    async with AsyncExitStack() as stack:
        fakes, clients = [], []
        for _ in range(portals):
            fake = await stack.enter_async_context(running(FakePortal()))
            options = PortalOptions(fake.url, idle_timeout=idle, connections=connections, retries=0)
            fakes.append(fake)
            clients.append(await stack.enter_async_context(PortalClient.of(options)))
        asked = Portals(clients)
        memory = MemoryCache(cache)
        loader = Loader(asked, policy)
        reader = await stack.enter_async_context(open_reader(asked, loader, memory))
        yield Rig(reader, loader, memory, fakes)

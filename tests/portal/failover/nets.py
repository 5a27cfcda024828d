"""Fake portals at real sockets, healthy and broken, and what asks them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import trio
import trio.testing

from skymount.portal.client.client import PortalClient
from skymount.portal.failover.health import HealthFigures
from skymount.portal.failover.portals import Portals
from skymount.settings import PortalOptions
from skymount.wire.skylink import Skylink
from tests.fakes import portal as fake
from tests.fakes.portal import FakePortal, Fault, running
from tests.fakes.skyfiles import noise, of_files

SMALL = of_files({"a.txt": b"hello"})
LARGE = of_files({"f": noise(1 << 20, 2)})
ABSENT = of_files({"a.txt": b"somewhere else"})

FIRST = 4.0  # seconds that the first operation may take
LATER = 0.9  # and each later one, on average

BROKEN = {
    "silent": fake.stalls_after(-1),
    "answers after 3 s": fake.waits(3.0),
    "drips its head": fake.drips_head(0.2),
    "drips 10 KB/s": fake.drips(1000, 0.1),
    "stalls in the body": fake.stalls_after(10_000),
}


@dataclass
class Net:
    """Fake portals, and what asks them."""

    fakes: list[FakePortal]
    portals: Portals

    async def base_sector(self, skylink: Skylink = SMALL.skylink) -> bytes:
        """Ask for a base sector, as everything asks that may be asked twice."""

        async def ask(client: PortalClient) -> bytes:
            return await client.base_sector(skylink)

        return await self.portals.first(ask, probe=ask)

    def figures(self, number: int) -> HealthFigures:
        return self.portals.figures()[number]


@asynccontextmanager
async def net(
    *faults: Fault | None, pattern: str = "", connections: int = 8, idle_timeout: float = 60.0
) -> AsyncIterator[Net]:
    """Run a portal for each fault, in this order of preference; None is a healthy one."""
    async with AsyncExitStack() as stack:
        fakes, clients = [], []
        for fault in faults:
            portal = FakePortal()
            portal.add(SMALL, LARGE)
            if fault is not None:
                portal.fault(fault, pattern)
            fakes.append(await stack.enter_async_context(running(portal)))
            options = PortalOptions.parse(portal.url, retries=0, connections=connections)
            client = PortalClient.of(replace(options, idle_timeout=idle_timeout))
            clients.append(await stack.enter_async_context(client))
        probes = await stack.enter_async_context(trio.open_nursery())
        yield Net(fakes, Portals(clients, background=probes))
        probes.cancel_scope.cancel()


async def small(client: PortalClient) -> bytes:
    return await client.base_sector(SMALL.skylink)


async def seconds(work: Callable[[], Awaitable[object]]) -> float:
    """Do something; return how long it took."""
    begun = trio.current_time()
    with trio.fail_after(60):
        await work()
    return trio.current_time() - begun

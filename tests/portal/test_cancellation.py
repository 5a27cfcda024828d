"""Requests that are cancelled at each place where they wait: the one connection stays usable."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from skymount.portal.client import PortalClient
from skymount.portal.upload import UploadBody
from skymount.wire.ranges import ByteRange
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, Reply, Request, running
from tests.fakes.skyfiles import noise

SMALL = skyfiles.of_files({"a.txt": b"hello", "d/b": noise(3000)})
LARGE = skyfiles.of_files({"f": noise(300_000, 2)})
_MOST = 500  # places; a request that waits more often does not end

Ask = Callable[[PortalClient], Awaitable[object]]


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when a task stops to wait for the n-th time."""

    def __init__(self, scope: trio.CancelScope, place: int) -> None:
        self._task = trio.lowlevel.current_task()
        self._scope = scope
        self._left = place

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def cancelled_at(place: int, ask: Awaitable[object]) -> bool:
    """Run a request that is cancelled at its n-th place; tell whether that ended it."""
    with trio.CancelScope() as scope:
        instrument = CancelAt(scope, place)
        trio.lowlevel.add_instrument(instrument)
        try:
            await ask
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


def closing(request: Request, reply: Reply) -> Reply:
    """Answer, and end the connection."""
    return replace(reply.with_header(b"Connection", b"close"), then="close")


@asynccontextmanager
async def talking(*, anew: bool) -> AsyncIterator[tuple[FakePortal, PortalClient]]:
    """Yield a portal, and a client with one connection; `anew`: each request makes another."""
    async with running(FakePortal()) as portal:
        portal.add(SMALL, LARGE)
        if anew:
            portal.fault(closing)
        async with PortalClient(portal.url, connections=1, timeout=20, retries=0) as client:
            yield portal, client


async def fetch(client: PortalClient) -> None:
    assert await client.raw_metadata(SMALL.skylink) == SMALL.metadata


async def stream(client: PortalClient) -> None:
    wanted = ByteRange(10, 250_000)
    async with client.stream(LARGE.skylink, "", wanted, len(LARGE.payload)) as pieces:
        assert b"".join([piece async for piece in pieces]) == LARGE.payload[10:250_000]


async def every_place(client: PortalClient, ask: Ask) -> int:
    """Cancel a request at its first place, its second, ... until it ends before; count them."""
    for place in range(1, _MOST):
        with trio.fail_after(20):
            cancelled = await cancelled_at(place, ask(client))
            await fetch(client)
        if not cancelled:
            return place
    raise AssertionError("the request does not end")


@pytest.mark.parametrize("anew", [True, False])
async def test_fetch(anew: bool):
    """A whole answer may be given up anywhere."""
    async with talking(anew=anew) as (_, client):
        assert await every_place(client, fetch) > 5


@pytest.mark.parametrize("anew", [True, False])
async def test_stream(anew: bool):
    """A stream may be given up anywhere, also in the middle of its bytes."""
    async with talking(anew=anew) as (_, client):
        assert await every_place(client, stream) > 5


@pytest.mark.parametrize("anew", [True, False])
async def test_upload(tmp_path: Path, anew: bool):
    """An upload may be given up anywhere, and its file is closed."""
    (tmp_path / "f").write_bytes(noise(2_500_000))
    body = UploadBody.of_path(tmp_path / "f")

    async def upload(client: PortalClient) -> None:
        assert (await client.send_upload(body)).skylink == SMALL.skylink

    async with talking(anew=anew) as (_, client):
        assert await every_place(client, upload) > 5


async def test_first_request():
    """So may the request that has to set up the client first."""
    async with running(FakePortal()) as portal:
        portal.add(SMALL)
        for place in range(1, _MOST):
            async with PortalClient(portal.url, connections=1, retries=0) as client:
                with trio.fail_after(20):
                    cancelled = await cancelled_at(place, fetch(client))
                    await fetch(client)
            if not cancelled:
                break
        assert place > 5


async def test_redirect():
    """So may one that is on its way elsewhere."""
    async with talking(anew=False) as (portal, client):
        portal.fault(fake.redirects(f"/{LARGE.name}?format=concat", 307), "no-response-metadata")
        assert await every_place(client, stream) > 5


async def test_pause_before_a_repetition():
    """The pause before a repetition can be cancelled, and holds no connection meanwhile."""
    async with talking(anew=False) as (portal, _):
        refusing = fake.error(503, "busy").with_header(b"Retry-After", b"50")
        portal.fault(lambda *_: refusing, "metadata", times=1)
        async with (
            PortalClient(portal.url, connections=1) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(client.raw_metadata, SMALL.skylink)
            while not portal.requests:
                await trio.sleep(0.001)
            with trio.fail_after(20):
                await client.head(SMALL.skylink)
                nursery.cancel_scope.cancel()
        assert len(portal.requests) == 2

"""Requests that are cancelled at each place where they wait: the one connection stays usable."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from skymount.portal.client.client import PortalClient
from skymount.portal.client.upload import UploadBody
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.key_pair import SigningKeyPair
from skymount.wire.registry_entry import Entry, hash_data_key
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, Reply, Request, running
from tests.fakes.skyfiles import noise
from tests.portal.ranges import received

SMALL = skyfiles.of_files({"a.txt": b"hello", "d/b": noise(3000)})
LARGE = skyfiles.of_files({"f": noise(300_000, 2)})
PAIR = SigningKeyPair.from_seed("cancellation")
SIGNED = Entry(hash_data_key("k"), b"data", 7).sign(PAIR.private_key)
_MOST = 500  # places; a request that waits more often does not end

Ask = Callable[[PortalClient], Awaitable[object]]


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when a task, or one that it starts from now on, waits for the n-th time."""

    def __init__(self, scope: trio.CancelScope, place: int) -> None:
        self._task = trio.lowlevel.current_task()
        self._others = set(self._task.child_nurseries)
        self._scope = scope
        self._left = place

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_ours(task):
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()

    def _is_ours(self, task: trio.lowlevel.Task) -> bool:
        while task is not self._task:
            nursery = task.parent_nursery
            if nursery is None or nursery in self._others:
                return False
            task = nursery.parent_task
        return True


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


def descriptors() -> list[int]:
    """List the open files of this process."""
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    return [number for number in found if os.path.exists(f"/proc/self/fd/{number}")]


async def fetch(client: PortalClient) -> None:
    assert await client.raw_metadata(SMALL.skylink) == SMALL.metadata


async def stream(client: PortalClient) -> None:
    wanted = ByteRange(10, 250_000)
    found = await received(client, LARGE.skylink, "", wanted, len(LARGE.payload))
    assert found == LARGE.payload[10:250_000]


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
        assert await every_place(client, fetch) > 2


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


# --- calls of the library


def registered(request: Request, reply: Reply) -> Reply:
    """Answer as a registry that has one entry and takes every update."""
    return Reply(200, (), SIGNED.encode_answer()) if request.method == "GET" else Reply(204)


@pytest.mark.parametrize("anew", [True, False])
async def test_get_entry(anew: bool):
    """C13: asking for an entry may be given up anywhere."""

    async def ask(client: PortalClient) -> None:
        found = await client.registry.get_entry(PAIR.public_hex, "k")
        assert found.entry is not None
        assert found.entry.revision == 7

    async with talking(anew=anew) as (portal, client):
        portal.heal()
        portal.fault(lambda *now: closing(*now) if anew else now[1], "HEAD|metadata")
        portal.fault(registered, "registry")
        assert await every_place(client, ask) > 2


async def test_set_json():
    """C13: so may storing a document, in the upload and in each request of the registry."""

    async def ask(client: PortalClient) -> None:
        result = await client.db.set_json(PAIR.private_hex, "k", {"a": "b" * 2_000_000})
        assert result.revision == 8

    async with talking(anew=False) as (portal, client):
        portal.fault(registered, "registry")
        assert await every_place(client, ask) > 10
        updates = [request for request in portal.asked("registry") if request.method == "POST"]
        assert len({request.body for request in updates}) == 1


@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize("breaks", [True, False])
async def test_download_file(tmp_path: Path, anew: bool, breaks: bool):
    """C13: a download into a file may be given up anywhere; it is there whole or not at all."""
    target = tmp_path / "f"

    async def ask(client: PortalClient) -> None:
        target.unlink(missing_ok=True)
        await client.download_file(target, LARGE.name)

    def broken(request: Request, reply: Reply) -> Reply:
        sent = None if "range" in request.headers else 100_000
        reply = reply.with_header(b"ETag", b'"1"')
        return replace(reply, length=len(reply.body), sent=sent, then="close")

    async with talking(anew=anew) as (portal, client):
        if breaks:
            portal.heal()
            portal.fault(broken, f"GET /{LARGE.name}")
        for place in range(1, _MOST):
            with trio.fail_after(20):
                cancelled = await cancelled_at(place, ask(client))
                await fetch(client)
            left = [path.name for path in tmp_path.iterdir()]
            assert left in ([], ["f"])
            assert not left or target.read_bytes() == LARGE.payload
            if not cancelled:
                break
        assert left == ["f"]
        assert place > 10


@pytest.mark.parametrize("anew", [True, False])
async def test_upload_file(tmp_path: Path, anew: bool):
    """C13: so may the upload of a file or a file object, which stays open and can be sent again."""
    (tmp_path / "f").write_bytes(noise(2_500_000))
    with open(tmp_path / "f", "rb") as file:
        file.seek(500_000)

        async def ask(client: PortalClient) -> None:
            file.seek(500_000)
            await client.upload_file(tmp_path / "f", timeout_seconds=60)
            assert (await client.upload_file(file)).skylink == SMALL.skylink

        async with talking(anew=anew) as (portal, client):
            assert await every_place(client, ask) > 10
            assert noise(2_500_000)[500_000:] in portal.asked("POST")[-1].body
        assert not file.closed
    assert not any(os.path.samefile(f"/proc/self/fd/{n}", tmp_path / "f") for n in descriptors())


async def test_upload_of_a_silent_pipe():
    """C13: an upload that waits for a pipe can be given up while nothing comes through it."""
    read, write = os.pipe()
    async with talking(anew=False) as (portal, client):
        with open(read, "rb") as pipe, open(write, "wb"), trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(client.upload_file, pipe, custom_filename="f"))
                while not portal.accepted:
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
        with trio.fail_after(20):
            await fetch(client)


# --- everything else


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

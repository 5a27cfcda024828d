"""Requests that are sent behind others on one connection (RFC 9112, 9.3.2), on real sockets."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import trio
import trio.testing

from skymount.errors import BadContentError
from skymount.portal.client.base import PortalReader
from skymount.portal.http import channel as channels
from skymount.portal.http import connection_pool as pools
from skymount.portal.http import http11 as connections
from skymount.portal.http.http11 import Arrived, HTTP11Connection, NoTurnError
from skymount.portal.http.transport import Transport
from skymount.portal.options import PortalOptions
from skymount.wire.byte_range import ByteRange
from skymount.wire.requests import Request
from skymount.wire.skylink import SECTOR_SIZE, Skylink
from tests.fakes.skyfiles import noise
from tests.portal.conftest import Contexts

CONTENT = noise(400_000)
LINK = Skylink.v1(bytes(32), SECTOR_SIZE)
GET = Request("GET", "/")
PARTS = [ByteRange(start, start + 100_000) for start in range(0, 400_000, 100_000)]

Answer = Callable[[int, bytes], bytes]
"""From whether a request came behind another, and the bytes that it asks for, to an answer."""


def right(_: object, part: bytes, more: bytes = b"") -> bytes:
    start = CONTENT.index(part)
    told = b"Content-Range: bytes %d-%d/%d" % (start, start + len(part) - 1, len(CONTENT))
    head = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n%b\r\n%b\r\n"
    return head % (len(part), told, more) + part


class Server:
    """Answers requests in order, but only as many as it may: `allow`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.url = ""
        self.accepted = 0
        self.asked: list[str] = []
        """The ranges, in the order in which they came."""
        self.allowed = trio.Semaphore(0)

    async def talk(self, stream: trio.abc.Stream) -> None:
        self.accepted += 1
        send, receive = trio.open_memory_channel[tuple[bool, bytes]](100)
        waiting: list[bytes] = []
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_all, stream, receive, waiting, nursery.cancel_scope)
            held = b""
            try:
                async for data in stream:
                    *heads, held = (held + data).split(b"\r\n\r\n")
                    for head in heads:
                        found = re.search(rb"Range: bytes=(\d+)-(\d+)", head)
                        assert found
                        self.asked.append(found[0].decode())
                        part = CONTENT[int(found[1]) : int(found[2]) + 1]
                        await send.send((bool(waiting), part))
                        waiting.append(part)
            except trio.BrokenResourceError:
                pass
            nursery.cancel_scope.cancel()

    async def _answer_all(
        self,
        stream: trio.abc.Stream,
        parts: "trio.MemoryReceiveChannel[tuple[bool, bytes]]",
        waiting: list[bytes],
        scope: trio.CancelScope,
    ) -> None:
        async for is_behind, part in parts:
            await self.allowed.acquire()
            answer = self.answer(is_behind, part)
            with suppress(trio.BrokenResourceError):
                await stream.send_all(answer[:1000])
                await trio.testing.wait_all_tasks_blocked()
                await stream.send_all(answer[1000:])
            if len(answer) < 1000:
                scope.cancel()
            waiting.remove(part)

    def allow(self, count: int) -> None:
        for _ in range(count):
            self.allowed.release()


@asynccontextmanager
async def serving(answer: Answer = right, tls: Contexts | None = None) -> AsyncIterator[Server]:
    """Run a server that closes the connection after an answer that is none."""
    server = Server(answer)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    scheme = "https" if tls else "http"
    server.url = f"{scheme}://127.0.0.1:{listeners[0].socket.getsockname()[1]}"

    async def talk(stream: trio.SocketStream) -> None:
        secured = tls and trio.SSLStream(
            stream, tls.server, server_side=True, https_compatible=True
        )
        await server.talk(secured or stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture(params=["plain", "tls"])
def tls(
    request: pytest.FixtureRequest, contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> Contexts | None:
    """The contexts of a connection with TLS, None for one without."""
    monkeypatch.setattr(channels, "_new_context", lambda _: contexts.client)
    return contexts if request.param == "tls" else None


class Pair:
    """One connection, and a request for it."""

    def __init__(self, url: str, tls: Contexts | None) -> None:
        self.connection = HTTP11Connection(tls.trusted if tls else no_tls, 60)
        timeout = httpx.Timeout(20).as_dict()
        self.request = httpx.Request("GET", url, extensions={"timeout": timeout})

    async def first(self, part: ByteRange = PARTS[0]) -> Arrived:
        return await self.connection.exchange(self.request, part.header().encode())

    async def behind(self, part: ByteRange = PARTS[1]) -> Arrived:
        return await self.connection.exchange_behind(self.request, part.header().encode())

    def has_ended(self) -> bool:
        link = self.connection._link
        return link is None or link.has_ended()

    def has_room(self, *, early: bool = False) -> bool:
        return self.connection.has_room_behind(self.request, early=early)


@asynccontextmanager
async def talking(
    answer: Answer = right, tls: Contexts | None = None
) -> AsyncIterator[tuple[Server, Pair]]:
    async with serving(answer, tls) as server:
        pair = Pair(server.url, tls)
        yield server, pair
        await pair.connection.aclose()


async def no_tls() -> None:
    raise AssertionError("not asked for")


async def read(arrived: Arrived) -> bytes:
    content = b"".join([piece async for piece in arrived.body])
    await arrived.body.aclose()
    return content


def of(part: ByteRange) -> bytes:
    return CONTENT[part.start : part.stop]


async def test_answers_come_in_turn(tls: Contexts | None):
    """Each request is on its way before the answer to the one before is read, and gets its own."""
    async with talking(tls=tls) as (server, pair), trio.open_nursery() as nursery:
        server.allow(3)
        found = []

        async def ask_behind(part: ByteRange) -> None:
            arrived = await pair.behind(part)
            found.append(arrived)

        arrived = await pair.first()
        for part in PARTS[1:3]:
            assert pair.has_room()
            nursery.start_soon(ask_behind, part)
            while len(server.asked) < 1 + PARTS.index(part):
                await trio.testing.wait_all_tasks_blocked()
            assert not pair.has_room()
            assert await read(arrived) == of(PARTS[PARTS.index(part) - 1])
            await trio.testing.wait_all_tasks_blocked()
            arrived = found.pop()
        assert await read(arrived) == of(PARTS[2])
        assert not pair.has_room()
        server.allow(1)
        assert await read(await pair.first(PARTS[3])) == of(PARTS[3])
        assert server.accepted == 1


async def test_before_the_first_head(tls: Contexts | None):
    """Where the portal is known a request need not wait for the head of the answer before."""
    async with talking(tls=tls) as (server, pair), trio.open_nursery() as nursery:
        found: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            arrived = await (pair.behind() if number else pair.first())
            found[number] = await read(arrived)

        nursery.start_soon(ask, 0)
        while not server.asked:
            await trio.testing.wait_all_tasks_blocked()
        assert not pair.has_room()
        assert pair.has_room(early=True)
        nursery.start_soon(ask, 1)
        while len(server.asked) < 2:
            await trio.testing.wait_all_tasks_blocked()
        server.allow(2)
        while len(found) < 2:
            await trio.testing.wait_all_tasks_blocked()
        assert found == {0: of(PARTS[0]), 1: of(PARTS[1])}
        assert server.accepted == 1


async def test_the_first_is_given_up(tls: Contexts | None):
    """Who gives up an answer takes the connection from who is behind, who is told so."""
    async with talking(tls=tls) as (server, pair), trio.open_nursery() as nursery:
        server.allow(1)
        arrived = await pair.first()

        async def ask_behind() -> None:
            with pytest.raises(NoTurnError):
                await pair.behind()

        nursery.start_soon(ask_behind)
        await trio.testing.wait_all_tasks_blocked()
        await arrived.body.aclose()


async def test_the_second_is_given_up(tls: Contexts | None):
    """Nobody reads the answer to a request that was given up: the connection is not used again."""
    async with talking(tls=tls) as (server, pair):
        server.allow(10)
        arrived = await pair.first()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.behind)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert not pair.has_room()
        assert await read(arrived) == of(PARTS[0])
        assert await read(await pair.first(PARTS[2])) == of(PARTS[2])
        assert server.accepted == 2


async def test_server_says_that_no_more_follows():
    """A server may close a connection after any answer that says so: it can do all the same."""
    small = ByteRange(0, 500)
    async with (
        talking(lambda _, part: right(0, part, b"HTTP11Connection: close\r\n")) as (server, pair),
        trio.open_nursery() as nursery,
    ):

        async def ask_first() -> None:
            arrived = await pair.first(small)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(5):
                while not pair.has_ended():
                    await trio.sleep(0.01)
            assert await read(arrived) == of(small)

        async def ask_behind() -> None:
            with pytest.raises(NoTurnError):
                await pair.behind(small)

        nursery.start_soon(ask_first)
        while not server.asked:
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask_behind)
        while len(server.asked) < 2:
            await trio.testing.wait_all_tasks_blocked()
        server.allow(1)


async def test_an_answer_on_a_link_that_was_replaced(tls: Contexts | None):
    """It does not concern the requests on the new one, whose answers nobody else gets."""
    async with talking(tls=tls) as (server, pair):
        server.allow(2)
        before = await pair.first(PARTS[0])
        async with trio.open_nursery() as nursery:
            left: list[Arrived] = []

            async def ask_behind(part: ByteRange) -> None:
                left.append(await pair.behind(part))

            nursery.start_soon(ask_behind, PARTS[1])
            while len(server.asked) < 2:
                await trio.testing.wait_all_tasks_blocked()
            await read(before)
            while not left:
                await trio.testing.wait_all_tasks_blocked()
            server.allow(1)
            redirected = await pair.first(PARTS[2])  # while that one is not at its end
            assert server.accepted == 2
            nursery.start_soon(ask_behind, PARTS[3])
            while len(server.asked) < 4:
                await trio.testing.wait_all_tasks_blocked()
            await left.pop().body.aclose()
            assert await read(redirected) == of(PARTS[2])
            server.allow(2)
            while not left:
                await trio.testing.wait_all_tasks_blocked()
            assert await read(left.pop()) == of(PARTS[3])


@pytest.mark.parametrize(
    "answer",
    [
        lambda is_behind, part: b"" if is_behind else right(0, part),
        lambda is_behind, part: b"\0" if is_behind else right(0, part),
        lambda is_behind, part: right(0, part)[: 20 if is_behind else None],
        lambda _, part: right(0, part, b"HTTP11Connection: close\r\n"),
    ],
    ids=["closes", "junk", "half a head", "never keeps one"],
)
async def test_server_that_cannot(
    answer: Answer, tls: Contexts | None, monkeypatch: pytest.MonkeyPatch
):
    """A server that does not answer what is behind costs a repetition on another connection."""
    monkeypatch.setattr(pools, "_MANY", 1)
    monkeypatch.setattr(connections, "_PROMPT", 0.2)
    async with serving(answer, tls) as server:
        server.allow(1000)
        transport = Transport(server.url, PortalOptions.parse(server.url, retries=0))
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for part in PARTS:
                    nursery.start_soon(_check, transport, part)
        assert server.asked
        await transport.aclose()


async def _check(transport: Transport, part: ByteRange) -> None:
    async with transport.open(GET, byte_range=part, patient=True) as answer:
        view = memoryview(bytearray(len(part)))
        await transport.fill(answer, view)
        await transport.finish(answer)
    assert view == of(part)


async def test_answer_that_breaks_off_before(tls: Contexts | None, monkeypatch: pytest.MonkeyPatch):
    """Whose answer breaks off in the middle is told so; who is behind gets its own bytes."""
    monkeypatch.setattr(pools, "_MANY", 1)
    first, second = ByteRange(0, 2000), ByteRange(2000, 4000)

    def breaks_off(_: object, part: bytes) -> bytes:
        return right(0, part)[: 999 if part == of(first) else None]

    async with serving(breaks_off, tls) as server:
        transport = Transport(server.url, PortalOptions.parse(server.url, retries=0))
        server.allow(1)
        async with (
            trio.open_nursery() as nursery,
            transport.open(GET, byte_range=first, patient=True) as answer,
        ):
            nursery.start_soon(_check, transport, second)
            while len(server.asked) < 2:
                await trio.testing.wait_all_tasks_blocked()
            server.allow(1)
            with pytest.raises(BadContentError):
                await transport.fill(answer, memoryview(bytearray(2000)))
        told = second.header().removeprefix("bytes")
        assert [asked.endswith(told) for asked in server.asked] == [False, True, True]
        assert server.accepted == 2
        await transport.aclose()


async def test_patient_requests_share_connections(
    tls: Contexts | None, monkeypatch: pytest.MonkeyPatch
):
    """When many connections are busy a patient request goes behind another; any other does not."""
    monkeypatch.setattr(pools, "_MANY", 1)
    async with serving(tls=tls) as server:
        transport = Transport(server.url, PortalOptions.parse(server.url, retries=0))
        server.allow(100)
        opened = transport.open(GET, byte_range=PARTS[0], patient=True)
        async with trio.open_nursery() as nursery, opened as answer:
            nursery.start_soon(_check, transport, PARTS[1])
            await trio.testing.wait_all_tasks_blocked()
            assert server.accepted == 1
            async with transport.open(GET, byte_range=PARTS[2]):
                assert server.accepted == 2
            await transport.fill(answer, memoryview(bytearray(100_000)))
        await transport.aclose()


async def test_nobody_waits_where_nothing_may_follow(monkeypatch: pytest.MonkeyPatch):
    """A portal that keeps no connection, or one behind a proxy, is asked on as many as before."""
    monkeypatch.setattr(pools, "_MANY", 1)
    async with serving(lambda _, part: right(0, part, b"HTTP11Connection: close\r\n")) as server:
        transport = Transport(server.url, PortalOptions.parse(server.url, retries=0))
        server.allow(2)
        async with transport.open(GET, byte_range=PARTS[0], patient=True) as answer:
            with trio.fail_after(5):
                await _check(transport, PARTS[1])
            await transport.fill(answer, memoryview(bytearray(100_000)))
        assert server.accepted == 2
        await transport.aclose()


async def test_answers_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch):
    """The answer to another request is no content, and no request goes behind another then."""
    monkeypatch.setattr(pools, "_MANY", 1)
    async with serving(
        lambda is_behind, part: right(0, of(PARTS[0]) if is_behind else part)
    ) as server:
        server.allow(100)
        seen = []
        async with PortalReader(server.url, retries=0) as client, trio.open_nursery() as nursery:

            async def ask() -> None:
                view = memoryview(bytearray(100_000))
                opened = client.open_range(LINK, "", PARTS[1], len(CONTENT), patient=True)
                try:
                    async with opened as body:
                        await body.fill(view)
                    assert view == of(PARTS[1])
                except BadContentError as error:
                    seen.append(error)

            nursery.start_soon(ask)
            nursery.start_soon(ask)
        assert len(seen) == 1
        assert not client.transport._pool.is_orderly


async def test_server_that_could_not_once(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
):
    """R5: a portal that does not answer both is asked for one at a time in the next five minutes.

    Then a request goes behind another again.
    """
    monkeypatch.setattr(pools, "_MANY", 1)
    behind: list[bytes] = []

    def closes_once(is_behind: bool, part: bytes) -> bytes:
        if is_behind:
            behind.append(part)
        return b"" if is_behind and len(behind) == 1 else right(0, part)

    async with serving(closes_once) as server:
        server.allow(1000)
        transport = Transport(server.url, PortalOptions.parse(server.url, retries=0))

        async def ask_two() -> None:
            opened = transport.open(GET, byte_range=PARTS[0], patient=True)
            async with trio.open_nursery() as nursery, opened as answer:
                nursery.start_soon(_check, transport, PARTS[1])
                await trio.testing.wait_all_tasks_blocked()
                await transport.fill(answer, memoryview(bytearray(100_000)))

        await ask_two()
        assert behind == [of(PARTS[1])]
        mock_clock.jump(299)
        await ask_two()
        assert len(behind) == 1
        mock_clock.jump(1)
        await ask_two()
        assert len(behind) == 2
        await transport.aclose()

"""One portal over HTTP: every failure becomes the right PortalError, and nothing is left behind."""

import contextlib
import random
import socket
from pathlib import Path

import pytest
import trio

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    HeadTooLongError,
    NotFoundError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.client.registry import EntryResult
from skymount.portal.client.upload import UploadBody
from skymount.wire.http.byte_range import ByteRange
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import describe, noise, unverifiable
from tests.portal.client.one_portal import LARGE, SECRET, SMALL, read, talking
from tests.portal.ranges import begin

# --- what is asked, and what comes back


async def test_requests_carry_agent_key_and_no_encoding():
    """Each request has the agent's token and the key, and asks for no encoding."""
    async with talking() as (portal, client):
        await client.head(SMALL.skylink)
        headers = portal.requests[0].headers
        assert "svc-agent" in headers["user-agent"]
        assert headers["accept-encoding"] == "identity"
        assert headers["authorization"].startswith("Basic ")


async def test_connections_are_reused():
    """Requests one after another share a connection, also after an error with a body."""
    async with talking() as (portal, client):
        await client.head(SMALL.skylink)
        with pytest.raises(NotFoundError):
            await client.base_sector(skyfiles.of_files({"no": b""}).skylink)
        await client.raw_metadata(SMALL.skylink)
        await read(client)
        assert portal.accepted == 1


async def test_client_of_options_that_were_checked_before():
    """It has all that a client has."""
    async with talking() as (_, client):
        assert await client.registry.get_entry("ab" * 32, "key") == EntryResult()


# --- failures


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RequestRefusedError),
        (401, AccessDeniedError),
        (402, AccessDeniedError),
        (403, AccessDeniedError),
        (404, NotFoundError),
        (405, RequestRefusedError),
        (408, UnavailableError),
        (410, NotFoundError),
        (416, RequestRefusedError),
        (418, RequestRefusedError),
        (429, UnavailableError),
        (451, AccessDeniedError),
        (490, RequestRefusedError),
        (500, UnavailableError),
        (502, UnavailableError),
        (503, UnavailableError),
        (599, UnavailableError),
        (300, UnavailableError),
    ],
)
async def test_status(status: int, error: type[PortalError]):
    """Each status becomes its error, with the portal's words, whatever was asked."""
    async with talking() as (portal, client):
        portal.fault(fake.status(status, "the reason"))
        asks = [client.raw_metadata(LARGE.skylink), read(client)]
        if status < 500:
            asks.insert(0, client.head(LARGE.skylink))
        for ask in asks:
            with pytest.raises(error) as caught:
                await ask
            assert type(caught.value) is error
            assert caught.value.status == status
            assert caught.value.url.startswith(f"{portal.url}/")
        assert caught.value.message == "the reason"


async def test_words_of_an_error():
    """A page instead of words is left out; words are cut to a line and cleared of controls."""
    async with talking() as (portal, client):
        for body, expected in [
            (b"<html>no</html>", "HTTP status 500 (Internal Server Error)"),
            (b"", "HTTP status 500 (Internal Server Error)"),
            (b'{"message":5}', "HTTP status 500 (Internal Server Error)"),
            (b'{"message":"a\\n\\u001b[31mb"}', "a  [31mb"),
            (b'{"message":"' + b"x" * 60_000 + b'"}', "x" * 300),
            (b"x" * 10_000_000, "HTTP status 500 (Internal Server Error)"),
        ]:
            portal.heal()
            portal.fault(lambda *_, body=body: fake.Reply(500, (), body))
            with pytest.raises(UnavailableError) as caught:
                await client.raw_metadata(SMALL.skylink)
            assert caught.value.message == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"for\x1b[31m subscribers\nand others", "for [31m subscribers"),
        (b"<html>no</html>", "HTTP status 403 (Forbidden)"),
        (b'{"error":"x"}', "HTTP status 403 (Forbidden)"),
        (b"", "HTTP status 403 (Forbidden)"),
        (b"\xff" * 100_000, "\ufffd" * 300),
    ],
)
async def test_text_of_an_error(body: bytes, expected: str):
    """C18: Text of a portal is shown as its JSON messages are; that of others is not."""
    async with talking() as (portal, client):
        for headers, said in (
            (((b"Svc-Portal-Api", b"x"),), expected),
            ((), "HTTP status 403 (Forbidden)"),
        ):
            portal.heal()
            portal.fault(lambda *_, headers=headers: fake.Reply(403, headers, body))
            with pytest.raises(AccessDeniedError) as caught:
                await client.raw_metadata(SMALL.skylink)
            assert caught.value.message == said


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (fake.ignores_range, BadContentError),
        (fake.short(1), BadContentError),
        (fake.excess(b"!"), BadContentError),
        (fake.closes_after(0), BadContentError),
        (fake.closes_after(1000), BadContentError),
        (fake.closes_after(-1), BadContentError),
        (fake.resets_after(0), UnavailableError),
        (fake.resets_after(1000), UnavailableError),
        (fake.resets_after(-1), UnavailableError),
        (fake.html, BadContentError),
        (fake.endless_body, BadContentError),
        (fake.header(b"Content-Encoding", b"gzip"), BadContentError),
        (fake.header(b"Content-Range", b"bytes 1-9/10"), BadContentError),
        (fake.header(b"Content-Range", b"bytes 10-9/3000000"), BadContentError),
        (fake.header(b"Content-Range", b"bytes 5-9/3000001"), BadContentError),
        (fake.header(b"Content-Range", b"bytes 5-9/4"), BadContentError),
        (fake.header(b"Content-Range", b"lines 5-9/3000000"), BadContentError),
        (fake.header(b"Content-Range", b"bytes " + b"9" * 500 + b"-1/2"), BadContentError),
        (fake.without_header(b"Content-Range"), BadContentError),
        (fake.header(b"Transfer-Encoding", b"gzip"), BadContentError),
        (fake.header(b"Content-Length", b"-5"), BadContentError),
        (fake.header(b"bad header", b"x"), BadContentError),
        (fake.header(b"X", b"a\x00b"), BadContentError),
        (fake.stalls_after(-1), PortalTimeoutError),
        (fake.stalls_after(0), PortalTimeoutError),
        (fake.stalls_after(3), PortalTimeoutError),
        (fake.redirects("ftp://elsewhere/x"), UnavailableError),
        (fake.redirects("http://[::1/x"), BadContentError),
        (fake.redirects("http://a b/\x01"), BadContentError),
        (fake.redirects("//"), PortalError),
        (fake.redirects("http://user:word@127.0.0.1:1/"), UnavailableError),
        (fake.redirects("http://xn--a\x7f/"), BadContentError),
        (fake.redirects("http://127.0.0.1:99999/"), PortalError),
        (fake.redirects("/again"), BadContentError),
        (fake.redirects("/again", 307, endless=True), BadContentError),
        (fake.redirects("", 308), BadContentError),
    ],
)
async def test_failure(fault: fake.Fault, error: type[PortalError]):
    """Whatever goes wrong on the wire is a PortalError of its kind, soon; all is well after."""
    async with talking(idle_timeout=0.2) as (portal, client):
        portal.fault(fault)
        with trio.fail_after(30):
            for _ in range(2):
                with pytest.raises(error):
                    await read(client, 5, 9000)
            with pytest.raises(PortalError):
                await client.sector(bytes(32), 100)
        portal.heal()
        assert await read(client, 5, 10) == LARGE.payload[5:10]


async def test_limits():
    """An answer is read no further than its limit."""
    async with talking() as (portal, client):
        portal.fault(lambda *_: fake.Reply(endless=b"x" * 60_000))
        for ask in (client.base_sector(SMALL.skylink), client.sector(bytes(32), 1000)):
            with pytest.raises(BadContentError, match="longer than"):
                await ask


@pytest.mark.parametrize("fault", [fake.drips(1, 0.05), fake.endless_header])
async def test_portal_that_drips(fault: fake.Fault):
    """A portal cannot hold a request by sending a byte now and then, or headers for ever."""
    async with talking(idle_timeout=0.3, connect_timeout=1.0) as (portal, client):
        portal.fault(fault)
        for ask in (client.raw_metadata(SMALL.skylink), read(client, 0, 1000)):
            with trio.fail_after(30), pytest.raises((PortalTimeoutError, BadContentError)):
                await ask


async def test_error_that_drips():
    """Nor by dripping the words of an error."""
    async with talking(idle_timeout=0.2) as (portal, client):
        dripping = fake.Reply(500, (), b"x" * 60_000, drip=(1, 0.05))
        portal.fault(lambda *_: dripping)
        with trio.fail_after(30), pytest.raises(UnavailableError):
            await client.raw_metadata(SMALL.skylink)


async def test_slow_but_steady():
    """A portal that is slow, but not silent for too long, is waited for."""
    async with talking(idle_timeout=0.2) as (portal, client):
        portal.fault(fake.drips(300_000, 0.05))
        assert await read(client) == LARGE.payload


async def test_nobody_there():
    """A refused connection, a name that does not resolve: unavailable, with the reason."""
    async with running(FakePortal()) as portal:
        gone = portal.url
    for url in (gone, "http://name.invalid"):
        async with PortalClient(url, connect_timeout=5, retries=0) as client:
            with pytest.raises(UnavailableError, match="cannot be reached"):
                await client.head(SMALL.skylink)


async def test_nobody_picks_up():
    """A connection that is not made within `connect_timeout` seconds is given up."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        contextlib.ExitStack() as ours,
    ):
        address = listener.getsockname()
        for _ in range(3):  # as many as the system keeps for who does not accept them, and more
            waiting = ours.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(address)
        url = f"http://127.0.0.1:{address[1]}"
        async with PortalClient(url, connect_timeout=0.2, retries=0) as client:
            with trio.fail_after(30), pytest.raises(UnavailableError) as caught:
                await client.head(SMALL.skylink)
        assert caught.value.unreached is not None
        assert caught.value.unreached >= 0.2


async def test_body_after_a_head():
    """A portal that sends a body with HEAD spoils one request at most, never the content."""
    async with talking() as (portal, client):
        body = b"X: y\r\nContent-Length: 9\r\n\r\nsomething"
        portal.fault(lambda *_: fake.Reply(200, ((b"A", b"b\r\n" + body),)), "HEAD")
        for _ in range(3):
            await client.head(SMALL.skylink)
            with contextlib.suppress(BadContentError):
                assert await client.raw_metadata(SMALL.skylink) == SMALL.metadata
        assert await client.raw_metadata(SMALL.skylink) == SMALL.metadata


# --- redirects


async def test_redirect_is_followed_without_the_key():
    """Content may lie on another host, which does not get the password."""
    async with talking() as (portal, client), running(FakePortal()) as other:
        other.add(LARGE)
        portal.fault(fake.redirects(f"{other.url}/{LARGE.name}?format=concat", 307))
        assert await read(client, 10, 20) == LARGE.payload[10:20]
        assert other.requests[0].headers["range"] == "bytes=10-19"
        assert "authorization" not in other.requests[0].headers
        assert "authorization" in portal.requests[0].headers


async def test_redirect_with_an_endless_body():
    """The body of a redirect is not read, so it cannot fill the memory."""
    async with talking() as (portal, client):
        portal.fault(fake.redirects(f"/{LARGE.name}?format=concat", endless=True), times=1)
        with trio.fail_after(30):
            assert await read(client, 10, 20) == LARGE.payload[10:20]


async def test_redirects_are_bounded():
    """Five redirects are followed, a loop is not."""
    async with talking() as (portal, client):
        portal.fault(fake.redirects(f"/{LARGE.name}?format=concat"), times=5)
        assert await read(client, 0, 5) == LARGE.payload[:5]
        portal.fault(fake.redirects("/round"))
        portal.requests.clear()
        with pytest.raises(BadContentError, match="redirects"):
            await read(client, 0, 5)
        assert len(portal.requests) == 6


async def test_no_cookies():
    """A portal cannot fill the memory with cookies, nor recognise the client by one."""
    async with talking() as (portal, client):
        portal.fault(fake.header(b"Set-Cookie", b"id=1; Max-Age=999999; Path=/"))
        for _ in range(3):
            await client.head(SMALL.skylink)
        assert not any("cookie" in request.headers for request in portal.requests)


# --- secrets


async def test_no_secret_in_any_text():
    """Neither repr nor errors nor their causes hold the key."""
    async with talking() as (portal, client):
        texts = [repr(client), repr(client.options), str(client.options)]
        for fault in (fake.status(401), fake.resets_after(-1), fake.html, fake.closes_after(-1)):
            portal.heal()
            portal.fault(fault)
            with pytest.raises(PortalError) as caught:
                await read(client, 5, 6)
            error: BaseException | None = caught.value
            while error is not None:
                texts += [str(error), repr(error), *map(repr, error.args)]
                error = error.__cause__ or error.__context__
        assert not any(SECRET in text or "Basic " in text for text in texts)


# --- cancellation


async def test_cancelled_at_any_await():
    """However often and wherever requests are cancelled, the few connections remain usable."""
    luck = random.Random(7)
    async with talking(connections=2) as (portal, client):
        portal.fault(fake.drips(200_000, 0.0005), "GET")

        async def impatient() -> None:
            for _ in range(15):
                with trio.move_on_after(luck.random() ** 3 * 0.02):
                    match luck.randrange(4):
                        case 0:
                            await client.head(SMALL.skylink)
                        case 1:
                            await client.raw_metadata(SMALL.skylink)
                        case 2:
                            await read(client)
                        case 3:
                            async with client.open_range(
                                LARGE.skylink, "", ByteRange(0, 3_000_000), 3_000_000
                            ) as body:
                                await begin(body, 3_000_000)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(impatient)
        portal.heal()
        with trio.fail_after(30):
            for _ in range(4):
                assert await read(client) == LARGE.payload


@pytest.mark.parametrize("connections", [1, 2])
async def test_cancelled_while_waiting_for_a_connection(connections: int):
    """Requests that are given up before they got a connection do not use it up."""
    async with talking(connections=connections) as (portal, client):
        portal.fault(fake.stalls_after(-1), times=connections)
        async with trio.open_nursery() as nursery:
            for _ in range(connections):
                nursery.start_soon(client.head, SMALL.skylink)
            while len(portal.requests) < connections:
                await trio.sleep(0.001)
            for _ in range(5):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await client.head(SMALL.skylink)
                with trio.move_on_after(0.005):
                    await client.head(SMALL.skylink)
            nursery.cancel_scope.cancel()
        with trio.fail_after(30):
            assert await read(client) == LARGE.payload


async def test_stream_left_early():
    """Leaving a stream in the middle frees its connection."""
    async with talking(connections=1) as (_, client):
        for _ in range(3):
            wanted = ByteRange(0, len(LARGE.payload))
            async with client.open_range(LARGE.skylink, "", wanted, len(LARGE.payload)) as body:
                await begin(body, len(wanted))
        with trio.fail_after(30):
            assert await client.raw_metadata(SMALL.skylink) == SMALL.metadata


async def test_error_of_the_caller_passes_through():
    """What the caller raises inside a stream is not translated."""
    async with talking() as (_, client):
        with pytest.raises(ZeroDivisionError):
            async with client.open_range(LARGE.skylink, "", ByteRange(0, 9), 3_000_000):
                raise ZeroDivisionError


async def test_closed_with_requests_under_way():
    """Closing the client ends what is under way with an error, not a hang."""
    async with talking(idle_timeout=60) as (portal, client):
        portal.fault(fake.stalls_after(-1))
        errors: list[PortalError] = []

        async def ask() -> None:
            with pytest.raises(PortalError) as caught:
                await client.head(SMALL.skylink)
            errors.append(caught.value)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                while not portal.requests:
                    await trio.sleep(0.001)
                await client.aclose()
        assert len(errors) == 1
        portal.heal()
        asked = len(portal.requests)
        with pytest.raises(RuntimeError, match="this client is closed"):
            await client.head(SMALL.skylink)
        assert len(portal.requests) == asked


# --- uploads


async def test_upload(tmp_path: Path):
    """The body arrives whole, with its length, at a path of its own, and the skylink comes back."""
    file = tmp_path / "f"
    file.write_bytes(noise(2_500_000))
    async with talking() as (portal, client):
        body = UploadBody.of_path(file)
        assert (await client.send_upload(body)).skylink == SMALL.skylink
        request = portal.requests[0]
        assert request.method == "POST"
        assert request.path.startswith("/svc/skyfile/")
        assert request.headers["content-length"] == str(body.size)
        assert request.headers["content-type"] == body.headers["Content-Type"]
        assert "transfer-encoding" not in request.headers
        assert noise(2_500_000) in request.body


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"<html>", BadContentError),
        (b"{}", BadContentError),
        (b'{"skylink":"x"}', BadContentError),
        (b'{"skylink":"%s","bitfield":4}' % SMALL.name.encode(), BadContentError),
        (b'{"skylink":"%s","merkleroot":"00"}' % SMALL.name.encode(), BadContentError),
        (b"x" * 100_000, BadContentError),
    ],
)
async def test_upload_answered_with_nonsense(tmp_path: Path, answer: bytes, error: type[Exception]):
    """An answer that contradicts itself or is none is an error."""
    (tmp_path / "f").write_bytes(b"x")
    async with talking() as (portal, client):
        portal.fault(fake.body_is(answer))
        with pytest.raises(error):
            await client.send_upload(UploadBody.of_path(tmp_path / "f"))


async def test_upload_of_a_file_that_shrinks(tmp_path: Path):
    """A file that becomes shorter is an error that names it; the connection is not used again."""
    file = tmp_path / "f"
    file.write_bytes(noise(3_000_000))
    async with talking() as (portal, client):
        body = UploadBody.of_path(file)
        file.write_bytes(b"short")
        with pytest.raises(OSError, match="/f: became shorter"):
            await client.send_upload(body)
        assert (await client.head(SMALL.skylink)).skylink == SMALL.skylink
        assert portal.accepted == 2


async def test_upload_cancelled(tmp_path: Path):
    """An upload can be given up at any time."""
    (tmp_path / "f").write_bytes(noise(9_000_000))
    async with talking(connections=1) as (_, client):
        for delay in (0, 0.001, 0.005, 0.01):
            with trio.move_on_after(delay):
                await client.send_upload(UploadBody.of_path(tmp_path / "f"))
        with trio.fail_after(30):
            assert (await client.head(SMALL.skylink)).metadata == SMALL.metadata


async def test_large_header():
    """S11: A metadata header of 7 MiB is read, one of 9 MiB is not."""
    contents = [unverifiable(b"x" * (size << 20), b"x", size) for size in (7, 9)]
    async with talking() as (portal, client):
        portal.add(*contents)
        assert (await client.head(contents[0].skylink)).metadata == contents[0].metadata
        found = await client.head(contents[1].skylink)
        assert (found.metadata, found.size) == (None, None)
        assert isinstance(found.failure, HeadTooLongError)
        assert len(portal.asked(contents[1].name)) == 1


def test_describe_is_what_portals_store():
    """The fake's metadata has the members in the order of real portals."""
    assert describe({"a": b"x"}) == (
        b'{"filename":"site","length":1,"subfiles":{"a":{"mode":420,"filename":"a",'
        b'"contenttype":"text/plain","len":1}}}'
    )

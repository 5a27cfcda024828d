"""The connections to a portal: headers of each request, redirects, repetitions, secrets."""

import gc
import logging
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing

from skymount.errors import (
    AccessDeniedError,
    BadContentError,
    PortalError,
    PortalTimeoutError,
    RequestRefusedError,
    UnavailableError,
)
from skymount.portal.client.client import PortalClient
from skymount.portal.client.upload import UploadBody
from skymount.portal.http.retry import RetryPolicy
from skymount.wire.dialect import SKYNET
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.http.requests import Request, basic_credentials
from tests.fakes import portal as fake
from tests.fakes import skyfiles
from tests.fakes.portal import FakePortal, running
from tests.fakes.skyfiles import noise
from tests.portal.ranges import received

KEY = "pass word/of the operator"
COOKIE = "skynet-jwt=eyJhbGciOi.secret.token"
CONTENT = skyfiles.of_files({"f": noise(10_000)})
GET = Request("GET", f"/svc/metadata/{CONTENT.name}")
POST = Request("POST", "/svc/skyfile/x")
REPEATABLE = Request("POST", "/svc/skyfile/x", repeatable=True)
SILENT = fake.stalls_after(-1)
SILENT_LATER = fake.stalls_after(3)
PRIVATE = {"Cookie": COOKIE, "Skynet-Api-Key": "another secret", "X-Extra": "extra value"}


@asynccontextmanager
async def talking(
    retry: RetryPolicy | None = None, **options: object
) -> AsyncIterator[tuple[FakePortal, PortalClient]]:
    """Yield a portal that has content, and a client of it with credentials of every sort."""
    async with running(FakePortal()) as portal:
        portal.add(CONTENT)
        settings = {"api_key": KEY, "headers": PRIVATE, "timeout": 5, **options}
        async with PortalClient(portal.url, **settings) as client:  # type: ignore[arg-type]
            if retry is not None:
                client.http.retry = retry
            yield portal, client


@dataclass(frozen=True)
class NotingRetry(RetryPolicy):
    """Notes what the pauses are made from, and makes none."""

    noted: list[tuple[int, float | None]] = field(default_factory=list)

    def pause_before(self, repetition: int, retry_after: float | None = None) -> float | None:
        self.noted.append((repetition, retry_after))
        return None if super().pause_before(repetition, retry_after) is None else 0.0


@pytest.fixture
def upload(tmp_path: Path) -> UploadBody:
    """The body of an upload of several pieces."""
    (tmp_path / "f").write_bytes(noise(2_500_000))
    return UploadBody.of_path(tmp_path / "f")


# --- headers


async def test_headers_of_the_user():
    """Every request carries what the user sets, and the key."""
    async with talking() as (portal, client):
        await client.raw_metadata(CONTENT.skylink)
        sent = portal.requests[0].headers
        assert sent["authorization"] == basic_credentials(KEY)
        assert sent["cookie"] == COOKIE
        assert sent["x-extra"] == "extra value"
        assert sent["user-agent"].startswith("svc-agent ")


async def test_options_of_one_call():
    """What is given to a call overrides the client's, for this call alone."""
    async with talking(custom_user_agent="mine") as (portal, client):
        options = client.options.overridden(
            api_key="", custom_user_agent="theirs", headers={"X-Other": "ü"}, dialect=SKYNET
        )
        await client.http.fetch(GET, 1 << 20, options)
        await client.raw_metadata(CONTENT.skylink, custom_user_agent="")
        await client.raw_metadata(CONTENT.skylink)
        first, second, third = (request.headers for request in portal.requests)
        assert "authorization" not in first
        assert "cookie" not in first
        assert first["x-other"] == "ü"
        assert first["user-agent"] == "theirs"
        assert second["user-agent"].startswith("svc-agent ")
        assert third["user-agent"] == "mine"
        assert third["authorization"] == basic_credentials(KEY)
        assert third["cookie"] == COOKIE
        assert portal.accepted == 1


class _Speculation:
    """A callable that can be looked for."""

    def __call__(self) -> bool:
        return True


async def test_a_closed_response_leaves_nothing_to_the_garbage_collector():
    """What a request refers to, such as buffers, is free as soon as its response is closed."""
    async with talking() as (_, client):
        gc.disable()
        try:
            speculative = _Speculation()
            found = weakref.ref(speculative)
            async with client.http.open(GET, speculative=speculative) as response:
                del speculative
                assert found() is not None
                await response.read(1 << 20)
            del response
            assert found() is None
        finally:
            gc.enable()


async def test_time_out_of_one_call():
    """A call may wait for less long than the client does."""
    async with talking(retries=0, timeout=60) as (portal, client):
        portal.fault(fake.stalls_after(-1), times=1)
        with trio.fail_after(30), pytest.raises(PortalTimeoutError):
            await client.raw_metadata(CONTENT.skylink, timeout=0.1)
        assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata


async def test_authorization_of_the_user():
    """An Authorization header of the user's own goes before the key."""
    async with talking(headers={"authorization": "Bearer abc"}) as (portal, client):
        await client.raw_metadata(CONTENT.skylink)
        assert portal.requests[0].headers["authorization"] == "Bearer abc"


async def test_whole_answer():
    """An answer has its status, headers and body."""
    async with talking() as (portal, client):
        portal.fault(fake.header(b"X-Name", b"value"))
        answer = await client.http.fetch(GET, 1 << 20)
        assert (answer.status, answer.body) == (200, CONTENT.metadata)
        assert answer.headers["x-name"] == "value"
        with pytest.raises(BadContentError, match="longer than 10 B"):
            await client.http.fetch(GET, 10)


async def test_open_answer():
    """The pieces of an answer may be as many as come, exactly so many, or at most so many."""
    size = len(CONTENT.metadata)
    async with talking() as (_, client):
        for length, limit, good in [
            (None, None, True),
            (size, None, True),
            (None, size, True),
            (size - 1, None, False),
            (size + 1, None, False),
            (None, size - 1, False),
        ]:
            async with client.http.open(GET) as answer:
                assert answer.status == 200
                pieces = answer.pieces(length, limit=limit)
                if good:
                    assert b"".join([piece async for piece in pieces]) == CONTENT.metadata
                else:
                    with pytest.raises(BadContentError, match="GET"):
                        [piece async for piece in pieces]
                await pieces.aclose()


# --- a node of its own


async def test_node():
    """The node is the portal unless it has an address of its own; both get the credentials."""
    async with talking() as (portal, client), running(FakePortal()) as node:
        node.add(CONTENT)
        assert client.node is client.http
        same = PortalClient(portal.url, node_url=portal.url + "/")
        assert same.node is same.http
        async with PortalClient(
            portal.url, node_url=node.url, api_key=KEY, headers=PRIVATE
        ) as other:
            assert other.node is other.node is not other.http
            await other.node.fetch(GET, 1 << 20)
            await other.http.fetch(GET, 1 << 20)
        assert node.requests[0].headers["cookie"] == COOKIE
        assert node.requests[0].headers["authorization"] == basic_credentials(KEY)
        assert len(portal.requests) == len(node.requests) == 1


# --- redirects


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirect_to_another_origin(code: int):
    """Nothing of the user's but the user agent goes to another origin, nor comes back from it."""
    mine = talking(custom_user_agent="mine")
    async with mine as (portal, client), running(FakePortal()) as other:
        other.fault(fake.redirects(f"{portal.url}{GET.target}", code))
        portal.fault(fake.redirects(f"{other.url}/elsewhere", code), times=1)
        await client.raw_metadata(CONTENT.skylink)
        there, back = other.requests[0].headers, portal.requests[1].headers
        for headers in (there, back):
            assert not {"authorization", "cookie", "skynet-api-key", "x-extra"} & set(headers)
            assert headers["user-agent"] == "mine"
            assert headers["accept-encoding"] == "identity"
        assert there["host"] == other.url.removeprefix("http://")


async def test_redirect_within_an_origin():
    """Everything goes along to the same origin, byte by byte."""
    async with talking(headers={**PRIVATE, "X-Latin": "é"}) as (portal, client):
        portal.fault(fake.redirects(f"{portal.url}{GET.target}?again"), times=1)
        await client.raw_metadata(CONTENT.skylink)
        first, second = (request.headers for request in portal.requests)
        assert first == second
        assert second["cookie"] == COOKIE
        assert second["x-latin"] == "é"


@pytest.mark.parametrize("code", [307, 308])
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_upload_is_redirected(upload: UploadBody, code: int, elsewhere: bool):
    """C7: 307 and 308 have the whole upload sent again, also to another host that the user has
    named, without the key.
    """
    async with (
        running(FakePortal()) as other,
        talking(redirect_hosts=[other.url.removeprefix("http://")]) as (portal, client),
    ):
        other.add(CONTENT)
        target = other if elsewhere else portal
        portal.fault(fake.redirects(f"{target.url}/svc/skyfile/there", code), times=1)
        assert (await client.send_upload(upload)).skylink == CONTENT.skylink
        first, second = portal.requests[0], target.requests[-1]
        assert second.target == "/svc/skyfile/there"
        assert second.method == "POST"
        assert second.body == first.body
        assert len(second.body) == upload.size
        assert second.headers["content-type"] == upload.headers["Content-Type"]
        assert second.headers["content-length"] == str(upload.size)
        assert ("authorization" in second.headers) is not elsewhere
        assert ("cookie" in second.headers) is not elsewhere


@pytest.mark.parametrize("code", [301, 302, 303])
async def test_upload_becomes_a_get(upload: UploadBody, code: int):
    """301, 302 and 303 have the upload's answer fetched, as curl and requests do."""
    async with talking() as (portal, client):
        answer = b'{"skylink":"%s"}' % CONTENT.name.encode()
        portal.fault(fake.redirects("/result", code), "POST")
        portal.fault(lambda *_: fake.Reply(200, (), answer), "GET")
        assert (await client.send_upload(upload)).skylink == CONTENT.skylink
        asked = portal.requests[-1]
        assert (asked.method, asked.target, asked.body) == ("GET", "/result", b"")
        assert not {"content-length", "content-type", "transfer-encoding"} & set(asked.headers)


async def test_upload_that_cannot_be_read_again():
    """A body that can be read only once cannot follow, and the error says so."""

    async def once() -> AsyncIterator[bytes]:
        yield b"x" * 100

    async with talking() as (portal, client):
        portal.fault(fake.redirects("/there", 307))
        headers = {"Content-Length": "100"}
        opening = client.http.open(POST, headers=headers, content=once())
        with pytest.raises(RequestRefusedError, match="only once") as caught:
            await opening.__aenter__()
        assert caught.value.status == 307
        portal.heal()
        assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata


# --- repetitions


@pytest.mark.parametrize(
    "fault",
    [
        fake.closes_after(-1),
        fake.closes_after(3),
        fake.resets_after(-1),
        fake.resets_after(3),
        SILENT,
        *(fake.status(code) for code in (429, 502, 503, 504)),
    ],
)
async def test_repeated(fault: fake.Fault):
    """What fails on the way, or may be over in a moment, is asked for again, three times."""
    retry = NotingRetry()
    async with talking(retry, timeout=0.5 if fault is SILENT else 5) as (portal, client):
        portal.fault(fault, times=3)
        assert await client.raw_metadata(CONTENT.skylink) == CONTENT.metadata
        assert retry.noted == [(1, None), (2, None), (3, None)]
        portal.heal()
        portal.fault(fault)
        portal.requests.clear()
        with pytest.raises(PortalError) as caught:
            await client.raw_metadata(CONTENT.skylink)
        assert caught.value.attempts == len(portal.requests) == 4


@pytest.mark.parametrize(
    "fault",
    [
        SILENT_LATER,
        fake.excess(b"x" * (20 << 20)),
        fake.header(b"Content-Encoding", b"gzip"),
        fake.redirects("ftp://elsewhere/x"),
        *(fake.status(code) for code in (400, 401, 403, 404, 408, 410, 451, 500, 501, 599)),
    ],
)
async def test_not_repeated(fault: fake.Fault):
    """What would end in the same way is not asked for again."""
    retry = NotingRetry()
    async with talking(retry, timeout=0.3 if fault is SILENT_LATER else 5) as (portal, client):
        portal.fault(fault)
        with pytest.raises(PortalError) as caught:
            await client.http.fetch(GET, 1 << 20)
        assert caught.value.attempts == len(portal.requests) == 1
        assert retry.noted == []


async def test_number_of_repetitions():
    """How often is an option; 0 is never."""
    async with talking(retries=0) as (portal, client), running(FakePortal()) as other:
        portal.fault(fake.status(503))
        with pytest.raises(UnavailableError):
            await client.raw_metadata(CONTENT.skylink)
        assert len(portal.requests) == 1
        other.fault(fake.status(503))
        async with PortalClient(other.url, retries=1) as one:
            one.http.retry = NotingRetry()
            with pytest.raises(UnavailableError):
                await one.raw_metadata(CONTENT.skylink)
        assert len(other.requests) == 2


async def test_nobody_there():
    """A portal that refuses connections is tried again too."""
    async with running(FakePortal()) as portal:
        gone = portal.url
    async with PortalClient(gone) as client:
        client.http.retry = retry = NotingRetry()
        with pytest.raises(UnavailableError) as caught:
            await client.head(CONTENT.skylink)
    assert str(caught.value) == (
        f"{gone[7:]} cannot be reached: Connection refused; is the portal running, and is the port "
        "right?"
    )
    assert len(retry.noted) == 3


@pytest.mark.parametrize("fault", [fake.status(503), fake.resets_after(-1), fake.closes_after(-1)])
async def test_upload_is_not_repeated(fault: fake.Fault, upload: UploadBody):
    """An upload is sent once, and so is any POST that is not marked."""
    retry = NotingRetry()
    async with talking(retry) as (portal, client):
        portal.fault(fault)
        with pytest.raises(PortalError):
            await client.send_upload(upload)
        with pytest.raises(PortalError):
            await client.http.fetch(POST, 1000, content=b"x")
        assert len(portal.requests) == 2
        assert retry.noted == []


async def test_marked_request_is_repeated():
    """A POST that is the same when sent twice is sent again, with its body."""
    async with talking(NotingRetry()) as (portal, client):
        portal.fault(fake.resets_after(-1), times=2)
        await client.http.fetch(REPEATABLE, 1000, content=b"the body")
        assert [request.body for request in portal.requests] == [b"the body"] * 3


async def test_stream_is_repeated_until_its_head():
    """A stream is asked for again until it begins; what breaks afterwards is the reader's."""
    wanted, size = ByteRange(0, 10_000), 10_000
    async with talking(NotingRetry()) as (portal, client):
        portal.fault(fake.status(503), times=2)
        portal.fault(fake.resets_after(5000), times=1)

        async def read() -> bytes:
            return await received(client, CONTENT.skylink, "", wanted, size)

        with pytest.raises(UnavailableError):
            await read()
        assert len(portal.requests) == 3
        assert await read() == CONTENT.payload


async def test_retry_after():
    """A portal says how long to wait; more than a minute is not waited for."""
    retry = NotingRetry()
    busy = fake.error(429, "too many")
    async with talking(retry) as (portal, client):
        for text in (b"0", b"7", b"Thu, 01 Jan 1970 00:00:00 GMT", b"nonsense"):
            portal.fault(lambda *_, text=text: busy.with_header(b"Retry-After", text), times=1)
            await client.raw_metadata(CONTENT.skylink)
            portal.heal()
        assert retry.noted == [(1, 0.0), (1, 7.0), (1, 0.0), (1, None)]
        portal.requests.clear()
        portal.fault(lambda *_: busy.with_header(b"Retry-After", b"61"))
        with pytest.raises(UnavailableError, match="too many") as caught:
            await client.raw_metadata(CONTENT.skylink)
        assert caught.value.status == 429
        assert len(portal.requests) == 1


async def test_busy_connections_are_not_waited_for_twice():
    """Waiting for a connection of our own is bounded by one time-out."""
    retry = NotingRetry()
    async with talking(retry, connections=1, timeout=0.1) as (portal, client):
        async with client.http.open(GET):
            with pytest.raises(PortalTimeoutError, match="busy"):
                await client.raw_metadata(CONTENT.skylink)
        assert len(portal.requests) == 1
        assert retry.noted == []


async def test_status_of_an_error_that_breaks_off():
    """The status of an error is enough: its words need not come."""
    async with talking(timeout=0.2) as (portal, client):
        for end in ("stall", "reset", "close"):
            reply = fake.Reply(403, (), b"x" * 1000, sent=10, length=1000, then=end)
            portal.fault(lambda *_, reply=reply: reply)
            with pytest.raises(AccessDeniedError) as caught:
                await client.raw_metadata(CONTENT.skylink)
            assert caught.value.status == 403
            portal.heal()
        assert len(portal.asked("/metadata/")) == 3


# --- errors and secrets


async def test_what_errors_say():
    """An error has method, address without the query, and status if there was one."""
    request = Request("GET", "/svc/skykey?name=a%20secret%20name")
    async with talking(retries=0) as (portal, client):
        for fault, status in [(fake.status(400), 400), (fake.resets_after(-1), None)]:
            portal.fault(fault)
            with pytest.raises(PortalError) as caught:
                await client.http.fetch(request, 1000)
            error = caught.value
            assert (error.method, error.url) == ("GET", f"{portal.url}/svc/skykey")
            assert error.status == status
            portal.heal()


async def test_no_secret_is_repeated(caplog: pytest.LogCaptureFixture):
    """A portal that sends our headers back does not get them into errors, reprs or logs."""
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    def echo(request: fake.Request, reply: fake.Reply) -> fake.Reply:
        words = " / ".join(request.headers.values()) + f" / {KEY} / {request.target}"
        return fake.error(400, words)

    async with talking() as (portal, client):
        portal.fault(echo)
        with pytest.raises(RequestRefusedError) as caught:
            await client.http.fetch(Request("GET", "/svc/skykey?name=hidden"), 1000)
        seen += [str(caught.value), repr(caught.value)]
        seen += map(repr, (client, client.http, client.node, client.options))
        portal.heal()
        async with client.http.open(GET) as answer:
            seen.append(repr(answer))
    seen += [record.getMessage() for record in caplog.records if record.name == "httpx"]
    for secret in (KEY, basic_credentials(KEY), "secret.token", "another secret", "extra value"):
        assert not any(secret in text for text in seen)


async def test_requests_are_not_logged(caplog: pytest.LogCaptureFixture):
    """httpx logs no address of ours; what a program asks for by itself it still logs."""
    caplog.set_level(logging.INFO, "httpx")
    async with talking() as (portal, client):
        await client.raw_metadata(CONTENT.skylink)
        assert caplog.records == []
        async with httpx.AsyncClient(trust_env=False) as theirs:
            await theirs.get(portal.url + "/x")
        assert len(caplog.records) == 1


async def test_credentials_in_a_redirect():
    """C6: a portal cannot put credentials of its choice in the place of the user's."""
    async with talking() as (portal, client):
        host = portal.url.removeprefix("http://")
        portal.fault(fake.redirects(f"http://admin:admin@{host}{GET.target}?again"), times=1)
        await client.raw_metadata(CONTENT.skylink)
        assert [request.headers["authorization"] for request in portal.requests] == [
            *2 * [basic_credentials(KEY)]
        ]


async def test_redirect_to_no_host():
    """A host whose name cannot be looked up is the portal's fault."""
    async with talking() as (portal, client):
        portal.fault(fake.redirects(f"http://{'a' * 64}.example/"))
        with pytest.raises(BadContentError, match="no host"):
            await client.raw_metadata(CONTENT.skylink)


@pytest.mark.parametrize("call", ["head", "get_metadata", "get_file_content"])
async def test_secret_in_a_header_of_the_answer(call: str):
    """C5: what a portal repeats in a header of its own comes into no error."""
    async with talking(verify="off") as (portal, client):
        portal.fault(fake.header(b"svc-skylink", b"another secret"))
        with pytest.raises(BadContentError) as caught:
            await getattr(client, call)(CONTENT.skylink)
        assert "another secret" not in str(caught.value)
        assert caught.value.status == 200


async def test_closed_under_way():
    """C13: closing ends what is under way or waits its turn, and nothing is opened again for it."""
    async with talking(connections=1, timeout=60) as (portal, client):
        portal.fault(SILENT)
        ended = []

        async def ask() -> None:
            with pytest.raises(UnavailableError) as caught:
                await client.raw_metadata(CONTENT.skylink)
            ended.append(caught.value.attempts)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                nursery.start_soon(ask)
                while not portal.requests:
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked()
                await client.aclose()
        assert ended == [1, 1]
        assert portal.accepted == 1


@pytest.mark.parametrize("read_once", [False, True])
async def test_headers_that_drip_after_an_upload(upload: UploadBody, read_once: bool):
    """The answer to an upload is not awaited for ever, however slowly its headers drip in."""
    async with talking(timeout=0.2, connect_timeout=0.2) as (portal, client):
        portal.fault(lambda *_: fake.Reply(200, endless_header=b"x"), "POST")
        content = aiter(upload) if read_once else upload
        with trio.fail_after(20), pytest.raises(PortalError):
            async with client.http.open(POST, headers=upload.headers, content=content):
                pass


async def test_portal_that_is_not_asked_for_want_of_a_connection():
    """The error tells it from a portal that does not answer."""
    async with talking(timeout=0.2, connections=1, retries=0) as (portal, client):
        async with client.http.open(GET):
            with pytest.raises(PortalTimeoutError, match="every connection is busy") as caught:
                await client.raw_metadata(CONTENT.skylink)
            assert caught.value.is_unsent
            assert len(portal.requests) == 1
        portal.fault(SILENT)
        with pytest.raises(PortalTimeoutError) as caught:
            await client.raw_metadata(CONTENT.skylink)
        assert not caught.value.is_unsent


async def test_proxy_that_is_none(monkeypatch: pytest.MonkeyPatch):
    """C6: an error about the proxy of the environment shows nothing of its password."""
    monkeypatch.setenv("HTTP_PROXY", "http://user:pass/word@proxy.example:80")
    async with PortalClient("http://portal.example", retries=0) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.raw_metadata(CONTENT.skylink)
        assert "pass" not in str(caught.value)
        assert caught.value.__cause__ is None
